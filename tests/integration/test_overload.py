# SPDX-License-Identifier: Apache-2.0
"""Five times what a server can do: as much that is good as at its capacity, and the rest refused by type.

Short runs by default; --overload-seconds makes each longer (`make overload`), and holds the whole bar.
"""

import concurrent.futures
import pathlib
import threading

import openai
from conftest import MODEL, Server
from test_load import bench

QUEUE_WAIT_S = 1
SLO = "ttft=4s"
LENGTHS = ["--prompt-tokens", "lognormal:16,0.4", "--output-tokens", "uniform:3-8"]
JOBS_MAX = 64  # Of a worker.
# Of the goodput at capacity. A run of seconds serves few dozen requests, and filling and emptying its queues
# takes a good part of it: such a run only shows that goodput doesn't break down.
BAR, BAR_OF_SHORT_RUNS, LONG_RUN_S = 0.9, 0.5, 20
MIB = 1 << 20
# What a process may grow by from the begin of the search for its capacity to the end of five times as much:
# pages of the allocator, connections, and metrics; not requests.
GROWTH_MAX = 64 * MIB


def resident_bytes(pid):
    fields = dict(
        line.split(":", 1)
        for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
        if ":" in line
    )
    return int(fields["VmRSS"].split()[0]) * 1024


class Watch(threading.Thread):
    """Looks at queues and memory while a load runs."""

    def __init__(self, workers, pids):
        super().__init__(daemon=True)
        self.workers, self.pids = workers, pids
        self.stopping = threading.Event()
        self.jobs, self.memory, self.wrong = [], [], None

    def run(self):
        try:
            while not self.stopping.wait(0.2):
                for worker in self.workers:
                    self.jobs.append(
                        worker.metric("isthmus_jobs_running") + worker.metric("isthmus_jobs_waiting")
                    )
                self.memory.append([resident_bytes(pid) for pid in self.pids])
        except Exception as error:  # noqa: BLE001 - told by the test.
            self.wrong = error

    def close(self):
        self.stopping.set()
        self.join(30)
        assert self.wrong is None, self.wrong


def seconds_of(request):
    return request.config.getoption("--overload-seconds")


def check(url, workers, pids, seconds):
    bench(
        "--url", url, "--concurrency", 8, "--duration", 2, "--seed", 99, *LENGTHS
    )  # Warm: all is allocated.
    watch = Watch(workers, pids)
    watch.start()
    records, ran = bench(
        "--url", url, "--overload", "--duration", seconds, "--slo", SLO, *LENGTHS, seconds=60 + 12 * seconds
    )
    watch.close()
    assert ran.returncode == 0, ran.stderr
    *runs, verdict = records
    assert verdict["bar"] == f">= {BAR}"
    shown = "\n".join(
        f"{run['case']}: {run['goodput']:.3g}/s good, {run['counts']}, TTFT {run['ttft_s']}" for run in runs
    )
    _, once, _, five = runs[-4:]
    assert once["case"].startswith("1x") and five["case"].startswith("5x")
    assert five["counts"]["ok"] > 0 and five["counts"]["429"] > 0, shown
    for run in runs:
        typed = run["counts"]["ok"] + run["counts"]["429"]
        assert typed == run["requests"], (run["case"], run["counts"], run["first_of"])
    # Who is served is served in time: waiting, one step of others' prompts, and its own.
    assert five["good"] >= 0.9 * five["counts"]["ok"], shown
    bar = BAR if seconds >= LONG_RUN_S else BAR_OF_SHORT_RUNS
    assert five["goodput"] >= bar * once["goodput"] > 0, shown
    assert max(watch.jobs) <= JOBS_MAX
    for before, after in zip(watch.memory[0], watch.memory[-1], strict=True):
        assert after - before < GROWTH_MAX, (before, after)


def worker_of(own, *options):
    arguments = ["worker", "--engine", "llamacpp", "--model", MODEL, "--listen", "127.0.0.1:0", *options]
    return own(Server(arguments)).start()


def test_a_worker_keeps_its_goodput(own, request):
    worker = worker_of(own, "--queue-wait", QUEUE_WAIT_S)
    check(worker.url, [worker], [worker.pid], seconds_of(request))
    assert worker.is_at_baseline()


def test_a_pair_keeps_its_goodput(own, request):
    up = own(
        Server(["up", "--model", MODEL, "--listen", "127.0.0.1:0", "--queue-wait", QUEUE_WAIT_S])
    ).start()
    children = [
        int(pid) for pid in pathlib.Path(f"/proc/{up.pid}/task/{up.pid}/children").read_text().split()
    ]
    workers = []
    for line in up.err:
        if " worker " in line and " serves at " in line:
            workers.append(Server.__new__(Server))
            workers[-1].url = line.rsplit(" ", 1)[1]
    assert len(workers) == len(children) == 2
    check(up.url, workers, [up.pid, *children], seconds_of(request))
    assert up.metric("isthmus_router_queued") == up.metric("isthmus_router_inflight") == 0


def test_without_time_to_wait_a_worker_still_serves(own):
    """The shortest wait refuses what can't begin in its turn, and nothing else."""
    worker = worker_of(own, "--queue-wait", "0.05")
    (run,), _ = bench("--url", worker.url, "--concurrency", 1, "--duration", 2, *LENGTHS)
    assert run["counts"]["ok"] == run["requests"] > 0, run["first_of"]


def test_the_official_client_is_told_to_come_back_and_does(own):
    worker = worker_of(own, "--sequences", "1", "--queue-wait", "0.2")

    def ask(number, retries):
        client = openai.OpenAI(base_url=worker.url + "/v1", api_key="none", max_retries=retries)
        prompt = [1000 + 7 * number + i for i in range(40)]
        return client.completions.create(model=model, prompt=prompt, max_tokens=12, temperature=0)

    def outcomes(retries):
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            asked = [pool.submit(ask, number, retries) for number in range(6)]
            return [each.exception() or each.result() for each in asked]

    model = worker.get("/v1/models").json()["data"][0]["id"]
    at_once = outcomes(0)
    refused = [each for each in at_once if isinstance(each, openai.RateLimitError)]
    served = [each for each in at_once if not isinstance(each, Exception)]
    assert len(refused) + len(served) == len(at_once) and refused and served, at_once
    for error in refused:
        assert error.code == "exhausted" and error.type == "rate_limit_error"
        assert int(error.response.headers["Retry-After"]) >= 1
    assert not any(isinstance(each, Exception) for each in outcomes(20)), (
        "with its own retries all are served"
    )
