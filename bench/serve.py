#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A worker and a pair under load, written to docs/serving.md with a picture beside it.

Usage: bench/serve.py build/release/isthmus docs/serving.md --model FILE [--duration 30] [--server worker]
Each server is started, measured by `isthmus bench serve --overload` and stopped. Records stay in
build/bench/serve-*.jsonl and are shown until they are measured again; what stands between the two
`hand-written` marks of the page is kept.
"""

import argparse
import json
import pathlib
import subprocess
import sys

import page
import serve_plot
import ttft

LENGTHS = ["--prompt-tokens", "lognormal:32,0.5", "--output-tokens", "uniform:4-12"]
SLO = "ttft=3s,tpot=500ms"
QUEUE_WAIT = ["--queue-wait", "1"]
SERVERS = {
    "worker": ("One worker, llamacpp:f16", ["worker", "--engine", "llamacpp", "--kv", "f16"]),
    "pair": ("A pair, llamacpp:f16 > openvino:u8", ["up"]),
}
COLUMNS = (
    "load | sent | ok | 429 | 503 | other | goodput /s | ok /s | tokens /s | TTFT p50, p90, p99 ms | "
    "TPOT p50, p99 ms | ITL p99 ms | whole p99 ms | refused p99 ms | lag p99 ms"
)


def figures(spread, *names):
    return "" if not spread else ", ".join(f"{spread[name] * 1e3:.4g}" for name in names)


def row(run):
    counts = run["counts"]
    other = run["requests"] - counts["ok"] - counts["429"] - counts["503"]
    cells = [
        run["case"] + ("" if run["valid"] else " **invalid**"),
        *map(str, (run["requests"], counts["ok"], counts["429"], counts["503"], other)),
        f"{run['goodput']:.3g}",
        f"{run['ok_per_s']:.3g}",
        f"{run['output_tokens_per_s']:.4g}",
        figures(run["ttft_s"], "p50", "p90", "p99"),
        figures(run["tpot_s"], "p50", "p99"),
        *(figures(run[key], "p99") for key in ("itl_s", "e2e_s", "refusal_s", "lag_s")),
    ]
    return "| " + " | ".join(cells) + " |"


def section(title, command, records):
    lines = [f"## {title}", "", f"`{command}`", "", f"| {COLUMNS} |", "|---" * (COLUMNS.count("|") + 1) + "|"]
    lines += [row(record) for record in records if "counts" in record]
    for record in records:
        if "counts" not in record:
            word = "ok" if record["ok"] else "**missed**"
            ratio = f"{record['ratio']:.2f} of {record['reference']}"
            lines += ["", f"{record['case']}: {ratio}, bar {record['bar']}: {word}."]
    return "\n".join(lines) + "\n"


class Worker:
    """A server of `arguments`; its address, until it is closed."""

    def __init__(self, program, arguments):
        self.popen = subprocess.Popen(
            [program, *arguments, "--listen", "127.0.0.1:0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        words = self.popen.stdout.readline().split()
        if words[:1] != ["ready"]:
            self.popen.kill()
            raise ttft.Failure(f"{arguments[0]} isn't ready")
        self.url = words[1]

    def close(self):
        self.popen.terminate()
        self.popen.wait(60)


def load(duration):
    return ["--overload", "--duration", f"{duration:g}", "--slo", SLO, *LENGTHS]


def measure(program, model, duration, arguments):
    """The records of one server, one a line."""
    server = Worker(program, [*arguments, "--model", model, *QUEUE_WAIT])
    try:
        command = [program, "bench", "serve", "--url", server.url, "--json", *load(duration)]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    finally:
        server.close()


def render(where, files):
    """The page of the records that are there."""
    parts = []
    for name, file in files.items():
        title, server = SERVERS[name]
        records = [json.loads(line) for line in file.read_text().splitlines()]
        duration = max(record.get("window_s", 0) for record in records)
        command = f"isthmus {' '.join([*server, *QUEUE_WAIT])}"
        parts.append(
            section(title, f"{command}; isthmus bench serve --url URL {' '.join(load(duration))}", records)
        )
    picture = where.with_suffix(".svg")
    serve_plot.draw(picture, list(files.values()))
    head = (
        "# Serving under load\n\n"
        f"Made by bench/serve.py (`make serving`) on: {page.machine()}.\n"
        "Requests arrive as a Poisson process; times count from when a request was due. Server and\n"
        f"generator share the machine. Goodput counts whole answers within {SLO}.\n\n"
        f"![latencies, goodput and first tokens by rate]({picture.name})\n"
    )
    where.write_text("\n".join([head, *parts, page.kept(where) + "\n"]))


def main():
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("program")
    parser.add_argument("page", type=pathlib.Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--duration", type=float, default=30)
    parser.add_argument("--server", choices=SERVERS, action="append", help="measure this one only")
    arguments = parser.parse_args()
    folder = pathlib.Path("build/bench")
    folder.mkdir(parents=True, exist_ok=True)
    files = {name: folder / f"serve-{name}.jsonl" for name in SERVERS}
    for name in arguments.server or SERVERS:
        title, server = SERVERS[name]
        print(f"serve: {title}", file=sys.stderr)
        files[name].write_text(measure(arguments.program, arguments.model, arguments.duration, server))
    render(arguments.page, {name: file for name, file in files.items() if file.exists()})


if __name__ == "__main__":
    main()
