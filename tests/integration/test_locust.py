# SPDX-License-Identifier: Apache-2.0
"""Locust, a load generator that isn't ours, against a worker and a pair."""

import json
import pathlib
import subprocess
import sys

import pytest

USERS, SECONDS = 6, 4


@pytest.mark.parametrize("side", ["decode", "router"])
def test_all_that_it_asks_is_served(fleet, side):
    served = fleet.decode.metric("isthmus_requests_total", outcome="ok")
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "locust", "--headless", "--json", "--only-summary"),
            *("--locustfile", str(pathlib.Path(__file__).parent / "locustfile.py")),
            *("--host", getattr(fleet, side).url, "--users", str(USERS), "--spawn-rate", str(USERS)),
            *("--run-time", f"{SECONDS}s", "--stop-timeout", "60s"),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    asked = {found["name"]: found for found in json.loads(ran.stdout)}
    answers = 0
    for name in ("/v1/completions", "/v1/chat/completions (stream)"):
        assert asked[name]["num_failures"] == 0 and asked[name]["num_requests"] > 0, ran.stderr
        answers += asked[name]["num_requests"]
    assert answers >= USERS
    assert fleet.decode.metric("isthmus_requests_total", outcome="ok") == served + answers
