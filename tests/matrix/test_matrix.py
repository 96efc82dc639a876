# SPDX-License-Identifier: Apache-2.0
"""The fault matrix: each case is a test; several fleets work on them at once."""

import concurrent.futures
import itertools
import threading

import pytest

import matrix
import page
from lane import NAMES, Lane
from conftest import OUTCOMES
from run_case import run_case


def pytest_generate_tests(metafunc):
    if "case" in metafunc.fixturenames:
        cases = matrix.full() if metafunc.config.getoption("--full") else matrix.cover()
        metafunc.parametrize("case", cases, ids=str)


class Fleets:
    """Works off all selected cases, each on a fleet of its transport and policy."""

    def __init__(self, cases, folder, lanes):
        self.folder = folder
        self.results = {case: concurrent.futures.Future() for case in cases}
        self.outcomes = {}
        self.stopping = threading.Event()
        self.threads = []
        for transport, policy in itertools.product(matrix.TRANSPORTS, matrix.POLICIES):
            mine = [case for case in cases if (case.transport, case.policy) == (transport, policy)]
            work = iter(enumerate(mine))
            for number in range(min(lanes, len(mine))):
                name = f"{transport}-{policy}-{number}"
                thread = threading.Thread(target=self.run, args=(name, transport, policy, work), daemon=True)
                self.threads.append(thread)
        self.lock = threading.Lock()
        for thread in self.threads:
            thread.start()

    def run(self, name, transport, policy, work):
        lane = None
        while not self.stopping.is_set():
            with self.lock:
                number, case = next(work, (0, None))
            if case is None:
                break
            try:
                lane = lane or Lane(self.folder / name, dict.fromkeys(NAMES, transport), policy)
                outcome = run_case(lane, case, number)
                self.outcomes[case] = outcome
                self.results[case].set_result(outcome)
            except BaseException as error:
                self.outcomes[case] = "VIOLATION"
                self.results[case].set_exception(error)
                if lane:
                    lane.close()
                lane = None
        if lane:
            lane.close()

    def close(self):
        self.stopping.set()
        for thread in self.threads:
            thread.join(60)


@pytest.fixture(scope="module")
def fleets(request, tmp_path_factory):
    cases = [item.callspec.params["case"] for item in request.session.items if hasattr(item, "callspec")]
    fleets = Fleets(cases, tmp_path_factory.mktemp("matrix"), request.config.getoption("--lanes"))
    yield fleets
    fleets.close()
    request.config.stash[OUTCOMES] = fleets.outcomes
    if request.config.getoption("--page"):
        page.write(request.config.getoption("--page"), fleets.outcomes)


def test_guarantees_hold(case, fleets):
    fleets.results[case].result(600)


def test_every_state_of_the_product_is_in_the_matrix_or_has_a_reason():
    for side, source in (("producer", "kProducer"), ("consumer", "kConsumer")):
        named = matrix.states_in_source(source)
        listed = {state for where, state in [*matrix.STATES, *matrix.UNREACHED] if where == side}
        assert named == listed
