# SPDX-License-Identifier: Apache-2.0
"""The package as installed: its own example, moves between arrays, and errors."""

import ast
import gc
import pathlib
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


def test_a_descriptor_goes_through_bytes():
    made = isthmus.describe("openvino:u8", **SHAPE, tensor_ranks=3, context_ranks=2, context_run=32)
    read = isthmus.Descriptor.from_bytes(made.to_bytes())
    assert read.canonical_text == made.canonical_text and read.digest == made.digest
    with pytest.raises(isthmus.Error) as raised:
        isthmus.Descriptor.from_bytes(b"\xff" + made.to_bytes())
    assert raised.value.code == "malformed"
    with pytest.raises(isthmus.Error):
        isthmus.Descriptor.from_bytes(b"")


@pytest.mark.parametrize("ends", [(2, 1), (1, 3), (4, 2)])
def test_context_ranks_deal_positions_out(ends):
    source = isthmus.describe("vllm:flash_nhd", **SHAPE, context_ranks=ends[0], context_run=16)
    target = isthmus.describe("vllm:flash_hnd", **SHAPE, context_ranks=ends[1], context_run=5)
    assert sum(source.tokens_below(100, 0, rank) for rank in source.ranks) == 100
    before = filled(source, 100)
    moved, there = move(source, target, before, (0, 100))
    again, back = move(target, source, there, (0, 100))
    assert moved.root == again.root
    assert isthmus.digest(source, back, (0, 100)) == isthmus.digest(source, before, (0, 100))
    fine = isthmus.digest(target, there, (0, 100))
    there[-1].arrays[0]["K", 0][3] ^= 1
    assert isthmus.digest(target, there, (0, 100)) != fine


def test_a_choice_is_by_price_and_a_plan_follows_it():
    source = isthmus.describe("llamacpp:f16", **SHAPE)
    target = isthmus.describe("openvino:u8", **SHAPE)
    verdict = isthmus.negotiate(source, target, exactness="unqualified")
    prices = isthmus.Prices.reference(64)
    assert isthmus.Prices.parse(prices.text).digest == prices.digest
    slow = isthmus.Prices.parse(prices.text.replace("link 1250", "link 10"))
    choice = isthmus.choose(source, target, verdict, slow)
    assert [one.way for one in choice.components] == ["producer", "producer"]
    assert choice.price == sum(step.price for one in choice.components for step in one.steps)
    memories, out = filled(source, 64), {}
    for name, chosen in (("verdict", None), ("choice", choice)):
        plan = isthmus.plan(source, target, verdict, (0, 64), choice=chosen)
        out[name] = isthmus.allocate(target, 64)
        isthmus.run(plan, memories, [out[name]])
    assert "codes=u8" in choice.wire and plan.wire == choice.wire
    for key, array in out["verdict"].arrays[0].items():
        assert numpy.array_equal(array, out["choice"].arrays[0][key]), key
    with pytest.raises(isthmus.Error) as raised:
        isthmus.Prices.parse(prices.text + "\n")
    assert raised.value.code == "malformed"


def test_what_speaks_dlpack_is_used_in_place():
    class Lent:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    descriptor = isthmus.describe("llamacpp:f16", layers=1, heads=2, dim=64)
    keys, values = (numpy.ones(10 * 2 * 64, dtype=numpy.float16) for _ in "kv")
    lent = isthmus.Memory(descriptor)
    lent.bind(0, {("K", 0): Lent(keys), ("V", 0): Lent(values)}, extent=10, valid=(0, 10))
    ones = isthmus.digest(descriptor, [lent], (0, 10))
    keys[77] = 2
    assert isthmus.digest(descriptor, [lent], (0, 10)) != ones
    verdict = isthmus.negotiate(descriptor, descriptor)
    zeros = isthmus.allocate(descriptor, 10)
    isthmus.run(isthmus.plan(descriptor, descriptor, verdict, (0, 10)), [zeros], [lent])
    assert not keys.any() and not values.any()


def test_types_and_docstrings_are_complete():
    package = pathlib.Path(isthmus.__file__).parent
    assert (package / "py.typed").exists()
    hints = ast.parse((package / "_core.pyi").read_text())
    named = {one.name: one for one in hints.body if isinstance(one, ast.ClassDef | ast.FunctionDef)}
    assert set(named) == set(isthmus.__all__) - {"allocate"}
    for one in ast.walk(hints):
        if isinstance(one, ast.FunctionDef):
            arguments = one.args.posonlyargs + one.args.args + one.args.kwonlyargs
            untyped = [each.arg for each in arguments if each.annotation is None and each.arg != "self"]
            assert one.returns is not None and not untyped, one.name
    for name in isthmus.__all__:
        assert getattr(isthmus, name).__doc__, name


def test_the_token_chain_tells_orders_apart():
    assert isthmus.token_chain([1, 2]) != isthmus.token_chain([2, 1])
    assert isthmus.token_chain([]) == "0" * 32
