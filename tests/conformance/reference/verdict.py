# SPDX-License-Identifier: Apache-2.0
"""May two ends share a state: spec/kv-state.md §7, from two canonical texts."""

import dataclasses
import functools
import math
import struct
from fractions import Fraction

from . import layout
from .descriptor import STORED, Descriptor, DescriptorError
from .validity import validate

FLOATS, INTEGERS = ("f32", "f16", "bf16"), ("i8", "u8", "i4", "u4")

# What a format holds: magnitudes m · 2^e with m < 2^bits, e >= lowest, below 2^(top + 1); negative zero.
HOLDS = {
    "f32": (24, -149, 127, True),
    "f16": (11, -24, 15, True),
    "bf16": (8, -133, 127, True),
    "e4m3fn": (4, -9, 8, True),
    "e4m3fnuz": (4, -10, 7, False),
    "e5m2": (3, -16, 15, True),
    "e5m2fnuz": (3, -17, 15, False),
    "i8": (7, 0, 7, False),
    "u8": (8, 0, 7, False),
    "i4": (3, 0, 3, False),
    "u4": (4, 0, 3, False),
    "e8m0": (1, -127, 127, False),
}

SMALL_FLOATS = ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz")

# Codes that can be made, by recipe: codes, operation, scale, elements a scale (0: the row), is a scale of
# many tokens, is the high nibble first.
MADE = {
    "openvino.u8.by_token": ("u8", "(q-z)*s", "f32", 0, False, False),
    "openvino.u4.by_token": ("u4", "(q-z)*s", "f32", 0, False, True),
    "openvino.u8.by_channel": ("u8", "(q-z)*s", "f32", 1, True, False),
    "ggml.q8_0.x86": ("i8", "q*s", "f16", 32, False, False),
    "ggml.q8_0.reference": ("i8", "q*s", "f16", 32, False, False),
    "ggml.q4_0": ("u4", "(q-N)*s", "f16", 32, False, False),
}


# Recipes with e4m3fn codes and a scale for any elements of a token, by the scales' formats.
VLLM_SCALES = {"vllm.fp8_ds_mla": ("f32",), "vllm.fp8.ue8m0": ("f32", "e8m0")}


@dataclasses.dataclass
class Verdict:
    kind: str
    forbid: list
    move: list
    convert: list
    exact: bool
    roundings: int

    def text(self):
        lists = (("forbid", self.forbid), ("move", self.move), ("convert", self.convert))
        words = [self.kind, f"exact={'yes' if self.exact else 'no'}", f"roundings={self.roundings}"]
        return " ".join(words + [f"{name}={','.join(paths)}" for name, paths in lists if paths])


def small_float_values(code):
    """Finite values of an 8-bit float, exactly; minus zero apart."""
    exponent_bits = 5 if code.startswith("e5") else 4
    mantissa_bits = 7 - exponent_bits
    bias = (1 << exponent_bits - 1) - (0 if code.endswith("fnuz") else 1)
    out = set()
    for pattern in range(256):
        sign, rest = pattern >> 7, pattern & 127
        exponent, mantissa = rest >> mantissa_bits, rest & (1 << mantissa_bits) - 1
        top = exponent == (1 << exponent_bits) - 1
        is_fnuz_nan = code.endswith("fnuz") and pattern == 128
        if (code == "e4m3fn" and rest == 127) or (code == "e5m2" and top) or is_fnuz_nan:
            continue
        lead = mantissa + (1 << mantissa_bits if exponent else 0)
        value = Fraction(lead) * Fraction(2) ** (max(exponent, 1) - bias - mantissa_bits)
        out.add(-value if sign else value)
    return out


def values(code):
    """Finite values of a format of at most 8 bits."""
    bits = layout.BITS[code]
    if code in INTEGERS:
        low = -(1 << bits - 1) if code[0] == "i" else 0
        return {Fraction(low + i) for i in range(1 << bits)}
    if code == "e8m0":
        return {Fraction(2) ** (i - 127) for i in range(255)}
    return small_float_values(code)


def holds(code, value):
    """Is a number exactly a value of a wide float?"""
    bits, lowest, top, _ = HOLDS[code]
    scaled = abs(value) / Fraction(2) ** lowest
    if scaled.denominator != 1 or abs(value) >= Fraction(2) ** (top + 1):
        return False
    whole = scaled.numerator
    return whole == 0 or whole.bit_length() - ((whole & -whole).bit_length() - 1) <= bits


@functools.cache
def embeds(small, large):
    """Every finite value of `small`, minus zero included, is exactly one of `large`."""
    if small == large:
        return True
    if HOLDS[small][3] and not HOLDS[large][3]:
        return False
    if layout.BITS[small] > 8:
        if layout.BITS[large] <= 8:
            return False
        mine, other = HOLDS[small], HOLDS[large]
        return mine[0] <= other[0] and mine[1] >= other[1] and mine[2] <= other[2]
    if layout.BITS[large] > 8:
        return all(holds(large, value) for value in values(small))
    return values(small) <= values(large)


def movable(form, dim):
    whole = dim * layout.BITS[form.codes] % 8 == 0
    if form.operation not in STORED:
        return whole
    if 256 % form.granule_tokens or dim % form.granule_dim:
        return False
    sides = [one for one in (form.scale, form.zero) if one]
    return whole and all(dim // form.granule_dim * layout.BITS[one] % 8 == 0 for one in sides)


def decodable(form, dim):
    if not movable(form, dim):
        return False
    if form.operation == "q":
        return True
    scaled = form.operation == "q*c" or form.scale in FLOATS or form.scale == "e8m0"
    has_zero = form.operation != "(q-z)*s" or form.zero in FLOATS
    return form.codes in INTEGERS + SMALL_FLOATS and scaled and has_zero


def encodable(form, dim):
    if not movable(form, dim):
        return False
    if form.operation == "q*c" and form.codes not in INTEGERS + SMALL_FLOATS:
        return False
    if form.operation in ("q", "q*c"):
        is_vllm = form.recipe == "vllm.cpu.fp8" and form.codes in ("e4m3fn", "e5m2")
        return form.codes in FLOATS or form.recipe == "nearest_even" or is_vllm
    if form.recipe == "amax":
        is_signed = form.codes in SMALL_FLOATS or form.codes in ("i8", "i4")
        return form.operation == "q*s" and is_signed and form.scale in (*FLOATS, "e8m0")
    if form.recipe in VLLM_SCALES:
        is_form = (form.codes, form.operation, form.granule_tokens) == ("e4m3fn", "q*s", 1)
        return is_form and form.scale in VLLM_SCALES[form.recipe]
    if form.recipe not in MADE:
        return False
    codes, operation, scale, granule, spans, high = MADE[form.recipe]
    return (
        (form.codes, form.operation, form.scale) == (codes, operation, scale)
        and form.zero in ("", "f32")
        and form.zero_constant in (0, 8)
        and form.granule_dim == (granule or dim)
        and (form.granule_tokens > 1) == spans
        and form.high_nibble == high
    )


def steps_between(ours, theirs):
    """What brings values from one list of transforms to another; None where nothing does."""
    same = 0
    while same < min(len(ours), len(theirs)) and ours[same] == theirs[same]:
        same += 1
    undo, apply = ours[same:], theirs[same:]
    steps = []
    if undo and apply and undo[0].startswith("rope:") and apply[0].startswith("rope:"):
        undo, apply = undo[1:], apply[1:]
        steps.append("pairing")
    if any(one.startswith("rope:") for one in undo + apply):
        return None
    return steps + ["hadamard"] * len(undo + apply)


def doubled(form):
    """Static scales, each doubled, as bit patterns: e4m3fnuz is e4m3fn at half the size."""
    values = [2 * struct.unpack("<f", struct.pack("<I", one))[0] for one in form.static]
    if any(value >= 2.0**128 for value in values):
        return None
    return [struct.unpack("<I", struct.pack("<f", value))[0] for value in values]


def keeps_codes(source, target):
    """Static scales under which codes stay as they are."""
    if (source.operation, target.operation) != ("q*c", "q*c"):
        return False
    same_codes = source.codes == target.codes and source.static == target.static
    halved = (source.codes, target.codes) == ("e4m3fn", "e4m3fnuz") and doubled(source) == target.static
    return same_codes or halved


def restores(source, target, steps):
    if not steps and source.text() == target.text():
        return True
    if "hadamard" in steps:
        return False
    if source.operation == "q*c" and target.operation == "q*c":
        return keeps_codes(source, target)
    if target.operation != "q" or source.operation in ("(q-z)*s", "q*c"):
        return False
    if source.operation == "q":
        return embeds(source.codes, target.codes)
    codes, scale, held = (HOLDS[one] for one in (source.codes, source.scale, target.codes))
    return (
        held[3]
        and codes[0] + scale[0] <= held[0]
        and codes[1] + scale[1] >= held[1]
        and codes[2] + scale[2] + 1 <= held[2]
    )


def shape(text, part, same_form):
    """A part's place, in elements where its format may differ and its strides are whole elements."""
    if same_form:
        return text
    code, region, start, *digits = text.split(" ")
    unit = layout.BITS[code]
    numbers = [int(start.removeprefix("start="))]
    numbers += [int(layout.DIGIT.fullmatch(word)[4]) for word in digits]
    if any(number % unit for number in numbers):
        return f"{part} {text}"
    out = f"elements {region} start={numbers[0] // unit}"
    for word, number in zip(digits, numbers[1:], strict=True):
        head, _, tail = word.partition(":")
        out += f" {head}:{number // unit}" + (".open" if tail.endswith(".open") else "")
    return out


class Negotiation:
    def __init__(self, source, target, exactness, roundings_max):
        self.source, self.target = source, target
        self.exactness, self.roundings_max = exactness, roundings_max
        self.forbid, self.move, self.convert = [], [], []
        self.exact, self.roundings = True, 0

    def compare_lines(self):
        ours, theirs = self.source.lines, self.target.lines
        for path in sorted(ours.keys() | theirs.keys()):
            geometry = ".geometry." in path and not path.endswith(".transforms")
            if ours.get(path) != theirs.get(path) and (
                path.startswith("identity.") or path == "groups.count" or geometry
            ):
                self.forbid.append(path)

    def check_weights(self):
        ours, theirs = self.source, self.target
        if (ours.recipe, ours.weights_digest) == (theirs.recipe, theirs.weights_digest):
            return
        if self.exactness == "lossless":
            same = ours.recipe == theirs.recipe
            self.forbid.append("weights.digest" if same else "weights.recipe")
        elif self.exactness == "bounded":  # No record is given here.
            self.forbid.append("policy.qualification")

    def check_group(self, index, ours, theirs):
        shapes = [[(one.name, one.dim, one.heads) for one in group.components] for group in (ours, theirs)]
        if shapes[0] != shapes[1]:
            return
        for i in range(len(ours.components)):
            self.check_component(index, ours, theirs, i)
        self.check_places(index, ours, theirs)

    def check_component(self, index, ours, theirs, i):
        component, other = ours.components[i], theirs.components[i]
        path = f"groups.{index}.geometry.component.{component.name}.transforms"
        steps = []
        if component.transforms != other.transforms:
            self.convert.append(path)
            steps = steps_between(component.transforms, other.transforms)
            if steps is None:
                self.forbid.append(path)
        source, target = ours.forms[i], theirs.forms[i]
        path = f"groups.{index}.form.{component.name}"
        same = source.text() == target.text()
        if not same:
            self.convert.append(path)
        if same and not steps:
            can = movable(source, component.dim)
        elif steps is not None and "hadamard" not in steps and keeps_codes(source, target):
            can = decodable(source, component.dim)
        else:
            can = decodable(source, component.dim) and encodable(target, component.dim)
        exact = steps is not None and restores(source, target, steps)
        must_be_exact = steps is not None and not component.token_axis
        if not can or (must_be_exact and not exact):
            self.forbid.append(path)
            return
        if steps is None or exact:
            return
        self.exact, self.roundings = False, 1
        if self.exactness == "lossless":
            self.forbid.append("policy.exactness")

    def check_places(self, index, ours, theirs):
        if ours.block_tokens != theirs.block_tokens:
            self.move.append(f"groups.{index}.block_tokens")
        boxes = [[box for box in end.boxes if box.group == index] for end in (self.source, self.target)]
        granule = math.lcm(*(form.granule_tokens for form in ours.forms + theirs.forms))
        if any(at % granule for own in boxes for box in own for at in box.tokens):  # Not implemented.
            self.forbid.append(f"partition.group.{index}")
        if boxes[0] != boxes[1]:
            self.move.append(f"partition.group.{index}")
        # Unlike partitions: the first rank of each stands for all.
        ranks = [(box.rank, box.rank) for box in boxes[0]]
        if boxes[0] != boxes[1]:
            ranks = [(boxes[0][0].rank, boxes[1][0].rank)]
        for form, other in zip(ours.forms, theirs.forms, strict=True):
            same = form.text() == other.text()
            sides = [one for one, stored in ((".s", form.scale), (".z", form.zero)) if stored and same]
            for part in [form.component] + [form.component + side for side in sides]:
                here = [shape(ours.layouts[rank, part], part, same) for rank, _ in ranks]
                there = [shape(theirs.layouts[rank, part], part, same) for _, rank in ranks]
                if here != there:
                    self.move.append(f"groups.{index}.layout.{part}")

    def run(self):
        self.compare_lines()
        self.check_weights()
        for index, (ours, theirs) in enumerate(zip(self.source.groups, self.target.groups, strict=False)):
            self.check_group(index, ours, theirs)
        if self.roundings > self.roundings_max:
            self.forbid.append("policy.roundings_max")
        if self.forbid:
            return Verdict("reject", self.forbid, self.move, self.convert, False, 0)
        kind = "redistribute" if self.move else ""
        kind += ("+" if kind else "") + "convert" if self.convert else ""
        return Verdict(kind or "direct", [], self.move, self.convert, self.exact, self.roundings)


def negotiate(source_text, target_text, exactness="lossless", roundings_max=1):
    """The verdict on two canonical texts, without qualification records."""
    ends, broken = [], []
    for name, text in (("source", source_text), ("target", target_text)):
        try:
            descriptor = Descriptor(text)
            validate(descriptor)
            ends.append(descriptor)
        except DescriptorError as error:
            broken.append("schema.major" if "schema.major" in str(error) else name)
    if broken:
        only = ["schema.major"] if "schema.major" in broken else broken
        return Verdict("reject", only, [], [], False, 0)
    return Negotiation(*ends, exactness, roundings_max).run()
