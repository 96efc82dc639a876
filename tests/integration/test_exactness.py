# SPDX-License-Identifier: Apache-2.0
"""Lossless is exact: a pair of workers answers byte for byte as one worker that does everything.

ISTHMUS_EXACTNESS=full runs more prompts, each of them greedily and sampled; else each runs in one of the
two ways.
"""

import concurrent.futures
import os
import random

import pytest
from conftest import Fleet, wait_for

TOKENS = 64
AT_ONCE = 8
IS_FULL = os.environ.get("ISTHMUS_EXACTNESS") == "full"
# Tokens of prompts: the shortest that is handed over, and around blocks of 32, tiles of 256 and steps of 512.
LENGTHS = [3, 31, 32, 33, 65, 255, 256, 257]
if IS_FULL:
    LENGTHS += [17, 63, 64, 511, 512, 513]


def prompt_of(length):
    return [random.Random(length).randrange(300, 40000) for _ in range(length)]


def bodies():
    greedy = {"temperature": 0}
    for index, length in enumerate(LENGTHS):
        sampled = {"temperature": 0.9, "top_p": 0.95, "seed": 1000 + length}
        for way in (greedy, sampled) if IS_FULL else ((greedy, sampled)[index % 2],):
            yield {"prompt": prompt_of(length), "max_tokens": TOKENS, **way}


def ask(server, body):
    answer = server.post("/v1/completions", body)
    assert answer.status_code == 200, answer.text
    return answer


def text_of(answer):
    choice = answer.json()["choices"][0]
    return choice["text"], choice["finish_reason"], answer.json()["usage"]["completion_tokens"]


def name_of(body):
    return f"{len(body['prompt'])} tokens, temperature {body['temperature']}"


class Trio:
    """A pair behind a router, and a worker of the same engine and KV type that does everything by itself."""

    def __init__(self, folder, own, storage):
        self.fleet = Fleet(folder, own, prefill=storage, decode=storage)
        self.alone = self.fleet.worker("alone", *storage.split(":"), "both").start()
        self.bodies = list(bodies())
        self.expected = None

    def ask_alone(self):
        """One request at a time, once for all tests."""
        if self.expected is None:
            self.expected = [text_of(ask(self.alone, body)) for body in self.bodies]
            # Not all may end after a few tokens: there must be something to compare.
            assert sum(tokens for _, _, tokens in self.expected) >= TOKENS * len(self.bodies) / 2
        return self.expected

    def ask_pair(self, body):
        answer = ask(self.fleet.router, body)
        assert answer.headers["X-Isthmus-Route"].startswith("handoff"), answer.headers
        return text_of(answer)

    def compare(self, answers):
        for body, expected, answer in zip(self.bodies, self.ask_alone(), answers, strict=True):
            assert answer == expected, name_of(body)
        decode = self.fleet.decode
        assert decode.metric("isthmus_prompt_tokens_computed_total") == 0
        wait_for("both at baseline", lambda: decode.is_at_baseline() and self.fleet.prefill.is_at_baseline())


@pytest.fixture(scope="module")
def trio(request, tmp_path_factory):
    processes = []
    try:
        folder = tmp_path_factory.mktemp("trio")
        yield Trio(folder, lambda process: (processes.append(process), process)[1], request.param)
    finally:
        for process in reversed(processes):
            process.close()


@pytest.mark.parametrize("trio", ["openvino:f32", "llamacpp:f16"], indirect=True)
def test_one_request_at_a_time_equals_one_worker(trio):
    # On two processors, beside the reference: the engine of the pair that isn't at work costs nothing.
    with concurrent.futures.ThreadPoolExecutor(1) as other:
        reference = other.submit(trio.ask_alone)
        answers = [trio.ask_pair(body) for body in trio.bodies]
        reference.result()
    trio.compare(answers)


# llama.cpp's bits depend on what else is in a batch, with a handoff and without.
@pytest.mark.parametrize("trio", ["openvino:f32"], indirect=True)
def test_requests_at_once_equal_one_worker(trio):
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(trio.ask_pair, trio.bodies))
    trio.compare(answers)
