#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Workers beside their engines' own servers, in turns: llama.cpp's, and OpenVINO GenAI's continuous batching.

Usage: bench/peers/serving.py build/release/isthmus --model FILE [--runs 7] [--threads 2]
Same model file, KV type, arithmetic and threads on both sides; one stands still while the other is measured.
OpenVINO's are given the file in Q8_0, made by llama.cpp's quantiser: what GenAI makes of Q4_1 is another
model, with zero points rounded. GenAI rounds activations to 8 bits as it comes: it is measured so, and
with activations in f32.
Every prompt is new. Whole answers of 64 tokens to prompts of 32, 1, 4 and 16 at once, in tokens a second, and
the time of an answer of one token to a prompt of 256. Prints one JSON line a case. A peer that can't be
had or fails is "not run" with the reason, never ok.
"""

import argparse
import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
import venv

import turns

HERE = pathlib.Path(__file__).resolve().parent
FOLDER = HERE.parent.parent / "build" / "peers-serving"
AT_ONCE = (1, 4, 16)
PROMPT, ANSWER, LONG_PROMPT = 32, 64, 256
BAR, TTFT_BAR = 0.95, 1.05
KV_TOKENS = 16384
START_SECONDS, ANSWER_SECONDS, BUILD_SECONDS = 60, 120, 3600


class Failure(Exception):
    """Why there are no figures."""


class Side:
    """A process that is measured, or stands still."""

    def __init__(self, command, **options):
        FOLDER.mkdir(parents=True, exist_ok=True)
        with open(FOLDER / "last.log", "ab") as log:
            self.process = subprocess.Popen(
                [*map(str, command)], stderr=log, text=True, start_new_session=True, **options
            )

    def halt(self, is_halted):
        os.killpg(self.process.pid, signal.SIGSTOP if is_halted else signal.SIGCONT)

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Server(Side):
    """Speaks OpenAI's completions."""

    def ask(self, connection, prompt, tokens):
        body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        text = json.dumps({**body, "cache_prompt": False})
        connection.request("POST", "/v1/completions", text, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        said = answer.read()
        made = json.loads(said)["usage"]["completion_tokens"] if answer.status == 200 else 0
        if made != tokens:
            raise Failure(f"status {answer.status}: {said[:200]!r}")

    def seconds(self, prompts, tokens):
        """From the first request's begin to the last answer's end; connections are open before."""
        connections = [
            http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_SECONDS) for _ in prompts
        ]
        for connection in connections:
            connection.connect()
        with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
            begin = time.perf_counter()
            asked = [pool.submit(self.ask, *each, tokens) for each in zip(connections, prompts, strict=True)]
            for each in asked:
                each.result()
            took = time.perf_counter() - begin
        for connection in connections:
            connection.close()
        return took


class Worker(Server):
    def __init__(self, arguments, engine, kv, model, options=()):
        super().__init__(
            [
                *(arguments.program, "worker", "--engine", engine, "--kv", kv, "--model", model),
                *("--threads", arguments.threads, "--sequences", max(AT_ONCE), "--kv-tokens", KV_TOKENS),
                *options,
            ],
            stdout=subprocess.PIPE,
        )
        ready = self.process.stdout.readline().split()
        if len(ready) < 2 or ready[0] != "ready":
            raise Failure("the worker doesn't start")
        self.port = int(ready[1].rsplit(":", 1)[1])


def llama_programs():
    """The folder of llama.cpp's own programs."""
    built = subprocess.run(
        [HERE / "llama_server.sh", FOLDER / "llama.cpp"],
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
        check=False,
    )
    if built.returncode != 0:
        raise Failure(f"llama.cpp's programs can't be built: {(built.stderr.splitlines() or ['?'])[-1]}")
    return pathlib.Path(built.stdout.strip())


def as_given(arguments):
    return arguments.model


def in_q8_0(arguments):
    """The model in Q8_0, kept between runs."""
    made = FOLDER / f"{pathlib.Path(arguments.model).stem}.Q8_0.gguf"
    if not made.exists():
        part = made.with_suffix(".part")
        quantise = [llama_programs() / "llama-quantize", "--allow-requantize", arguments.model, part, "Q8_0"]
        with open(FOLDER / "last.log", "ab") as log:
            subprocess.run(quantise, check=True, timeout=BUILD_SECONDS, stdout=log, stderr=log)
        part.rename(made)
    return made


class LlamaServer(Server):
    def __init__(self, arguments, kv, model):
        self.port = free_port()
        super().__init__(
            [
                *(llama_programs() / "llama-server", "--model", model),
                *("--host", "127.0.0.1", "--port", self.port, "--threads", arguments.threads),
                *("--threads-batch", arguments.threads),
                *("--parallel", max(AT_ONCE), "--ctx-size", KV_TOKENS, "--flash-attn", "on"),
                "--kv-unified",  # Any sequence may take all of it, as in a worker.
                *("--cache-type-k", kv, "--cache-type-v", kv),
            ],
            stdout=subprocess.DEVNULL,
        )
        end = time.monotonic() + START_SECONDS
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5).close()
                return
            if self.process.poll() is not None or time.monotonic() > end:
                self.close()
                raise Failure("llama-server doesn't start")
            time.sleep(0.1)


class GenAi(Side):
    """The pipeline in a process of its own, asked by lines of JSON: no HTTP on its side."""

    def __init__(self, arguments, kv, model, group=0):
        python = FOLDER / "genai" / "bin" / "python"
        if not (FOLDER / "genai" / "installed").exists():
            venv.create(FOLDER / "genai", with_pip=True, clear=True)
            pip = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "-r"]
            requirements = HERE / "genai-requirements.txt"
            subprocess.run([*pip, requirements], check=True, timeout=BUILD_SECONDS, stdout=sys.stderr)
            (FOLDER / "genai" / "installed").touch()
        super().__init__(
            [
                *(python, HERE / "genai.py", model, kv, group),
                *(arguments.threads, KV_TOKENS, max(AT_ONCE)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.read()

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            raise Failure("OpenVINO GenAI's pipeline ended; its log is build/peers-serving/last.log")
        return json.loads(line)

    def seconds(self, prompts, tokens):
        print(json.dumps({"prompts": prompts, "tokens": tokens}), file=self.process.stdin, flush=True)
        return self.read()["seconds"]


class RoundingGenAi(GenAi):
    """As it comes: activations are rounded to 8 bits where the processor has such products."""

    def __init__(self, arguments, kv, model):
        super().__init__(arguments, kv, model, 32)


def free_port():
    """llama-server can't be told to take one."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def random_prompts(rng, count, tokens):
    return [[rng.randrange(1000, 40000) for _ in range(tokens)] for _ in range(count)]


def in_turns(own, peer, runs, count, prompt, answer):
    """Seconds of both, `runs` each; the first of each isn't counted."""
    took = {own: [], peer: []}
    rng = random.Random(count * 1000 + answer)
    for run in range(runs + 1):
        for side in (own, peer):
            other = peer if side is own else own
            other.halt(True)
            seconds = side.seconds(random_prompts(rng, count, prompt), answer)
            other.halt(False)
            if run > 0:
                took[side].append(seconds)
    return took[own], took[peer]


def measure(name, own, peer, reference, runs):
    medians = []
    for count in AT_ONCE:
        rates = [
            [count * ANSWER / seconds for seconds in took]
            for took in in_turns(own, peer, runs, count, PROMPT, ANSWER)
        ]
        medians.append([statistics.median(rate) for rate in rates])
        yield turns.record("serving", f"{name}, {count} at once", BAR, *rates, reference, unit="tokens/s")
        print(f"serving: {name}, {count} at once: {medians[-1]}", file=sys.stderr)
    gains = [[medians[-1][side] / medians[0][side]] for side in (0, 1)]
    case = f"{name}, gain of {AT_ONCE[-1]} over 1"
    yield turns.record("serving", case, BAR, *gains, reference, unit="times")
    times = [[1e3 * s for s in took] for took in in_turns(own, peer, runs, 1, LONG_PROMPT, 1)]
    case = f"{name}, first token of {LONG_PROMPT} at idle"
    yield turns.record("serving", case, TTFT_BAR, *times, reference, unit="ms", less_is_better=True)


def run_engine(arguments, name, engine, kv, make_model, make_peer, reference, options=()):
    own = peer = None
    try:
        model = make_model(arguments)
        peer = make_peer(arguments, kv, model)
        own = Worker(arguments, engine, kv, model, options)
        yield from measure(name, own, peer, reference, arguments.runs)
    except (Failure, OSError, subprocess.SubprocessError) as wrong:
        yield turns.record("serving", name, BAR, [], [], reference, str(wrong))
    finally:
        for side in (own, peer):
            if side is not None:
                side.close()


def main():
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("program")
    parser.add_argument("--model", default=os.environ.get("ISTHMUS_TEST_MODEL"), help="GGUF file")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--engine", choices=["llamacpp", "openvino"], help="This one alone")
    arguments = parser.parse_args()
    if arguments.model is None:
        parser.error("name the GGUF file: --model")
    genai = "OpenVINO GenAI's pipeline, no HTTP"
    cells = [
        ("llamacpp:f16", "llamacpp", "f16", as_given, LlamaServer, "llama.cpp's server, same commit"),
        ("openvino:u8, Q8_0, activations f32", "openvino", "u8", in_q8_0, GenAi, genai),
        (
            *("openvino:u8, Q8_0, activations int8", "openvino", "u8", in_q8_0, RoundingGenAi, genai),
            ("--activations", "int8"),
        ),
    ]
    for cell in cells:
        if arguments.engine in (None, cell[1]):
            for record in run_engine(arguments, *cell):
                print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
