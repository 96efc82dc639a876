# SPDX-License-Identifier: Apache-2.0
"""What Locust's users do: completions, chats, and streams of both, each checked to be whole."""

import json

from locust import HttpUser, constant, task


class Client(HttpUser):
    wait_time = constant(0)

    def on_start(self):
        self.model = self.client.get("/v1/models").json()["data"][0]["id"]
        self.asked = 0

    def prompt(self):
        self.asked += 1
        return f"Number {self.asked}: a narrow strip of land that joins two larger ones is"

    @task
    def completion(self):
        body = {"model": self.model, "prompt": self.prompt(), "max_tokens": 6, "temperature": 0}
        with self.client.post("/v1/completions", json=body, catch_response=True) as answer:
            if answer.status_code != 200:
                return answer.failure(f"{answer.status_code}: {answer.text}")
            found = answer.json()
            if not 0 < found["usage"]["completion_tokens"] <= 6 or len(found["choices"]) != 1:
                answer.failure(f"odd answer: {answer.text}")

    @task
    def streamed_chat(self):
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": self.prompt()}],
            "max_completion_tokens": 6,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        name = "/v1/chat/completions (stream)"
        with self.client.post(
            "/v1/chat/completions", json=body, stream=True, catch_response=True, name=name
        ) as answer:
            if answer.status_code != 200:
                return answer.failure(f"{answer.status_code}: {answer.text}")
            events = [line[6:] for line in answer.iter_lines() if line.startswith(b"data: ")]
            if not events or events[-1] != b"[DONE]":
                return answer.failure(f"the stream ends with {events[-1:]}")
            parts = [json.loads(event) for event in events[:-1]]
            ended = [choice["finish_reason"] for part in parts for choice in part["choices"]]
            if "usage" not in parts[-1] or not any(ended):
                answer.failure(f"odd stream: {parts}")
