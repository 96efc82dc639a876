#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Takes every KV storage of the catalogue to every other (`make pairs`): runs the shards of the test, some at a
time, and prints how many cases crossed and, for each reason why others couldn't be, how many.
"""

import argparse
import concurrent.futures
import pathlib
import re
import subprocess
import sys

SHARDS = 40
HEAD = re.compile(r"^pairs: (\d+) cases crossed between (\d+) pairs of storages; (\d+) couldn't be:$")
REASON = re.compile(r"^  +(\d+) (.+)$")


class Sums:
    """What shards printed, added up."""

    def __init__(self):
        self.crossed = self.storages = 0
        self.reasons = {}

    def add(self, text):
        """False unless the text has exactly one summary whose reasons add up."""
        heads, inside, refused = [], False, 0
        for line in text.splitlines():
            if head := HEAD.match(line):
                heads.append([int(number) for number in head.groups()])
                inside = True
            elif inside and (reason := REASON.match(line)):
                count = int(reason[1])
                refused += count
                self.reasons[reason[2]] = self.reasons.get(reason[2], 0) + count
            else:
                inside = False
        if len(heads) != 1 or heads[0][2] != refused:
            return False
        self.crossed += heads[0][0]
        self.storages += heads[0][1]
        return True

    def text(self):
        head = f"pairs: {self.crossed} cases crossed between {self.storages} pairs of storages; "
        lines = [head + f"{sum(self.reasons.values())} couldn't be:"]
        lines += [f"  {count:8} {why}" for why, count in sorted(self.reasons.items(), key=lambda one: (-one[1], one[0]))]
        return "\n".join(lines)


def run(program, shard):
    return subprocess.run(
        [
            program,
            "--gtest_brief=1",
            "--gtest_also_run_disabled_tests",
            f"--gtest_filter=Shards/EveryPair.DISABLED_Crosses/{shard}",
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path, help="transform_test")
    parser.add_argument("--jobs", type=int, default=1, help="shards at a time")
    parser.add_argument("--shards", type=int, nargs="*", default=range(SHARDS), help="these alone")
    arguments = parser.parse_args()
    sums, failed = Sums(), []
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for shard, ran in zip(
            arguments.shards, pool.map(lambda one: run(arguments.program, one), arguments.shards), strict=True
        ):
            if ran.returncode != 0 or not sums.add(ran.stdout):
                print(f"pairs: shard {shard} failed ({ran.returncode}):\n{ran.stdout}", flush=True)
                failed.append(shard)
    print(sums.text())
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
