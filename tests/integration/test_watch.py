# SPDX-License-Identifier: Apache-2.0
"""Commands that look at a running fleet: what they say is what is so."""

import json
import signal
import subprocess

import pytest
from conftest import PROGRAM, wait_for

CHAT = {"messages": [{"role": "user", "content": "Why is the sky blue?"}], "max_tokens": 4}


def run(*arguments):
    return subprocess.run(
        [str(PROGRAM), *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False
    )


def test_a_live_fleet_is_checked_inspected_and_shown(fleet):
    assert fleet.router.post("/v1/chat/completions", CHAT).status_code == 200
    wait_for("everything at rest", lambda: fleet.prefill.is_at_baseline() and fleet.decode.is_at_baseline())

    checked = run("fleet", "check", fleet.file, "--live", "--json")
    report = json.loads(checked.stdout)
    assert checked.returncode == 0 and report["errors"] == 0, checked.stdout
    assert [(pair["prefill"], pair["decode"]) for pair in report["pairs"]] == [("p1", "d1")]
    assert report["pairs"][0]["verdict"] == "redistribute+convert"

    text = run("kv", "inspect", fleet.decode.url).stdout
    assert "openvino:u8" in text and "weights.recipe" in text
    state = json.loads(run("kv", "inspect", fleet.prefill.url, "--json").stdout)
    assert state["worker"]["name"] == "p1" and state["ledger"]["live"] == 0
    assert state["engine"]["prompt_tokens_computed"] > 0

    page = run("top", "--fleet", fleet.file, "--router", fleet.router.url, "--once", "--interval", 100)
    assert page.returncode == 0, page.stderr
    assert "2 of 2 workers up" in page.stdout and "answered 1" in page.stdout, page.stdout
    assert "total" in page.stdout and "none in flight" in page.stdout, page.stdout


def test_a_pair_is_tried_and_leaves_nothing_behind(fleet):
    tried = run("doctor", "pair", fleet.prefill.url, fleet.decode.url)
    assert tried.returncode == 0, tried.stdout + tried.stderr
    assert "passed" in tried.stdout and "next token" in tried.stdout, tried.stdout
    report = json.loads(run("doctor", "pair", fleet.prefill.url, fleet.decode.url, "--json").stdout)
    assert report["passed"] and report["faults"] == []
    components = {one["component"]: one for one in report["findings"]["numbers"]}
    assert set(components) == {"k", "v"} and all(len(one["layers"]) == 30 for one in components.values())
    assert 0 < components["k"]["worst"]["rms"] < report["findings"]["limits"]["layer_rms"]

    # The other way round: a prefill worker takes no state.
    refused = run("doctor", "pair", fleet.decode.url, fleet.prefill.url)
    assert refused.returncode == 7 and "only decodes" in refused.stdout, refused.stdout + refused.stderr
    absent = run("doctor", "pair", fleet.prefill.url, "http://127.0.0.1:1")
    assert absent.returncode == 3 and "127.0.0.1:1" in absent.stderr

    # Not a ticket, not a producer's answer, too long: refused by field.
    body = {"prompt": [1, 2, 3]}
    assert fleet.decode.post("/isthmus/canary", body).json()["error"]["param"] == "kv_transfer_params"
    transfer = {"do_remote_prefill": True, "isthmus_ticket": "x", "isthmus_endpoints": ["tcp://127.0.0.1:1"]}
    assert fleet.decode.post("/isthmus/canary", body | {"kv_transfer_params": transfer}).status_code >= 400
    long = {"prompt": [1] * 513, "kv_transfer_params": transfer}
    assert fleet.decode.post("/isthmus/canary", long).json()["error"]["param"] == "prompt"
    wait_for("everything at rest", lambda: fleet.prefill.is_at_baseline() and fleet.decode.is_at_baseline())
    assert 'isthmus_canaries_total{outcome="passed"} 2' in fleet.decode.get("/metrics").text


@pytest.mark.parametrize("dialer", ["decode", "prefill"])
def test_the_router_tries_a_pair_at_first_contact(make_fleet, dialer):
    fleet = make_fleet(canary="first_contact", on_failure="fail", dialer=dialer)

    def pairs():
        return fleet.router.get("/isthmus/workers").json()["pairs"]

    wait_for("the pair to be tried", pairs)
    (pair,) = pairs()
    assert (pair["prefill"], pair["decode"], pair["is_sound"]) == ("p1", "d1", True), pair
    assert pair["finding"].startswith("k differs by 0.0") and "nats away" in pair["finding"]
    answer = fleet.router.post("/v1/chat/completions", CHAT)
    assert answer.status_code == 200 and answer.headers["X-Isthmus-Route"].startswith("handoff"), answer.text


def test_workers_that_are_down_are_said_and_cost_no_crash(make_fleet):
    fleet = make_fleet()
    fleet.decode.send(signal.SIGKILL)
    fleet.decode.wait()
    checked = run("fleet", "check", fleet.file, "--live")
    assert checked.returncode == 7
    assert "worker d1 can't be reached" in checked.stdout
    page = run("top", "--fleet", fleet.file, "--once", "--interval", 100)
    assert page.returncode == 0
    assert "1 of 2 workers up" in page.stdout and "DOWN" in page.stdout
    inspected = run("kv", "inspect", fleet.decode.url)
    assert inspected.returncode == 3 and "connect" in inspected.stderr


def test_a_fleet_file_with_a_mistake_is_named_by_line(tmp_path):
    file = tmp_path / "fleet.yaml"
    file.write_text("fleet: x\nkey: file:fleet.key\nmodels:\n  m: {polcy: bounded}\nworkers: []\n")
    checked = run("fleet", "check", file)
    assert checked.returncode == 7
    assert f"{file}:4: error: models.m: unknown key 'polcy', did you mean 'policy'?" in checked.stdout
    file.write_text("fleet: x\nkey: file:fleet.key\nmodels:\n  m: {}\nworkers: []\n")
    checked = run("fleet", "check", file)
    assert checked.returncode == 7 and "openssl rand -hex 32" in checked.stdout
    assert run("fleet", "check", tmp_path / "none.yaml").returncode == 3
