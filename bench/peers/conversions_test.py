# SPDX-License-Identifier: Apache-2.0
"""The bar is judged on medians; what can't be had is "not run"."""

import contextlib
import io
import json
import unittest

import conversions


class Conversions(unittest.TestCase):
    def test_the_bar_is_judged_on_medians(self):
        self.assertIs(conversions.line("x", 3.0, [9.0, 2.0, 3.0], [1.0], "y")["ok"], True)
        self.assertIs(conversions.line("x", 3.0, [9.0, 2.9, 2.0], [1.0], "y")["ok"], False)

    def test_what_cannot_be_had_is_not_run_in_every_case(self):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            conversions.not_run("no such library")
        records = [json.loads(entry) for entry in out.getvalue().splitlines()]
        self.assertEqual([record["case"] for record in records], [case for case, _, _ in conversions.CASES])
        self.assertEqual({record["reference"] for record in records}, {"not run: no such library"})
        self.assertEqual({record["ok"] for record in records}, {None})


if __name__ == "__main__":
    unittest.main()
