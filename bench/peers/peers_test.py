# SPDX-License-Identifier: Apache-2.0
"""A peer that can't be measured is "not run", and its processes are gone."""

import argparse
import sys
import unittest

import peers

ARGUMENTS = argparse.Namespace(program="/bin/false", runs=1, size=1)


class Peers(unittest.TestCase):
    def test_the_bar_is_judged_on_medians(self):
        self.assertTrue(peers.line("x", [3.0, 1.0, 2.0], [1.0], "x 1")["ok"])
        self.assertIs(peers.line("x", [1.4], [1.0], "x 1")["ok"], False)

    def test_what_was_not_run_is_neither_ok_nor_missed(self):
        record = peers.line("x", [], [], "", "no queue")
        self.assertIsNone(record["ok"])
        self.assertIsNone(record["value"])
        self.assertEqual(record["reference"], "not run: no queue")

    def test_a_peer_that_cannot_be_imported_is_not_run(self):
        # The reason is what its process met, not that it ended.
        for case in range(len(peers.CASES)):
            self.assertIn("No module named", peers.run_case(sys.executable, ARGUMENTS, case)["reference"])

    def test_a_peer_that_does_not_end_is_not_run(self):
        seconds, peers.CASE_SECONDS = peers.CASE_SECONDS, 0.01
        try:
            self.assertIn("no figures within", peers.run_case(sys.executable, ARGUMENTS, 0)["reference"])
        finally:
            peers.CASE_SECONDS = seconds


if __name__ == "__main__":
    unittest.main()
