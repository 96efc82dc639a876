# SPDX-License-Identifier: Apache-2.0
"""The package as installed: its own example, moves between arrays, and errors."""

import gc
import weakref

import numpy
import pytest

import isthmus

SHAPE = {"layers": 2, "heads": 6, "dim": 64}


def filled(descriptor, tokens, seed=1):
    """Memory of every rank, random f16 or bf16 values small enough for both."""
    random = numpy.random.default_rng(seed)
    memories = []
    for rank in descriptor.ranks:
        memory = isthmus.allocate(descriptor, tokens, rank=rank)
        for arrays in memory.arrays:
            for array in arrays.values():
                view = array.view(numpy.float16)
                view[:] = random.standard_normal(view.size).astype(numpy.float16)
        memories.append(memory)
    return memories


def move(source, target, memories, tokens, **policy):
    plan = isthmus.plan(source, target, isthmus.negotiate(source, target, **policy), tokens)
    out = [isthmus.allocate(target, tokens[1], rank=rank) for rank in target.ranks]
    return isthmus.run(plan, memories, out), out


def test_the_example_of_the_package_runs():
    code = "\n".join(line[4:] for line in isthmus.__doc__.splitlines() if line.startswith("    "))
    exec(compile(code, "isthmus.__doc__", "exec"), {})


def test_the_catalogue_names_its_sources():
    storages = {storage.name: storage for storage in isthmus.catalogue()}
    assert storages["openvino:u8"].block_tokens == 32
    assert all(storage.source and storage.layout_text for storage in storages.values())


@pytest.mark.parametrize("ranks", [(1, 1), (1, 2), (3, 2), (2, 3)])
def test_there_and_back_is_equal_to_the_byte(ranks):
    source = isthmus.describe("llamacpp:f16", **SHAPE, tensor_ranks=ranks[0])
    target = isthmus.describe("vllm:paged_x", **SHAPE, tensor_ranks=ranks[1])
    before = filled(source, 100)
    moved, there = move(source, target, before, (0, 100))
    again, back = move(target, source, there, (0, 100))
    assert moved.root == again.root == isthmus.digest(target, there, (0, 100))
    for one, other in zip(before, back, strict=True):
        for key, array in one.arrays[0].items():
            assert numpy.array_equal(array, other.arrays[0][key]), key


def test_rows_are_where_the_notation_says():
    source = isthmus.describe("llamacpp:f16", layers=1, heads=2, dim=64)
    target = isthmus.describe("vllm:paged_x", layers=1, heads=2, dim=64, block_tokens=16)
    before = filled(source, 20)
    _, after = move(source, target, before, (0, 20))
    rows = before[0].arrays[0]["K", 0].view(numpy.float16).reshape(20, 2, 64)
    # blk head dim/8 slot dim%8
    blocks = after[0].arrays[0]["K", 0].view(numpy.float16).reshape(2, 2, 8, 16, 8)
    for token in range(20):
        assert numpy.array_equal(blocks[token // 16, :, :, token % 16].reshape(2, 64), rows[token])


def test_a_lossy_crossing_needs_to_be_allowed():
    source = isthmus.describe("llamacpp:f16", **SHAPE)
    target = isthmus.describe("openvino:u8", **SHAPE)
    verdict = isthmus.negotiate(source, target)
    assert verdict.kind == "reject" and verdict.rejects[0].path
    with pytest.raises(isthmus.Error) as raised:
        isthmus.plan(source, target, verdict, (0, 64))
    assert raised.value.code == "incompatible"
    moved, _ = move(source, target, filled(source, 64), (0, 64), exactness="bounded")
    assert moved.chunks > 0


def test_arrays_are_used_in_place_and_kept_alive():
    descriptor = isthmus.describe("llamacpp:f16", layers=1, heads=2, dim=64)
    keys, values = (numpy.zeros(10 * 2 * 64, dtype=numpy.float16) for _ in "kv")
    memory = isthmus.Memory(descriptor)
    memory.bind(0, {("K", 0): keys, ("V", 0): values}, extent=10, valid=(0, 10))
    zeros = isthmus.digest(descriptor, [memory], (0, 10))
    keys[3] = 1
    assert isthmus.digest(descriptor, [memory], (0, 10)) != zeros
    gone = weakref.ref(values)
    del values
    gc.collect()
    assert gone() is not None
    del memory
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    ("attempt", "code"),
    [
        (lambda: isthmus.describe("vllm:none", **SHAPE), "not_found"),
        (lambda: isthmus.describe("llamacpp:f16", layers=0, heads=1, dim=64), "invalid_argument"),
        (lambda: isthmus.describe("llamacpp:f16", **SHAPE, tensor_ranks=7), "invalid_argument"),
        (lambda: isthmus.Memory(isthmus.describe("llamacpp:f16", **SHAPE), 5), "not_found"),
    ],
)
def test_failures_have_a_code(attempt, code):
    with pytest.raises(isthmus.Error) as raised:
        attempt()
    assert raised.value.code == code


def test_an_array_of_another_size_is_refused():
    descriptor = isthmus.describe("llamacpp:f16", layers=1, heads=2, dim=64)
    memory = isthmus.Memory(descriptor)
    short = numpy.zeros(10, dtype=numpy.uint8)
    with pytest.raises(isthmus.Error, match="2560 bytes"):
        memory.bind(0, {("K", 0): short, ("V", 0): short}, extent=10, valid=(0, 10))


def test_a_stale_source_is_noticed():
    """Damage after the move changes the digest."""
    source = isthmus.describe("llamacpp:f16", **SHAPE)
    memories = filled(source, 40)
    moved, there = move(source, source, memories, (0, 40))
    there[0].arrays[0]["V", 1][77] ^= 1
    assert isthmus.digest(source, there, (0, 40)) != moved.root


def test_the_token_chain_tells_orders_apart():
    assert isthmus.token_chain([1, 2]) != isthmus.token_chain([2, 1])
    assert isthmus.token_chain([]) == "0" * 32
