#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws runs of `isthmus bench serve --json`: latency by rate, goodput by rate, and when first tokens came.

Usage: bench/serve_plot.py OUT.svg RUNS.jsonl [MORE.jsonl ...]
One row of panels for each file, named by it. The suffix chooses the format: .svg, .png, .pdf.
Needs matplotlib: pip install --require-hashes -r bench/requirements.txt
"""

import json
import pathlib
import sys

PERCENTILES = ("p50", "p90", "p99")
INCH_WIDE, INCH_HIGH = 15, 4.2


def runs_of(path):
    """The runs in open loop, by rate; those of a search for the capacity and verdicts are left out."""
    records = [
        json.loads(line) for line in pathlib.Path(path).read_text().splitlines() if line.startswith("{")
    ]
    runs = [record for record in records if record.get("rate")]
    if not runs:
        raise SystemExit(f"{path} holds no run of a rate: isthmus bench serve --rates … --json > {path}")
    return sorted(runs, key=lambda run: run["rate"])


def curve(runs, metric, percentile):
    """Rates and milliseconds of the runs that have that figure."""
    pairs = [(run["rate"], run[metric][percentile] * 1e3) for run in runs if run[metric]]
    return [rate for rate, _ in pairs], [value for _, value in pairs]


def draw_latency(axes, runs):
    for metric, colour, name in (("ttft_s", "tab:blue", "TTFT"), ("tpot_s", "tab:orange", "TPOT")):
        for percentile, line in zip(PERCENTILES, ("-", "--", ":"), strict=True):
            rates, values = curve(runs, metric, percentile)
            axes.plot(rates, values, line, color=colour, marker=".", label=f"{name} {percentile}")
        limit = runs[0]["slo_s"][metric.removesuffix("_s")]
        if limit:
            axes.axhline(limit * 1e3, color=colour, linewidth=0.8, alpha=0.5, label=f"{name} SLO")
    axes.set(xlabel="offered, requests/s", ylabel="ms", yscale="log", title="Latency of whole answers")
    axes.legend(fontsize="small", ncols=2)


def draw_goodput(axes, runs):
    rates = [run["rate"] for run in runs]
    top = max(run["ok_per_s"] for run in runs)
    axes.plot([0, top], [0, top], color="grey", linewidth=0.8, label="all that is offered")
    axes.plot(rates, [run["ok_per_s"] for run in runs], marker=".", color="tab:grey", label="whole answers")
    axes.plot(rates, [run["goodput"] for run in runs], marker="o", color="tab:green", label="goodput")
    for run in runs:
        if not run["valid"]:
            axes.annotate("invalid", (run["rate"], run["goodput"]), color="tab:red")
    axes.set(xlabel="offered, requests/s", ylabel="answers/s", title="Served, and served within the SLO")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize="small")


def draw_first_tokens(axes, runs):
    for run in runs:
        values = [value * 1e3 for value in run["ttft_quantiles_s"]]
        share = [i / (len(values) - 1) for i in range(len(values))]
        axes.plot(values, share, drawstyle="steps-post", label=run["case"])
    limit = runs[0]["slo_s"]["ttft"]
    if limit:
        axes.axvline(limit * 1e3, color="grey", linewidth=0.8, label="SLO")
    axes.set(
        xlabel="TTFT, ms", ylabel="share of whole answers", xscale="log", title="First tokens that have come"
    )
    axes.set_ylim(0, 1)
    axes.legend(fontsize="small")


def draw(out, files):
    import matplotlib as mpl  # Here, so that reading the runs needs nothing.

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "isthmus"  # The same runs give the same bytes.
    import matplotlib.pyplot as plt

    all_runs = [runs_of(path) for path in files]
    figure, grid = plt.subplots(
        len(files), 3, figsize=(INCH_WIDE, INCH_HIGH * len(files)), squeeze=False, layout="constrained"
    )
    for path, runs, row in zip(files, all_runs, grid, strict=True):
        for axes, panel in zip(row, (draw_latency, draw_goodput, draw_first_tokens), strict=True):
            panel(axes, runs)
            axes.grid(alpha=0.3)
        row[0].annotate(
            pathlib.Path(path).stem, (0, 1.12), xycoords="axes fraction", fontsize="large", fontweight="bold"
        )
    metadata = {"Date": None} if pathlib.Path(out).suffix == ".svg" else None
    figure.savefig(out, metadata=metadata)


def main():
    if len(sys.argv) < 3 or sys.argv[1].startswith("-"):
        raise SystemExit(__doc__)
    draw(sys.argv[1], sys.argv[2:])


if __name__ == "__main__":
    main()
