# SPDX-License-Identifier: Apache-2.0
"""One case: brings a request to the state, does the harm, and looks from outside at what is left."""

import time

import matrix
from lane import LEASE_MS, PATIENCE, REQUEST_SECONDS, send, wait_for
from relay import CONTROL, DATA, TO_CONSUMER, TO_PRODUCER

# How long after its deadline a request may be answered at most, on a machine that is busy.
SLACK_SECONDS = 4


# A machine that is too busy may end a handoff by its lease before it comes to the state; then once more.
TRIES = 5


class NotReached(AssertionError):
    """The request was over, and rightly so, before its state or its fault."""


def run_case(lane, case, number):
    """What the client got, in a word or two. AssertionError: a guarantee was broken."""
    for left in reversed(range(TRIES)):
        try:
            return _Run(lane, case, number).run()
        except NotReached:
            if left == 0:
                raise


class _Run:
    def __init__(self, lane, case, number):
        self.lane, self.case = lane, case
        self.prompt = lane.prompts[number % len(lane.prompts)]
        self.survivors = []

    def run(self):
        lane, case = self.lane, self.case
        lane.repair()
        lane.go_direct(case.fault not in matrix.OF_THE_WIRE)
        before = self.computed()
        asking = self.reach_state()
        victim = self.victim()
        self.harm(asking, victim)
        outcome = asking.result()
        assert not asking.wrong, asking.wrong
        assert asking.took < REQUEST_SECONDS + SLACK_SECONDS, f"answered after {asking.took:.1f} s"
        if case.fault.startswith("corrupt") and not lane.wires[self.prefill].has_corrupted():
            raise NotReached(f"nothing was corrupted; the answer is {outcome}")
        # Whoever lives comes to rest by itself, whatever has become of the victim.
        lane.wait_quiet()
        if case.policy == "fail" and outcome != "left":
            assert self.computed().items() <= before.items(), "recomputed although the policy says fail"
        assert outcome in self.expected(), f"{outcome}; expected one of {self.expected()}"
        self.serve_again(victim)
        return outcome

    # To the state.
    def actors(self):
        return [w for name, w in self.lane.workers.items() if name[0] == self.case.side[0].replace("c", "d")]

    def reach_state(self):
        """A request whose producer or consumer, the actor, stands at the state."""
        case = self.case
        if (case.side, case.state) == ("consumer", "quiescing"):
            return self.reach_quiescing()
        return self.start(case.side, case.state, case.moment)

    def start(self, side, state, moment):
        for worker in self.actors():
            worker.hold(side, state, moment)
        before = self.lane.router.workers()
        asking = self.lane.ask(self.prompt, stream=self.case.answer == "stream")
        self.find_actor(asking)
        after = self.lane.router.workers()
        asked = [name for name in after if after[name]["dispatched"] > before[name]["dispatched"]]
        self.prefill, self.decode = (self.asked_last(role, asked, after) for role in "pd")
        return asking

    def asked_last(self, role, asked, workers):
        """Of the workers that were asked, the actor or the one that still counts the request."""
        names = [name for name in asked if name[0] == role]
        if self.actor.name in names:
            return self.actor.name
        return max(names, key=lambda name: workers[name]["requests"])

    def find_actor(self, asking):
        def held():
            return next((worker for worker in self.actors() if worker.is_held()), None)

        self.actor = self.wait_held(asking, held)
        for worker in self.actors():
            if worker is not self.actor:
                worker.free()

    def wait_held(self, asking, held):
        found = wait_for(f"{self.case.side} {self.case.state}", lambda: held() or not asking.is_alive())
        if found is True and not held():
            assert not asking.wrong, asking.wrong
            raise NotReached(f"{self.case.side} {self.case.state}; the answer is {asking.outcome}")
        if time.monotonic() - asking.began > REQUEST_SECONDS / 2:
            asking.leave()
            raise NotReached(f"{self.case.side} {self.case.state} too late for the request's deadline")
        return held()

    # A consumer quiesces when its handoff fails: here because the producer is told that nobody wants it.
    def reach_quiescing(self):
        asking = self.start("consumer", "receiving", "entering")
        _, _, body = send(
            self.lane.workers[self.prefill].url,
            "POST",
            "/isthmus/cancel",
            {"request_id": asking.request_id},
        )
        if "true" not in body:
            raise NotReached(f"the prefill was over: {body}")
        self.actor.hold("consumer", "quiescing", "entering")
        self.actor.go()
        self.wait_held(asking, self.actor.is_held)
        return asking

    # The fault.
    def victim(self):
        last = self.case.fault.split("_")[-1]
        names = {"producer": self.prefill, "consumer": self.decode, "router": "router"}
        return None if self.case.fault.startswith("corrupt") else names.get(last)

    def harm(self, asking, victim):
        lane, fault = self.lane, self.case.fault
        link = lane.wires[self.prefill]
        process = victim and lane.process(victim)
        if fault.startswith("kill"):
            process.kill()
        elif fault.startswith("stop"):
            process.stop()
        elif fault.startswith("pause"):
            process.stop()
            if process is not self.actor:
                self.actor.go()
            end = time.monotonic() + 1.6 * LEASE_MS / 1000
            wait_for("the leases to end", lambda: time.monotonic() > end)
            process.resume()
        elif fault == "reset_link":
            link.reset()
        elif fault == "black_hole":
            link.swallow()
        elif fault == "client_leaves":
            asking.leave()
        else:
            kind = DATA if fault == "corrupt_chunk" else CONTROL
            link.corrupt(kind, TO_PRODUCER if fault == "corrupt_from_consumer" else TO_CONSUMER)
        if process is not self.actor or fault.startswith("pause"):
            self.actor.go()
        # A client of a router that is gone or stands has only its own patience.
        if fault == "stop_router":
            asking.leave()

    # What is left.
    def computed(self):
        """Prompt tokens that each living decode worker's engine has run."""
        return {
            worker.pid: sum(worker.metrics()["isthmus_prompt_tokens_computed_total"].values())
            for name, worker in self.lane.workers.items()
            if name[0] == "d" and worker.is_alive() and not worker.is_stopped
        }

    def expected(self):
        """What a client may get. It is an answer wherever someone is left who can give it."""
        case = self.case
        if case.fault in ("client_leaves", "stop_router"):
            return {"left", "handoff"} if case.state in AFTER_THE_HANDOFF else {"left"}
        if case.fault == "kill_router":
            return {"broken", "handoff"} if case.state in AFTER_THE_HANDOFF else {"broken"}
        right = {"handoff", "recompute", "local"} if case.policy == "recompute" else {"handoff"}
        errors = set()
        if case.policy == "fail" or case.fault in ("stop_producer", "stop_consumer", "pause_router"):
            errors = {f"error {code}" for code in ERRORS}
        if case.fault in ("kill_consumer", "stop_consumer") and case.answer == "stream":
            errors |= {f"error {code} in stream" for code in ERRORS}
        return right | errors

    def serve_again(self, victim):
        """Survivors serve by handoff, then the victim too, started again at its address."""
        lane = self.lane
        is_down = victim and victim != "router" and self.case.fault.split("_")[0] in ("kill", "stop")
        if is_down:
            if lane.process(victim).is_stopped:
                lane.process(victim).kill()
            self.serve(set())
        if self.case.fault == "black_hole":  # New connections work, so the pair must make one.
            self.serve({self.prefill, self.decode})
        lane.repair()
        self.serve({self.prefill, self.decode})
        lane.wait_quiet()

    def serve(self, workers):
        """Answers by handoff until each of `workers` has had its part in one; DONE is heard."""
        lane, waited_for, handoffs = self.lane, set(workers), 0
        done = {name: self.done(name) for name in lane.urls if name[0] == "p" and self.serves(name)}
        end = time.monotonic() + PATIENCE
        while True:
            asking = lane.ask(self.prompt)
            outcome = asking.result()
            assert not asking.wrong, asking.wrong
            if outcome == "handoff":
                handoffs += 1
                waited_for -= {
                    asking.headers.get("X-Isthmus-Prefill"),
                    asking.headers.get("X-Isthmus-Decode"),
                }
                if not waited_for:
                    break
            assert time.monotonic() < end, f"{waited_for} had no part in a handoff; the last was {outcome}"
        if handoffs:  # One DONE may come after the lease on a busy machine; not all.
            wait_for("DONE", lambda: sum(self.done(name) for name in done) > sum(done.values()))

    def serves(self, name):
        return self.lane.workers[name].is_alive() and not self.lane.workers[name].is_stopped

    def done(self, name):
        ends = self.lane.workers[name].metrics()["isthmus_handoffs_total"]
        return sum(count for labels, count in ends.items() if 'outcome="done"' in labels)


# The answer may have come when a process stands in these.
AFTER_THE_HANDOFF = ("sealed", "quiescing", "released", "verifying", "owned", "closed")
ERRORS = ("unavailable", "aborted", "deadline_exceeded", "corrupt", "cancelled", "malformed", "internal")
