# SPDX-License-Identifier: Apache-2.0
"""A worker that promises more memory than its pool has answers byte for byte as one that needn't."""

import concurrent.futures
import random

import pytest
from conftest import MODEL, Server, wait_for

WAYS = [{"temperature": 0}, {"temperature": 0.9, "top_p": 0.95, "seed": 77}]


def start(*options):
    return Server(["worker", "--engine", "openvino", "--kv", "u8", "--model", MODEL, *options]).start()


@pytest.fixture(scope="module")
def small():
    """A pool of 16 blocks, and as many beside it."""
    server = start("--kv-tokens", 512, "--parked-tokens", 512, "--sequences", 6)
    yield server
    server.close()


@pytest.fixture(scope="module")
def alone():
    """The answers of a worker with room for all that it is asked, one at a time."""
    server = start()
    yield lambda body: answer(server, body)
    server.close()


def prompt_of(length, kind=0):
    return random.Random(kind).choices(range(300, 40000), k=length)


def body_of(number, tokens=130):
    return {
        "prompt": prompt_of(20 + 9 * number, number),
        "max_tokens": tokens,
        "ignore_eos": True,
        "logprobs": 1,
        **WAYS[number % 2],
    }


def answer(server, body):
    got = server.post("/v1/completions", body)
    assert got.status_code == 200, got.text
    return got.json()["choices"], got.json()["usage"]["completion_tokens"]


def test_who_is_preempted_answers_as_alone(small, alone):
    # Claims of 5 to 6 blocks: 34 would be too many, and of 27 all in use at once 16 are there.
    bodies = [body_of(number) for number in range(5)]
    with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
        answers = list(pool.map(lambda body: answer(small, body), bodies))
    for body, got in zip(bodies, answers, strict=True):
        assert got == alone(body), len(body["prompt"])
    assert small.metric("isthmus_preemptions_total") > 0
    wait_for("the worker at baseline", small.is_at_baseline)
    assert small.metric("isthmus_engine_blocks_parked") == 0
    assert small.metric("isthmus_jobs_preempted") == 0


def test_a_client_that_leaves_while_it_is_preempted_leaves_nothing(small):
    before = small.metric("isthmus_preemptions_total")
    streams = [
        small.post("/v1/completions", {**body_of(number, 400 - 40 * number), "stream": True}, stream=True)
        for number in range(2)
    ]
    wait_for("one to be preempted", lambda: small.metric("isthmus_preemptions_total") > before)
    assert small.metric("isthmus_jobs_preempted") <= 1
    for stream in streams:
        stream.close()
    wait_for("the worker at baseline", small.is_at_baseline)
    assert small.metric("isthmus_engine_blocks_parked") == 0


def test_without_parking_memory_is_reserved_in_full(alone):
    server = start("--kv-tokens", 512, "--parked-tokens", 0)
    try:
        stream = server.post("/v1/completions", {**body_of(0, 300), "stream": True}, stream=True)
        refused = server.post("/v1/completions", body_of(1, 300))
        assert refused.status_code == 429, refused.text
        stream.close()
        wait_for("the worker at baseline", server.is_at_baseline)
        assert answer(server, body_of(1)) == alone(body_of(1))
        assert server.metric("isthmus_preemptions_total") == 0
    finally:
        server.close()
