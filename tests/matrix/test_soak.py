# SPDX-License-Identifier: Apache-2.0
"""Mixed requests under kills, stops, cuts, black holes and clients that leave; then all is at rest.

Seeded: a run draws the same requests and the same harm; when they meet depends on the machine.
"""

import collections
import random
import threading
import time

from lane import ANSWER_TOKENS, LEASE_MS, REQUEST_SECONDS, Lane, prompt_of, wait_for

CLIENTS = 4
# Lengths around the edges of tiles (256) and steps (128), and one that needs no handoff.
LENGTHS = (2, 40, 127, 256, 257, 513, 700, 1100)
LONG_ANSWER = 120
TRANSPORTS = {"p1": "shm,tcp", "p2": "tcp", "d1": "shm,tcp", "d2": "tcp,shm"}
HARM = ("kill", "pause", "stop", "kill_router", "pause_router", "reset", "black_hole", "none")


class Client(threading.Thread):
    """Asks, one request after another; leaves some of them."""

    def __init__(self, lane, seed, stopping):
        super().__init__(daemon=True)
        self.lane, self.draw, self.stopping = lane, random.Random(seed), stopping
        self.outcomes, self.wrong = collections.Counter(), []

    def run(self):
        while not self.stopping.is_set():
            prompt = self.draw.choice(self.lane.prompts)
            tokens = self.draw.choice((1, ANSWER_TOKENS, LONG_ANSWER))
            stream, leaves_after = self.draw.random() < 0.5, self.draw.choice((None, None, None, 0.02, 0.1))
            try:
                asking = self.lane.ask(prompt, stream=stream, tokens=tokens)
            except OSError:  # The router is being started again.
                self.outcomes["refused"] += 1
                time.sleep(0.02)
                continue
            if leaves_after is not None:
                asking.join(leaves_after)
                asking.leave()
            try:
                self.outcomes[asking.result()] += 1
            except AssertionError as error:
                self.wrong.append(str(error))
                return
            if asking.wrong:
                self.wrong.append(asking.wrong)


def harm(lane, draw, done):
    """One fault, and its end."""
    kind = draw.choice(HARM)
    done[kind] += 1
    name = draw.choice(("p1", "d1")) if kind in ("kill", "stop") else draw.choice(list(lane.workers))
    if kind == "kill":
        lane.process(name).kill()
        lane.start(name)
    elif kind in ("pause", "stop"):
        lane.process(name).stop()
        pause(1.6 * LEASE_MS / 1000)
        if kind == "pause":
            lane.process(name).resume()
        else:
            lane.process(name).kill()
            lane.start(name)
    elif kind == "kill_router":
        lane.router.kill()
        lane.start("router")
    elif kind == "pause_router":
        lane.router.stop()
        pause(1.6 * LEASE_MS / 1000)
        lane.router.resume()
    elif kind in ("reset", "black_hole"):
        link = lane.wires[draw.choice(("p1", "p2"))]
        link.reset() if kind == "reset" else link.swallow()
    pause(draw.uniform(0.1, 1))


def pause(seconds):
    end = time.monotonic() + seconds
    wait_for("time", lambda: time.monotonic() > end, seconds + 60)


def test_all_is_at_rest_after_a_mixed_run(request, tmp_path):
    seconds = request.config.getoption("--soak-seconds")
    seed = request.config.getoption("--soak-seed")
    lane = Lane(tmp_path, TRANSPORTS, "recompute", ["--step-ms", 2], idle_connections=8 * CLIENTS)
    try:
        lane.prompts = [prompt_of(100 + length, length) for length in LENGTHS]
        for prompt in lane.prompts:
            lane.learn(prompt, LONG_ANSWER)
        stopping = threading.Event()
        clients = [Client(lane, seed + i, stopping) for i in range(CLIENTS)]
        for client in clients:
            client.start()
        draw, done = random.Random(seed), collections.Counter()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            harm(lane, draw, done)
            assert not any(client.wrong for client in clients), [client.wrong for client in clients]
        stopping.set()
        for client in clients:
            client.join(3 * REQUEST_SECONDS + 30)
            assert not client.is_alive()
            assert not client.wrong, client.wrong
        outcomes = sum((client.outcomes for client in clients), collections.Counter())
        lane.repair()
        lane.wait_quiet()
        lane.meet(lane.prompts[-2])
        lane.wait_quiet()
        print(f"\nsoak: seed {seed}, {seconds:.0f} s, {dict(done)}, answers {dict(outcomes)}")
        growth = {n: (p.resident_bytes() - lane.rest[n][3]) >> 10 for n, p in lane.processes().items()}
        print(f"soak: resident KiB over rest {growth}")
        assert outcomes["handoff"] > 0
    finally:
        lane.close()
