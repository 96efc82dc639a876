#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs every test suite of built trees, prints one line a suite and at last `N passed, N failed`.

Suites: C++ tests by label in build/release; all but those of the real engines again in build/asan (or in build/tsan, or
compiled by GCC in build/gcc); pytest in tests/conformance, tests/python, tests/matrix and tests/integration; the
fuzz targets of build/fuzz, half a minute each. A suite that cannot run counts as one failure.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import time
import xml.etree.ElementTree as xml

import fuzz

# Labels of tests that need no engine; quick ones first.
ENGINELESS = ("unit", "contract", "faults")
# Folders of pytest's: the second implementation of the KV state's specification, the Python package, and tests on
# real processes, of which those of the matrix load no model.
PYTESTS = ("conformance", "python", "matrix", "integration")
ROOT = pathlib.Path(__file__).resolve().parent.parent
SANITIZER_OPTIONS = {
    "ASAN_OPTIONS": "detect_stack_use_after_return=1:strict_string_checks=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1",
    "ASAN_SYMBOLIZER_PATH": "/usr/bin/llvm-symbolizer-19",
    "TSAN_SYMBOLIZER_PATH": "/usr/bin/llvm-symbolizer-19",
}


MESSAGE_LINES = 12  # Of a failure's message, in the summary.


class Count:
    def __init__(self, passed=0, failed=0, skipped=0, failures=()):
        self.passed, self.failed, self.skipped = passed, failed, skipped
        self.failures = list(failures)  # One text each, as far as a suite says which.

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.failures += other.failures

    def __str__(self):
        return f"{self.passed} passed, {self.failed} failed" + (
            f", {self.skipped} skipped" if self.skipped else ""
        )


def failure_text(case, failure):
    """The case's name and the first lines of what it said: a summary must do without the suite's log."""
    said = f"{failure.get('message') or ''}\n{failure.text or ''}".strip().splitlines()
    name = "/".join(filter(None, (case.get("classname"), case.get("name"))))
    return "\n      ".join([name, *said[:MESSAGE_LINES]])


def count_cases(path):
    """The cases in a JUnit-like file of GoogleTest or pytest; None when there is no such file."""
    if not path.is_file():
        return None
    count = Count()
    for case in xml.parse(path).getroot().iter("testcase"):
        failure = next((case.find(tag) for tag in ("failure", "error") if case.find(tag) is not None), None)
        if failure is not None:
            count.failed += 1
            count.failures.append(failure_text(case, failure))
        elif case.find("skipped") is not None or case.get("status") == "notrun":
            count.skipped += 1
        else:
            count.passed += 1
    return count


def count_binaries(junit, reports):
    """The cases of every binary that ctest ran. One that died counts what it wrote, and at least one failure."""
    total = Count()
    for binary in xml.parse(junit).getroot().iter("testcase"):
        count = count_cases(reports / f"{binary.get('name')}.xml") or Count()
        if binary.get("status") != "run" and count.failed == 0:
            count.failed = 1
            count.failures.append(f"{binary.get('name')} did not end well")
        elif count.passed + count.failed + count.skipped == 0:
            count.passed = 1
        total.add(count)
    return total


def run_ctest(build, label, jobs):
    reports = build / "reports" / label
    reports.mkdir(parents=True, exist_ok=True)
    for old in reports.glob("*.xml"):
        old.unlink()
    junit = reports / "ctest.junit"
    junit.unlink(missing_ok=True)
    # A trailing slash makes each GoogleTest binary write NAME.xml there.
    environment = {**os.environ, **SANITIZER_OPTIONS, "GTEST_OUTPUT": f"xml:{reports}/"}
    command = [
        "ctest",
        "--test-dir",
        build,
        "-L",
        f"^{label}$",
        "-j",
        str(jobs),
        "--output-on-failure",
        "--no-tests=ignore",
        "--quiet",
        "--output-log",
        reports / "output.log",
        "--output-junit",
        junit,
    ]
    ran = subprocess.run(command, env=environment, check=False, stdin=subprocess.DEVNULL)
    count = count_binaries(junit, reports) if junit.is_file() else Count(failed=int(ran.returncode != 0))
    if ran.returncode != 0:
        print((reports / "output.log").read_text(encoding="utf-8", errors="replace")[-20000:])
        count.failed = max(count.failed, 1)
    return count


def run_pytest(release, folder):
    report = release / f"reports/pytest-{folder}.xml"
    report.parent.mkdir(parents=True, exist_ok=True)
    report.unlink(missing_ok=True)
    deps = pathlib.Path(os.environ.get("ISTHMUS_DEPS_DIR", ROOT / "third_party"))
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "build/python-site"),
        "ISTHMUS_PROGRAM": str(release / "isthmus"),
        "ISTHMUS_TEST_MODEL": str(next(deps.glob("models/*.gguf"), "")),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    command.append(ROOT / "tests" / folder)
    ran = subprocess.run(command, env=environment, cwd=ROOT, check=False, stdin=subprocess.DEVNULL)
    count = count_cases(report) or Count()
    if ran.returncode != 0:
        count.failed = max(count.failed, 1)
    return count


def run_fuzz(build, jobs):
    """A short run of every fuzz target; each counts as one case. `make fuzz` runs them for longer."""
    names = fuzz.targets(build)
    if not names:
        print(f"  no fuzz targets in {build}")
        return Count(failed=1)
    passed, reports = fuzz.fuzz_all(build, names, fuzz.SECONDS, jobs)
    for report in reports:
        print(report)
    return Count(passed=passed, failed=len(reports))


def suites(only, jobs):
    """(name, function that runs it) of every suite asked for, quick ones first."""
    release = ROOT / "build/release"
    if only in (None, "release"):
        for label in ENGINELESS:
            yield f"release {label}", lambda label=label: run_ctest(release, label, jobs)
    tree = only or "asan"
    if only in (None, "asan", "tsan", "gcc"):
        for label in ENGINELESS:
            yield f"{tree} {label}", lambda label=label: run_ctest(
                ROOT / "build" / tree, label, jobs
            )
    if only in (None, "fuzz"):
        yield "fuzz", lambda: run_fuzz(ROOT / "build/fuzz", jobs)
    if only in (None, "release"):
        # The engines use all processors; two such tests at once would only be slower.
        yield "release integration", lambda: run_ctest(release, "integration", 1)
        for folder in PYTESTS:
            yield f"pytest {folder}", lambda folder=folder: run_pytest(release, folder)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", choices=["release", "asan", "tsan", "gcc", "fuzz"])
    options = parser.parse_args()
    total, table = Count(), []
    for name, run in suites(options.only, options.jobs):
        print(f"test: {name} ...", flush=True)
        start = time.monotonic()
        count = run()
        table.append(f"  {name:22} {count}  ({time.monotonic() - start:.0f} s)")
        print(table[-1], flush=True)
        total.add(count)
    print("test: summary", *table, sep="\n")
    for failure in total.failures:
        print(f"  FAILED {failure}")
    if total.skipped:
        print(f"  {total.skipped} skipped")
    print(f"{total.passed} passed, {total.failed} failed")
    return 0 if total.failed == 0 and total.passed > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
