#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the libFuzzer targets of build/fuzz, some at a time, each for a given time from its seeds.

Seeds are tests/fuzz/corpus/TARGET/* (a .hex file holds the bytes as digits) and the vectors of spec/. What a run
learns stays in build/fuzz/corpus; what it finds lies in build/fuzz/found, and the command to replay it is printed.
An input that was found and is mended belongs in tests/fuzz/corpus/TARGET, so that it never comes back.
"""

import argparse
import concurrent.futures
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
SECONDS = 30
TIMEOUT_S = 20  # Of one input; sanitizers on a busy machine are slow.
MEMORY_MB = 2048
ALLOCATION_MB = 256  # More at once for one input means that a length was believed.
LENGTH_MAX = {"http": 1 << 14, "fleet": 1 << 13, "descriptor": 1 << 14}
ENVIRONMENT = {
    "ASAN_OPTIONS": "detect_stack_use_after_return=1:strict_string_checks=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "ASAN_SYMBOLIZER_PATH": "/usr/bin/llvm-symbolizer-19",
}


PRICES = """isthmus-prices 1
tokens 300
link 1250
hop 900
beside busy 0 layout 0 digest 0
consumer busy 250 layout 6000 digest 15000
producer busy 0 layout 6000 digest 15000
convert beside 700 any > codes=f16 op=q
convert consumer 2000 any > any
convert producer 2000 any > any
"""


def targets(build):
    return sorted(path.name.removesuffix("_fuzz") for path in (build / "fuzzers").glob("*_fuzz"))


def hex_bytes(text):
    return bytes.fromhex("".join(text.split()))


def layout_seeds(text):
    """Each storage of layouts.txt: its region lines, and the extents as the target takes them from the end."""
    for block in text.split("storage ")[1:]:
        lines = block.splitlines()
        regions = "\n".join(line for line in lines if line.startswith("region "))
        extents = dict(word.split("=") for word in lines[1].split()[1:])
        if "k" not in extents or "v" not in extents:
            continue
        numbers = [int(n) for part in (extents["k"], extents["v"]) for n in part.split("x")]
        taken = bytes([int(extents["layers"])])
        for number in [int(extents["block_tokens"]), *numbers]:
            taken += number.to_bytes(3, "big")
        yield lines[0].replace(":", "-"), regions.encode() + taken[::-1]


def seeds(target):
    """(name, bytes) of every seed."""
    for path in sorted((ROOT / "tests/fuzz/corpus" / target).glob("*")):
        content = path.read_bytes()
        yield path.name, hex_bytes(content.decode()) if path.suffix == ".hex" else content
    vectors = ROOT / "spec/vectors"
    if target == "layout":
        yield from layout_seeds((vectors / "kv/layouts.txt").read_text(encoding="utf-8"))
    if target in ("frames", "descriptor"):
        for line in (vectors / "handoff/frames.hex").read_text(encoding="utf-8").splitlines():
            name, digits = line.split()
            yield name, hex_bytes(digits)
    if target == "chunk_header":
        yield "vector", hex_bytes((vectors / "handoff/chunk_header.hex").read_text(encoding="utf-8"))
    if target == "ticket":
        yield "vector", (vectors / "handoff/ticket.txt").read_bytes().strip()
    if target == "prices":
        yield "reference", PRICES.encode()
    if target == "fleet":
        for path in sorted((ROOT / "deploy").glob("**/*.yaml")):
            yield path.name, path.read_bytes()


def write_seeds(build, target):
    folder = build / "seeds" / target
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    for name, content in seeds(target):
        (folder / name).write_bytes(content)
    return folder


def command_of(build, target):
    return [
        build / "fuzzers" / f"{target}_fuzz",
        f"-timeout={TIMEOUT_S}",
        f"-rss_limit_mb={MEMORY_MB}",
        f"-malloc_limit_mb={ALLOCATION_MB}",
        f"-max_len={LENGTH_MAX.get(target, 4096)}",
    ]


def fuzz(build, target, seconds):
    """None if nothing was found, else what to print."""
    learnt, found = build / "corpus" / target, build / "found" / target
    for folder in (learnt, found):
        folder.mkdir(parents=True, exist_ok=True)
    command = command_of(build, target) + [
        f"-max_total_time={seconds}",
        f"-artifact_prefix={found}/",
        "-print_final_stats=1",
    ]
    dictionary = ROOT / "tests/fuzz" / f"{target}.dict"
    if dictionary.is_file():
        command.append(f"-dict={dictionary}")
    before = set(found.iterdir())
    ran = subprocess.run(
        [*command, learnt, write_seeds(build, target)],
        env={**os.environ, **ENVIRONMENT},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    text = ran.stdout.decode(errors="replace")
    if ran.returncode == 0:
        runs = [line.split()[-1] for line in text.splitlines() if "number_of_executed_units" in line]
        print(f"  {target:14} {runs[0] if runs else '?':>9} inputs, nothing found", flush=True)
        return None
    inputs = sorted(set(found.iterdir()) - before) or ["(none written)"]
    lines = text.splitlines()
    at = next((i for i, line in enumerate(lines) if "ERROR" in line or "CHECK" in line or "runtime error" in line), 0)
    report = "\n".join(lines[max(at - 2, 0) : at + 25])
    return f"{report}\nfuzz: {target}: input {inputs[0]}\nreplay: tools/fuzz.py --replay {target} {inputs[0]}"


def fuzz_all(build, names, seconds, jobs):
    """(number that found nothing, reports of the others)."""
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        reports = list(pool.map(lambda name: fuzz(build, name, seconds), names))
    found = [report for report in reports if report is not None]
    return len(reports) - len(found), found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", help="all if none is named")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/fuzz")
    parser.add_argument("--seconds", type=int, default=int(os.environ.get("FUZZ_SECONDS", SECONDS)))
    parser.add_argument("--jobs", type=int, default=2, help="targets at once")
    parser.add_argument("--replay", nargs=2, metavar=("TARGET", "FILE"), help="run one input and show what happens")
    options = parser.parse_args()
    build = options.build.resolve()
    if options.replay:
        target, file = options.replay
        return subprocess.run(
            [*command_of(build, target), file], env={**os.environ, **ENVIRONMENT}, check=False
        ).returncode
    names = options.targets or targets(build)
    unknown = set(names) - set(targets(build))
    if unknown or not names:
        print(f"fuzz: no target {', '.join(sorted(unknown)) or 'at all'} in {build}; build it: make fuzz")
        return 2
    start = time.monotonic()
    passed, found = fuzz_all(build, names, options.seconds, options.jobs)
    for report in found:
        print(report)
    print(f"fuzz: {passed} of {len(names)} targets found nothing ({time.monotonic() - start:.0f} s)")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
