# SPDX-License-Identifier: Apache-2.0
"""What holds of a valid descriptor, as far as its canonical text says it: spec/kv-state.md §1.2."""

import itertools
import math
import re
import struct

from . import layout
from .descriptor import ATTENTION, LAYERS_MAX, STORED, DescriptorError

POSITION_MAX = 1 << 40
MINOR_FEATURES = 1


def check(holds, what):
    if not holds:
        raise DescriptorError(what)


def check_text(path, text, may_be_empty=False):
    check(text or may_be_empty, f"{path}: empty")
    check(len(text) <= 255 and all(0x20 <= ord(char) < 0x7F for char in text), f"{path}: not printable text")


def validate(descriptor):
    """Raises DescriptorError naming the path."""
    for name, value in descriptor.identity.items():
        check_text(f"identity.{name}", value)
    for i, (name, value) in enumerate(descriptor.adapters):
        check_text(f"identity.adapters.{i}", name)
        check_text(f"identity.adapters.{i}", value)
    rope = descriptor.scheme == "rope"
    check(rope or descriptor.scheme == "none", f"identity.position.scheme: {descriptor.scheme}")
    theta = descriptor.rope_theta
    check(not rope or (math.isfinite(theta) and theta > 0), "identity.position.rope_theta")
    check_text("identity.position.rope_scaling", descriptor.rope_scaling, not rope)
    check_text("weights.recipe", descriptor.recipe)
    check_text("weights.digest", descriptor.weights_digest, True)
    seen = set()
    for i, group in enumerate(descriptor.groups):
        check_group(f"groups.{i}", group)
        for pair in itertools.product(group.layers, (one.name for one in group.components)):
            check(pair not in seen, f"groups.{i}: {pair} is in an earlier group too")
            seen.add(pair)
    ranks = [(box.group, box.rank) for box in descriptor.boxes]
    check(len(set(ranks)) == len(ranks), "partition: a rank has two boxes of a group")
    for i, group in enumerate(descriptor.groups):
        check_partition(f"partition.group.{i}", group, [box for box in descriptor.boxes if box.group == i])
    check(descriptor.minor >= minimum_minor(descriptor), "schema.minor")


def minimum_minor(descriptor):
    boxes = any(any(box.replicas) or any(box.tokens) for box in descriptor.boxes)
    forms = any(form.static for group in descriptor.groups for form in group.forms)
    states = any(not one.token_axis for group in descriptor.groups for one in group.components)
    return MINOR_FEATURES if boxes or forms or states else 0


def check_group(path, group):
    layers = group.layers
    ascending = all(a < b for a, b in itertools.pairwise(layers)) and layers[-1] < LAYERS_MAX
    check(layers and ascending, f"{path}.geometry.layers")
    check(group.attention in ATTENTION, f"{path}.geometry.attention: {group.attention}")
    check((group.attention == "sliding") == (group.window != 0), f"{path}.geometry.window")
    check(1 <= len(group.components) <= 8, f"{path}.geometry.components")
    check(len({one.heads for one in group.components}) == 1, f"{path}: unlike heads")
    recurrent = group.attention == "recurrent"
    check(group.block_tokens <= 1 << 16 and not (recurrent and group.block_tokens), f"{path}.block_tokens")
    for component, form in zip(group.components, group.forms, strict=True):
        at = f"{path}.geometry.component.{component.name}"
        check(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,63}", component.name), f"{at}: no identifier")
        check(component.name not in ("hd", *layout.AXES), f"{at}: an axis")
        check(1 <= component.heads <= 1 << 16 and 1 <= component.dim <= 1 << 16, f"{at}: sizes")
        check(component.token_axis != recurrent, f"{at}.token_axis")
        check(group.attention != "mla" or component.heads == 1, f"{at}.heads")
        check_transforms(at, component)
        check_form(f"{path}.form.{component.name}", form, component, len(layers))
        check_parts(path, group, form)


def check_transforms(path, component):
    check(len(component.transforms) <= 8, f"{path}.transforms")
    check(sum(one.startswith("rope:") for one in component.transforms) <= 1, f"{path}.transforms: two ropes")
    for transform in component.transforms:
        if transform in ("rope:interleaved", "rope:halves"):
            check(component.dim % 2 == 0, f"{path}.transforms: odd rows")
            continue
        match = re.fullmatch(r"hadamard:([1-9]\d{0,5})", transform)
        size = int(match[1]) if match else 0
        power = size >= 2 and size & (size - 1) == 0
        check(power and component.dim % size == 0, f"{path}.transforms: {transform}")


def check_form(path, form, component, layers):
    check(form.component == component.name, f"{path}: form of {form.component}")
    check_text(f"{path}.recipe", form.recipe, True)
    check(not form.high_nibble or layout.BITS[form.codes] == 4, f"{path}: nibble order")
    integer = form.codes in ("i8", "u8", "i4", "u4")
    constant = integer and 0 < form.zero_constant < 1 << layout.BITS[form.codes]
    check((form.operation == "(q-N)*s") == bool(form.zero_constant), f"{path}: constant zero point")
    check(form.operation != "(q-N)*s" or constant, f"{path}: constant zero point")
    check((form.operation == "q*c") == bool(form.static), f"{path}: static scales")
    if form.static:
        check_static(path, form.static, component.heads, layers)
    check(bool(form.scale) == (form.operation in STORED), f"{path}: scale")
    check(bool(form.zero) == (form.operation == "(q-z)*s"), f"{path}: zero point")
    if form.operation in STORED:
        check(1 <= form.granule_dim <= component.dim, f"{path}: granule of elements")
        check(1 <= form.granule_tokens <= 1 << 16, f"{path}: granule of tokens")
        check(component.token_axis or form.granule_tokens == 1, f"{path}: granule of tokens")


def check_static(path, patterns, heads, layers):
    check(len(patterns) <= 8192 and len(patterns) in (1, layers, layers * heads), f"{path}.static: count")
    for pattern in patterns:
        value = struct.unpack("<f", struct.pack("<I", pattern))[0]
        check(math.isfinite(value) and value > 0, f"{path}.static: {value}")
    if len(patterns) == 1:
        return
    rows = [patterns]
    if heads > 1 and len(patterns) == layers * heads:
        rows = [patterns[i : i + heads] for i in range(0, len(patterns), heads)]
    check(any(len(set(row)) > 1 for row in rows), f"{path}.static: fewer say the same")


def check_parts(path, group, form):
    """The layout has the form's parts, in its formats."""
    wanted = {form.component: form.codes}
    if form.scale:
        wanted[f"{form.component}.s"] = form.scale
    if form.zero:
        wanted[f"{form.component}.z"] = form.zero
    own = {(rank, part) for rank, part in group.layouts if part.split(".")[0] == form.component}
    ranks = {rank for rank, _ in group.layouts}
    check(own == set(itertools.product(ranks, wanted)), f"{path}: parts of {form.component}")
    for rank, part in own:
        text = group.layouts[rank, part]
        match = re.fullmatch(r"(\w+) region=\w+ start=\d+((?: \S+)*)", text)
        check(match is not None and match[1] == wanted[part], f"{path}: {part} is {text}")
        for word in match[2].split():
            check(layout.DIGIT.fullmatch(word) is not None, f"{path}: {part}: digit {word}")


def check_partition(path, group, boxes):
    check(boxes, f"{path}: no rank holds it")
    layers, heads = len(group.layers), group.components[0].heads
    latent = group.attention in ("mla", "sparse-indexed")
    check({rank for rank, _ in group.layouts} == {box.rank for box in boxes}, f"{path}: layouts of ranks")
    for box in boxes:
        inside = box.layers[0] < box.layers[1] <= layers and box.heads[0] < box.heads[1] <= heads
        check(inside, f"{path}.rank.{box.rank}: {box.text()}")
        gqa, mla, _ = box.replicas
        allowed = not gqa if latent else not mla
        check(allowed, f"{path}: {box.text()} in a {group.attention} group")
        check(max(box.replicas) < 1024, f"{path}: {box.text()}")
        check_tokens(f"{path}.rank.{box.rank}", group, box)
    replicas = {}
    for box in boxes:
        replicas.setdefault(box.replicas, []).append(box)
    extents = [max(key[kind] for key in replicas) + 1 for kind in range(3)]
    check(len(replicas) == math.prod(extents), f"{path}: a replica is missing")
    for own in replicas.values():
        check_cover(path, own, layers, heads)


def bounds(box):
    begin, end, period = box.tokens
    return begin, end if end or period else POSITION_MAX


def check_tokens(path, group, box):
    if not any(box.tokens):
        return
    period = box.tokens[2]
    begin, end = bounds(box)
    check(begin < end <= (period or POSITION_MAX) <= POSITION_MAX, f"{path}: {box.text()}")
    check(group.attention != "recurrent", f"{path}: positions of a state")
    for form in group.forms:
        check(all(at % form.granule_tokens == 0 for at in (begin, end, period)), f"{path}: cuts a scale")


def check_cover(path, boxes, layers, heads):
    """Each cell between neighbouring cuts of all axes is in exactly one box."""
    check(len({box.tokens[2] for box in boxes}) == 1, f"{path}: unlike periods")
    whole = ((0, layers), (0, heads), (0, boxes[0].tokens[2] or POSITION_MAX))
    ranges = [(box.layers, box.heads, bounds(box)) for box in boxes]
    cuts = [sorted({*whole[axis], *(at for one in ranges for at in one[axis])}) for axis in range(3)]
    for cell in itertools.product(*(itertools.pairwise(axis) for axis in cuts)):
        count = sum(
            all(own[0] <= piece[0] and piece[1] <= own[1] for own, piece in zip(one, cell, strict=True))
            for one in ranges
        )
        check(count == 1, f"{path}: {cell} is covered {count} times")
