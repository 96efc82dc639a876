#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Re-layouts and conversions beside PyTorch's on the CPU, one thread each, in turns: one JSON line a case.

Usage: bench/peers/conversions.py build/release/isthmus [--runs 7] [--size 256]
Installs PyTorch on first use into build/peers-torch, an environment of its own: on PyPI it is built for GPUs
only and loads their libraries, so that is 3.4 GB of packages. Where it can't be had the cases are "not run"
with the reason, never ok. Ours places with digests checked and taken, PyTorch only computes; both rates are
of the numbers in the wider form.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import venv

import turns

HERE = pathlib.Path(__file__).resolve().parent
INSTALL_SECONDS = 900
HEADS, DIM = 8, 128
# Our case, and what PyTorch does (operations.py) with what it needs to be.
CASES = [
    ("re-layout: llamacpp:f16 > openvino:f16: place", "blocks_of_heads", 1.0),
    ("re-layout: openvino:f16 > llamacpp:f16_v_transposed: place", "transposed", 1.0),
    ("AMX packing: vllm:flash_nhd > vllm:cpu_amx: place", "amx", 1.0),
    ("bf16 to fp8: vllm:flash_nhd > fp8_token_head: place", "to_fp8", 3.0),
    ("dequantise: fp8_token_head > vllm:flash_nhd: place", "from_fp8", 3.0),
    ("dequantise: llamacpp:q8_0_unrotated > openvino:f16: place", "from_q8_0", 3.0),
    ("f16 to u8: llamacpp:f16 > openvino:u8: place", "to_u8", 3.0),
    ("hadamard: llamacpp:f16 > llamacpp:q8_0: place", "to_rotated_q8_0", 3.0),
]


def install(where):
    python = where / "bin" / "python"
    if not (where / "installed").exists():
        print("conversions: installing PyTorch into", where, file=sys.stderr)
        venv.create(where, with_pip=True, clear=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:"]
        what = ["--require-hashes", "-r", HERE / "torch-requirements.txt"]
        subprocess.run([*pip, *what], check=True, timeout=INSTALL_SECONDS, stdout=sys.stderr)
        (where / "installed").touch()
    return python


def own_rate(program, case, size):
    """GB/s of one run on warm memory."""
    command = [program, "bench", "kv", "--case", case.rsplit(": ", 1)[0], "--runs", "1", "--size", str(size)]
    out = subprocess.run([*command, "--json"], check=True, capture_output=True, text=True)
    records = [json.loads(line) for line in out.stdout.splitlines()]
    found = next(record for record in records if record["case"] == case)
    if found["value"] is None:
        raise RuntimeError(found["reference"])
    return found["value"]


def line(case, bar, own, peer, reference, not_run=""):
    return turns.record("conversions", case, bar, own, peer, reference, not_run)


def measure(arguments):
    """In PyTorch's environment: all cases."""
    import operations

    for case, operation, bar in CASES:
        if arguments.case not in case:
            continue
        work = operations.Work(operation, arguments.size << 20, HEADS, DIM)
        work.rate()
        own, theirs = [], []
        for run in range(1, arguments.runs + 1):
            print(f"conversions: {case}: run {run} of {arguments.runs}", file=sys.stderr)
            own.append(own_rate(arguments.program, case, arguments.size))
            theirs.append(work.rate())
        reference = f"PyTorch {operations.VERSION}, one thread"
        print(json.dumps(line(case, bar, own, theirs, reference)), flush=True)


def not_run(why):
    for case, _, bar in CASES:
        print(json.dumps(line(case, bar, [], [], "", why)))


def main():
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("program")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--size", type=int, default=256, help="MiB of the source's state")
    parser.add_argument("--case", default="", help="those whose name contains this")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.here:
        return measure(arguments)
    try:
        python = install(HERE.parent.parent / "build" / "peers-torch")
        subprocess.run([python, "-c", "import torch"], check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as wrong:
        return not_run(((wrong.stderr or "").strip().splitlines() or [str(wrong)])[-1])
    except (subprocess.SubprocessError, OSError) as wrong:
        return not_run(str(wrong))
    options = ["--here", "--runs", arguments.runs, "--size", arguments.size, "--case", arguments.case]
    command = map(str, [python, __file__, arguments.program, *options])
    subprocess.run(command, check=True, env=dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1"))
    return None


if __name__ == "__main__":
    main()
