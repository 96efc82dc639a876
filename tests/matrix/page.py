# SPDX-License-Identifier: Apache-2.0
"""What each fault led to at each state: a table for people, and docs/faults.md."""

import collections
import pathlib

import matrix

LETTERS = {
    "handoff": ("H", "the right answer, from a state that was handed over (at once, or at another worker)"),
    "recompute": ("R", "the right answer, computed at the decode worker after the handoff had failed"),
    "local": ("C", "the right answer, computed at a decode worker without a handoff"),
    "error": ("E", "a typed error, in time"),
    "left": ("–", "the client left; nothing of the request stays anywhere"),
    "broken": ("X", "the client's connection broke with the router; nothing of the request stays anywhere"),
    "VIOLATION": ("!", "a guarantee was broken"),
}
INTRODUCTION = """# What faults lead to

Written by `make faults`. Two prefill workers, two decode workers and a router, each a process of its own;
the workers run an engine without weights whose answers spell the state that they were computed from, so that
a wrong state shows in the text. One process stands still at a named state of the handoff (`spec/handoff.md`,
States), harm is done, and it goes on. Each case runs before and after the state's own actions, over each
transport, with both policies (`on_failure: recompute` and `fail`); answers are whole or streamed by turns.

After each case, looked at from outside: the client has the right answer or a typed error in time; with `fail`
nothing was computed again; ledgers, sequences, blocks, jobs, threads, descriptors, shared mappings and
resident memory of all that live are as at rest; the survivors serve by handoff; so does the victim, started
again at its address.
"""


def letters(outcomes):
    found = collections.Counter(LETTERS[outcome.split()[0]][0] for outcome in outcomes)
    return "".join(sorted(found)) or " "


def table(outcomes, policy):
    """Markdown: a row a fault, a column a state."""
    cells = collections.defaultdict(list)
    for case, outcome in outcomes.items():
        if case.policy == policy:
            cells[case.side, case.state, case.fault].append(outcome)
    heads = [f"{'P' if side == 'producer' else 'D'} {state}" for side, state in matrix.STATES]
    rows = [["", *heads]]
    for fault in matrix.FAULTS:
        rows.append([fault, *(letters(cells[side, state, fault]) for side, state in matrix.STATES)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    padded = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows)
    lines = ["| " + " | ".join(row) + " |" for row in padded]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def legend():
    return "\n".join(f"- {letter}: {meaning}" for letter, meaning in LETTERS.values())


def tables(outcomes):
    return "\n\n".join(f"on_failure: {policy}\n\n{table(outcomes, policy)}" for policy in matrix.POLICIES)


def write(path, outcomes):
    faults = "\n".join(f"- `{name}`: {meaning}" for name, meaning in matrix.FAULTS.items())
    unreached = "\n".join(
        f"- {side}'s state `{state}`: {why}" for (side, state), why in matrix.UNREACHED.items()
    )
    left_out = "\n".join(
        f"- {why}: " + ", ".join(f"`{fault}` at {' '.join(point)}" for *point, fault in sorted(found))
        for why, found in sorted(matrix.invalid().items())
    )
    text = (
        f"{INTRODUCTION}\n{len(outcomes)} cases, {list(outcomes.values()).count('VIOLATION')} violations;"
        f" transports: {', '.join(matrix.TRANSPORTS)}. Several letters: it depends on moment and answer.\n\n"
        f"{legend()}\n\n{tables(outcomes)}\n\n## Faults\n\n{faults}\n\n"
        f"## What isn't run, and why\n\n{unreached}\n{left_out}\n"
    )
    pathlib.Path(path).write_text(text)
