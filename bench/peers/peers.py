#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Handoffs over tcp beside the tcp transfers of NIXL and Mooncake, in turns: one JSON line a case.

Usage: bench/peers/peers.py build/release/isthmus [--runs 7] [--size 64]
Installs the peers on first use into build/peers, an environment of their own. A peer that can't be installed,
fails, or doesn't end in time is "not run" with the reason, never ok. Mooncake's library is linked with
libibverbs.so.1 even where it uses tcp alone: Debian's package libibverbs1.
"""

import argparse
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import venv

import turns

HERE = pathlib.Path(__file__).resolve().parent
BAR = 1.5
OWN_CASE = "tcp direct, blocks"
INSTALL_SECONDS = 120
CASE_SECONDS = 45
# Peer, tuned, bytes a piece: of each peer what it does best on one machine.
CASES = [("NIXL", True, 1 << 20), ("Mooncake", False, 64 << 10), ("Mooncake", False, 1 << 20)]


def install(where):
    python = where / "bin" / "python"
    if not (where / "installed").exists():
        print("peers: installing NIXL and Mooncake into", where, file=sys.stderr)
        venv.create(where, with_pip=True, clear=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--no-deps"]
        for what in (["--require-hashes", "-r", HERE / "requirements.txt"], ["numpy==2.2.6"]):
            subprocess.run([*pip, *what], check=True, timeout=INSTALL_SECONDS, stdout=sys.stderr)
        (where / "installed").touch()
    return python


def own_rate(program, size):
    """GB/s of a handoff, digests and verification inside the time: the median of three in two new processes.
    The first touches all memory for the first time, which the peer's connected mover has done before.
    This process group, where the peer's threads may spin, stands still meanwhile; another one stops it."""
    command = [sys.executable, __file__, program, "--size", str(size)]
    command += ["--while-stopped", str(os.getpgrp())]
    out = subprocess.run(command, check=True, capture_output=True, text=True, start_new_session=True)
    record = json.loads(out.stdout.splitlines()[0])
    if record["value"] is None:
        raise RuntimeError(record["reference"])
    return record["value"]


def run_while_stopped(arguments):
    """The own case with the process group `while_stopped` at a halt; its record on stdout."""
    case = ["--case", OWN_CASE, "--runs", "3", "--size", str(arguments.size), "--json"]
    os.killpg(arguments.while_stopped, signal.SIGSTOP)
    try:
        subprocess.run([arguments.program, "bench", "handoff", *case], check=True)
    finally:
        os.killpg(arguments.while_stopped, signal.SIGCONT)


def title(peer, tuned, piece):
    return f"{peer} over tcp{', tuned' if tuned else ''}, {piece >> 10} KiB pieces"


def line(case, own, peer, reference, not_run=""):
    return turns.record("peers", f"tcp handoff, beside {case}", BAR, own, peer, reference, not_run)


def measure(arguments, case):
    """In the peers' environment: one case, its figures as JSON on stdout."""
    import moves

    peer, tuned, piece = case
    own, theirs = [], []
    mover = moves.Mover(peer, tuned, arguments.size << 20, piece)
    mover.seconds()  # Connects.
    for run in range(1, arguments.runs + 1):
        print(f"peers: {title(*case)}: run {run} of {arguments.runs}", file=sys.stderr)
        own.append(own_rate(arguments.program, arguments.size))
        theirs.append((arguments.size << 20) / mover.seconds() / 1e9)
    print(json.dumps({"own": own, "theirs": theirs, "version": moves.version(peer)}), flush=True)


def run_case(python, arguments, index):
    """The record of one case; its processes end here, whatever the peer's library does."""
    name = title(*CASES[index])
    command = [python, __file__, arguments.program, "--runs", arguments.runs, "--size", arguments.size]
    # Files, not pipes: what the peer's library leaves running would keep a pipe open.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(
            [*map(str, command), "--case", str(index)], stdout=out, stderr=err, start_new_session=True
        )
        why = ""
        try:
            process.wait(CASE_SECONDS)
        except subprocess.TimeoutExpired:
            why = f"no figures within {CASE_SECONDS} s"
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        out.seek(0)
        err.seek(0)
        said = out.read()
        why = why or (err.read().strip().splitlines() or ["it said nothing"])[-1]
    for entry in said.splitlines():
        if entry.startswith('{"own"'):
            got = json.loads(entry)
            return line(name, got["own"], got["theirs"], f"{name}, version {got['version']}")
    return line(name, [], [], "", why)


def main():
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("program")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--size", type=int, default=64, help="MiB")
    parser.add_argument("--case", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--while-stopped", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.while_stopped is not None:
        run_while_stopped(arguments)
        return None
    if arguments.case is not None:
        try:
            measure(arguments, CASES[arguments.case])
        except Exception as wrong:  # The last line of stderr becomes the reason.
            print(f"{type(wrong).__name__}: {wrong}", file=sys.stderr, flush=True)
        os._exit(0)  # Whatever threads and children the peer's library still has: the caller ends them.
    try:
        python = install(HERE.parent.parent / "build" / "peers")
    except (subprocess.SubprocessError, OSError) as wrong:
        for case in CASES:
            print(json.dumps(line(title(*case), [], [], "", str(wrong))))
        return None
    for index in range(len(CASES)):
        print(json.dumps(run_case(python, arguments, index)), flush=True)
    return None


if __name__ == "__main__":
    main()
