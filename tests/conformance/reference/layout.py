# SPDX-License-Identifier: Apache-2.0
"""The layout notation: spec/kv-state.md §3 and §4."""

import dataclasses
import re

import numpy

BITS = {"f32": 32, "f16": 16, "bf16": 16, "e4m3fn": 8, "e4m3fnuz": 8, "e5m2": 8, "e5m2fnuz": 8}
BITS |= {"i8": 8, "u8": 8, "i4": 4, "u4": 4, "e8m0": 8}
AXES = ("layer", "blk", "slot", "tok", "head", "dim")
OPEN = ("blk", "tok")
TEXT_MAX, REGIONS_MAX, FACTORS_MAX, MEMBERS_MAX, DEPTH_MAX, PARTS_MAX = 4096, 16, 32, 32, 8, 32
NUMBER_MAX, SIZE_MAX = 1 << 40, 1 << 56


class LayoutError(ValueError):
    """A text that breaks a rule of the notation."""


@dataclasses.dataclass
class Factor:
    axis: str
    div: int = 1
    mod: int | None = None
    stride: int | None = None  # Bytes.
    down: bool = False


@dataclasses.dataclass
class Node:
    factors: list
    leaf: tuple | None = None  # (component, part, format)
    members: list | None = None  # Nodes, ("pad", N), ("align", N)


@dataclasses.dataclass
class Region:
    name: str
    per_layer: bool
    node: Node


@dataclasses.dataclass
class Extents:
    layers: int
    block_tokens: int
    components: dict  # name -> (heads, dim)

    def parameters(self):
        out = {"B": self.block_tokens} if self.block_tokens else {}
        dims = {dim for _, dim in self.components.values()}
        return out | ({"D": dims.pop()} if len(dims) == 1 else {})


class Parser:
    """One line of the text, a region."""

    TOKEN = re.compile(r"[ \t]*([A-Za-z_][A-Za-z0-9_]*|[0-9]+|[{};:=./%@~])")

    def __init__(self, line, parameters):
        self.parameters, self.tokens, at = parameters, [], 0
        while at < len(line.rstrip(" \t")):
            match = self.TOKEN.match(line, at)
            if match is None:
                raise LayoutError(f"unexpected {line[at:at + 8]!r}")
            self.tokens.append(match[1])
            at = match.end()
        for left, right in zip(self.tokens, self.tokens[1:], strict=False):
            if left[0].isdigit() and (right[0].isalpha() or right[0] == "_") and f"{left}{right}" in line:
                raise LayoutError("a number runs into a name")
        self.at = 0

    def peek(self):
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def next(self):
        token = self.peek()
        self.at += 1
        return token

    def take(self, wanted):
        if self.peek() != wanted:
            return False
        self.at += 1
        return True

    def expect(self, wanted):
        if not self.take(wanted):
            raise LayoutError(f"expected {wanted!r}, not {self.peek()!r}")

    def name(self):
        token = self.next()
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", token):
            raise LayoutError(f"expected a name, not {token!r}")
        return token

    def number(self):
        token = self.next()
        value = int(token) if token.isdigit() else self.parameters.get(token, 0)
        if not 1 <= value <= NUMBER_MAX:
            raise LayoutError(f"{token!r} isn't a number in 1..2^40")
        return value

    def region(self):
        self.expect("region")
        name = self.name()
        per_layer = self.take("per")
        if per_layer:
            self.expect("layer")
        self.expect("=")
        node = self.node(0)
        if self.at < len(self.tokens):
            raise LayoutError(f"{self.peek()!r} behind the end of a region")
        return Region(name, per_layer, node)

    def node(self, depth):
        if depth > DEPTH_MAX:
            raise LayoutError("groups nest too deep")
        node = Node([])
        while self.peek() in ("~", "hd", *AXES):
            if len(node.factors) == FACTORS_MAX:
                raise LayoutError("too many factors")
            node.factors.append(self.factor())
        if self.take("{"):
            node.members = [self.member(depth)]
            while self.take(";"):
                node.members.append(self.member(depth))
            self.expect("}")
            if len(node.members) > MEMBERS_MAX:
                raise LayoutError("too many members")
        else:
            node.leaf = self.leaf()
        return node

    def factor(self):
        factor = Factor("", down=self.take("~"))
        factor.axis = self.next()
        if factor.axis not in ("hd", *AXES):
            raise LayoutError(f"{factor.axis!r} isn't an axis")
        factor.div = self.number() if self.take("/") else 1
        factor.mod = self.number() if self.take("%") else None
        factor.stride = self.number() if self.take("@") else None
        return factor

    def member(self, depth):
        if self.peek() in ("pad", "align"):
            return (self.next(), self.number())
        return self.node(depth + 1)

    def leaf(self):
        component = self.name()
        part = component
        if self.take("."):
            side = self.name()
            if side not in ("s", "z"):
                raise LayoutError(f"part {component}.{side}")
            part = f"{component}.{side}"
        self.expect(":")
        code = self.name()
        if code not in BITS:
            raise LayoutError(f"format {code!r}")
        return (component, part, code)


def parse(text, parameters):
    """Regions of a layout text."""
    if len(text) > TEXT_MAX:
        raise LayoutError("text too long")
    regions = [Parser(line, parameters).region() for line in text.split("\n") if line.strip(" \t")]
    if not 1 <= len(regions) <= REGIONS_MAX or len({one.name for one in regions}) != len(regions):
        raise LayoutError("no region, too many, or one twice")
    return regions


@dataclasses.dataclass
class Digit:
    axis: str
    div: int
    mod: int  # 0: the open axis.
    stride: int  # Bits.
    open: bool = False

    def text(self):
        mod = f"%{self.mod}" if self.mod else ""
        return f"{self.axis}/{self.div}{mod}:{self.stride}{'.open' if self.open else ''}"


@dataclasses.dataclass
class Leaf:
    component: str
    part: str
    code: str
    path: list  # (kind, value): what lies between the region's start and the element, outermost first.
    start: int = 0
    digits: list = dataclasses.field(default_factory=list)
    region: str = ""
    granules: dict = dataclasses.field(default_factory=dict)


class Layout:
    """A text for given extents: sizes, parts, offsets."""

    def __init__(self, text, extents):
        self.extents = extents
        self.regions, self.parts, self.open_bits = {}, {}, {}
        for region in parse(text, extents.parameters()):
            self.regions[region.name] = region
            self.open_axis = None
            size, is_open, leaves = self.place(region, region.node, False)
            if not is_open:
                raise LayoutError(f"region {region.name}: neither blk nor tok")
            self.open_bits[region.name] = size
            for leaf in leaves:
                self.add_part(region, leaf)
        if len(self.parts) > PARTS_MAX:
            raise LayoutError("too many parts")
        for component in extents.components:
            if component not in self.parts:
                raise LayoutError(f"part {component} is missing")
            if f"{component}.z" in self.parts and f"{component}.s" not in self.parts:
                raise LayoutError(f"part {component}.s is missing")

    def extent(self, region, axis, component):
        """Elements on a closed axis, as digits see it."""
        heads, dim = self.extents.components[component]
        slots = self.extents.block_tokens if self.open_axis == "blk" else 1
        layers = 1 if region.per_layer else self.extents.layers
        return {"layer": layers, "slot": slots, "head": heads, "dim": dim, "hd": heads * dim}[axis]

    def factor_extent(self, region, factor, leaves):
        found = set()
        for leaf in leaves:
            if leaf.component not in self.extents.components:
                raise LayoutError(f"part {leaf.part}: no such component")
            if factor.axis == "layer" and region.per_layer:
                raise LayoutError("layer in a region per layer")
            if factor.axis == "slot":
                whole = self.extents.block_tokens
                if whole == 0:
                    raise LayoutError("slot without blocks")
            elif factor.axis == "layer":
                whole = self.extents.layers
            else:
                heads, dim = self.extents.components[leaf.component]
                whole = {"head": heads, "dim": dim, "hd": heads * dim}[factor.axis]
            found.add(factor.mod or -(-whole // factor.div))
        if len(found) != 1:
            raise LayoutError(f"{factor.axis}: unlike extents {sorted(found)}")
        return found.pop()

    def place(self, region, node, in_group):
        """(bits, is the open axis inside, leaves) of a node."""
        if node.leaf:
            component, part, code = node.leaf
            size, is_open, leaves = BITS[code], False, [Leaf(component, part, code, [])]
        else:
            size, is_open, leaves = self.place_group(region, node.members)
        for factor in reversed(node.factors):
            stride = size if factor.stride is None else factor.stride * 8
            if factor.stride is not None and (is_open or stride < size):
                raise LayoutError(f"{factor.axis}: stride {factor.stride}")
            if factor.axis in OPEN:
                if in_group or is_open or factor.down or factor.div != 1 or factor.mod:
                    raise LayoutError(f"{factor.axis}: an open axis stands alone, once, outside groups")
                if factor.axis == "blk" and self.extents.block_tokens == 0:
                    raise LayoutError("blk without blocks")
                self.open_axis, is_open, extent = factor.axis, True, 0
                size = stride
            else:
                if factor.down and is_open:
                    raise LayoutError("~ outside the open axis")
                extent = self.factor_extent(region, factor, leaves)
                size = stride * extent
            if size > SIZE_MAX:
                raise LayoutError("too large")
            opened = is_open and factor.axis not in OPEN
            for leaf in leaves:
                leaf.path.insert(0, ("factor", (factor, extent, stride, opened)))
        return size, is_open, leaves

    def place_group(self, region, members):
        size, leaves = 0, []
        for member in members:
            if isinstance(member, tuple):
                kind, count = member
                size = size + count * 8 if kind == "pad" else -(-size // (count * 8)) * count * 8
                continue
            inner, _, found = self.place(region, member, True)
            if inner % 8:
                raise LayoutError("a member isn't whole bytes")
            for leaf in found:
                leaf.path.insert(0, ("start", size))
            leaves += found
            size += inner
        if not leaves or size > SIZE_MAX:
            raise LayoutError("a group without parts, or too large")
        return size, False, leaves

    def add_part(self, region, leaf):
        if leaf.part in self.parts:
            raise LayoutError(f"part {leaf.part} is placed twice")
        leaf.region = region.name
        heads, dim = self.extents.components[leaf.component]
        for kind, value in leaf.path:
            if kind == "start":
                leaf.start += value
                continue
            factor, extent, stride, opened = value
            if factor.down:
                leaf.start += (extent - 1) * stride
                stride = -stride
            digit = Digit(factor.axis, factor.div, extent, stride, opened)
            leaf.digits += split_head_dim(digit, dim) if factor.axis == "hd" else [digit]
        leaf.digits = [one for one in leaf.digits if one.mod != 1]
        leaf.digits.sort(key=lambda one: (AXES.index(one.axis), one.div))
        for axis in ("layer", "slot", "head", "dim"):
            self.check_axis(region, leaf, axis)
        merge(leaf)
        for axis in ("layer", "slot", "head", "dim"):
            cut_last(leaf, axis, self.extent(region, axis, leaf.component))
        self.parts[leaf.part] = leaf

    def check_axis(self, region, leaf, axis):
        whole = self.extent(region, axis, leaf.component)
        own = [one for one in leaf.digits if one.axis == axis]
        where = f"part {leaf.part}, axis {axis}"
        if axis == "slot" and own and self.open_axis == "tok":
            raise LayoutError(f"{where}: rows have no slots")
        has_granule = leaf.part != leaf.component and axis != "layer"
        reached = granule = own[0].div if own else (whole if has_granule else 1)
        if granule != 1 and not has_granule:
            raise LayoutError(f"{where}: digits start at {granule}")
        for digit in own:
            if digit.div != reached:
                raise LayoutError(f"{where}: a gap or overlap at {digit.div}")
            reached = digit.div * digit.mod
        if reached < whole or (own and reached > whole and reached - own[-1].div >= whole):
            raise LayoutError(f"{where}: digits cover {reached} of {whole}")
        if axis != "layer":
            leaf.granules[axis] = min(granule, whole)
        cut_last(leaf, axis, whole)

    def canonical(self):
        return "".join(f"{part_text(self.parts[part])}\n" for part in sorted(self.parts))

    def region_bytes(self, name, open_extent):
        return -(-self.open_bits[name] * open_extent // 8)

    def offsets(self, part, index, open_extent):
        """Bits from the region's start by §3.2 alone, without digits. `index` has arrays by axis."""
        leaf = self.parts[part]
        _, dim = self.extents.components[leaf.component]
        total = numpy.int64(0)
        for kind, value in leaf.path:
            if kind == "start":
                total = total + value
                continue
            factor, extent, stride, opened = value
            if factor.axis == "hd":
                digit = (index["head"] * dim + index["dim"]) // factor.div
            else:
                digit = index[factor.axis] // factor.div
            if extent:
                digit = digit % extent
            if factor.down:
                digit = extent - 1 - digit
            total = total + digit * stride * (open_extent if opened else 1)
        return total


def split_head_dim(digit, dim):
    if digit.div % dim == 0:
        return [Digit("head", digit.div // dim, digit.mod, digit.stride, digit.open)]
    units = dim // digit.div
    if dim % digit.div == 0 and digit.mod % units == 0:
        return [
            Digit("head", 1, digit.mod // units, digit.stride * units, digit.open),
            Digit("dim", digit.div, units, digit.stride, digit.open),
        ]
    if dim % digit.div == 0 and units % digit.mod == 0:
        return [Digit("dim", digit.div, digit.mod, digit.stride, digit.open)]
    raise LayoutError("hd crosses rows unevenly")


def cut_last(leaf, axis, whole):
    own = [one for one in leaf.digits if one.axis == axis]
    if own:
        own[-1].mod = min(own[-1].mod, -(-whole // own[-1].div))


def merge(leaf):
    merged = []
    for digit in leaf.digits:
        last = merged[-1] if merged else None
        if (
            last is not None
            and last.mod
            and last.axis == digit.axis
            and last.open == digit.open
            and digit.div == last.div * last.mod
            and digit.stride == last.stride * last.mod
        ):
            last.mod *= digit.mod
        else:
            merged.append(digit)
    leaf.digits = merged


def part_text(leaf):
    digits = "".join(f" {digit.text()}" for digit in leaf.digits)
    return f"{leaf.part} {leaf.code} region={leaf.region} start={leaf.start}{digits}"


DIGIT = re.compile(r"(layer|blk|slot|tok|head|dim)/(\d+)(?:%(\d+))?:(-?\d+)(\.open)?")


def offsets_of_text(text, index, open_extent):
    """Bits from the region's start by a part's canonical text: start and digits, nothing else."""
    _, _, _, start, *digits = text.split(" ")
    total = numpy.int64(int(start.removeprefix("start=")))
    for word in digits:
        axis, div, mod, stride, opened = DIGIT.fullmatch(word).groups()
        digit = index[axis] // int(div)
        if mod:
            digit = digit % int(mod)
        total = total + digit * int(stride) * (open_extent if opened else 1)
    return total
