# SPDX-License-Identifier: Apache-2.0
"""The commands as a newcomer uses them."""

import os
import pathlib
import signal
import subprocess

import pytest
from conftest import PROGRAM, Process, Server, wait_for


def children_of(pid):
    path = pathlib.Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in path.read_text().split()]


def is_alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def run(*arguments):
    return subprocess.run([str(PROGRAM), *arguments], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_up_serves_and_stops_all_cleanly(own, number):
    up = own(Server(["up", "--listen", "127.0.0.1:0"])).start()
    workers = children_of(up.pid)
    assert len(workers) == 2
    answer = up.post(
        "/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    )
    assert answer.status_code == 200, answer.text
    up.send(number)
    assert up.wait() == 0, up.log()
    assert len(up.out) == 1, up.out
    assert not any(is_alive(pid) for pid in workers)


def test_up_killed_takes_its_workers_along(own):
    up = own(Server(["up", "--listen", "127.0.0.1:0", "--decode", "openvino:f32"])).start()
    workers = children_of(up.pid)
    os.kill(up.pid, signal.SIGKILL)
    wait_for("the workers to end", lambda: not any(is_alive(pid) for pid in workers))


def test_ctrl_c_during_start_up_stops(own):
    up = own(Process(["up", "--listen", "127.0.0.1:0"]))
    wait_for("a worker", lambda: children_of(up.pid))
    workers = children_of(up.pid)
    up.send(signal.SIGINT)
    up.wait()
    wait_for("the workers to end", lambda: not any(is_alive(pid) for pid in workers))


@pytest.mark.parametrize(
    "arguments, code, said",
    [
        (["--help"], 0, "Exit codes"),
        (["up", "--help"], 0, "Examples"),
        (["worker", "--help"], 0, "Examples"),
        (["router", "--help"], 0, "Examples"),
        (["kv", "explain", "--help"], 0, "Examples"),
        (["kv", "inspect", "--help"], 0, "Examples"),
        (["fleet", "check", "--help"], 0, "Examples"),
        (["top", "--help"], 0, "Examples"),
        (["top"], 2, "--fleet"),
        (["kv", "inspect", "nowhere"], 3, "nowhere"),
        ([], 2, "--help"),
        (["up", "--prefill", "openvino:bf16"], 2, "accuracy"),
        (["up", "--decode", "vllm"], 2, "openvino"),
        (["up", "--listen", "nowhere"], 2, "nowhere"),
        (["up", "--policy", "lossless"], 3, "lossless"),
        (["up", "--model", "/no/such/file.gguf"], 3, "/no/such/file.gguf"),
        (["router", "--fleet", "/no/such/fleet.yaml"], 3, "/no/such/fleet.yaml"),
        (["worker", "--engine", "openvino", "--model", "/no/such/file.gguf"], 3, "/no/such/file.gguf"),
        (["kv", "explain", "llamacpp:f16", "openvino:u8", "--policy", "unqualified"], 0, "redistribute"),
        (["kv", "explain", "llamacpp:f16", "openvino:u8", "--policy", "lossless"], 5, "lossless"),
        (["kv", "explain", "llamacpp:f16", "nothing:f16"], 3, "nothing:f16"),
    ],
)
def test_commands_say_what_to_do(arguments, code, said):
    result = run(*arguments)
    assert result.returncode == code, result.stdout + result.stderr
    assert said in result.stdout + result.stderr
