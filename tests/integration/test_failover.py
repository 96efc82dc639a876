# SPDX-License-Identifier: Apache-2.0
"""A handoff that loses its connection goes on with what has come: no chunk and no token is made twice."""

import signal

import pytest
from conftest import wait_for
from test_faults import PROMPT, Asking

BODY = {"prompt": PROMPT, "max_tokens": 4, "temperature": 0}


def placed(worker):
    return worker.metric("isthmus_handoff_bytes_total", side="consumer")


def receiving(fleet):
    """The decode worker that has placed chunks of a handoff that isn't over."""
    for worker in fleet.decoders:
        if placed(worker) > 0 and worker.metric("isthmus_handoffs_total", side="consumer") == 0:
            return worker
    return None


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_a_connection_that_is_cut_costs_no_chunk_and_no_token(make_fleet, transport):
    options = ["--transports", transport]
    fleet = make_fleet(is_wired=True, prefill_options=options, decode_options=options)
    asking = Asking(fleet.router, BODY)
    wait_for("chunks at D", lambda: receiving(fleet))
    fleet.wires.reset()
    answer = asking.result()
    assert answer.status_code == 200, answer.text
    assert answer.headers["X-Isthmus-Route"].startswith("handoff"), fleet.decode.log()
    assert fleet.decode.metric("isthmus_handoff_failures_total") == 0
    assert fleet.decode.metric("isthmus_prompt_tokens_computed_total") == 0
    # The first attempt's end, and the second's.
    assert fleet.prefill.metric("isthmus_handoffs_total", side="producer", outcome="peer_lost") == 1
    wait_for(
        "DONE", lambda: fleet.prefill.metric("isthmus_handoffs_total", side="producer", outcome="done") == 1
    )
    cut = placed(fleet.decode)
    again = fleet.router.post("/v1/completions", BODY)
    assert again.json()["choices"] == answer.json()["choices"]
    assert placed(fleet.decode) == 2 * cut, "a chunk was placed twice, or not at all"
    wait_for("both at baseline", lambda: fleet.prefill.is_at_baseline() and fleet.decode.is_at_baseline())


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_the_state_goes_to_another_decode_worker_when_the_first_one_dies(make_fleet, transport):
    options = ["--transports", transport]
    fleet = make_fleet(decoders=2, prefill_options=options, decode_options=options, on_failure="fail")
    asking = Asking(fleet.router, BODY)
    first = wait_for("chunks at D", lambda: receiving(fleet))
    second = next(worker for worker in fleet.decoders if worker is not first)
    first.send(signal.SIGKILL)
    answer = asking.result()
    assert answer.status_code == 200, answer.text
    assert answer.headers["X-Isthmus-Route"].startswith("handoff"), second.log()
    prompt_tokens = answer.json()["usage"]["prompt_tokens"]
    assert fleet.prefill.metric("isthmus_prompt_tokens_computed_total") == prompt_tokens, "prefilled once"
    assert second.metric("isthmus_prompt_tokens_computed_total") == 0
    assert fleet.prefill.metric("isthmus_handoffs_total", side="producer", outcome="superseded") == 1
    again = fleet.router.post("/v1/completions", BODY)
    assert again.json()["choices"] == answer.json()["choices"]
    wait_for("both at baseline", lambda: fleet.prefill.is_at_baseline() and second.is_at_baseline())
