# SPDX-License-Identifier: Apache-2.0
"""A fleet that is well: answers through the pair, counters, bad input, clients that leave."""

import concurrent.futures
import json
import signal

import openai
import pytest
import requests
from conftest import wait_for

LONG = "The quick brown fox jumps over the lazy dog near the river bank. " * 40  # About 600 tokens.


def chat(text, **more):
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, **more}


def test_streamed_chat_is_prefilled_by_one_engine_and_decoded_by_the_other(fleet):
    computed = fleet.decode.metric("isthmus_prompt_tokens_computed_total")
    adopted = fleet.decode.metric("isthmus_prompt_tokens_adopted_total")
    moved = fleet.decode.metric("isthmus_handoff_bytes_total", side="consumer")
    answer = fleet.router.post(
        "/v1/chat/completions",
        chat(
            "How many legs has a dog?",
            max_tokens=24,
            stream=True,
            stream_options={"include_usage": True},
        ),
        stream=True,
    )
    assert answer.status_code == 200
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    events = [line[6:] for line in answer.iter_lines(decode_unicode=True) if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"])
    assert "4" in text
    prompt_tokens = chunks[-1]["usage"]["prompt_tokens"]
    assert fleet.decode.metric("isthmus_prompt_tokens_computed_total") == computed
    assert fleet.decode.metric("isthmus_prompt_tokens_adopted_total") == adopted + prompt_tokens
    assert fleet.decode.metric("isthmus_handoff_bytes_total", side="consumer") > moved
    assert fleet.decode.metric("isthmus_handoff_seconds_count", stage="verify") >= 1
    wait_for(
        "both workers at baseline", lambda: fleet.prefill.is_at_baseline() and fleet.decode.is_at_baseline()
    )


def test_the_official_client_works(fleet):
    client = openai.OpenAI(base_url=fleet.router.url + "/v1", api_key="none")
    assert [model.id for model in client.models.list()] == ["smollm2"]
    whole = client.chat.completions.create(
        model="smollm2", temperature=0, max_tokens=16, messages=[{"role": "user", "content": "Say hello."}]
    )
    parts = client.chat.completions.create(
        model="smollm2",
        temperature=0,
        max_tokens=16,
        stream=True,
        messages=[{"role": "user", "content": "Say hello."}],
    )
    streamed = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    assert streamed == whole.choices[0].message.content != ""
    plain = client.completions.create(model="smollm2", prompt="Once upon a time", max_tokens=8, seed=7)
    assert plain.usage.completion_tokens <= 8 and plain.choices[0].text


@pytest.mark.parametrize("side", ["decode", "router"])
def test_an_answer_goes_on_behind_its_end_if_asked_to(fleet, side):
    server = getattr(fleet, side)
    asked = chat("Say hello.", max_tokens=60)
    said = server.post("/v1/chat/completions", asked).json()["choices"][0]
    assert said["finish_reason"] == "stop"
    tokens = fleet.decode.post("/tokenize", asked).json()["tokens"]
    tokens += fleet.decode.post("/tokenize", {"prompt": said["message"]["content"]}).json()["tokens"]
    ask = {"prompt": tokens, "max_tokens": 8, "temperature": 0}
    # Its first token is the one that ends an answer.
    ended = server.post("/v1/completions", ask).json()
    assert ended["choices"][0]["finish_reason"] == "stop" and not ended["choices"][0]["text"]
    longer = server.post("/v1/completions", {**ask, "ignore_eos": True}).json()
    assert longer["choices"][0]["finish_reason"] == "length"
    assert longer["usage"]["completion_tokens"] == 8


def test_the_same_seed_gives_the_same_answer(fleet):
    body = {"prompt": "The best thing about rain is", "max_tokens": 12, "temperature": 0.9, "seed": 11}
    first, second = (
        fleet.router.post("/v1/completions", body).json()["choices"][0]["text"] for _ in range(2)
    )
    assert first == second


def test_several_choices_and_prompts_are_what_single_requests_give(fleet):
    client = openai.OpenAI(base_url=fleet.router.url + "/v1", api_key="none")
    ask = {"model": "smollm2", "max_tokens": 12, "seed": 5, "temperature": 0.8}
    prompts = ["The best thing about rain is", "A lighthouse is", [504, 3575, 282]]
    single = [client.completions.create(prompt=prompt, **ask).choices[0].text for prompt in prompts]
    many = client.completions.create(prompt=prompts[:2], n=2, **ask)
    assert [choice.index for choice in many.choices] == [0, 1, 2, 3]
    texts = [choice.text for choice in many.choices]
    assert texts[0::2] == [local(fleet, prompt, ask) for prompt in prompts[:2]]
    assert texts[0] != texts[1], "the second choice draws anew"
    assert many.usage.completion_tokens == sum(
        client.completions.create(prompt=p, n=2, **ask).usage.completion_tokens for p in prompts[:2]
    )
    assert single[2] == client.completions.create(prompt=[prompts[2]], **ask).choices[0].text
    parts = {}
    for part in client.completions.create(prompt=prompts[:2], n=2, stream=True, **ask):
        for choice in part.choices:
            parts[choice.index] = parts.get(choice.index, "") + choice.text
    assert [parts[i] for i in range(4)] == texts
    wait_for(
        "both workers at baseline", lambda: fleet.prefill.is_at_baseline() and fleet.decode.is_at_baseline()
    )


def local(fleet, prompt, ask):
    """What the decode worker says alone: a request of several choices isn't handed over."""
    return fleet.decode.post("/v1/completions", {"prompt": prompt, **ask}).json()["choices"][0]["text"]


def test_log_probabilities_are_those_of_the_tokens(fleet):
    client = openai.OpenAI(base_url=fleet.router.url + "/v1", api_key="none")
    plain = client.completions.create(
        model="smollm2", prompt="Once upon a time", max_tokens=8, temperature=0, logprobs=3
    )
    said = plain.choices[0].logprobs
    assert "".join(said.tokens) == plain.choices[0].text
    assert len(said.tokens) == plain.usage.completion_tokens == 8
    for token, value, top in zip(said.tokens, said.token_logprobs, said.top_logprobs, strict=True):
        assert top[token] == value == max(top.values()) <= 0, "greedy takes the likeliest"
        assert len(top) == 3
    chat_answer = client.chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": "Say hello."}],
        max_tokens=8,
        temperature=0,
        logprobs=True,
        top_logprobs=2,
        stream=True,
    )
    text, tokens = "", []
    for part in chat_answer:
        for choice in part.choices:
            text += choice.delta.content or ""
            tokens += choice.logprobs.content if choice.logprobs else []
    assert bytes(byte for token in tokens for byte in token.bytes).decode() == text != ""
    assert all(token.top_logprobs[0].logprob == token.logprob for token in tokens)


def test_tokens_of_a_text_and_back(fleet):
    text = "Grüße from the lighthouse."
    tokens = fleet.decode.post("/tokenize", {"prompt": text}).json()
    assert tokens["count"] == len(tokens["tokens"]) > 4
    assert fleet.decode.post("/detokenize", {"tokens": tokens["tokens"]}).json() == {"prompt": text}
    chatted = fleet.decode.post("/tokenize", {"messages": [{"role": "user", "content": text}]}).json()
    assert chatted["count"] > tokens["count"]
    for path, body in [("/tokenize", {}), ("/detokenize", {"tokens": [10**6]}), ("/detokenize", {})]:
        answer = fleet.decode.post(path, body)
        assert answer.status_code == 400 and answer.json()["error"]["message"], (path, body)


def test_several_requests_at_once_are_all_handed_over(fleet):
    adopted = fleet.decode.metric("isthmus_handoffs_total", side="consumer", outcome="owned")
    bodies = [chat(f"Count to {n}. " + LONG[: n * 100], max_tokens=8) for n in range(1, 7)]
    with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
        answers = list(pool.map(lambda body: fleet.router.post("/v1/chat/completions", body), bodies))
    assert [answer.status_code for answer in answers] == [200] * len(bodies)
    assert fleet.decode.metric("isthmus_handoffs_total", side="consumer", outcome="owned") == adopted + len(
        bodies
    )
    wait_for(
        "both workers at baseline", lambda: fleet.prefill.is_at_baseline() and fleet.decode.is_at_baseline()
    )


def test_bad_input_gets_typed_errors_and_leaks_nothing(fleet):
    url = fleet.router.url
    cases = [
        ("/v1/chat/completions", b'{"messages": [', 400),
        ("/v1/chat/completions", b"[]", 400),
        ("/v1/chat/completions", json.dumps({"messages": "hello"}).encode(), 400),
        ("/v1/chat/completions", json.dumps({"messages": []}).encode(), 400),
        ("/v1/chat/completions", json.dumps(chat("x", max_tokens="many")).encode(), 400),
        ("/v1/chat/completions", json.dumps(chat("x", model="other")).encode(), 404),
        ("/v1/completions", json.dumps({"prompt": ""}).encode(), 400),
        ("/v1/completions", json.dumps({"prompt": [1, -1]}).encode(), 400),
        ("/v1/completions", json.dumps({"prompt": "word " * 20000}).encode(), 400),
        ("/v1/completions", json.dumps({"prompt": "x", "n": 33}).encode(), 400),
        ("/v1/completions", json.dumps({"prompt": "x", "echo": True}).encode(), 400),
        ("/v1/completions", b'{"prompt": "' + b"x" * (10 << 20) + b'"}', 413),
        ("/v1/nothing", b"{}", 404),
    ]
    for path, body, status in cases:
        answer = requests.post(
            url + path, data=body, headers={"Content-Type": "application/json"}, timeout=60
        )
        assert answer.status_code == status, (path, body[:60], answer.text[:200])
        error = answer.json()["error"]
        assert error["message"] and error["type"] and error["code"], (path, body[:60])
    wait_for(
        "both workers at baseline", lambda: fleet.prefill.is_at_baseline() and fleet.decode.is_at_baseline()
    )
    assert fleet.router.post("/v1/completions", {"prompt": "still here", "max_tokens": 2}).status_code == 200


def test_a_client_that_leaves_frees_everything(fleet):
    body = chat("Tell me a very long story.", max_tokens=900, stream=True)
    answer = requests.post(fleet.router.url + "/v1/chat/completions", json=body, stream=True, timeout=60)
    next(answer.iter_content(16))
    answer.close()
    wait_for(
        "both workers at baseline", lambda: fleet.prefill.is_at_baseline() and fleet.decode.is_at_baseline()
    )
    assert fleet.decode.metric("isthmus_requests_total", outcome="disconnected") >= 1


def test_pages_for_people_and_machines_answer(fleet):
    for server in (fleet.router, fleet.prefill, fleet.decode):
        assert server.get("/health").status_code == 200
        assert server.get("/ready").status_code == 200
        assert "# HELP isthmus_" in server.get("/metrics").text
    assert {worker["name"] for worker in fleet.router.get("/isthmus/workers").json()["workers"]} == {
        "p1",
        "d1",
    }
    assert fleet.decode.get("/isthmus/descriptor").text.startswith("groups")


def test_a_worker_that_drains_takes_nothing_new(make_fleet):
    fleet = make_fleet()
    answer = requests.post(
        fleet.decode.url + "/v1/completions",
        json={"prompt": "Once", "max_tokens": 200, "stream": True},
        stream=True,
        timeout=60,
    )
    lines = answer.iter_lines(decode_unicode=True)
    next(lines)
    assert fleet.decode.post("/drain", {}).json()["requests"] == 1
    assert fleet.decode.get("/ready").status_code == 503
    assert fleet.decode.post("/v1/completions", {"prompt": "x"}).status_code == 503
    assert "data: [DONE]" in list(lines), "what was under way ends as it would have"


def test_a_worker_that_is_asked_to_end_ends_its_answers_first(make_fleet):
    fleet = make_fleet()
    body = {"prompt": "Once upon a time", "max_tokens": 300, "stream": True}
    answer = requests.post(fleet.decode.url + "/v1/completions", json=body, stream=True, timeout=60)
    lines = answer.iter_lines(decode_unicode=True)
    next(lines)
    fleet.decode.send(signal.SIGTERM)
    assert "data: [DONE]" in list(lines)
    assert fleet.decode.wait() == 0
    fleet.prefill.send(signal.SIGTERM)  # With nothing under way it ends at once.
    assert fleet.prefill.wait(10) == 0


def test_a_second_signal_ends_a_worker_at_once(make_fleet):
    fleet = make_fleet()
    body = {"prompt": "Once upon a time", "max_tokens": 1500, "n": 8, "stream": True}
    answer = requests.post(fleet.decode.url + "/v1/completions", json=body, stream=True, timeout=60)
    lines = answer.iter_lines(decode_unicode=True)  # Dropped, it would close the connection.
    next(lines)
    fleet.decode.send(signal.SIGTERM)
    wait_for("the worker to drain", lambda: fleet.decode.get("/ready").status_code == 503)
    fleet.decode.send(signal.SIGTERM)
    assert fleet.decode.wait() == 0


def test_a_ticket_is_for_one_answer(fleet):
    transfer = {"do_remote_prefill": True, "isthmus_ticket": "x", "isthmus_endpoints": ["127.0.0.1:1"]}
    for more in ({"n": 2}, {"logprobs": 0}, {"prompt": ["a", "b"]}):
        answer = fleet.decode.post("/v1/completions", {"prompt": "x", "kv_transfer_params": transfer, **more})
        assert answer.status_code == 400 and "one prompt" in answer.json()["error"]["message"], more
