#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of check_layers.py: planted wrong includes, cycles and undeclared folders must be found."""

import pathlib
import tempfile
import unittest

import check_layers

LAYERS = """
[components.base]
may_use = []
[components.kv]
may_use = ["base"]
test_may_use = ["net"]
[components.net]
may_use = ["base"]
[components."net/tcp"]
may_use = ["net"]
[libraries]
"spdlog/" = ["base"]
"""


class Layers(unittest.TestCase):
    def findings(self, files, layers=LAYERS):
        with tempfile.TemporaryDirectory() as folder:
            src = pathlib.Path(folder)
            (src / "layers.toml").write_text(layers, encoding="utf-8")
            for name in ("base/a.h", "kv/a.h", "net/a.h", "net/tcp/a.h"):
                files.setdefault(name, "")
            for name, text in files.items():
                (src / name).parent.mkdir(parents=True, exist_ok=True)
                (src / name).write_text(text, encoding="utf-8")
            return list(check_layers.check_tree(src))

    def test_declared_arrows_pass(self):
        self.assertEqual(
            self.findings({"kv/b.cc": '#include "base/a.h"\n#include "kv/a.h"\n#include <vector>\n'}), []
        )

    def test_a_wrong_arrow_is_found_with_its_line(self):
        found = self.findings({"kv/b.cc": '\n#include "net/a.h"\n'})
        self.assertEqual(len(found), 1)
        self.assertIn("src/kv/b.cc:2: kv may not include", found[0])

    def test_nothing_is_inherited(self):
        self.assertEqual(len(self.findings({"net/tcp/b.cc": '#include "base/a.h"\n'})), 1)

    def test_the_longest_folder_owns_a_file(self):
        self.assertEqual(len(self.findings({"net/b.cc": '#include "net/tcp/a.h"\n'})), 1)

    def test_a_test_may_use_more(self):
        self.assertEqual(self.findings({"kv/b_test.cc": '#include "net/a.h"\n'}), [])

    def test_a_missing_file_and_an_undeclared_folder_are_found(self):
        self.assertEqual(len(self.findings({"kv/b.cc": '#include "base/gone.h"\n'})), 1)
        self.assertEqual(len(self.findings({"other/b.cc": ""})), 1)

    def test_a_library_behind_its_own_header_is_found_elsewhere(self):
        self.assertEqual(self.findings({"base/b.cc": "#include <spdlog/spdlog.h>\n"}), [])
        self.assertEqual(len(self.findings({"kv/b.cc": "#include <spdlog/spdlog.h>\n"})), 1)

    def test_a_cycle_and_an_unknown_name_are_found(self):
        cyclic = LAYERS.replace("[components.base]\nmay_use = []", '[components.base]\nmay_use = ["kv"]')
        self.assertTrue(any("cycle" in line for line in self.findings({}, cyclic)))
        unknown = LAYERS.replace('may_use = ["net"]', 'may_use = ["nets"]')
        self.assertTrue(any("no declared component" in line for line in self.findings({}, unknown)))


if __name__ == "__main__":
    unittest.main()
