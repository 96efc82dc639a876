#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/performance.md from the JSON lines of the benches.

Usage: bench/page.py docs/performance.md build/bench/*.jsonl
What stands between the two `hand-written` marks is kept; all else is made anew.
"""

import json
import os
import pathlib
import platform
import sys

BEGIN, END = "<!-- hand-written: begin -->", "<!-- hand-written: end -->"
TITLES = {
    "handoff": "Handoffs between two processes",
    "kv": "Packing, placing and reading back, one thread",
    "plan": "Planning, with the proof and the runs of tokens",
    "ttft": "Time to first token through a pair of workers",
    "peers": "Beside other transfer libraries",
    "conversions": "Re-layouts and conversions beside PyTorch",
    "serving": "Workers beside their engines' own servers",
}
COMMANDS = {
    "handoff": "isthmus bench handoff",
    "kv": "isthmus bench kv",
    "plan": "isthmus bench plan",
    "ttft": "bench/ttft.py",
    "peers": "bench/peers/peers.py",
    "conversions": "bench/peers/conversions.py",
    "serving": "bench/peers/serving.py",
}


def machine():
    model = platform.machine()
    for entry in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if entry.startswith("model name"):
            model = entry.split(":", 1)[1].strip()
            break
    return f"{model}, {os.cpu_count()} processors, Linux {platform.release()}"


def figure(value):
    return "" if value is None else f"{value:.3g}"


def verdict(record):
    if record["ok"] is None:
        reference = record["reference"] or ""
        return "not run" if reference.startswith("not run") else ""
    return "ok" if record["ok"] else "**missed**"


def row(record):
    spread = "" if record["min"] is None else f"{figure(record['min'])} – {figure(record['max'])}"
    cells = [
        record["case"],
        figure(record["value"]),
        spread,
        record["unit"],
        record["reference"] or "",
        figure(record["reference_value"]),
        figure(record["ratio"]),
        record["bar"] or "",
        verdict(record),
    ]
    return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"


def table(bench, records):
    lines = [f"## {TITLES.get(bench, bench)}", "", f"`{COMMANDS.get(bench, 'isthmus bench ' + bench)}`", ""]
    lines.append("| case | median | min – max | unit | reference | its median | ratio | bar | |")
    lines.append("|---|---|---|---|---|---|---|---|---|")
    return "\n".join(lines + [row(record) for record in records]) + "\n"


def kept(page):
    if page.exists():
        text = page.read_text()
        if BEGIN in text and END in text:
            return text[text.index(BEGIN) : text.index(END) + len(END)]
    return f"{BEGIN}\n{END}"


def render(records, hand_written):
    benches = {}
    for record in records:
        benches.setdefault(record["bench"], []).append(record)
    parts = [
        "# Performance\n",
        f"Made by `make bench` on: {machine()}.\n"
        "Every ratio is of medians within one run, value and reference taken in turns.\n"
        "A handoff's time runs from the consumer's fetch(), on its loop's thread, to its owning the state,\n"
        "digests and read-back inside; *busy* is the share of that time that a stage kept a processor busy.\n"
        "What could not be measured here says *not run*.\n",
    ]
    parts += [table(bench, of) for bench, of in benches.items()]
    parts.append(hand_written + "\n")
    return "\n".join(parts)


def main():
    page = pathlib.Path(sys.argv[1])
    records = [
        json.loads(entry)
        for path in sys.argv[2:]
        for entry in pathlib.Path(path).read_text().splitlines()
        if entry.startswith("{")
    ]
    page.write_text(render(records, kept(page)))
    print(f"page: {len(records)} records in {page}")


if __name__ == "__main__":
    main()
