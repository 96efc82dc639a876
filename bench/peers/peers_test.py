# SPDX-License-Identifier: Apache-2.0
"""A peer that can't be measured is "not run", and its processes are gone."""

import argparse
import pathlib
import subprocess
import sys
import tempfile
import unittest

import peers

# Stands for the program: 1 GB/s if the process that asks is at a halt (state T), else 2.
LOOKS_AT_ITS_ASKER = """#!/bin/sh
state=$(cut -d' ' -f3 "/proc/$ASKER/stat")
[ "$state" = T ] && echo '{"value": 1}' || echo '{"value": 2}'
"""
ASKS = "import os, peers, sys; os.environ['ASKER'] = str(os.getpid()); print(peers.own_rate(sys.argv[1], 1))"

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

    def test_the_peer_stands_still_while_the_own_case_runs(self):
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder) / "program"
            program.write_text(LOOKS_AT_ITS_ASKER)
            program.chmod(0o755)
            # In a session of its own: its process group is what is stopped.
            ran = subprocess.run(
                [sys.executable, "-c", ASKS, program],
                cwd=pathlib.Path(__file__).parent,
                start_new_session=True,
                capture_output=True,
                text=True,
                check=True,
                timeout=60,
            )
        self.assertEqual(ran.stdout.strip(), "1")

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
