# SPDX-License-Identifier: Apache-2.0
"""Real processes: starts the built program, reads its pages, waits for facts instead of sleeping."""

import contextlib
import json
import os
import pathlib
import re
import secrets
import signal
import subprocess
import sys
import threading
import time

import pytest
import requests

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "matrix"))

from relay import FrameRelay, HttpRelay, Wires  # noqa: E402

PROGRAM = pathlib.Path(os.environ.get("ISTHMUS_PROGRAM", ROOT / "build" / "release" / "isthmus"))
MODEL = pathlib.Path(
    os.environ.get("ISTHMUS_TEST_MODEL")
    or pathlib.Path(os.environ.get("ISTHMUS_DEPS_DIR", ROOT / "third_party"))
    / "models"
    / "SmolLM2-135M-Instruct.Q4_1.gguf"
)
START_SECONDS = 180
PATIENCE_SECONDS = 120


def pytest_addoption(parser):
    parser.addoption("--overload-seconds", type=int, default=4, help="of each rate that is offered")
    parser.addoption("--soak-serving-seconds", type=float, default=20, help="how long the mixed run takes")
    parser.addoption("--soak-serving-seed", type=int, default=1)


def wait_for(what, fact, seconds=PATIENCE_SECONDS):
    """The first true value of `fact()`; polls, so that no test depends on how long something takes."""
    end = time.monotonic() + seconds
    while True:
        value = fact()
        if value:
            return value
        assert time.monotonic() < end, f"waited {seconds} s for: {what}"
        time.sleep(0.02)


class Process:
    """One process of ours with its output; killed at the end of the test whatever happens."""

    def __init__(self, arguments):
        self.popen = subprocess.Popen(
            [str(PROGRAM), *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.out, self.err = [], []
        self.readers = [
            threading.Thread(target=self._read, args=(self.popen.stdout, self.out), daemon=True),
            threading.Thread(target=self._read, args=(self.popen.stderr, self.err), daemon=True),
        ]
        for reader in self.readers:
            reader.start()

    @staticmethod
    def _read(stream, lines):
        for line in stream:
            lines.append(line.rstrip("\n"))

    @property
    def pid(self):
        return self.popen.pid

    def log(self):
        return "\n".join(self.err[-60:])

    def ready(self):
        def said():
            if self.out:
                return self.out[0]
            assert self.popen.poll() is None, f"ended with {self.popen.returncode}:\n{self.log()}"
            return None

        line = wait_for("the ready line", said, START_SECONDS)
        assert re.match(r"ready http://\S+:\d+", line), line
        return line

    def send(self, number):
        os.kill(self.pid, number)

    def wait(self, seconds=30):
        code = self.popen.wait(seconds)
        for reader in self.readers:
            reader.join(seconds)
        return code

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.popen.wait(10)


class Server(Process):
    """A process that serves HTTP after its ready line."""

    def start(self):
        words = self.ready().split()
        self.url = words[1]
        self.agent = words[3] if len(words) > 3 else None
        return self

    def get(self, path):
        return requests.get(self.url + path, timeout=PATIENCE_SECONDS)

    def post(self, path, body, **options):
        return requests.post(self.url + path, json=body, timeout=PATIENCE_SECONDS, **options)

    def metric(self, name, **labels):
        """Sum over all series of that name with these labels; 0 if there is none."""
        total = 0.0
        for line in self.get("/metrics").text.splitlines():
            match = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line)
            if not match or match[1] != name:
                continue
            found = dict(re.findall(r'(\w+)="([^"]*)"', match[2] or ""))
            if all(found.get(key) == value for key, value in labels.items()):
                total += float(match[3])
        return total

    def is_at_baseline(self):
        names = [
            "isthmus_ledger_grants",
            "isthmus_engine_sequences",
            "isthmus_jobs_running",
            "isthmus_jobs_waiting",
            "isthmus_engine_kv_bytes_used",
        ]
        return all(self.metric(name) == 0 for name in names)


class Fleet:
    """A prefill worker, decode workers and a router, each a process of its own."""

    def __init__(
        self,
        folder,
        own,
        prefill="llamacpp:f16",
        decode="openvino:u8",
        prefill_options=(),
        decode_options=(),
        on_failure="recompute",
        dialer="decode",
        tls=None,  # The files' names, by the keys of the fleet file.
        before_decoders=None,  # Called when the prefill worker serves and no decode worker has begun.
        decoders=1,
        is_wired=False,  # The agents meet over `wires`.
        canary="off",  # Most tests look at other things than first contact.
    ):
        self.own = own
        self.folder = folder
        (folder / "fleet.key").write_text(secrets.token_hex(32))
        self.file = folder / "fleet.yaml"
        self.on_failure = on_failure
        self.canary = canary
        self.dialer = dialer
        self.tls = tls
        self.write([])
        self.prefill = self.worker("p1", *prefill.split(":"), "prefill", prefill_options)
        if before_decoders:
            self.prefill.start()
            before_decoders()
        self.decoders = [
            self.worker(f"d{i + 1}", *decode.split(":"), "decode", decode_options) for i in range(decoders)
        ]
        self.decode = self.decoders[0]
        self.prefill.start()
        workers = [("p1", "prefill", self.lay_wires() if is_wired else self.prefill.url)]
        for i, worker in enumerate(self.decoders):
            workers.append((f"d{i + 1}", "decode", worker.start().url))
        self.write(workers)
        self.router = own(
            Server(["router", "--fleet", self.file, "--listen", "127.0.0.1:0", "--health-interval", 200])
        ).start()
        self.wait_ready()

    def lay_wires(self):
        """Relays before the prefill worker; its URL through one of them."""
        self.wires, told = Wires(), {}
        for endpoint in self.prefill.agent.split(","):
            transport, address = endpoint.split("://")
            self.wires.relays[transport] = FrameRelay(address)
            told[address] = self.wires.relays[transport].address
        front = HttpRelay(self.prefill.url.removeprefix("http://"))
        front.told = told
        for relay in (self.wires, front):
            self.own(relay)
        return "http://" + front.address

    def write(self, workers):
        lines = [
            "fleet: test",
            "key: file:fleet.key",
            f"dialer: {self.dialer}",
            *([f"tls: {json.dumps(self.tls)}"] if self.tls else []),
            "models:",
            f"  smollm2: {{policy: unqualified, on_failure: {self.on_failure}, canary: {self.canary}}}",
        ]
        lines.append("workers:" if workers else "workers: []")
        for name, role, url in workers:
            lines.append(f"  - {{name: {name}, role: {role}, model: smollm2, url: '{url}'}}")
        self.file.write_text("\n".join(lines) + "\n")

    def worker(self, name, engine, kv, role, options=()):
        return self.own(
            Server(
                [
                    "worker",
                    "--engine",
                    engine,
                    "--kv",
                    kv,
                    "--role",
                    role,
                    "--model",
                    MODEL,
                    "--fleet",
                    self.file,
                    "--name",
                    name,
                    "--listen",
                    "127.0.0.1:0",
                    "--agent-listen",
                    "127.0.0.1:0",
                    *options,
                ]
            )
        )

    def wait_ready(self):
        wait_for("the router to be ready", lambda: self.router.get("/ready").status_code == 200)


@pytest.fixture
def own():
    """Keeps processes and ends them with the test."""
    processes = []

    def keep(process):
        processes.append(process)
        return process

    yield keep
    for process in reversed(processes):
        process.close()


@pytest.fixture
def make_fleet(own, tmp_path):
    return lambda **options: Fleet(tmp_path, own, **options)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """One fleet for all tests of a module that leave it as it was."""
    processes = []
    try:
        yield Fleet(tmp_path_factory.mktemp("fleet"), lambda process: (processes.append(process), process)[1])
    finally:
        for process in reversed(processes):
            process.close()
