# SPDX-License-Identifier: Apache-2.0
"""Every combination of state, moment, fault, transport and policy; those that can't be, with the reason."""

import dataclasses
import itertools
import pathlib
import re
import zlib

# Moments of a state: `entering`, before anything that the transition causes has been carried out, and
# `entered`, after it. A state that is left within the same event has only the first.
BOTH, ENTERING = ("entering", "entered"), ("entering",)
STATES = {
    ("producer", "pinned"): BOTH,
    ("producer", "opened"): BOTH,
    ("producer", "growing"): BOTH,
    ("producer", "sealed"): BOTH,
    ("producer", "quiescing"): ENTERING,
    ("producer", "released"): ENTERING,
    ("consumer", "opening"): BOTH,
    ("consumer", "planning"): ENTERING,
    ("consumer", "reserving"): BOTH,
    ("consumer", "receiving"): BOTH,
    ("consumer", "verifying"): BOTH,
    ("consumer", "owned"): BOTH,
    ("consumer", "quiescing"): ENTERING,
    ("consumer", "closed"): ENTERING,
}
ROUTERS_OWN = "only a ticket that a router mints itself leads there; this router relays the producer's"
NEVER_QUIET = "only a pack or a placement that never reports leads there; the cores' tests do that"
CUT = "only a cut connection leads there, which is a harm of its own: reset_link; tests/faults resumes"
UNREACHED = {
    ("producer", "promised"): ROUTERS_OWN,
    ("consumer", "promised"): ROUTERS_OWN,
    ("producer", "severed"): CUT,
    ("consumer", "resuming"): CUT,
    ("consumer", "confirming"): "only direct reads and groups of ranks lead there; their own tests do that",
    ("producer", "quarantined"): NEVER_QUIET,
    ("consumer", "quarantined"): NEVER_QUIET,
}
FAULTS = {
    "kill_producer": "kill -9",
    "kill_consumer": "kill -9",
    "kill_router": "kill -9",
    "pause_producer": "SIGSTOP beyond every lease, then SIGCONT",
    "pause_consumer": "SIGSTOP beyond every lease, then SIGCONT",
    "pause_router": "SIGSTOP beyond every lease, then SIGCONT",
    "stop_producer": "SIGSTOP for good",
    "stop_consumer": "SIGSTOP for good",
    "stop_router": "SIGSTOP for good",
    "reset_link": "all connections between the agents are reset",
    "black_hole": "all connections between the agents swallow everything, nobody is told; new ones work",
    "corrupt_chunk": "one bit of the next chunk's body is turned",
    "corrupt_from_producer": "one bit of the producer's next control frame is turned",
    "corrupt_from_consumer": "one bit of the consumer's next control frame is turned",
    "client_leaves": "the client closes its connection",
}
OF_THE_WIRE = {fault for fault in FAULTS if fault.split("_")[0] in ("reset", "black", "corrupt")}
TRANSPORTS = ("tcp", "shm")
POLICIES = ("recompute", "fail")
ANSWERS = ("whole", "stream")

# Until these points a chunk, and a control frame of each side, is sure to cross the link in this handoff.
CHUNK_FOLLOWS = {
    ("producer", "pinned", "entering"),
    ("producer", "pinned", "entered"),
    ("producer", "opened", "entering"),
    ("producer", "opened", "entered"),
    ("producer", "growing", "entering"),
    ("consumer", "opening", "entering"),
    ("consumer", "opening", "entered"),
    ("consumer", "planning", "entering"),
    ("consumer", "reserving", "entering"),
    ("consumer", "reserving", "entered"),
    ("consumer", "receiving", "entering"),
}
NO_PRODUCER_FRAME_AFTER = {
    ("consumer", "owned", "entered"),
    ("consumer", "quiescing", "entering"),
    ("consumer", "closed", "entering"),
}
NO_CONSUMER_FRAME_AFTER = {
    ("producer", "quiescing", "entering"),
    ("producer", "released", "entering"),
    ("consumer", "owned", "entered"),
    ("consumer", "quiescing", "entering"),
    ("consumer", "closed", "entering"),
}


@dataclasses.dataclass(frozen=True)
class Case:
    side: str
    state: str
    moment: str
    fault: str
    transport: str
    policy: str
    answer: str

    def __str__(self):
        return "-".join(dataclasses.astuple(self))

    @property
    def point(self):
        return (self.side, self.state, self.moment)

    def invalid(self):
        """Why this can't be; "" if it can."""
        if self.fault == "corrupt_chunk" and self.point not in CHUNK_FOLLOWS:
            return "every chunk may have crossed by then"
        if self.fault == "corrupt_from_producer" and self.point in NO_PRODUCER_FRAME_AFTER:
            return "the producer has said its last word by then"
        if self.fault == "corrupt_from_consumer" and self.point in NO_CONSUMER_FRAME_AFTER:
            return "the consumer has said its last word by then"
        return ""


def every():
    for (side, state), moments in STATES.items():
        for rest in itertools.product(moments, FAULTS, TRANSPORTS, POLICIES, ANSWERS):
            yield Case(side, state, *rest)


def valid():
    return [case for case in every() if not case.invalid()]


def full():
    """Every valid case, with one kind of answer each."""
    chosen = {}
    for case in sorted(valid(), key=lambda case: zlib.crc32(str(case).encode())):
        chosen.setdefault(dataclasses.replace(case, answer=""), case)
    return sorted(chosen.values(), key=str)


def invalid():
    """{reason: combinations of point and fault}"""
    found = {}
    for case in every():
        if case.invalid():
            found.setdefault(case.invalid(), set()).add((*case.point, case.fault))
    return found


def pairs_of(case):
    values = [(f.name, getattr(case, f.name)) for f in dataclasses.fields(case) if f.name != "side"]
    values[0] = ("state", (case.side, case.state))
    return set(itertools.combinations(values, 2))


def cover():
    """Few cases in which every two values that can occur together do. Greedy, and always the same."""
    cases = valid()
    left = set().union(*map(pairs_of, cases))
    chosen = []
    # Pairs of state and fault need most; each gets one case, the one that adds most.
    groups = {}
    for case in cases:
        groups.setdefault((case.side, case.state, case.fault), []).append(case)
    for group in groups.values():
        best = max(group, key=lambda case: (len(pairs_of(case) & left), zlib.crc32(str(case).encode())))
        chosen.append(best)
        left -= pairs_of(best)
    while left:
        best = max(cases, key=lambda case: len(pairs_of(case) & left))
        chosen.append(best)
        left -= pairs_of(best)
    return chosen


def states_in_source(table):
    """States that the product's transitions name."""
    text = (pathlib.Path(__file__).resolve().parents[2] / "src/handoff/core/states.cc").read_text()
    body = text.split(f"{table}[] = {{")[1].split("};")[0]
    return {name.lower() for name in re.findall(r"[PC]::k(\w+)", body)}
