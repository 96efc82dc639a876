# SPDX-License-Identifier: Apache-2.0
"""Thirty-two requests of mixed lengths at once give the bytes of one at a time: in a worker and through a
pair, with known beginnings and without; in a worker also preempted.

ISTHMUS_EXACTNESS=full runs all six; else the two in which most can go wrong. A decode worker promises a
state that comes all of its memory, and so takes too few at once for these to preempt each other: that is
tested over engines without weights (tests/faults/preempt_test.cc).
"""

import concurrent.futures
import os
import random
import time

import pytest
from conftest import MODEL, Server, wait_for

REQUESTS = 32
PATIENCE_S = 120
STORAGE = "openvino:f32"
BEGINNING = 64  # Tokens that every fourth prompt shares: two blocks.
ROOMY = ["--kv-tokens", 16384, "--sequences", REQUESTS]
# 12 blocks, and as many beside them, for claims of up to 8: two or three run at once, and grow by as many.
SCARCE = ["--kv-tokens", 384, "--parked-tokens", 384, "--sequences", REQUESTS]


def tokens(seed, count):
    return random.Random(seed).choices(range(300, 40000), k=count)


def bodies(salted, turn=0):
    """Prompts of 66 to 159 tokens; most answers are long, so that they grow by some blocks."""
    for number in range(REQUESTS):
        way = {"temperature": 0.9, "top_p": 0.95, "seed": number} if number % 2 else {"temperature": 0}
        salt = {"cache_salt": f"{turn} {number}"} if salted else {}
        yield {
            "prompt": tokens(number % 4, BEGINNING) + tokens(100 + number, 2 + 3 * number),
            "max_tokens": 66 if number // 2 % 4 else 4 + number,
            "ignore_eos": True,
            **way,
            **salt,
        }


def ask(server, body):
    """Comes back as long as there is no room."""
    end = time.monotonic() + PATIENCE_S
    while (answer := server.post("/v1/completions", body)).status_code == 429 and time.monotonic() < end:
        time.sleep(0.1)
    assert answer.status_code == 200, answer.text
    return answer.json()


def said(answer):
    return answer["choices"][0]["text"], answer["usage"]["completion_tokens"]


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.fixture(scope="module")
def alone():
    """What each request gets of a worker that has nothing else to do, and knows nothing."""
    engine, kv = STORAGE.split(":")
    worker = Server(["worker", "--engine", engine, "--kv", kv, "--model", MODEL])
    try:
        worker.start()
        return [said(ask(worker, body)) for body in bodies(True)]
    finally:
        worker.close()


CASES = [("worker", "known", "scarce"), ("pair", "known", "roomy")]
if os.environ.get("ISTHMUS_EXACTNESS") == "full":
    CASES += [("worker", "cold", "scarce"), ("pair", "cold", "roomy")]
    CASES += [("worker", "cold", "roomy"), ("worker", "known", "roomy")]


@pytest.mark.parametrize(("way", "beginnings", "room"), CASES)
def test_all_at_once_answer_as_alone(make_fleet, own, alone, way, beginnings, room):
    memory = SCARCE if room == "scarce" else ROOMY
    if way == "pair":
        fleet = make_fleet(prefill=STORAGE, decode=STORAGE, prefill_options=ROOMY, decode_options=memory)
        server, decodes = fleet.router, fleet.decode
    else:
        engine, kv = STORAGE.split(":")
        server = decodes = own(
            Server(["worker", "--engine", engine, "--kv", kv, "--model", MODEL, *memory])
        ).start()
    is_known = beginnings == "known"
    if is_known:
        for kind in range(4):
            ask(server, {"prompt": tokens(kind, BEGINNING) + tokens(9, 40), "max_tokens": 2})
    # Who is preempted depends on who came first: again, until somebody was.
    for turn in range(4 if room == "scarce" else 1):
        with concurrent.futures.ThreadPoolExecutor(REQUESTS) as pool:
            answers = list(pool.map(lambda body: ask(server, body), bodies(not is_known, turn)))
        for number, (answer, expected) in enumerate(zip(answers, alone, strict=True)):
            assert said(answer) == expected, number
        known = [cached(answer) for answer in answers]
        assert any(known) == is_known, known
        preemptions = decodes.metric("isthmus_preemptions_total")
        if preemptions > 0:
            break
    assert (preemptions > 0) == (room == "scarce")
    if way == "pair":
        assert decodes.metric("isthmus_prompt_tokens_computed_total") == 0, "all were handed over"
    wait_for("memory at baseline", decodes.is_at_baseline)
