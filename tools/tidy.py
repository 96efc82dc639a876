#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""House rules that clang-format and clang-tidy don't know: sizes, banned names, licence lines, columns.

Usage: tools/tidy.py [path...]     (default: the whole repository)
Exceptions live in tools/tidy_allow.toml, each with its reason; one that no longer excuses anything is a finding.
"""

import argparse
import pathlib
import re
import sys
import tomllib

import cpp_scan

FUNCTION_LINES_MAX = 70
PARAMETERS_MAX = 6
NESTING_MAX = 4
COLUMNS_MAX = 110
SPDX = "SPDX-License-Identifier: Apache-2.0"
CPP_SUFFIXES = {".h", ".cc"}
LICENSED_SUFFIXES = {".h", ".cc", ".py", ".sh", ".cmake", ".proto", ".toml", ".yaml", ".yml"}
SKIPPED_FOLDERS = {".git", "build", "third_party", "__pycache__", ".cache", ".pytest_cache"}

# (rule, pattern in code without comments and strings, what to do instead, where it is allowed, banned in tests too)
BANNED = [
    ("throw", r"\bthrow\b", "return an Error (base/status.h)", (), False),
    (
        "clock",
        r"\b(steady_clock|system_clock|high_resolution_clock)::now\b",
        "take a Clock or `now` from the caller (base/clock.h)",
        ("src/base/clock.",),
        False,
    ),
    (
        "random",
        r"\brandom_device\b|\bs?rand\s*\(",
        "take an Rng from the caller (base/rng.h)",
        ("src/base/rng.",),
        False,
    ),
    ("getenv", r"\bgetenv\b", "pass the setting in from the command line", (), False),
    (
        "sleep",
        r"\b(sleep_for|sleep_until|usleep|nanosleep)\b|(?<![\w.>])sleep\s*\(",
        "wait on a timer or a condition",
        (),
        True,
    ),
    (
        "print",
        r"\bstd::(cout|cerr|clog)\b|\b(printf|puts|fprintf)\s*\(",
        "use base/log.h, or cli's print file",
        ("src/base/check.cc", "src/cli/print.", "apps/"),
        False,
    ),
    (
        "new",
        r"(?<!operator )\bnew\b",
        "use std::make_unique, a container, or unique_ptr<T>(new T)",
        (),
        False,
    ),
    ("delete", r"(?<!= )(?<!operator )\bdelete\b", "let an owner free it", (), False),
    (
        "reinterpret_cast",
        r"\breinterpret_cast\b",
        "use the views of base/bytes.h",
        ("src/base/bytes.h",),
        False,
    ),
    ("regex", r"\bstd::regex\b|#\s*include\s*<regex>", "write a small parser", (), True),
    (
        "name",
        r"\b(class|struct|namespace)\s+\w*(Manager|Helper|Util|Common|Impl|manager|helper|util|common|impl)s?\b",
        "name it for what it does",
        (),
        True,
    ),
]
CONDITIONAL_ALLOWED = ("src/device/", "src/transport/", "src/transform/kernels")
TEXT_BANNED = [
    ("fixme", re.compile(r"\b(FIXME|XXX)\b"), "fix it, or write TODO(perf|port|test|soon): with a reason"),
    ("todo", re.compile(r"\bTODO\b(?!\((perf|port|test|soon)\): )"), "write TODO(perf|port|test|soon): what"),
]
FILE_NAME_BANNED = re.compile(r"(^|_)(manager|helper|helpers|util|utils|common|impl)(_|\.|$)")


def lines_max(name):
    if name.endswith(".h"):
        return 400
    return 1000 if name.endswith("_test.cc") else 800


def check_licence(name, lines):
    head = lines[:2] if lines and lines[0].startswith("#!") else lines[:1]
    if not any(SPDX in line for line in head):
        yield 1, "spdx", f"the first line must hold {SPDX}"


def check_text(name, lines):
    for number, line in enumerate(lines, 1):
        if len(line) > COLUMNS_MAX and "://" not in line:
            yield number, "columns", f"{len(line)} columns; at most {COLUMNS_MAX}"
        for rule, pattern, instead in TEXT_BANNED:
            if pattern.search(line):
                yield number, rule, instead


def check_banned(name, code, is_test):
    in_src = name.startswith(("src/", "apps/"))
    for rule, pattern, instead, allowed, in_tests in BANNED:
        if not in_src or name.startswith(allowed) or (is_test and not in_tests):
            continue
        for match in re.finditer(pattern, code):
            if rule == "new" and "unique_ptr<" in code[code.rfind("\n", 0, match.start()) : match.start()]:
                continue  # A private constructor is out of std::make_unique's reach.
            yield code.count("\n", 0, match.start()) + 1, rule, f"`{match[0].strip()}` is banned: {instead}"
    if in_src and not name.startswith(CONDITIONAL_ALLOWED):
        for match in re.finditer(r"^[ \t]*#[ \t]*if(def|ndef)?\b", code, re.M):
            yield code.count(
                "\n", 0, match.start()
            ) + 1, "ifdef", "variants are folders, not #if in shared code"


def check_sizes(name, lines, code):
    if len(lines) > lines_max(name):
        yield 1, "file_lines", f"{len(lines)} lines; at most {lines_max(name)}"
    for function in cpp_scan.functions(code):
        if function.lines > FUNCTION_LINES_MAX:
            yield (
                function.line,
                "function_lines",
                f"{function.name}: {function.lines} lines; at most {FUNCTION_LINES_MAX}",
            )
        if function.parameters > PARAMETERS_MAX:
            yield (
                function.line,
                "parameters",
                f"{function.name}: {function.parameters} parameters; at most {PARAMETERS_MAX}",
            )
        if function.nesting > NESTING_MAX:
            yield function.line, "nesting", f"{function.name}: nested {function.nesting} deep; at most {NESTING_MAX}"


def check_cpp(name, text, lines):
    code = cpp_scan.blank_comments_and_strings(text)
    is_test = name.endswith("_test.cc") or name.startswith("tests/")
    # Highway includes its -inl.h headers once per instruction set; they guard themselves.
    if name.endswith(".h") and not name.endswith("-inl.h") and "#pragma once" not in lines:
        yield 1, "pragma_once", "a header needs #pragma once"
    # A test's name says what it is for.
    if not name.endswith("_test.cc") and (len(lines) < 2 or not lines[1].startswith("//")):
        yield 2, "purpose", "the second line says in a comment what the file is for"
    yield from check_banned(name, code, is_test)
    yield from check_sizes(name, lines, code)


def check_file(name, text):
    """Findings for one file as (line, rule, message). `name` is the path from the repository's root."""
    lines = text.splitlines()
    base = name.rsplit("/", 1)[-1]
    suffix = pathlib.PurePath(base).suffix
    if suffix in LICENSED_SUFFIXES or base in ("Makefile", "CMakeLists.txt"):
        yield from check_licence(name, lines)
    if suffix not in (".md", ".txt") or base == "CMakeLists.txt":
        yield from check_text(name, lines)
    if suffix in CPP_SUFFIXES:
        if FILE_NAME_BANNED.search(base):
            yield 1, "name", f"{base}: name the file for what it does"
        yield from check_cpp(name, text, lines)


def text_files(root, paths):
    known = LICENSED_SUFFIXES | {".txt", ".md", ".json"}
    for start in paths:
        candidates = sorted(start.rglob("*")) if start.is_dir() else [start]
        for path in candidates:
            inside = path.relative_to(root)
            if path.is_file() and not SKIPPED_FOLDERS & set(inside.parts):
                if path.suffix in known or path.name == "Makefile":
                    yield inside.as_posix(), path


def check_tree(root, paths, exceptions):
    """All findings as lines of text; `exceptions` are the entries of tidy_allow.toml."""
    used = set()
    whole = paths == [root]
    for name, path in text_files(root, paths):
        # The rules themselves, and tests of them, name what is banned.
        if name.startswith("tools/") and path.suffix == ".py":
            continue
        for line, rule, message in check_file(name, path.read_text(encoding="utf-8")):
            excuses = [
                i for i, entry in enumerate(exceptions) if entry["path"] == name and entry["rule"] == rule
            ]
            used.update(excuses)
            if not excuses:
                yield f"{name}:{line}: {rule}: {message}"
    for index, entry in enumerate(exceptions):
        if not entry.get("reason"):
            yield f"tools/tidy_allow.toml: {entry['path']} {entry['rule']} gives no reason"
        if whole and index not in used:
            yield f"tools/tidy_allow.toml: {entry['path']} {entry['rule']} excuses nothing; remove it"


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="*", type=pathlib.Path)
    paths = [path.resolve() for path in parser.parse_args().paths] or [root]
    exceptions = tomllib.loads((root / "tools/tidy_allow.toml").read_text(encoding="utf-8")).get("allow", [])
    findings = list(check_tree(root, paths, exceptions))
    for finding in findings:
        print(finding)
    print(f"tidy: {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
