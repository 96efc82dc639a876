# SPDX-License-Identifier: Apache-2.0
"""Prompts that begin alike: what is known of them is not computed again, and no byte of an answer changes."""

import concurrent.futures
import http.client
import itertools
import json
import random

import pytest
from conftest import MODEL, Server, wait_for

BLOCK = 32
TOKENS = 12
SALTS = (f"cold {number}" for number in itertools.count())
WAYS = [{"temperature": 0}, {"temperature": 0.9, "top_p": 0.95, "seed": 77}]


@pytest.fixture(scope="module")
def worker():
    server = Server(["worker", "--engine", "openvino", "--kv", "f32", "--model", MODEL])
    try:
        yield server.start()
    finally:
        server.close()


def prompt_of(length, kind=0):
    return random.Random(kind).choices(range(300, 40000), k=length)


def ask(server, prompt, salt, **more):
    body = {"prompt": prompt, "cache_salt": salt, "max_tokens": TOKENS, **WAYS[0], **more}
    if salt is None:
        del body["cache_salt"]
    answer = server.post("/v1/completions", body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def texts(answer):
    return [(choice["text"], choice["finish_reason"]) for choice in answer["choices"]]


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def cold(server, prompt, **more):
    """The answer with nothing known: under a salt of its own."""
    answer = ask(server, prompt, next(SALTS), **more)
    assert cached(answer) == 0
    return texts(answer)


@pytest.mark.parametrize("way", WAYS, ids=["greedy", "sampled"])
def test_a_known_beginning_changes_no_byte(worker, way):
    salt, base = f"edges {way}", prompt_of(290)
    ask(worker, base, salt, max_tokens=1)
    for length in [2, 33, 34, 64, 65, 66, 95, 96, 97, 98, 255, 256, 257, 258, 290]:
        warm = ask(worker, base[:length], salt, **way)
        assert cached(warm) == (length - 2) // BLOCK * BLOCK
        assert texts(warm) == cold(worker, base[:length], **way), f"{length} tokens"
    for common in [31, 32, 33, 128]:
        prompt = base[:common] + prompt_of(40, common)
        warm = ask(worker, prompt, salt, **way)
        assert cached(warm) == common // BLOCK * BLOCK
        assert texts(warm) == cold(worker, prompt, **way), f"{common} tokens in common"


def test_many_at_once_over_one_beginning_answer_as_alone(worker):
    prompts = [prompt_of(200) + prompt_of(5 * number, number) for number in range(12)]
    alone = [cold(worker, prompt) for prompt in prompts]
    ask(worker, prompts[0], "many", max_tokens=1)
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda prompt: ask(worker, prompt, "many"), prompts))
    assert [texts(answer) for answer in answers] == alone
    assert all(cached(answer) >= 192 for answer in answers)
    wait_for("the worker at baseline", worker.is_at_baseline)


def test_clients_that_leave_in_the_middle_leave_nothing_wrong(worker):
    prompt = prompt_of(1500, 5)
    expected = cold(worker, prompt)
    for lines in (0, 3):
        answer = worker.post(
            "/v1/completions",
            {"prompt": prompt, "cache_salt": "left", "max_tokens": 200, "temperature": 0, "stream": True},
            stream=True,
        )
        for _, _ in zip(range(lines), answer.iter_lines(), strict=False):
            pass
        answer.close()
        wait_for("the worker at baseline", worker.is_at_baseline)
        assert texts(ask(worker, prompt, "left")) == expected


def test_choices_and_equal_prompts_compute_their_prompt_once(worker):
    prompt, sampled = prompt_of(700, 11), WAYS[1]
    single = cold(worker, prompt, **sampled)
    before = worker.metric("isthmus_prompt_tokens_computed_total")
    many = ask(worker, [prompt, prompt[:300]], "choices", n=3, **sampled)
    last = 2 + BLOCK  # What each but the first computes at most: not a whole block, and two tokens.
    computed = worker.metric("isthmus_prompt_tokens_computed_total") - before
    assert 700 < computed < 700 + 5 * last
    assert cached(many) <= 300 // BLOCK * BLOCK, "the first choice of the long prompt has found nothing"
    again = ask(worker, [prompt, prompt[:300]], next(SALTS), n=3, **sampled)
    assert texts(again) == texts(many)
    assert texts(many)[:1] == single
    wait_for("the worker at baseline", worker.is_at_baseline)


def test_who_waits_for_one_that_leaves_goes_on_itself(worker):
    prompt = prompt_of(1500, 12)
    expected = cold(worker, prompt)
    before = worker.metric("isthmus_prompt_tokens_computed_total")
    leaving = http.client.HTTPConnection(worker.url.removeprefix("http://"))
    body = {"prompt": prompt, "cache_salt": "leaves", "max_tokens": 9}
    leaving.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    wait_for("the first to run", lambda: worker.metric("isthmus_prompt_tokens_computed_total") > before)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        other = pool.submit(ask, worker, prompt, "leaves")
        wait_for("the second to wait", lambda: worker.metric("isthmus_jobs_waiting") == 1 or other.done())
        leaving.close()
        answer = other.result()
    assert texts(answer) == expected
    assert cached(answer) >= 256, "what the first had computed"
    wait_for("the worker at baseline", worker.is_at_baseline)


def test_only_equal_salts_share(worker):
    prompt = prompt_of(100, 9)
    for salt in ("a tenant", "another", None):
        assert cached(ask(worker, prompt, salt)) == 0
    for salt in ("a tenant", "another", None):
        assert cached(ask(worker, prompt, salt)) == 96
    refused = worker.post("/v1/completions", {"prompt": prompt, "cache_salt": ""})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "cache_salt"


def test_a_chat_goes_on_where_it_was(worker):
    talk = [{"role": "system", "content": "You are brief. " * 20}, {"role": "user", "content": "Say hello."}]
    body = {"messages": talk, "max_tokens": 8, "temperature": 0}
    first = worker.post("/v1/chat/completions", body).json()
    talk += [first["choices"][0]["message"], {"role": "user", "content": "Now say goodbye."}]
    asked = worker.metric("isthmus_prefix_cache_query_tokens_total")
    hit = worker.metric("isthmus_prefix_cache_hit_tokens_total")
    computed = worker.metric("isthmus_prompt_tokens_computed_total")
    second = worker.post("/v1/chat/completions", body).json()
    usage = second["usage"]
    assert cached(second) >= first["usage"]["prompt_tokens"] // BLOCK * BLOCK > 0
    assert worker.metric("isthmus_prefix_cache_query_tokens_total") == asked + usage["prompt_tokens"]
    assert worker.metric("isthmus_prefix_cache_hit_tokens_total") == hit + cached(second)
    computed += usage["prompt_tokens"] - cached(second)
    assert worker.metric("isthmus_prompt_tokens_computed_total") == computed
    assert worker.metric("isthmus_engine_blocks_kept") > 0
    salted = worker.post("/v1/chat/completions", {**body, "cache_salt": next(SALTS)}).json()
    assert cached(salted) == 0
    assert salted["choices"] == second["choices"]


def test_a_state_over_a_known_beginning_is_handed_over(make_fleet):
    fleet = make_fleet(prefill="openvino:f32", decode="openvino:f32")
    base = prompt_of(300, 3)
    prompts = [base + prompt_of(length, length) for length in (2, 30, 300)]
    alone = [cold(fleet.decode, prompt) for prompt in prompts]
    computed = fleet.decode.metric("isthmus_prompt_tokens_computed_total")
    ask(fleet.router, base, "pair")
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda prompt: ask(fleet.router, prompt, "pair"), prompts))
    assert [texts(answer) for answer in answers] == alone
    assert fleet.prefill.metric("isthmus_prefix_cache_hit_tokens_total") == 3 * 288
    for salt in ("another pair", None):
        assert texts(ask(fleet.router, prompts[0], salt)) == alone[0]
    assert fleet.prefill.metric("isthmus_prefix_cache_hit_tokens_total") == 3 * 288, "salts hold there too"
    assert fleet.decode.metric("isthmus_prompt_tokens_computed_total") == computed
    wait_for("both at baseline", lambda: fleet.decode.is_at_baseline() and fleet.prefill.is_at_baseline())


def through(fleet, prompt, salt, **more):
    """The answer, and the bytes that crossed for it."""
    name = "isthmus_handoff_bytes_total"
    before = fleet.decode.metric(name)
    answer = ask(fleet.router, prompt, salt, **more)
    return answer, fleet.decode.metric(name) - before


PAIRS = [
    ("openvino:f32", "openvino:f32", WAYS),
    ("openvino:u8", "openvino:u8", WAYS[:1]),
    ("openvino:f32", "openvino:u8_channel", WAYS[1:]),
]


@pytest.mark.parametrize(("prefill", "decode", "ways"), PAIRS, ids=lambda value: str(value).split(":")[-1])
def test_what_was_handed_over_does_not_cross_again(make_fleet, prefill, decode, ways):
    fleet = make_fleet(prefill=prefill, decode=decode)
    base = prompt_of(300, 21)
    salt = next(SALTS)
    whole_answer, whole_bytes = through(fleet, base, salt)
    assert cached(whole_answer) == 0
    again, rest_bytes = through(fleet, base, salt)
    assert cached(again) == 288
    assert texts(again) == texts(whole_answer)
    assert 0 < rest_bytes < whole_bytes / 10
    hit = fleet.decode.metric("isthmus_handoff_prefix_hit_tokens_total")
    assert hit == 288
    for way in ways:
        for length in (2, 70, 300):
            prompt = base + prompt_of(length, length)
            cold_answer, cold_bytes = through(fleet, prompt, next(SALTS), **way)
            assert cached(cold_answer) == 0, "another salt"
            warm_answer, warm_bytes = through(fleet, prompt, salt, **way)
            assert cached(warm_answer) >= 288
            assert texts(warm_answer) == texts(cold_answer), f"{length} tokens behind it"
            assert warm_bytes < cold_bytes - whole_bytes * 0.9
            hit += cached(warm_answer)
    assert fleet.decode.metric("isthmus_handoff_prefix_hit_tokens_total") == hit
    assert fleet.decode.metric("isthmus_prompt_tokens_computed_total") == 0
    wait_for("both at baseline", lambda: fleet.decode.is_at_baseline() and fleet.prefill.is_at_baseline())


def test_many_at_once_over_what_was_handed_over_answer_as_cold(make_fleet):
    fleet = make_fleet(prefill="openvino:f32", decode="openvino:f32")
    base = prompt_of(200, 31)
    prompts = [base + prompt_of(5 * number + 1, number) for number in range(8)]
    expected = [texts(ask(fleet.router, prompt, next(SALTS))) for prompt in prompts]
    ask(fleet.router, base, "many", max_tokens=1)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda prompt: ask(fleet.router, prompt, "many"), prompts))
    assert [texts(answer) for answer in answers] == expected
    assert all(cached(answer) >= 192 for answer in answers)
    wait_for("both at baseline", lambda: fleet.decode.is_at_baseline() and fleet.prefill.is_at_baseline())


def test_nothing_is_kept_of_a_producer_that_does_not_repeat(make_fleet):
    fleet = make_fleet(prefill="llamacpp:f16", decode="openvino:f16")
    answers = [through(fleet, prompt_of(300, 21), None) for _ in range(2)]
    assert [cached(answer) for answer, _ in answers] == [0, 0]
    assert answers[0][1] == answers[1][1] > 0
    assert fleet.decode.metric("isthmus_handoff_prefix_query_tokens_total") == 0
    wait_for("both at baseline", lambda: fleet.decode.is_at_baseline() and fleet.prefill.is_at_baseline())
