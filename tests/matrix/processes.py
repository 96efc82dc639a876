# SPDX-License-Identifier: Apache-2.0
"""Workers and a router as processes: commands to stand and go, signals, and what the system says of them."""

import collections
import contextlib
import http.client
import json
import os
import pathlib
import re
import signal
import subprocess
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(os.environ.get("ISTHMUS_PROGRAM", ROOT / "build" / "release" / "isthmus"))
WORKER = pathlib.Path(os.environ.get("ISTHMUS_MATRIX_WORKER", PROGRAM.parent / "matrix_worker"))
PATIENCE = 20  # Seconds; what should happen happens in milliseconds.


def wait_for(what, fact, seconds=PATIENCE):
    """The first true value of `fact()`."""
    end = time.monotonic() + seconds
    while True:
        value = fact()
        if value:
            return value
        assert time.monotonic() < end, f"waited {seconds} s for: {what() if callable(what) else what}"
        time.sleep(0.004)


def send(url, method, path, body=None, headers=None, timeout=PATIENCE):
    """(status, headers, body) of one request on a connection of its own."""
    host = url.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=timeout)
    try:
        text = None if body is None else json.dumps(body)
        connection.request(method, path, text, {"Connection": "close", **(headers or {})})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()
    finally:
        connection.close()


class Process:
    """One process; what it prints is kept, its log goes to a file."""

    def __init__(self, name, command, folder):
        self.name, self.is_stopped = name, False
        self.log = folder / f"{name}.log"
        with self.log.open("ab") as log:
            self.popen = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                bufsize=1,
                start_new_session=True,
            )
        self.lines, self.said = [], threading.Condition()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.popen.stdout:
            with self.said:
                self.lines.append(line.rstrip("\n"))
                self.said.notify_all()

    def hears(self, beginning, since=0, seconds=PATIENCE):
        """The first line after `since` that begins so."""

        def found():
            return next((line for line in self.lines[since:] if line.startswith(beginning)), None)

        with self.said:
            assert self.said.wait_for(found, seconds), f"{self.name} never said {beginning!r}: {self.tail()}"
            return found()

    def tail(self):
        return self.log.read_text(errors="replace")[-2000:]

    @property
    def pid(self):
        return self.popen.pid

    def is_alive(self):
        return self.popen.poll() is None

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.popen.wait(PATIENCE)
        self.reader.join(PATIENCE)
        self.popen.stdin.close()
        self.popen.stdout.close()
        self.is_stopped = False

    def stop(self):
        os.kill(self.pid, signal.SIGSTOP)
        self.is_stopped = True

    def resume(self):
        os.kill(self.pid, signal.SIGCONT)
        self.is_stopped = False

    # What the system says.
    def threads(self):
        return len(os.listdir(f"/proc/{self.pid}/task"))

    def descriptors(self):
        """Kinds of open descriptors and how many of each."""
        kinds = collections.Counter()
        folder = f"/proc/{self.pid}/fd"
        for entry in os.listdir(folder):
            with contextlib.suppress(FileNotFoundError):
                target = os.readlink(f"{folder}/{entry}")
                kinds["memfd" if "memfd" in target else re.split(r"[:\[]", target)[0]] += 1
        return kinds

    def shared_mappings(self):
        with open(f"/proc/{self.pid}/maps") as maps:
            return sum("memfd:" in line or "/dev/shm/" in line for line in maps)

    def resident_bytes(self):
        with open(f"/proc/{self.pid}/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Server(Process):
    """A process that serves HTTP after its ready line, and may be started again at the same address."""

    def __init__(self, name, command, folder, start_seconds=PATIENCE):
        super().__init__(name, command, folder)
        words = self.hears("ready ", seconds=start_seconds).split()
        self.url = words[1]
        # Addresses by transport.
        self.agent = dict(word.split("://") for word in words[3].split(",")) if len(words) > 3 else {}

    def get(self, path):
        status, _, body = send(self.url, "GET", path)
        assert status == 200, f"{self.name}{path}: {status} {body}"
        return body

    def metrics(self):
        """{name: {labels text: value}}"""
        found = collections.defaultdict(dict)
        for line in self.get("/metrics").splitlines():
            match = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line)
            if match:
                found[match[1]][match[2] or ""] = float(match[3])
        return found


class Worker(Server):
    def command(self, words, answer):
        since = len(self.lines)
        self.popen.stdin.write(words + "\n")
        self.popen.stdin.flush()
        return self.hears(answer, since)

    def hold(self, side, state, moment):
        self.armed_at = len(self.lines)
        self.command(f"hold {side} {state} {moment}", "armed")

    def is_held(self):
        return any(line.startswith("held ") for line in self.lines[self.armed_at :])

    def free(self):
        self.command("free", "freed")

    def go(self):
        self.command("go", "going")

    def holdings(self):
        """Everything that must be nothing when no request is under way; what isn't."""
        metrics = self.metrics()
        wrong = {}
        for name in (
            "isthmus_ledger_grants",
            "isthmus_ledger_bytes",
            "isthmus_engine_sequences",
            "isthmus_engine_kv_bytes_used",
            "isthmus_engine_blocks_used",
            "isthmus_engine_blocks_parked",
            "isthmus_jobs_running",
            "isthmus_jobs_waiting",
            "isthmus_jobs_preempted",
        ):
            assert metrics[name], f"{self.name} has no {name}"
            wrong.update({f"{name}{{{labels}}}": value for labels, value in metrics[name].items() if value})
        return wrong


class Router(Server):
    def workers(self):
        return {worker["name"]: worker for worker in json.loads(self.get("/isthmus/workers"))["workers"]}
