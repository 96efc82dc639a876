# SPDX-License-Identifier: Apache-2.0
"""A fleet that is well: answers through the pair, counters, bad input, clients that leave."""

import concurrent.futures
import json

import openai
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
            "What is the capital of France?",
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
    assert "Paris" in text
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


def test_the_same_seed_gives_the_same_answer(fleet):
    body = {"prompt": "The best thing about rain is", "max_tokens": 12, "temperature": 0.9, "seed": 11}
    first, second = (
        fleet.router.post("/v1/completions", body).json()["choices"][0]["text"] for _ in range(2)
    )
    assert first == second


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
        ("/v1/completions", json.dumps({"prompt": "x", "n": 3}).encode(), 400),
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
