# SPDX-License-Identifier: Apache-2.0
"""Workers that speak TLS to each other, with certificates made as docs/tls.md says."""

import re
import subprocess
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tls.md"
PROMPT = "The lighthouse keeper wrote down every ship that passed and where it was bound. " * 20
BODY = {"prompt": PROMPT, "max_tokens": 16, "temperature": 0}
OPTIONS = ["--transports", "tcp"]
FILES = {"certificate": "worker.pem", "key": "worker.key", "authority": "authority.pem"}


def make_certificates(folder):
    commands = re.search(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL).group(1)
    subprocess.run(["bash", "-euc", commands], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def make_secret_fleet(make_fleet, tmp_path):
    def make(**more):
        make_certificates(tmp_path)
        return make_fleet(
            prefill="openvino:f32",
            decode="openvino:f32",
            prefill_options=OPTIONS,
            decode_options=OPTIONS,
            on_failure="fail",
            tls=FILES,
            **more,
        )

    return make


@pytest.mark.parametrize("dialer", ["decode", "prefill"])
def test_a_state_that_crossed_under_tls_gives_the_answer_of_one_worker(make_secret_fleet, dialer):
    fleet = make_secret_fleet(dialer=dialer)
    alone = fleet.decode.post("/v1/completions", BODY).json()["choices"][0]["text"]
    computed = fleet.decode.metric("isthmus_prompt_tokens_computed_total")
    answer = fleet.router.post("/v1/completions", BODY)
    assert answer.status_code == 200, answer.text
    assert answer.headers["X-Isthmus-Route"].startswith("handoff"), answer.headers
    assert answer.json()["choices"][0]["text"] == alone
    assert fleet.decode.metric("isthmus_prompt_tokens_computed_total") == computed


def test_a_worker_of_another_authority_gets_nothing(make_secret_fleet, tmp_path):
    fleet = make_secret_fleet(before_decoders=lambda: make_certificates(tmp_path))
    answer = fleet.router.post("/v1/completions", BODY)
    assert answer.status_code == 503, answer.text
    assert "its certificate is refused" in answer.text, answer.text


def test_a_worker_whose_certificate_peers_would_refuse_doesnt_start(make_secret_fleet, tmp_path):
    fleet = make_secret_fleet()
    (tmp_path / "authority.pem").write_text((tmp_path / "worker.pem").read_text())
    worker = fleet.worker("d2", "openvino", "f32", "decode")
    assert worker.wait() != 0
    assert "would refuse it" in worker.log(), worker.log()
