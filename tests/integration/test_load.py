# SPDX-License-Identifier: Apache-2.0
"""`isthmus bench serve` against real workers: what it counts is what they count."""

import json
import signal
import subprocess

import pytest
from conftest import PROGRAM, Process, wait_for

SHORT = ["--prompt-tokens", "uniform:8-24", "--output-tokens", "fixed:6"]


def bench(*arguments, seconds=100):
    """The records of a run, and its exit code."""
    ran = subprocess.run(
        [str(PROGRAM), "bench", "serve", "--json", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    return [json.loads(line) for line in ran.stdout.splitlines()], ran


@pytest.mark.parametrize(("side", "seed"), [("decode", 11), ("router", 12)])
def test_its_counts_are_those_of_the_server(fleet, side, seed):
    server = getattr(fleet, side)
    served = fleet.decode.metric("isthmus_requests_total", outcome="ok")
    tokens = fleet.decode.metric("isthmus_tokens_generated_total")
    prompts = sum(s.metric("isthmus_prompt_tokens_computed_total") for s in (fleet.prefill, fleet.decode))
    (run,), ran = bench("--url", server.url, "--rate", 4, "--duration", 3, "--seed", seed, *SHORT)
    assert ran.returncode == 0, ran.stderr
    assert run["requests"] > 3
    assert run["counts"]["ok"] == run["requests"], run["first_of"]
    assert fleet.decode.metric("isthmus_requests_total", outcome="ok") == served + run["requests"]
    made = run["output_tokens_mean"] * run["requests"]
    asked = run["prompt_tokens_mean"] * run["requests"]
    assert made == pytest.approx(6 * run["requests"] - run["ended_early"] * 6, abs=6 * run["ended_early"])
    # A first token that ended the answer was sampled too.
    sampled = fleet.decode.metric("isthmus_tokens_generated_total") - tokens
    assert made - 0.01 <= sampled <= made + run["ended_early"] + 0.01
    computed = sum(s.metric("isthmus_prompt_tokens_computed_total") for s in (fleet.prefill, fleet.decode))
    assert computed - prompts == pytest.approx(asked, abs=0.01)
    assert 0 < run["ttft_s"]["p50"] <= run["ttft_s"]["p99"] <= run["e2e_s"]["max"]


def test_a_seed_asks_the_same_again(fleet):
    runs = [
        bench("--url", fleet.decode.url, "--rate", 3, "--duration", 2, "--seed", seed, *SHORT)[0][0]
        for seed in (5, 5, 6)
    ]
    asked = [(run["requests"], run["prompt_tokens_mean"]) for run in runs]
    assert asked[0] == asked[1] != asked[2]


def test_interrupted_it_tells_what_was_measured(fleet, own):
    running = own(
        Process(
            [
                "bench",
                "serve",
                "--json",
                "--url",
                fleet.decode.url,
                "--concurrency",
                1,
                "--duration",
                600,
                *SHORT,
            ]
        )
    )
    before = fleet.decode.metric("isthmus_requests_total", outcome="ok")
    wait_for("an answer", lambda: fleet.decode.metric("isthmus_requests_total", outcome="ok") > before)
    running.send(signal.SIGINT)
    assert running.wait() == 0, running.log()
    (run,) = [json.loads(line) for line in running.out]
    assert run["invalid"] == ["stopped before its end"]
    assert run["counts"]["ok"] >= 1 and run["counts"]["cut short"] <= 1


def test_a_server_that_is_not_there_is_said(own):
    _, ran = bench("--url", "http://127.0.0.1:9", "--rate", 1)
    assert ran.returncode == 3 and "/v1/models" in ran.stderr
    records, ran = bench(
        "--url", "http://127.0.0.1:9", "--rate", 5, "--duration", 1, "--model", "m", "--seed", 2
    )
    assert ran.returncode == 0
    assert records[0]["counts"]["no answer"] == records[0]["requests"] > 0


def test_a_request_that_the_server_refuses_is_counted_by_kind(fleet):
    (run,), ran = bench(
        "--url", fleet.decode.url, "--rate", 5, "--duration", 1, "--prompt-tokens", "fixed:20000", "--seed", 2
    )
    assert ran.returncode == 0, ran.stderr
    assert run["counts"]["other refusal"] == run["requests"] > 0
    assert "the context" in run["first_of"]["other refusal"]
