# SPDX-License-Identifier: Apache-2.0
"""Workers with real engines and a router for the soak: what is asked of them, and how they are at rest."""

import concurrent.futures
import http.client
import itertools
import json
import random
import secrets

from conftest import MODEL, START_SECONDS
from processes import PROGRAM, Router, Worker, send, wait_for

STORAGE = ("--engine", "openvino", "--kv", "f32")  # Every way to an answer has the same bits.
LEASE_MS = 3000
REQUEST_SECONDS = 8  # A request's deadline, at the router and at the workers.
QUEUE_SECONDS = 4
PATIENCE_SECONDS = 120
CLIENTS = 8
# Claims are of 5 blocks at most. For states that are handed over a pool has twice that (spec/scheduler.md),
# and three at once outgrow it; that of the worker alone has 7 blocks.
SCARCE = ("--kv-tokens", 320, "--parked-tokens", 320, "--sequences", 12)
SCARCER = ("--kv-tokens", 224, "--parked-tokens", 448, "--sequences", 12)
ROOMY = ("--kv-tokens", 8192, "--sequences", 4)
# Of each pair the transport: p1 and p2 to d1 by tcp, to d2 by shm.
TRANSPORTS = {"p1": "shm,tcp", "p2": "shm,tcp", "d1": "tcp", "d2": "shm,tcp"}
PREFILLS, DECODES, LONE = ("p1", "p2"), ("d1", "d2"), "w1"
NAMES = (*PREFILLS, *DECODES, LONE)
SURVIVORS = ("p2", "d2", LONE, "router")  # They aren't killed, and are at rest at the end as before.
IDLE_CONNECTIONS = 4 * CLIENTS  # Kept for reuse: they may add to the descriptors at rest.
SPARE_SEGMENTS = 8  # Of payloads in flight at once.
RESIDENT_GROWTH = 96 << 20
MEETING = 8  # The request that each two hand over.
# What may end a request whose worker is killed, stands still or has no room.
TYPED = {"exhausted", "unavailable", "aborted", "deadline_exceeded"}


def tokens(seed, count):
    return random.Random(seed).choices(range(300, 40000), k=count)


def bodies():
    """Prompts of 2 to 129 tokens, many of which begin alike; most answers grow by some blocks of 32."""
    shapes = [  # Beginning in common, tokens behind it, of the answer, choices.
        (0, 2, 90, 1),
        (0, 3, 120, 1),
        (0, 31, 8, 1),
        (32, 34, 90, 1),
        (32, 60, 60, 1),
        (64, 1, 90, 1),
        (64, 2, 60, 2),
        (64, 30, 60, 1),
        (64, 60, 30, 1),
        (64, 63, 1, 1),
        (96, 33, 24, 3),
        (20, 4, 130, 1),
    ]
    for number, (common, behind, answer, choices) in enumerate(shapes):
        way = {"temperature": 0.9, "top_p": 0.95, "seed": number} if number % 2 else {"temperature": 0}
        prompt = tokens(common, common) + tokens(1000 + number, behind)
        yield {"prompt": prompt, "max_tokens": answer, "n": choices, "ignore_eos": True, **way}


class Answer:
    """What came for one request, all of it or up to where the client left."""

    def __init__(self, status, route, texts, error, is_whole):
        self.status, self.route, self.error, self.is_whole = status, route, error, is_whole
        self.texts = texts  # Of each choice.

    def fault(self, right):
        """What is wrong with it, against the texts of the request asked alone; "" if nothing is."""
        if any(not whole.startswith(text) for text, whole in zip(self.texts, right, strict=True)):
            return f"answered {self.texts}, right is {right}"
        if self.error is not None:
            known = self.error.get("code") in TYPED
            return "" if known and not self.is_whole else f"status {self.status}, error {self.error}"
        if self.is_whole and (self.status != 200 or self.texts != right):
            return f"status {self.status}, answered {self.texts}, right is {right}"
        return ""

    def outcome(self):
        if self.error is not None:
            return f"{self.error['code']}{' in stream' if self.status == 200 else ''}"
        return self.route.split(";")[0] if self.is_whole else "left"


def ask(url, body, leaves_after=None, headers=None):
    """One request on a connection of its own; the client is gone after so many events of its stream."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=PATIENCE_SECONDS)
    try:
        head = {"Content-Type": "application/json", "Connection": "close", **(headers or {})}
        connection.request("POST", "/v1/completions", json.dumps(body), head)
        texts = [""] * body.get("n", 1)
        if leaves_after == 0:
            return Answer(0, "", texts, None, False)
        answer = connection.getresponse()
        route = answer.headers.get("X-Isthmus-Route", "")
        if answer.headers.get("Content-Type") != "text/event-stream":
            value = json.loads(answer.read())
            for choice in value.get("choices", []):
                texts[choice["index"]] = choice["text"]
            error = value.get("error")
            return Answer(answer.status, route, texts, error, error is None)
        return read_stream(answer, route, texts, leaves_after)
    finally:
        connection.close()


def read_stream(answer, route, texts, leaves_after):
    seen, error = 0, None
    while line := answer.readline():
        if not line.startswith(b"data: "):
            continue
        data = line.removeprefix(b"data: ").strip()
        if data == b"[DONE]":
            return Answer(answer.status, route, texts, error, error is None)
        value = json.loads(data)
        error = value.get("error", error)
        for choice in value.get("choices", []):
            texts[choice["index"]] += choice["text"]
        seen += 1
        if seen == leaves_after:
            return Answer(answer.status, route, texts, None, False)
    assert error is not None, "a stream ended without its end"
    return Answer(answer.status, route, texts, error, False)


class SoakFleet:
    """Two prefill workers, two decode workers, a router before them, and a worker alone."""

    def __init__(self, folder):
        self.folder, self.workers, self.addresses, self.urls = folder, {}, {}, {}
        self.router = None
        self.rest, self.right = {}, []
        self.salts = (f"cold {number}" for number in itertools.count())
        self.bodies = list(bodies())
        self.file = folder / "fleet.yaml"
        (folder / "fleet.key").write_text(secrets.token_hex(32))
        self.write()

    def open(self):
        # Two at once, as there are processors in most places.
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            learning = pool.submit(self.learn)
            list(pool.map(self.start, NAMES))
            learning.result()
        self.write()
        self.start("router")
        self.wait_ready()

    def close(self):
        for process in self.processes().values():
            if process.is_alive():
                process.kill()

    def write(self):
        lines = ["fleet: soak", "key: file:fleet.key", "models:"]
        lines += ["  smollm2: {policy: lossless, on_failure: recompute, canary: off}"]
        lines.append("workers:" if self.urls else "workers: []")
        for name in (*PREFILLS, *DECODES) if self.urls else ():
            role = "prefill" if name in PREFILLS else "decode"
            lines.append(f"  - {{name: {name}, role: {role}, model: smollm2, url: '{self.urls[name]}'}}")
        self.file.write_text("\n".join(lines) + "\n")

    def start(self, name):
        """Starts a process, at its earlier address if it had one."""
        listen, agent = self.addresses.get(name, ("127.0.0.1:0", "127.0.0.1:0"))
        if name == "router":
            command = [PROGRAM, "router", "--fleet", self.file, "--listen", listen]
            command += ["--health-interval", 200, "--request-timeout", REQUEST_SECONDS]
            self.router = Router(name, [*command, "--queue-wait", QUEUE_SECONDS], self.folder)
            return
        command = [PROGRAM, "worker", *STORAGE, "--model", MODEL, "--name", name, "--lease", LEASE_MS]
        command += ["--listen", listen, "--agent-listen", agent]
        command += ["--request-timeout", REQUEST_SECONDS, "--queue-wait", QUEUE_SECONDS]
        command += ROOMY if name in PREFILLS else SCARCER if name == LONE else SCARCE
        if name != LONE:
            role = "prefill" if name in PREFILLS else "decode"
            command += ["--fleet", self.file, "--role", role, "--transports", TRANSPORTS[name]]
        worker = Worker(name, command, self.folder, START_SECONDS)
        self.workers[name] = worker
        self.addresses[name] = (worker.url.removeprefix("http://"), worker.agent.get("tcp", agent))
        self.urls[name] = worker.url

    def processes(self):
        return {**self.workers, **({"router": self.router} if self.router else {})}

    def wait_ready(self):
        def all_ready():
            workers = self.router.workers()
            return all(workers[name]["ready"] for name in (*PREFILLS, *DECODES))

        wait_for("the router to see all workers ready", all_ready, PATIENCE_SECONDS)

    # Requests.
    def learn(self):
        """What each request gets of a worker that has nothing else to do, and knows nothing."""
        command = [PROGRAM, "worker", *STORAGE, "--model", MODEL, "--name", "reference"]
        worker = Worker("reference", command, self.folder, START_SECONDS)
        try:
            for body in self.bodies:
                answer = ask(worker.url, {**body, "cache_salt": next(self.salts)})
                assert answer.is_whole and answer.status == 200, answer.error
                self.right.append(answer.texts)
        finally:
            worker.kill()

    def hand_over(self, prefill, decode, number, salt):
        """Both legs between two named workers; true if a state crossed."""
        body = {**self.bodies[number], "cache_salt": salt}
        first = {**body, "kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False}}
        status, _, text = send(self.urls[prefill], "POST", "/v1/completions", first)
        assert status == 200, text
        answer = ask(
            self.urls[decode], {**body, "kv_transfer_params": json.loads(text)["kv_transfer_params"]}
        )
        assert not answer.fault(self.right[number]), answer.fault(self.right[number])
        return answer.route.startswith("handoff") and answer.is_whole

    def meet(self):
        """Between each two a handoff, and one of which most is known; and an answer of the worker alone."""
        for prefill, decode in itertools.product(PREFILLS, DECODES):
            way = (prefill, decode, MEETING, next(self.salts))
            for _ in range(2):
                wait_for("a handoff", lambda way=way: self.hand_over(*way), PATIENCE_SECONDS)
        answer = ask(self.urls[LONE], self.bodies[MEETING])
        assert answer.is_whole and answer.texts == self.right[MEETING], answer.error

    # At rest.
    def note_rest(self):
        """What each process holds once every connection and buffer that is kept has been made."""
        for name, process in self.processes().items():
            self.rest[name] = (
                process.threads(),
                sum(process.descriptors().values()),
                process.shared_mappings(),
                process.resident_bytes(),
            )

    def growth(self):
        """MiB that each of the survivors has more than at rest."""
        return {
            name: (self.processes()[name].resident_bytes() - self.rest[name][3]) >> 20 for name in SURVIVORS
        }

    def disquiet(self):
        """What the processes hold that they don't hold at rest."""
        found = {}
        for name, process in self.processes().items():
            held = self.held(name) or (self.grown(process, *self.rest[name]) if name in SURVIVORS else None)
            if held:
                found[name] = held
        return found

    def held(self, name):
        if name == "router":
            return None
        worker = self.workers[name]
        state = json.loads(worker.get("/state"))
        agent, ledger = state["agent"], state["ledger"]
        wrong = {what: agent[what] for what in ("handoffs", "reservations", "quarantined") if agent[what]}
        if ledger["granted"] != ledger["released"]:
            wrong["ledger"] = ledger
        return {**worker.holdings(), **wrong}

    @staticmethod
    def grown(process, threads, descriptors, mappings, resident):
        if process.threads() > threads:
            return f"{process.threads()} threads, {threads} at rest"
        if sum(process.descriptors().values()) > descriptors + IDLE_CONNECTIONS:
            return f"{dict(process.descriptors())} open, {descriptors} at rest"
        if process.shared_mappings() > mappings + SPARE_SEGMENTS:
            return f"{process.shared_mappings()} shared mappings, {mappings} at rest"
        if process.resident_bytes() > resident + RESIDENT_GROWTH:
            return f"{process.resident_bytes() >> 20} MiB resident, {resident >> 20} at rest"
        return None

    def wait_quiet(self):
        seen = {}

        def is_quiet():
            seen.clear()
            seen.update(self.disquiet() if self.rest else {n: h for n in NAMES if (h := self.held(n))})
            return not seen

        wait_for(lambda: f"rest; {seen}", is_quiet, 60)
