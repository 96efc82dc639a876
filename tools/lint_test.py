#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of lint: which files of a compilation database are looked at."""

import json
import pathlib
import tempfile
import unittest
from unittest import mock

import lint


class Sources(unittest.TestCase):
    def test_only_this_projects_own(self):
        own, fetched, made = "src/a.cc", "third_party/engine/b.cc", "build/release/c.cc"
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            build = root / "build/release"
            build.mkdir(parents=True)
            (root / ".clang-tidy").write_text("Checks: '*'")
            entries = []
            for name in (own, fetched, made):
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text("int x;")
                entries.append({"file": str(root / name), "command": f"c++ -o {name}.o -c {name}"})
            (build / "compile_commands.json").write_text(json.dumps(entries))
            with (
                mock.patch.object(lint, "ROOT", root),
                mock.patch.object(lint, "object_dependencies", return_value={}),
            ):
                found = [file for file, _ in lint.sources_to_lint(build, root / "cache")]
            self.assertEqual(found, [root / own])


if __name__ == "__main__":
    unittest.main()
