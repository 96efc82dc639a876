#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs clang-tidy on every source of the compilation database that changed since its last clean run.

A file's key is the digest of .clang-tidy, of its compile command and of each project file that it includes, as ninja
recorded them; clean keys are kept in BUILD/lint-cache.
"""

import argparse
import concurrent.futures
import hashlib
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOOL = "clang-tidy-19"


def is_project(path):
    """Whether `path` is this project's own: neither fetched into third_party/ nor made in build/."""
    return path.is_relative_to(ROOT) and not any(
        path.is_relative_to(ROOT / folder) for folder in ("third_party", "build")
    )


def object_dependencies(build):
    """Project files that each object was compiled from: {object: [paths]}, objects relative to `build`."""
    listing = subprocess.run(
        ["ninja", "-C", build, "-t", "deps"], capture_output=True, text=True, check=True
    ).stdout
    found, current = {}, None
    for line in listing.splitlines():
        if line.startswith(" "):
            path = (build / line.strip()).resolve()
            if is_project(path):
                found[current].append(path)
        elif line:
            current = line.split(":", 1)[0].removeprefix("ninja: Entering directory")
            found[current] = []
    return found


def key_of(entry, dependencies, settings):
    digest = hashlib.sha256(settings)
    digest.update(entry["command"].encode())
    for path in sorted({pathlib.Path(entry["file"]), *dependencies}):
        digest.update(str(path).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def sources_to_lint(build, cache):
    """(file, key) of every project source without a clean run."""
    settings = (ROOT / ".clang-tidy").read_bytes()
    dependencies = object_dependencies(build)
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        file = pathlib.Path(entry["file"])
        if not is_project(file):
            continue
        output = re.search(r" -o (\S+)", entry["command"])[1]
        key = key_of(entry, dependencies.get(output, []), settings)
        if not (cache / key).exists():
            yield file, key


def lint(build, file):
    ran = subprocess.run(
        [TOOL, "-p", build, "--quiet", "--warnings-as-errors=*", file],
        capture_output=True,
        text=True,
        check=False,
    )
    # Standard error only counts the warnings of system headers, unless the tool itself failed.
    return ran.returncode, ran.stdout.strip() or (ran.stderr.strip() if ran.returncode else "")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    build = options.build.resolve()
    cache = build / "lint-cache"
    cache.mkdir(exist_ok=True)
    todo = list(sources_to_lint(build, cache))
    failed = 0
    print(f"lint: {len(todo)} files to look at", flush=True)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        running = {pool.submit(lint, build, file): (file, key) for file, key in todo}
        for done in concurrent.futures.as_completed(running):
            file, key = running[done]
            code, text = done.result()
            if code == 0:
                (cache / key).touch()
            else:
                failed += 1
                print(f"{file.relative_to(ROOT)}:\n{text}", flush=True)
    print(f"lint: {failed} files with findings")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
