#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sends one streamed chat to a router, prints the answer as it comes and what crossed between its workers.

Usage: demo_chat.py http://HOST:PORT       Exit code 1 if the answer is empty or wasn't computed by the pair.
"""

import json
import re
import sys
import time
import urllib.error
import urllib.request

QUESTION = (
    "The Isthmus of Panama joins North and South America. Ships once sailed around a whole continent; since 1914 a "
    "canal lets them cross the narrow strip of land in a day. In one sentence: why was the canal built?"
)
TIMEOUT_S = 300


def get(url):
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
        return answer.read().decode()


def chat(base):
    """The headers of a streamed chat, seconds to the first token, and its pieces; prints each as it comes."""
    body = {
        "messages": [{"role": "user", "content": QUESTION}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 64,
        "temperature": 0,
    }
    request = urllib.request.Request(
        base + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    started = time.monotonic()
    first = None
    pieces, usage = [], {}
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        for raw in answer:
            line = raw.decode().strip()
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line[len("data: "):])
            if "error" in event:
                sys.exit(f"demo: the stream ended with an error: {event['error']}")
            first = first or time.monotonic() - started
            usage = event.get("usage") or usage
            for choice in event.get("choices", []):
                piece = choice.get("delta", {}).get("content") or ""
                pieces.append(piece)
                print(piece, end="", flush=True)
        headers = answer.headers
    print()
    return headers, first, "".join(pieces), usage


def metric(text, name, **labels):
    """The sum of a metric's samples whose labels include the given ones."""
    total = 0.0
    for line in text.splitlines():
        found = re.match(r"(\w+)(?:\{(.*)\})? (\S+)$", line)
        if not found or found[1] != name:
            continue
        have = dict(re.findall(r'(\w+)="([^"]*)"', found[2] or ""))
        if all(have.get(key) == value for key, value in labels.items()):
            total += float(found[3])
    return total


def stages(text):
    """Mean seconds of each stage of a handoff, in the order in which they happen; unknown ones come last."""
    order = ["reserve", "open", "receive", "verify", "total"]
    names = set(re.findall(r'isthmus_handoff_seconds_count\{stage="([^"]*)"\}', text))
    for name in sorted(names, key=lambda n: (order.index(n) if n in order else len(order), n)):
        count = metric(text, "isthmus_handoff_seconds_count", stage=name)
        if count:
            yield name, metric(text, "isthmus_handoff_seconds_sum", stage=name) / count


def report(base, headers):
    """Prints what crossed; the names of what is wrong with it."""
    workers = {w["name"]: w for w in json.loads(get(base + "/isthmus/workers"))["workers"]}
    prefill = workers.get(headers.get("X-Isthmus-Prefill", ""))
    decode = workers.get(headers.get("X-Isthmus-Decode", ""))
    if prefill is None or decode is None:
        return ["the answer doesn't name two workers"]
    p, d = get(prefill["url"] + "/metrics"), get(decode["url"] + "/metrics")
    adopted = metric(d, "isthmus_prompt_tokens_adopted_total")
    computed = metric(d, "isthmus_prompt_tokens_computed_total")
    moved = metric(d, "isthmus_handoff_bytes_total", side="consumer")
    print(f"demo: what crossed from {prefill['name']} ({prefill['engine']}) to {decode['name']} ({decode['engine']})")
    print(f"  route             {headers.get('X-Isthmus-Route', 'not said')}")
    print(f"  KV bytes          {moved:,.0f}")
    print(f"  prompt tokens     {adopted:.0f} taken over, {computed:.0f} computed by {decode['name']}, "
          f"{metric(p, 'isthmus_prompt_tokens_computed_total'):.0f} computed by {prefill['name']}")
    for name, seconds in stages(d):
        print(f"  {name:<17} {seconds * 1000:.1f} ms")
    wrong = []
    if not adopted or not moved:
        wrong.append("no state was handed over")
    if computed:
        wrong.append(f"{decode['name']} computed {computed:.0f} prompt tokens itself")
    return wrong


def main():
    base = sys.argv[1].rstrip("/")
    print(f"demo: asking {base}\n  > {QUESTION}\n  < ", end="", flush=True)
    try:
        headers, first, answer, usage = chat(base)
        print(f"demo: first token after {first or 0:.2f} s, {usage.get('prompt_tokens', '?')} prompt tokens, "
              f"{usage.get('completion_tokens', '?')} answer tokens")
        wrong = report(base, headers)
    except (urllib.error.URLError, OSError, ValueError) as failure:
        detail = failure.read().decode() if isinstance(failure, urllib.error.HTTPError) else ""
        sys.exit(f"demo: error: {failure} {detail}")
    if not answer.strip():
        wrong.append("the answer is empty")
    for what in wrong:
        print(f"demo: error: {what}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
