# SPDX-License-Identifier: Apache-2.0
"""Options of the fault matrix, and its table at the end."""

import page
import pytest

OUTCOMES = pytest.StashKey()


def pytest_addoption(parser):
    parser.addoption("--full", action="store_true", help="every valid case of the matrix, not only a cover")
    parser.addoption("--page", help="write what each fault led to into this file")
    parser.addoption("--soak-seconds", type=float, default=20, help="how long the mixed run takes")
    parser.addoption("--soak-seed", type=int, default=1)
    parser.addoption("--lanes", type=int, default=2, help="fleets at once, of each transport and policy")


def pytest_terminal_summary(terminalreporter, config):
    outcomes = config.stash.get(OUTCOMES, {})
    if outcomes:
        terminalreporter.write_line(f"\n{page.legend()}\n\n{page.tables(outcomes)}\n")
