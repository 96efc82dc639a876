# SPDX-License-Identifier: Apache-2.0
"""What the page about serving says of records that are known."""

import json
import pathlib
import tempfile
import unittest

import serve
import serve_plot

SPREAD = {"count": 2, "mean": 0.2, "p50": 0.1, "p90": 0.25, "p99": 0.3, "max": 0.3}
RUN = {
    "case": "1x: 2 requests/s",
    "valid": True,
    "rate": 2.0,
    "requests": 9,
    "counts": {"ok": 5, "429": 2, "503": 1, "broken": 1},
    "goodput": 1.5,
    "ok_per_s": 1.75,
    "output_tokens_per_s": 20.0,
    "ttft_s": SPREAD,
    "tpot_s": SPREAD,
    "itl_s": None,
    "e2e_s": SPREAD,
    "refusal_s": None,
    "lag_s": SPREAD,
}
VERDICT = {"case": "goodput at 5x", "ratio": 0.5, "reference": "goodput at 1x", "bar": ">= 0.9", "ok": False}


class Page(unittest.TestCase):
    def test_a_row_has_what_was_counted(self):
        text = serve.section("A", "command", [RUN, VERDICT])
        self.assertIn("| 1x: 2 requests/s | 9 | 5 | 2 | 1 | 1 | 1.5 | 1.75 | 20 | 100, 250, 300 |", text)
        self.assertIn("goodput at 5x: 0.50 of goodput at 1x, bar >= 0.9: **missed**.", text)
        head, line, row = [entry for entry in text.splitlines() if entry.startswith("|")]
        self.assertEqual(head.count("|"), line.count("|"))
        self.assertEqual(head.count("|"), row.count("|"))

    def test_a_run_that_is_not_valid_says_so(self):
        self.assertIn("**invalid**", serve.row({**RUN, "valid": False}))


class Plot(unittest.TestCase):
    def test_only_runs_of_a_rate_are_drawn_by_rate(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "runs.jsonl"
            records = [{**RUN, "rate": 4.0}, RUN, {**RUN, "rate": None}, VERDICT]
            path.write_text("\n".join(map(json.dumps, records)))
            runs = serve_plot.runs_of(path)
        self.assertEqual([run["rate"] for run in runs], [2.0, 4.0])
        self.assertEqual(serve_plot.curve(runs, "ttft_s", "p50"), ([2.0, 4.0], [100.0, 100.0]))
        self.assertEqual(serve_plot.curve(runs, "itl_s", "p50"), ([], []))


if __name__ == "__main__":
    unittest.main()
