# SPDX-License-Identifier: Apache-2.0
"""Golden vectors as fixtures."""

import pathlib

import pytest

VECTORS = pathlib.Path(__file__).resolve().parents[2] / "spec" / "vectors" / "kv"


@pytest.fixture(scope="session")
def vector():
    """Text of a file of spec/vectors/kv, one byte a character."""
    return lambda name: (VECTORS / name).read_bytes().decode("latin-1")


def pytest_generate_tests(metafunc):
    if "descriptor_file" in metafunc.fixturenames:
        files = sorted(VECTORS.glob("descriptors/*.txt")) + sorted(VECTORS.glob("published/*-*.txt"))
        names = [str(one.relative_to(VECTORS)) for one in files if one.name != "digests.txt"]
        metafunc.parametrize("descriptor_file", names)
