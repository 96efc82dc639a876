# SPDX-License-Identifier: Apache-2.0
"""KV state of language models: what the bytes mean, whether two engines may share them, how to rewrite them.

    import isthmus
    p = isthmus.describe("vllm:flash_nhd", layers=2, heads=8, dim=64, tensor_ranks=2)
    d = isthmus.describe("sglang:page", layers=2, heads=8, dim=64)
    verdict = isthmus.negotiate(p, d)           # kind, reasons, wire form; a pure function
    plan = isthmus.plan(p, d, verdict, (0, 100))
    source = [isthmus.allocate(p, 100, rank=r) for r in p.ranks]
    target = [isthmus.allocate(d, 100)]
    moved = isthmus.run(plan, source, target)   # packed, placed, read back; the tiles' root
    assert moved.root == isthmus.digest(d, target, (0, 100))

Arrays are anything with DLPack or the buffer protocol on the CPU (numpy, torch), C-contiguous and writable;
they are used where they are, never copied, and kept alive by the Memory that they are bound to. Failures
raise `isthmus.Error`, whose `code` says what to do ("incompatible", "invalid_argument", "corrupt", …).
"""

from isthmus._core import (
    Choice,
    ComponentChoice,
    Descriptor,
    Error,
    Layout,
    Memory,
    Moved,
    Plan,
    Prices,
    Reason,
    Region,
    Step,
    Storage,
    Verdict,
    catalogue,
    choose,
    describe,
    digest,
    explain,
    negotiate,
    plan,
    run,
    token_chain,
)

__all__ = [
    "Choice",
    "ComponentChoice",
    "Descriptor",
    "Error",
    "Layout",
    "Memory",
    "Moved",
    "Plan",
    "Prices",
    "Reason",
    "Region",
    "Step",
    "Storage",
    "Verdict",
    "allocate",
    "catalogue",
    "choose",
    "describe",
    "digest",
    "explain",
    "negotiate",
    "plan",
    "run",
    "token_chain",
]


def allocate(descriptor: Descriptor, tokens: int, *, rank: int = 0) -> Memory:
    """Zeroed numpy memory for positions [0, tokens) of one sequence on one rank, blocks or rows in order.

    The arrays are in `memory.arrays`, a dict a layer group, by (region, layer within the rank), of uint8;
    empty for a group that the rank holds nothing of. The memory owns them; views of them see what is moved.
    Raises `Error` not_found for a rank that isn't in the descriptor.
    """
    import numpy

    memory = Memory(descriptor, rank)
    memory.arrays = []
    for group in range(descriptor.group_count):
        count = descriptor.tokens_below(tokens, group, rank)
        arrays = {}
        memory.arrays.append(arrays)
        if count is None:
            continue
        first = 0
        if not descriptor.has_token_axis(group):
            first, count = tokens - 1, 1  # The state after all tokens, bound as the row of the last one.
        layout = descriptor.layout(group, rank)
        block = descriptor.block_tokens(group)
        extent = -(-count // block) if block else count
        for region in layout.regions:
            for layer in range(layout.layers if region.per_layer else 1):
                size = layout.region_bytes(region.name, extent)
                arrays[region.name, layer] = numpy.zeros(size, dtype=numpy.uint8)
        blocks = list(range(extent)) if block else []
        valid = (first, tokens)
        memory.bind(group, arrays, extent=extent, valid=valid, blocks=blocks, first_position=first)
    return memory
