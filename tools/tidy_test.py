#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of tidy.py and of its scanner: each rule must find what is planted for it, and nothing in clean code."""

import pathlib
import tempfile
import unittest

import cpp_scan
import tidy

HEAD = "// SPDX-License-Identifier: Apache-2.0\n// A planted file.\n"
CLEAN = HEAD + """
namespace isthmus::kv {
namespace {
constexpr int kTable[] = {1, 2, 3};
}  // namespace
Foo::Foo(int size, std::string name) : size_{size}, name_(std::move(name)) {
  for (int i = 0; i < size; ++i) {
    if (i == 3) { run([&](int x) { return x + 1; }); }
  }
}
// throw, new and sleep_for in a comment are harmless; so are "throw" and 'x' in literals.
const char* text() { return "throw { new"; }
void operator()() const = delete;
}  // namespace isthmus::kv
"""


def rules(name, text):
    return [rule for _, rule, _ in tidy.check_file(name, text)]


class Scanner(unittest.TestCase):
    def scan(self, text):
        return cpp_scan.functions(cpp_scan.blank_comments_and_strings(text))

    def test_a_constructor_with_brace_initialisers_is_one_function(self):
        found = self.scan(
            "struct A {\n  A(int x, int y)\n      : x_{x},\n        y_{y} {\n    f();\n  }\n  int x_;\n};\n"
        )
        self.assertEqual([(f.name, f.line, f.lines, f.parameters) for f in found], [("A", 2, 5, 2)])

    def test_lines_count_from_the_header_to_the_closing_brace(self):
        body = "  f();\n" * 10
        found = self.scan("namespace a {\nint g(int x,\n      int y) {\n" + body + "}\n}\n")
        self.assertEqual([(f.line, f.lines) for f in found], [(2, 13)])

    def test_a_test_body_is_a_function(self):
        self.assertEqual(self.scan("TEST(Suite, Fact) {\n  f();\n}\n")[0].lines, 3)

    def test_a_lambda_at_namespace_level_is_a_function(self):
        self.assertEqual(self.scan("const auto f = [](int x) {\n  return x;\n};\n")[0].lines, 3)

    def test_nesting_counts_control_blocks_only(self):
        found = self.scan(
            "void f() {\n if (a) {\n  for (;;) {\n   auto g = [&] { X y{1}; };\n  }\n } else { }\n}\n"
        )
        self.assertEqual(found[0].nesting, 2)

    def test_a_class_body_is_no_function(self):
        self.assertEqual(
            self.scan("class A : public B {\n public:\n  int x = 0;\n};\nenum class E { kA, kB };\n"), []
        )

    def test_parameters_with_commas_inside_templates_count_once(self):
        found = self.scan("void f(std::map<int, int> a, std::array<int, 3> b = {1, 2, 3}) {}\n")
        self.assertEqual(found[0].parameters, 2)

    def test_raw_strings_hide_their_braces(self):
        self.assertEqual(len(self.scan('void f() { g(R"({"a": {)"); }\nvoid h() {}\n')), 2)


class Rules(unittest.TestCase):
    def test_clean_code_has_no_findings(self):
        self.assertEqual(rules("src/kv/a.cc", CLEAN), [])

    def test_an_over_long_function_is_found(self):
        body = "  f();\n" * 69
        self.assertEqual(rules("src/kv/a.cc", HEAD + "void g() {\n" + body + "}\n"), ["function_lines"])
        self.assertEqual(rules("src/kv/a.cc", HEAD + "void g() {\n" + body[:-7] + "}\n"), [])

    def test_an_over_long_file_is_found(self):
        text = HEAD + "int x;\n" * 799
        self.assertEqual(rules("src/kv/a.cc", text), ["file_lines"])
        self.assertEqual(rules("src/kv/a_test.cc", text), [])

    def test_too_many_parameters_and_too_deep_nesting_are_found(self):
        self.assertEqual(
            rules("src/kv/a.cc", HEAD + "void f(int a, int b, int c, int d, int e, int g, int h) {}\n"),
            ["parameters"],
        )
        deep = "void f() {" + " if (a) {" * 5 + "}" * 5 + "}\n"
        self.assertEqual(rules("src/kv/a.cc", HEAD + deep), ["nesting"])

    def test_each_banned_name_is_found_in_source_and_where_it_is_allowed_is_not(self):
        for code, rule in [
            ("void f() { throw 1; }", "throw"),
            ("auto t = std::chrono::steady_clock::now();", "clock"),
            ("std::random_device r;", "random"),
            ('auto e = std::getenv("X");', "getenv"),
            ("void f() { std::this_thread::sleep_for(1s); }", "sleep"),
            ("void f() { std::cout << 1; }", "print"),
            ("auto p = new int;", "new"),
            ("void f() { delete p; }", "delete"),
            ("auto p = reinterpret_cast<char*>(q);", "reinterpret_cast"),
            ("std::regex r;", "regex"),
            ("class BlockManager;", "name"),
            ("#ifdef FAST", "ifdef"),
        ]:
            self.assertEqual(rules("src/kv/a.cc", HEAD + code + "\n"), [rule], code)
        self.assertEqual(
            rules("src/base/clock.cc", HEAD + "auto t = std::chrono::steady_clock::now();\n"), []
        )
        self.assertEqual(rules("src/kv/a_test.cc", HEAD + 'auto e = std::getenv("X");\n'), [])
        self.assertEqual(rules("src/kv/a_test.cc", HEAD + "void f() { sleep_for(1); }\n"), ["sleep"])
        self.assertEqual(rules("src/kv/a.cc", HEAD + "std::unique_ptr<A> a(new A());\n"), [])

    def test_licence_purpose_columns_and_marks_are_found(self):
        self.assertEqual(rules("src/kv/a.cc", "// A file.\n// Text.\n"), ["spdx"])
        self.assertEqual(rules("src/kv/a.h", HEAD), ["pragma_once"])
        self.assertEqual(rules("src/kv/a.cc", HEAD.replace("// A planted file.\n", "\n")), ["purpose"])
        self.assertEqual(rules("src/kv/a.cc", HEAD + "// " + "x" * 108 + "\n"), ["columns"])
        self.assertEqual(rules("src/kv/a.cc", HEAD + "// FIXME later\n"), ["fixme"])
        self.assertEqual(rules("src/kv/a.cc", HEAD + "// TODO: later\n"), ["todo"])
        self.assertEqual(rules("src/kv/a.cc", HEAD + "// TODO(perf): later\n"), [])
        self.assertEqual(rules("tools/a.sh", "#!/bin/sh\n# Text.\n"), ["spdx"])
        self.assertEqual(rules("src/kv/kv_util.cc", HEAD), ["name"])


class Exceptions(unittest.TestCase):
    def findings(self, exceptions):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "src").mkdir()
            (root / "src/a.cc").write_text(HEAD + "auto p = new int;\n", encoding="utf-8")
            return list(tidy.check_tree(root, [root], exceptions))

    def test_an_exception_excuses_its_rule_in_its_file(self):
        self.assertEqual(len(self.findings([])), 1)
        self.assertEqual(
            self.findings([{"path": "src/a.cc", "rule": "new", "reason": "an engine takes it"}]), []
        )

    def test_an_exception_needs_a_reason_and_a_use(self):
        self.assertEqual(len(self.findings([{"path": "src/a.cc", "rule": "new"}])), 1)
        self.assertEqual(len(self.findings([{"path": "src/b.cc", "rule": "new", "reason": "none"}])), 2)


if __name__ == "__main__":
    unittest.main()
