# SPDX-License-Identifier: Apache-2.0
"""What a line of the ttft bench says, and how its bar is judged."""

import unittest

import ttft

PAIR = ("a:f16", "b:u8")


class Line(unittest.TestCase):
    def test_the_bar_is_prefill_alone_with_floor_and_allowance(self):
        record = ttft.line(PAIR, [110.0, 111.0, 112.0], [95.0, 100.0, 105.0], 3.0)
        self.assertEqual(record["reference_value"], 113.0)
        self.assertTrue(record["ok"])
        self.assertEqual((record["runs"], record["min"], record["max"]), (3, 110.0, 112.0))

    def test_a_pair_that_is_later_misses(self):
        self.assertIs(ttft.line(PAIR, [114.0], [100.0], 3.0)["ok"], False)

    def test_a_failure_is_never_ok_and_has_no_value(self):
        record = ttft.line(PAIR, [], [], 0, "it ended")
        self.assertIs(record["ok"], False)
        self.assertIsNone(record["value"])
        self.assertEqual(record["reference"], "failed: it ended")

    def test_a_pair_that_cannot_start_is_a_failure(self):
        with self.assertRaises(ttft.Failure):
            ttft.Up("/bin/true", "a", "b")


if __name__ == "__main__":
    unittest.main()
