# SPDX-License-Identifier: Apache-2.0
"""Lossless is exact: a pair of workers answers byte for byte as one worker that does everything.

ISTHMUS_EXACTNESS=full runs more prompts, each of them greedily and sampled; else each runs in one of the
two ways.
"""

import concurrent.futures
import os
import random

import pytest
from conftest import MODEL, Server, wait_for

TOKENS = 64
AT_ONCE = 8
IS_FULL = os.environ.get("ISTHMUS_EXACTNESS") == "full"
# Tokens of prompts: the shortest that is handed over, and around blocks of 32, tiles of 256 and steps of 512.
LENGTHS = [3, 31, 32, 33, 65, 255, 256, 257]
if IS_FULL:  # As many prompts, of the same lengths, as tests/crossing measures distances with.
    LENGTHS += [5, 9, 16, 48, 63, 64, 100, 127, 128, 129, 200, 400, 511, 512, 513, 801, 1200, 2000]


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


@pytest.fixture(scope="module")
def reference():
    """Answers of one worker that does everything, one request at a time; once for each storage."""
    known = {}

    def answers(storage):
        if storage not in known:
            engine, kv = storage.split(":")
            worker = Server(["worker", "--engine", engine, "--kv", kv, "--model", MODEL])
            try:
                worker.start()
                known[storage] = [text_of(ask(worker, body)) for body in bodies()]
            finally:
                worker.close()
            # Not all may end after a few tokens: there must be something to compare.
            tokens = [answer[2] for answer in known[storage]]
            assert sum(tokens) >= TOKENS * len(tokens) / 2
        return known[storage]

    return answers


# llama.cpp's bits depend on what else is in a batch, with a handoff and without.
CASES = [
    ("openvino:f32", "tcp", 1),
    ("openvino:f32", "shm", AT_ONCE),
    ("llamacpp:f16", "tcp", 1),
]
if IS_FULL:
    CASES += [("openvino:f32", "tcp", AT_ONCE), ("openvino:f32", "shm", 1), ("llamacpp:f16", "shm", 1)]


@pytest.mark.parametrize(("storage", "transport", "at_once"), CASES)
def test_a_lossless_pair_answers_as_one_worker(make_fleet, reference, storage, transport, at_once):
    # The reference runs beside the pair: on two processors it costs little time.
    with concurrent.futures.ThreadPoolExecutor(1) as other:
        expected = other.submit(reference, storage)
        options = ["--transports", transport]
        fleet = make_fleet(prefill=storage, decode=storage, prefill_options=options, decode_options=options)
        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            answers = list(pool.map(lambda body: ask(fleet.router, body), bodies()))
    for body, alone, answer in zip(bodies(), expected.result(), answers, strict=True):
        assert answer.headers["X-Isthmus-Route"].startswith("handoff"), answer.headers
        assert text_of(answer) == alone, f"{len(body['prompt'])} tokens, temperature {body['temperature']}"
    decode = fleet.decode
    assert decode.metric("isthmus_prompt_tokens_computed_total") == 0
    assert decode.metric("isthmus_transport_chosen_total", transport=transport) == len(answers)
    wait_for("both at baseline", lambda: decode.is_at_baseline() and fleet.prefill.is_at_baseline())
