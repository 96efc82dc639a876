#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of run_tests.py: nothing that failed, died or did not run may count as passed."""

import contextlib
import io
import pathlib
import tempfile
import unittest

import run_tests


class Counting(unittest.TestCase):
    def count(self, junit, reports):
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            root = pathlib.Path(folder)
            (root / "ctest.junit").write_text(f"<testsuite>{junit}</testsuite>", encoding="utf-8")
            for name, text in reports.items():
                (root / f"{name}.xml").write_text(f"<testsuites>{text}</testsuites>", encoding="utf-8")
            count = run_tests.count_binaries(root / "ctest.junit", root)
            self.failures = count.failures
            return count.passed, count.failed, count.skipped

    def test_cases_are_counted_one_by_one(self):
        cases = (
            '<testcase status="run"/><testcase status="run"><failure/></testcase><testcase status="notrun"/>'
        )
        self.assertEqual(self.count('<testcase name="kv_test" status="run"/>', {"kv_test": cases}), (1, 1, 1))

    def test_a_binary_that_died_is_a_failure_though_its_cases_passed(self):
        self.assertEqual(
            self.count('<testcase name="kv_test" status="fail"/>', {"kv_test": "<testcase/>"}), (1, 1, 0)
        )
        self.assertEqual(self.count('<testcase name="kv_test" status="fail"/>', {}), (0, 1, 0))

    def test_a_failure_says_which_case_and_why(self):
        case = (
            '<testcase name="Bar" classname="Crossing" status="run">'
            '<failure message="ratio 1.7, at most 1.5">seen at here</failure></testcase>'
        )
        self.count('<testcase name="kl_test" status="fail"/>', {"kl_test": case})
        self.assertEqual(self.failures, ["Crossing/Bar\n      ratio 1.7, at most 1.5\n      seen at here"])
        self.count('<testcase name="kl_test" status="fail"/>', {})
        self.assertEqual(self.failures, ["kl_test did not end well"])

    def test_a_program_without_cases_counts_once(self):
        self.assertEqual(self.count('<testcase name="smoke" status="run"/>', {}), (1, 0, 0))

    def test_skipped_cases_of_googletest_are_no_passes(self):
        cases = '<testcase status="run" result="skipped"><skipped message="no model"/></testcase>'
        self.assertEqual(self.count('<testcase name="a_test" status="run"/>', {"a_test": cases}), (0, 0, 1))


if __name__ == "__main__":
    unittest.main()
