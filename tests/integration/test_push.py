# SPDX-License-Identifier: Apache-2.0
"""Where the prefill worker opens the connections: the same answers, by a state that was handed over."""

import pytest
from conftest import wait_for

PROMPT = "The lighthouse keeper wrote down every ship that passed and where it was bound. " * 20
BODY = {"prompt": PROMPT, "max_tokens": 16, "temperature": 0}


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_a_pushed_state_gives_the_answer_of_one_worker(make_fleet, transport):
    options = ["--transports", transport]
    fleet = make_fleet(
        prefill="openvino:f32",
        decode="openvino:f32",
        prefill_options=options,
        decode_options=options,
        on_failure="fail",
        dialer="prefill",
    )
    alone = fleet.decode.post("/v1/completions", BODY).json()["choices"][0]["text"]
    computed = fleet.decode.metric("isthmus_prompt_tokens_computed_total")
    for _ in range(2):
        answer = fleet.router.post("/v1/completions", BODY)
        assert answer.status_code == 200, answer.text
        assert answer.headers["X-Isthmus-Route"].startswith("handoff"), answer.headers
        assert answer.json()["choices"][0]["text"] == alone
    assert fleet.decode.metric("isthmus_prompt_tokens_computed_total") == computed
    assert fleet.prefill.metric("isthmus_handoff_consumers_reached_total") == 1
    assert fleet.decode.metric("isthmus_transport_chosen_total", transport=transport) == 2
    wait_for("both at baseline", lambda: fleet.decode.is_at_baseline() and fleet.prefill.is_at_baseline())
