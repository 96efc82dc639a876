# SPDX-License-Identifier: Apache-2.0
"""Real engines under mixed requests, kills, stops and clients that leave; then all is at rest.

Every answer has the bytes of the same request asked alone, or an error with a code. Seeded: a run draws the
same requests and the same harm; when they meet depends on the machine. `make soak-serving` runs it for long.
"""

import collections
import contextlib
import random
import threading
import time

from processes import wait_for
from soak_fleet import (
    CLIENTS,
    LEASE_MS,
    LONE,
    PATIENCE_SECONDS,
    REQUEST_SECONDS,
    SoakFleet,
    ask,
)

SALTS = (None, None, "one tenant", "another")
# What is done once in each round, in an order that is drawn: whom to stop, for so many seconds, or to kill.
SHORT, PAST_LEASE, PAST_DEADLINE = 0.3, 1.6 * LEASE_MS / 1000, REQUEST_SECONDS + 1
HARM = (
    ("kill", "p1", 0),
    ("kill", "d1", 0),
    ("stop", "p2", PAST_LEASE),
    ("stop", "d2", PAST_LEASE),
    ("stop", "router", SHORT),
    ("stop", LONE, PAST_DEADLINE),
    ("nothing", "", SHORT),
)


class Client(threading.Thread):
    """Asks, one request after another; leaves some of them."""

    def __init__(self, fleet, seed, stopping):
        super().__init__(daemon=True)
        self.fleet, self.draw, self.stopping = fleet, random.Random(seed), stopping
        self.outcomes, self.wrong = collections.Counter(), None

    def run(self):
        while not self.stopping.is_set() and self.wrong is None:
            try:
                self.wrong = self.ask_one()
            except Exception as error:  # Whatever it is, it isn't an answer.
                self.wrong = repr(error)

    def ask_one(self):
        draw, fleet = self.draw, self.fleet
        number = draw.randrange(len(fleet.bodies))
        body = {**fleet.bodies[number], "stream": draw.random() < 0.5}
        salt, is_alone, is_hasty = draw.choice(SALTS), draw.random() < 0.35, draw.random() < 0.1
        leaves_after = draw.choice((None, None, None, 0, 1, 5)) if body["stream"] else None
        if salt is not None:
            body["cache_salt"] = salt
        url = fleet.urls[LONE] if is_alone else fleet.router.url
        headers = {"X-Isthmus-Queue-Wait-Ms": "20"} if is_hasty and is_alone else {}
        answer = ask(url, body, leaves_after, headers)
        self.outcomes[answer.outcome()] += 1
        fault = answer.fault(fleet.right[number])
        return f"request {number}, {body}: {fault}" if fault else None


def pause(seconds):
    end = time.monotonic() + seconds
    wait_for("time", lambda: time.monotonic() > end, seconds + 60)


def harm(fleet, draw, kind, name, seconds):
    if kind == "kill":
        fleet.workers[name].kill()
        fleet.start(name)
    elif kind == "stop":
        process = fleet.processes()[name]
        process.stop()
        pause(seconds)
        process.resume()
    pause(draw.uniform(0.1, 1))


@contextlib.contextmanager
def clients_of(fleet, seed):
    """They ask until the block ends, and nothing that came may be wrong."""
    stopping = threading.Event()
    clients = [Client(fleet, 1000 * seed + i, stopping) for i in range(CLIENTS)]
    for client in clients:
        client.start()
    try:
        yield clients
    finally:
        stopping.set()
    for client in clients:
        client.join(REQUEST_SECONDS + 60)
        assert not client.is_alive()
    expect_right(clients)


def expect_right(clients):
    wrong = [client.wrong for client in clients if client.wrong]
    assert not wrong, wrong
    return True


def outcomes_of(clients):
    return sum((client.outcomes for client in clients), collections.Counter())


def warm_up(fleet):
    """Requests until what engines and connections keep has been made, parked blocks too."""
    fleet.meet()
    with clients_of(fleet, 0) as clients:

        def is_warm():
            expect_right(clients)
            return outcomes_of(clients).total() > 4 * CLIENTS and not lacks(fleet)

        wait_for(lambda: f"somebody to be preempted at {lacks(fleet)}", is_warm, PATIENCE_SECONDS)
    fleet.wait_quiet()
    fleet.note_rest()


def lacks(fleet):
    """Who of those that decode through all of it hasn't preempted anybody yet."""
    return [name for name in ("d2", LONE) if count(fleet, name, "isthmus_preemptions_total") == 0]


def count(fleet, name, what):
    return sum(fleet.workers[name].metrics()[what].values())


def mixed_run(fleet, seed, seconds):
    """(outcomes, harm done, growth after each round); at least one round of harm."""
    draw, done, growth = random.Random(seed), collections.Counter(), []
    end = time.monotonic() + seconds
    with clients_of(fleet, seed) as clients:
        while not done or time.monotonic() < end:
            for kind, name, length in draw.sample(HARM, len(HARM)):
                harm(fleet, draw, kind, name, length)
                done[f"{kind} {name}"] += 1
                expect_right(clients)
            growth.append(fleet.growth())
    return outcomes_of(clients), done, growth


def test_all_is_at_rest_after_a_mixed_run_of_real_engines(request, tmp_path):
    seconds = request.config.getoption("--soak-serving-seconds")
    seed = request.config.getoption("--soak-serving-seed")
    fleet = SoakFleet(tmp_path)
    try:
        fleet.open()
        warm_up(fleet)
        outcomes, done, growth = mixed_run(fleet, seed, seconds)
        fleet.wait_ready()
        fleet.wait_quiet()
        fleet.meet()
        fleet.wait_quiet()
        counts = {
            (name, what): count(fleet, name, f"isthmus_{what}_total")
            for what in ("preemptions", "prefix_cache_hit_tokens", "handoff_prefix_hit_tokens")
            for name in ("p2", "d2", LONE)
        }
        print(f"\nsoak: seed {seed}, {seconds:.0f} s, {dict(done)}, answers {dict(outcomes)}")
        print(f"soak: { {key: value for key, value in counts.items() if value} }")
        shown = [*growth[:: max(1, len(growth) // 10)], fleet.growth()]
        print(f"soak: resident MiB over rest {shown}")
        assert outcomes["handoff"] > 0 and outcomes["local"] > 0
        assert counts["p2", "prefix_cache_hit_tokens"] > 0 and counts["d2", "handoff_prefix_hit_tokens"] > 0
    finally:
        fleet.close()
