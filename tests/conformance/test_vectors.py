# SPDX-License-Identifier: Apache-2.0
"""The reference implementation against the golden vectors, which the C++ tests check too."""

import itertools
import os
import random

import numpy
import pytest
from reference import descriptor, layout, plan, validity, verdict

OPEN = 5  # Blocks or rows, as in layouts.txt.
TOKENS = 1500  # As in published/boxes.txt.


def storages(text):
    """(name, extents, layout text, canonical lines, {region: bytes}) of each block of layouts.txt."""
    for block in text.strip().split("\n\n"):
        lines = block.split("\n")
        sizes = dict(word.split("=") for word in lines[1].split()[1:])
        layers, block_tokens = int(sizes.pop("layers")), int(sizes.pop("block_tokens"))
        components = {name: tuple(map(int, size.split("x"))) for name, size in sizes.items()}
        regions = [line for line in lines[2:] if line.startswith("region ")]
        sized = {line.split()[1]: int(line.split()[3]) for line in lines if line.startswith("bytes ")}
        canonical = [line for line in lines[2 + len(regions) :] if not line.startswith("bytes ")]
        extents = layout.Extents(layers, block_tokens, components)
        yield lines[0].removeprefix("storage "), extents, "\n".join(regions), canonical, sized


def test_layouts_have_their_canonical_text_and_size(vector):
    names = []
    for name, extents, text, canonical, sized in storages(vector("layouts.txt")):
        made = layout.Layout(text, extents)
        assert made.canonical().splitlines() == canonical, name
        assert {region: made.region_bytes(region, OPEN) for region in made.regions} == sized, name
        names.append(name)
    assert len(names) >= 40 and len(set(names)) == len(names)


def test_every_element_lies_where_the_notation_and_the_canonical_text_say(vector):
    for name, extents, text, canonical, sized in storages(vector("layouts.txt")):
        made = layout.Layout(text, extents)
        used = {}
        for line in canonical:
            part = line.split(" ")[0]
            leaf = made.parts[part]
            heads, dim = extents.components[leaf.component]
            index = indices(extents, heads, dim)
            offsets = made.offsets(part, index, OPEN)
            assert numpy.array_equal(offsets, layout.offsets_of_text(line, index, OPEN)), (name, part)
            assert offsets.min() >= 0
            assert offsets.max() + layout.BITS[leaf.code] <= sized[leaf.region] * 8, (name, part)
            used.setdefault(leaf.region, []).append((offsets, leaf))
        for region, parts in used.items():
            check_apart(name, made.regions[region], sized[region], parts)


def indices(extents, heads, dim):
    """Every element of a component in the first two and the last block or row, as arrays of one shape."""
    shape = (extents.layers, 3, extents.block_tokens or 1, heads, dim)
    grid = list(numpy.ogrid[tuple(slice(count) for count in shape)])
    grid[1] = numpy.array([0, 1, OPEN - 1]).reshape(grid[1].shape)
    zero = sum(one * 0 for one in grid)
    axes = dict(zip(("layer", "blk", "slot", "head", "dim"), grid, strict=True))
    return {axis: values + zero for axis, values in axes.items()} | {"tok": grid[1] + zero}


def check_apart(name, region, size, parts):
    """No two units of one region's one layer share a nibble."""
    used = numpy.zeros(size * 2, dtype=numpy.int8)
    for offsets, leaf in parts:
        own = offsets[:1] if region.per_layer else offsets
        first = numpy.zeros(size * 2, dtype=bool)  # A scale's unit is many elements'.
        first[own // 4] = True
        for nibble in range(layout.BITS[leaf.code] // 4):
            used += numpy.roll(first, nibble)
    assert used.max() == 1, (name, region.name)


def test_descriptors_have_their_digests(vector):
    lines = vector("descriptors/digests.txt").splitlines()
    for line in lines:
        digest, name = line.split("  ")
        assert descriptor.Descriptor(vector(f"descriptors/{name}")).digest() == digest, name
    assert len(lines) >= 40


def test_a_descriptor_reads_is_valid_and_writes_the_same(descriptor_file, vector):
    text = vector(descriptor_file)
    read = descriptor.Descriptor(text)
    assert read.text() == text
    if descriptor_file != "descriptors/two-ranks.txt":  # One of its names isn't printable, to show escapes.
        validity.validate(read)
    else:
        with pytest.raises(descriptor.DescriptorError, match="adapters.1"):
            validity.validate(read)


def test_damaged_text_is_an_error_or_says_what_it_means(descriptor_file, vector):
    """Bytes changed or cut: refused, or read as exactly what stands there."""
    text = vector(descriptor_file)
    rng = random.Random(descriptor_file)
    # All of a short text; of a long one a sample that differs by file, unless all are asked for.
    is_whole = len(text) < 6000 or "ISTHMUS_EVERY_BYTE" in os.environ
    places = range(len(text)) if is_whole else sorted(rng.sample(range(len(text)), 60))
    read = 0
    for at in places:
        for damaged in (text[:at], text[:at] + chr(ord(text[at]) ^ 1 << rng.randrange(8)) + text[at + 1 :]):
            try:
                assert descriptor.Descriptor(damaged).text() == damaged
                read += 1
            except descriptor.DescriptorError:
                continue
    assert read < 2 * len(places)


def test_token_chains_have_their_digests(vector):
    lines = [line.split(" ", 1) for line in vector("token_chain.txt").splitlines()]
    tokens = [int(token) for _, token in lines[1:]]
    assert descriptor.token_chain(tokens) == [digest for digest, _ in lines]


def test_pairs_have_their_verdicts(vector):
    lines = vector("verdicts.txt").splitlines()
    texts = {name: vector(f"descriptors/{name}.txt") for line in lines for name in line.split(" ")[1:3]}
    for line in lines:
        policy, source, target, wanted = line.split(" ", 3)
        assert verdict.negotiate(texts[source], texts[target], policy).text() == wanted, line


LETTERS = {"reject": ".", "direct": "=", "redistribute": "m", "convert": "c", "redistribute+convert": "b"}


def test_every_pair_of_the_catalogue_has_its_verdict(vector):
    lines = [line.split(" ") for line in vector("catalogue_verdicts.txt").splitlines()]
    names = list(dict.fromkeys(name for _, name, _ in lines))
    texts = {name: vector(f"descriptors/{name}.txt") for name in names}
    for policy, source, wanted in lines:
        letters = ""
        for target in names:
            found = verdict.negotiate(texts[source], texts[target], policy)
            letter = LETTERS[found.kind]
            letters += letter.upper() if found.roundings else letter
        assert letters == wanted, (policy, source)


def published(vector):
    for line in vector("published/verdicts.txt").splitlines():
        policy, name, wanted = line.split(" ", 2)
        yield policy, name, wanted, *(vector(f"published/{name}-{end}.txt") for end in ("prefill", "decode"))


def test_published_pairs_have_their_verdicts(vector):
    for policy, name, wanted, prefill, decode in published(vector):
        assert verdict.negotiate(prefill, decode, policy).text() == wanted, (policy, name)


def test_published_pairs_are_cut_into_their_boxes(vector):
    lines = []
    for policy, name, _, prefill, decode in published(vector):
        if policy != "unqualified":
            continue
        if verdict.negotiate(prefill, decode, policy).kind == "reject":
            lines.append(f"{name} reject")
            continue
        chunks = plan.chunks(descriptor.Descriptor(prefill), descriptor.Descriptor(decode), 0, TOKENS)
        lines.append(f"{name} {len(chunks)} chunks")
        lines += [one.text() for one in chunks if one.tokens[0] == 0 or one.tokens[1] == TOKENS]
    assert lines == vector("published/boxes.txt").splitlines()


def test_an_invalid_end_or_another_major_is_rejected_by_name(vector):
    text = vector("descriptors/llamacpp-f16.txt")
    other = text.replace("schema.major = 1", "schema.major = 2")
    empty = text.replace("identity.architecture = llama", "identity.architecture = ")
    assert verdict.negotiate(text, other).forbid == ["schema.major"]
    assert verdict.negotiate(text, empty).forbid == ["target"]
    assert verdict.negotiate(empty, empty).forbid == ["source", "target"]


def test_wrong_texts_are_refused():
    extents = layout.Extents(2, 32, {"k": (3, 64)})
    good = "region K per layer = blk slot head dim k:f16"
    assert layout.Layout(good, extents).parts
    for at, word in itertools.product(range(9), ("", "dim", "blk", "tok", "~", "{", "k:f8", "slot/2", "@7")):
        words = good.split(" ")
        words[at + 1] = word
        try:
            layout.Layout(" ".join(words), extents)
        except layout.LayoutError:
            continue
        # What is left out may have been said before, as "per layer" is only where the region lies.
        assert at == 0 or word in ("", words[at + 1]), words
