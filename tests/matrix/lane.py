# SPDX-License-Identifier: Apache-2.0
"""Two prefill workers, two decode workers and a router: what is asked of them, and how they are at rest."""

import contextlib
import http.client
import json
import random
import secrets
import socket
import string
import threading
import time

from processes import PATIENCE, PROGRAM, WORKER, Router, Worker, send, wait_for
from relay import FrameRelay, HttpRelay, Wires

LEASE_MS = 600
REQUEST_SECONDS = 3  # A request's deadline, at the router and at the workers.
PROMPT_TOKENS = 700  # Four chunks and a part of one.
ANSWER_TOKENS = 12
MODEL = "fake"
NAMES = ("p1", "p2", "d1", "d2")
RESIDENT_GROWTH = 48 << 20
# What payloads in flight at once may add to the shared segments at rest; they end with their channel.
SPARE_SEGMENTS = 8


def prompt_of(seed, tokens=PROMPT_TOKENS):
    draw = random.Random(seed)
    return "".join(draw.choice(string.ascii_letters + string.digits + " ") for _ in range(tokens))


class Asking(threading.Thread):
    """A completion under way at the router."""

    def __init__(self, lane, prompt, stream=False, tokens=ANSWER_TOKENS):
        super().__init__(daemon=True)
        self.lane, self.prompt, self.stream, self.tokens = lane, prompt, stream, tokens
        self.request_id = secrets.token_hex(8)
        self.has_left = threading.Event()
        self.outcome, self.headers, self.wrong = None, {}, ""
        self.began = time.monotonic()
        self.connection = self.lane.connect()
        self.connection.connect()
        self.socket = self.connection.sock  # http.client forgets it while it reads the answer.
        self.start()

    def run(self):
        body = {
            "model": MODEL,
            "prompt": self.prompt,
            "max_tokens": self.tokens,
            "temperature": 0,
            "stream": self.stream,
        }
        headers = {"Content-Type": "application/json", "X-Request-Id": self.request_id, "Connection": "close"}
        try:
            self.connection.request("POST", "/v1/completions", json.dumps(body), headers)
            answer = self.connection.getresponse()
            text = answer.read().decode()
            self.headers = dict(answer.headers)
            self.outcome = self.judge(answer.status, text)
        except (OSError, http.client.HTTPException, ValueError) as error:  # An answer that was cut.
            self.outcome = "left" if self.has_left.is_set() else "broken"
            self.broken_by = error
        self.took = time.monotonic() - self.began
        with contextlib.suppress(OSError):
            self.connection.close()

    def leave(self):
        self.has_left.set()
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def result(self, seconds=REQUEST_SECONDS + PATIENCE):
        self.join(seconds)
        assert not self.is_alive(), "the request was never answered"
        return self.outcome

    def judge(self, status, body):
        """What came, in a word or two; `wrong` says what must not have come."""
        right = self.lane.right_answer(self.prompt)[: self.tokens]
        pieces = [body]
        if self.headers.get("Content-Type") == "text/event-stream":
            pieces = [event.removeprefix("data: ") for event in body.split("\n\n") if event]
        text, error = "", None
        for piece in pieces:
            if piece == "[DONE]":
                continue
            value = json.loads(piece)
            error = value.get("error", error)
            text += "".join(choice.get("text", "") for choice in value.get("choices", []))
        if not right.startswith(text) or (error is None and text != right):
            self.wrong = f"answered {text!r}, right is {right!r}"
        if error is not None:
            if not error.get("code"):
                self.wrong = f"an error without a code: {body}"
            self.error = error
            return f"error {error.get('code')}" + (" in stream" if status == 200 else "")
        if status != 200:
            self.wrong = f"status {status} without an error: {body}"
        route = self.headers.get("X-Isthmus-Route", "none").split(";")[0]
        return route


class Lane:
    """Everything it starts ends with close(). One thread uses it, but for what says otherwise."""

    def __init__(self, folder, transports, policy, worker_options=(), idle_connections=4):
        self.folder, self.transports, self.policy = folder, transports, policy
        self.worker_options = worker_options
        self.idle_connections = idle_connections  # Kept for reuse: they may add to the descriptors at rest.
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "fleet.key").write_text(secrets.token_hex(32))
        self.fleet_file = folder / "fleet.yaml"
        self.workers, self.addresses, self.urls = {}, {}, {}
        self.http_relays, self.wires = {}, {}  # Of the prefill workers.
        self.answers, self.rest = {}, {}
        self.write_fleet()
        for name in NAMES:
            self.start(name)
        self.write_fleet()
        self.start("router")
        self.warm_up()

    # Processes.
    def write_fleet(self):
        lines = [
            "fleet: matrix",
            "key: file:fleet.key",
            "models:",
            f"  {MODEL}: {{policy: unqualified, on_failure: {self.policy}, canary: off}}",
            "workers:" if self.urls else "workers: []",
        ]
        for name, url in self.urls.items():
            role = "prefill" if name[0] == "p" else "decode"
            lines.append(f"  - {{name: {name}, role: {role}, model: {MODEL}, url: '{url}'}}")
        self.fleet_file.write_text("\n".join(lines) + "\n")

    def start(self, name):
        """Starts a process, at its earlier address if it had one."""
        listen, agent = self.addresses.get(name, ("127.0.0.1:0", "127.0.0.1:0"))
        if name == "router":
            command = [PROGRAM, "router", "--fleet", self.fleet_file, "--listen", listen]
            command += ["--health-interval", 100, "--request-timeout", REQUEST_SECONDS]
            self.router = Router(name, command, self.folder)
            self.addresses[name] = (self.router.url.removeprefix("http://"), None)
            return
        is_prefill = name[0] == "p"
        command = [WORKER, "--name", name, "--fleet", self.fleet_file]
        command += ["--role", "prefill" if is_prefill else "decode"]
        command += ["--storage", "llamacpp:f16" if is_prefill else "openvino:f32"]
        command += ["--listen", listen, "--agent-listen", agent, "--transports", self.transports[name]]
        command += ["--lease", LEASE_MS, "--request-timeout", 1000 * REQUEST_SECONDS, *self.worker_options]
        worker = self.workers[name] = Worker(name, command, self.folder)
        self.addresses[name] = (worker.url.removeprefix("http://"), worker.agent.get("tcp", agent))
        self.urls.setdefault(name, worker.url)
        if is_prefill:
            self.lay_wires(name, worker)

    def lay_wires(self, name, worker):
        """Relays before a prefill worker; one that has started again may have another address."""
        if name not in self.http_relays:
            self.wires[name] = Wires()
            self.http_relays[name] = HttpRelay(self.addresses[name][0])
            self.urls[name] = "http://" + self.http_relays[name].address
        relays = self.wires[name].relays
        for transport, address in worker.agent.items():
            if transport not in relays:
                relays[transport] = FrameRelay(address)
            relays[transport].target = address
        self.http_relays[name].told = {
            address: relays[transport].address for transport, address in worker.agent.items()
        }

    def go_direct(self, is_direct):
        """Agents meet without a relay between them, or with one."""
        for relay in self.http_relays.values():
            relay.is_direct = is_direct

    def processes(self):
        return {**self.workers, "router": self.router}

    def process(self, name):
        return self.processes()[name]

    def close(self):
        for process in self.processes().values():
            if process.is_alive():
                process.kill()
        for relay in [*self.http_relays.values(), *self.wires.values()]:
            relay.close()

    # Requests.
    def connect(self):
        return http.client.HTTPConnection(
            self.router.url.removeprefix("http://"), timeout=REQUEST_SECONDS + PATIENCE
        )

    def ask(self, prompt, **options):
        return Asking(self, prompt, **options)

    def right_answer(self, prompt):
        """As a worker answers that computes all of it. Any thread, for prompts that were learnt before."""
        return self.answers[prompt]

    def learn(self, prompt, tokens=ANSWER_TOKENS):
        body = {"model": MODEL, "prompt": prompt, "max_tokens": tokens, "temperature": 0}
        status, _, text = send(self.workers["d1"].url, "POST", "/v1/completions", body)
        assert status == 200, text
        self.answers[prompt] = json.loads(text)["choices"][0]["text"]
        assert len(self.answers[prompt]) == tokens

    def hand_over(self, prefill, decode, prompt):
        """Both legs between two named workers."""
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 1, "temperature": 0}
        body["kv_transfer_params"] = {"do_remote_decode": True, "do_remote_prefill": False}
        status, _, text = send(self.urls[prefill], "POST", "/v1/completions", body)
        assert status == 200, text
        body.update(max_tokens=ANSWER_TOKENS, kv_transfer_params=json.loads(text)["kv_transfer_params"])
        status, headers, text = send(self.urls[decode], "POST", "/v1/completions", body)
        assert status == 200, text
        right = self.right_answer(prompt)[:ANSWER_TOKENS]
        assert json.loads(text)["choices"][0]["text"] == right
        return headers["X-Isthmus-Route"].startswith("handoff")

    # At rest.
    def warm_up(self):
        """Every connection that is ever kept is made, then what each process holds is noted."""
        self.prompts = [prompt_of(seed) for seed in range(4)]
        for prompt in self.prompts:
            self.learn(prompt)
        self.wait_ready()
        for is_direct in (True, False):
            self.go_direct(is_direct)
            self.meet(self.prompts[0])
        for _ in range(2):
            askings = [self.ask(prompt) for prompt in self.prompts]
            for asking in askings:
                asking.result()
        self.wait_quiet()
        for name, process in self.processes().items():
            self.rest[name] = (
                process.threads(),
                sum(process.descriptors().values()),
                process.shared_mappings(),
                process.resident_bytes(),
            )

    def meet(self, prompt):
        """A handoff between each two."""
        for prefill in ("p1", "p2"):
            for decode in ("d1", "d2"):
                wait_for("a handoff", lambda p=prefill, d=decode: self.hand_over(p, d, prompt))

    def wait_ready(self, names=NAMES):
        wait_for(
            lambda: f"the router to see {names} ready; it sees {self.router.workers()}",
            lambda: all(self.router.workers()[name]["ready"] for name in names),
        )

    def disquiet(self, names):
        """What the named processes hold that they don't hold at rest."""
        found = {}
        for name in names:
            process = self.process(name)
            if name != "router":
                held = process.holdings()
                if held:
                    found[name] = held
                    continue
            if name not in self.rest:
                continue
            threads, descriptors, mappings, resident = self.rest[name]
            if process.threads() > threads:
                found[name] = f"{process.threads()} threads, {threads} at rest"
            elif sum(process.descriptors().values()) > descriptors + self.idle_connections:
                found[name] = f"{dict(process.descriptors())} open, {descriptors} at rest"
            elif process.shared_mappings() > mappings + SPARE_SEGMENTS:
                found[name] = f"{process.shared_mappings()} shared mappings, {mappings} at rest"
            elif process.resident_bytes() > resident + RESIDENT_GROWTH:
                found[name] = f"{process.resident_bytes() >> 20} MiB resident, {resident >> 20} at rest"
        return found

    def wait_quiet(self, names=None):
        """All that are named, or run, come to rest."""
        if names is None:
            names = [n for n, p in self.processes().items() if p.is_alive() and not p.is_stopped]
        seen = {}

        def is_quiet():
            seen.clear()
            seen.update(self.disquiet(names))
            return not seen

        wait_for(lambda: f"rest; {seen}", is_quiet, PATIENCE / 2)

    def repair(self):
        """All processes run, all wires work."""
        for wires in self.wires.values():
            wires.heal()
        for name, process in self.processes().items():
            if process.is_stopped:
                process.kill()
            if not process.is_alive():
                self.start(name)
        for worker in self.workers.values():
            worker.free()
            worker.go()
        self.wait_ready()
