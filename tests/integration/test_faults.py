# SPDX-License-Identifier: Apache-2.0
"""Processes that die half-way, stop, or have no room: requests are answered, survivors go on at baseline."""

import http.client
import json
import signal
import threading

from conftest import wait_for

PROMPT = (
    "In the year of the great flood the miller moved his family to the hill. " * 90
)  # About 1,500 tokens.


class Asking(threading.Thread):
    """A request under way."""

    def __init__(self, server, body, path="/v1/completions"):
        super().__init__(daemon=True)
        self.server, self.body, self.path = server, body, path
        self.answer = None
        self.start()

    def run(self):
        self.answer = self.server.post(self.path, self.body)

    def result(self, seconds=120):
        self.join(seconds)
        assert not self.is_alive(), "the request was never answered"
        return self.answer


def receiving(fleet):
    """D has placed chunks of a handoff that isn't over."""
    return (
        fleet.decode.metric("isthmus_handoff_bytes_total", side="consumer") > 0
        and fleet.decode.metric("isthmus_handoffs_total", side="consumer") == 0
    )


def test_prefill_worker_killed_while_chunks_move(make_fleet):
    fleet = make_fleet()
    asking = Asking(fleet.router, {"prompt": PROMPT, "max_tokens": 4, "temperature": 0})
    wait_for("chunks at D", lambda: receiving(fleet))
    fleet.prefill.send(signal.SIGKILL)
    answer = asking.result()
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 4
    assert fleet.decode.metric("isthmus_handoff_failures_total", then="recompute") == 1
    wait_for("D at baseline", fleet.decode.is_at_baseline)
    again = fleet.router.post("/v1/completions", {"prompt": "And then", "max_tokens": 2})
    assert again.status_code == 200, again.text


def test_decode_worker_killed_while_receiving(make_fleet):
    fleet = make_fleet(prefill_options=["--lease", 3000])
    asking = Asking(fleet.router, {"prompt": PROMPT, "max_tokens": 4})
    wait_for("chunks at D", lambda: receiving(fleet))
    fleet.decode.send(signal.SIGKILL)
    answer = asking.result()
    assert answer.status_code in (502, 503), answer.text
    assert answer.json()["error"]["code"]
    wait_for("P at baseline", fleet.prefill.is_at_baseline)
    alone = fleet.prefill.post("/v1/completions", {"prompt": "And then", "max_tokens": 2})
    assert alone.status_code == 200, alone.text


def test_prefill_worker_stopped_beyond_its_lease(make_fleet):
    fleet = make_fleet(prefill_options=["--lease", 3000], decode_options=["--lease", 3000])
    asking = Asking(fleet.router, {"prompt": PROMPT, "max_tokens": 4, "temperature": 0})
    wait_for("chunks at D", lambda: receiving(fleet))
    fleet.prefill.send(signal.SIGSTOP)
    answer = asking.result()
    assert answer.status_code == 200, answer.text
    wait_for("D at baseline", fleet.decode.is_at_baseline)
    fleet.prefill.send(signal.SIGCONT)
    wait_for("P at baseline", fleet.prefill.is_at_baseline)


def test_policy_fail_gives_a_typed_error_instead_of_recompute(make_fleet):
    fleet = make_fleet(on_failure="fail")
    asking = Asking(fleet.router, {"prompt": PROMPT, "max_tokens": 4})
    wait_for("chunks at D", lambda: receiving(fleet))
    fleet.prefill.send(signal.SIGKILL)
    answer = asking.result()
    assert answer.status_code in (502, 503), answer.text
    assert answer.json()["error"]["code"]
    assert fleet.decode.metric("isthmus_prompt_tokens_computed_total") == 0
    wait_for("D at baseline", fleet.decode.is_at_baseline)


def test_a_wait_for_memory_ends_before_a_short_lease(make_fleet):
    lease = ["--lease", 1000]
    memory = ["--kv-tokens", 512, "--parked-tokens", 0]
    fleet = make_fleet(on_failure="fail", prefill_options=lease, decode_options=[*lease, *memory])
    long = {"prompt": "A long one", "max_tokens": 480, "ignore_eos": True, "stream": True}
    holding = fleet.decode.post("/v1/completions", long, stream=True)
    answer = fleet.router.post("/v1/completions", {"prompt": PROMPT[:400], "max_tokens": 4})
    assert answer.status_code == 429, answer.text
    assert int(answer.headers["Retry-After"]) >= 1
    holding.close()
    wait_for("both at baseline", lambda: fleet.prefill.is_at_baseline() and fleet.decode.is_at_baseline())


def test_full_destination_is_refused_with_a_hint_and_serves_again(make_fleet):
    fleet = make_fleet(decode_options=["--kv-tokens", 512])
    answer = fleet.router.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 4})
    assert answer.status_code in (400, 429), answer.text
    if answer.status_code == 429:
        assert int(answer.headers["Retry-After"]) >= 1
    wait_for("both at baseline", lambda: fleet.prefill.is_at_baseline() and fleet.decode.is_at_baseline())
    small = fleet.router.post("/v1/completions", {"prompt": "A short one", "max_tokens": 2})
    assert small.status_code == 200, small.text


def test_client_that_leaves_during_the_handoff_frees_both_ends(make_fleet):
    fleet = make_fleet()
    host = fleet.router.url.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=60)
    connection.request(
        "POST",
        "/v1/completions",
        json.dumps({"prompt": PROMPT, "max_tokens": 400, "stream": True}),
        {"Content-Type": "application/json"},
    )
    wait_for("chunks at D", lambda: receiving(fleet))
    connection.close()
    wait_for("both at baseline", lambda: fleet.prefill.is_at_baseline() and fleet.decode.is_at_baseline())
    assert fleet.router.post("/v1/completions", {"prompt": "A short one", "max_tokens": 2}).status_code == 200
