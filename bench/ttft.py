#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time to first token through a pair of workers beside its prefill worker alone, in turns: JSON lines.

Usage: bench/ttft.py build/release/isthmus [--runs 7] [--tokens 500]
The bar: the pair's median is at most that of the prefill worker, plus the time that the state's bytes take in
a bare send/recv loop, plus 10 ms. Every prompt is new, so that nothing is answered from a cache.
A pair that doesn't start or doesn't hand over is "failed", never ok.
"""

import argparse
import contextlib
import http.client
import json
import os
import queue
import random
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
import urllib.parse

PAIRS = [("llamacpp:f16", "openvino:u8"), ("openvino:f32", "openvino:f32")]
ALLOWED_MS = 10
START_SECONDS = 120
ANSWER_SECONDS = 60
PREFILL_URL = re.compile(r"prefill worker .*serves at (http://\S+)")


class Failure(Exception):
    """What kept a figure from being taken."""


class Up:
    """`isthmus up` with the address of its prefill worker; ended with everything that it started."""

    def __init__(self, program, prefill, decode):
        self.popen = subprocess.Popen(
            [program, "up", "--prefill", prefill, "--decode", decode, "--listen", "127.0.0.1:0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.lines = queue.Queue()
        for stream in (self.popen.stdout, self.popen.stderr):
            threading.Thread(target=self.read, args=(stream,), daemon=True).start()
        self.router = self.prefill = None
        end = time.monotonic() + START_SECONDS
        while not (self.router and self.prefill):
            try:
                line = self.lines.get(timeout=max(0.01, end - time.monotonic()))
            except queue.Empty:
                self.close()
                raise Failure(f"isthmus up isn't ready after {START_SECONDS} s") from None
            if line is None:
                self.close()
                raise Failure("isthmus up ended before it was ready")
            if line.startswith("ready "):
                self.router = line.split()[1]
            elif found := PREFILL_URL.search(line):
                self.prefill = found[1].rstrip(",")

    def read(self, stream):
        for line in stream:
            self.lines.put(line.rstrip("\n"))
        self.lines.put(None)

    def close(self):
        self.popen.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait(10)


def first_token(url, prompt):
    """Milliseconds to the first token of a streamed answer, and the route that the answer names."""
    address = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=ANSWER_SECONDS)
    body = json.dumps({"prompt": prompt, "max_tokens": 4, "temperature": 0, "stream": True})
    connection.connect()
    begin = time.perf_counter()
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    if answer.status != 200:
        raise Failure(f"{url} answered {answer.status}: {answer.read(300).decode(errors='replace')}")
    took = None
    for line in answer:
        if line.startswith(b"data: {") and took is None:
            took = (time.perf_counter() - begin) * 1e3
    route = answer.getheader("X-Isthmus-Route") or ""
    connection.close()
    if took is None:
        raise Failure(f"{url} answered without a token")
    return took, route


def bare_rate(program):
    """Bytes a millisecond of a send/recv loop between two processes over loopback."""
    case = ["--case", "tcp direct, rows", "--runs", "3", "--size", "64", "--json"]
    command = [program, "bench", "handoff", *case]
    out = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    record = json.loads(out.splitlines()[0])
    if not record["reference_value"]:
        raise Failure(f"the bare loop: {record['reference']}")
    return record["reference_value"] * 1e6


def rounded(value):
    return None if value is None else float(f"{value:.6g}")


def line(pair, through, alone, floor_ms, failure=""):
    """One record; without a failure both lists hold as many figures as there were runs."""
    reference = sum_ms = ratio = None
    if not failure:
        median = statistics.median(alone)
        sum_ms = median + floor_ms + ALLOWED_MS
        ratio = statistics.median(through) / sum_ms
        reference = f"prefill alone {median:.1f} ms + transfer floor {floor_ms:.1f} ms + {ALLOWED_MS} ms"
    return {
        "bench": "ttft",
        "case": f"{pair[0]} > {pair[1]}",
        "value": rounded(None if failure else statistics.median(through)),
        "unit": "ms",
        "reference": f"failed: {failure}" if failure else reference,
        "reference_value": rounded(sum_ms),
        "ratio": rounded(ratio),
        "bar": "<= 1",
        "ok": not failure and ratio <= 1,
        "runs": 0 if failure else len(through),
        "min": rounded(None if failure else min(through)),
        "max": rounded(None if failure else max(through)),
    }


def measure(program, pair, runs, tokens):
    def prompt(seed):
        return [random.Random(seed).randrange(300, 40000) for _ in range(tokens)]

    up = Up(program, *pair)
    try:
        through, alone, moved = [], [], 0
        for run in range(runs + 1):
            print(f"ttft: {pair[0]} > {pair[1]}: run {run} of {runs}", file=sys.stderr)
            alone.append(first_token(up.prefill, prompt(2 * run))[0])
            took, route = first_token(up.router, prompt(2 * run + 1))
            through.append(took)
            bytes_moved = re.search(r"bytes=(\d+)", route)
            if not route.startswith("handoff") or not bytes_moved:
                raise Failure(f"the answer wasn't handed over: route '{route}'")
            moved = int(bytes_moved[1])
    finally:
        up.close()
    # The first of each connects and touches memory.
    return line(pair, through[1:], alone[1:], moved / bare_rate(program))


def main():
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("program")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=500)
    arguments = parser.parse_args()
    for pair in PAIRS:
        try:
            record = measure(arguments.program, pair, arguments.runs, arguments.tokens)
        except (Failure, OSError, http.client.HTTPException, subprocess.SubprocessError) as wrong:
            record = line(pair, [], [], 0, str(wrong) or type(wrong).__name__)
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
