# SPDX-License-Identifier: Apache-2.0
"""Thirty-two requests of mixed lengths at once give the bytes of one at a time: in a worker, through a pair,
and through a pair whose decode worker is asked as well; with known beginnings and without, preempted or not.

ISTHMUS_EXACTNESS=full runs all; else those in which most can go wrong.
"""

import concurrent.futures
import os
import random
import threading
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
# A state on its way here has all of its claim in the pool beside the largest other one (spec/scheduler.md).
# So twice the largest claim, and no more: those that have begun come to need what others hold.
SCARCE_FOR_STATES = ["--kv-tokens", 512, "--parked-tokens", 512, "--sequences", REQUESTS]


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


class Preempted:
    """Kinds of the sequences that a worker was seen to preempt, while it is watched."""

    def __init__(self, worker):
        self.worker, self.kinds, self.is_over = worker, set(), threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self.kinds

    def __exit__(self, *_):
        self.is_over.set()
        self.thread.join()

    def _watch(self):
        while not self.is_over.wait(0.01):
            for sequence in self.worker.get("/state").json()["engine"]["sequences"]:
                if sequence["preempted"]:
                    self.kinds.add(sequence["kind"])


# "resume" is a sequence that was handed over, "generate" one whose prompt was computed there.
KINDS = {"worker": {"generate"}, "pair": {"resume"}, "both": {"generate", "resume"}}
CASES = [("both", "known", "scarce"), ("pair", "known", "roomy")]
if os.environ.get("ISTHMUS_EXACTNESS") == "full":
    CASES += [("worker", "cold", "scarce"), ("pair", "cold", "scarce"), ("both", "cold", "scarce")]
    CASES += [("worker", "known", "scarce"), ("pair", "known", "scarce"), ("pair", "cold", "roomy")]
    CASES += [("worker", "cold", "roomy"), ("worker", "known", "roomy")]


def start(way, room, make_fleet, own):
    """Where requests go, in turn; and the worker that decodes them."""
    if way == "worker":
        engine, kv = STORAGE.split(":")
        memory = SCARCE if room == "scarce" else ROOMY
        worker = own(Server(["worker", "--engine", engine, "--kv", kv, "--model", MODEL, *memory])).start()
        return [worker], worker
    fleet = make_fleet(
        prefill=STORAGE,
        decode=STORAGE,
        prefill_options=ROOMY,
        decode_options=SCARCE_FOR_STATES if room == "scarce" else ROOMY,
        # A state that finds no memory in time isn't computed where it should come, if nothing else is.
        on_failure="fail" if way == "pair" else "recompute",
    )
    return [fleet.router, fleet.decode] if way == "both" else [fleet.router], fleet.decode


@pytest.mark.parametrize(("way", "beginnings", "room"), CASES)
def test_all_at_once_answer_as_alone(make_fleet, own, alone, way, beginnings, room):
    servers, decode = start(way, room, make_fleet, own)
    is_known = beginnings == "known"
    if is_known:
        for kind in range(4):
            ask(servers[0], {"prompt": tokens(kind, BEGINNING) + tokens(9, 40), "max_tokens": 2})
    with Preempted(decode) as preempted:
        # Who is preempted depends on who came first: again, until somebody of each kind was.
        for turn in range(4 if room == "scarce" else 1):
            with concurrent.futures.ThreadPoolExecutor(REQUESTS) as pool:
                to = (servers[number // 3 % len(servers)] for number in range(REQUESTS))
                answers = list(pool.map(ask, to, bodies(not is_known, turn)))
            for number, (answer, expected) in enumerate(zip(answers, alone, strict=True)):
                assert said(answer) == expected, number
            known = [cached(answer) for answer in answers]
            assert any(known) == is_known, known
            if preempted == KINDS[way]:
                break
    assert preempted == (KINDS[way] if room == "scarce" else set())
    assert (decode.metric("isthmus_preemptions_total") > 0) == (room == "scarce")
    if way == "pair":
        assert decode.metric("isthmus_prompt_tokens_computed_total") == 0, "all were handed over"
    wait_for("memory at baseline", decode.is_at_baseline)
