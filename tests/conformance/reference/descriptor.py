# SPDX-License-Identifier: Apache-2.0
"""Descriptors as canonical text, their digests, token chains: spec/kv-state.md §1, §2, §5."""

import dataclasses
import re
import struct

import xxhash

from . import layout

MAJOR = 1
ATTENTION = ("full", "sliding", "mla", "sparse-indexed", "recurrent")
OPERATIONS = ("q", "q*s", "(q-z)*s", "(q-N)*s", "q*c")
STORED = ("q*s", "(q-z)*s", "(q-N)*s")
LAYERS_MAX = 4096


class DescriptorError(ValueError):
    """A text that isn't a descriptor's, or a descriptor that contradicts itself."""


def digest(text):
    return xxhash.xxh3_128_hexdigest(text.encode("latin-1"))


def token_chain(tokens):
    """Digest after each token, that of no tokens first."""
    low, high, out = 0, 0, [f"{0:032x}"]
    for token in tokens:
        hashed = xxhash.xxh3_128_intdigest(struct.pack("<QQi", low, high, token))
        low, high = hashed & (1 << 64) - 1, hashed >> 64
        out.append(f"{high:016x}{low:016x}")
    return out


def escape(text):
    def one(char):
        if char == "\\":
            return "\\\\"
        return char if 0x20 <= ord(char) < 0x7F else f"\\x{ord(char):02x}"

    return "".join(map(one, text))


def unescape(text):
    if re.fullmatch(r"(?:[ -\[\]-~]|\\\\|\\x[0-9a-f]{2})*", text) is None:
        raise DescriptorError("an escape that isn't one")
    return re.sub(r"\\(\\|x[0-9a-f]{2})", lambda m: "\\" if m[1] == "\\" else chr(int(m[1][1:], 16)), text)


@dataclasses.dataclass
class Form:
    component: str
    codes: str
    operation: str  # As in OPERATIONS.
    high_nibble: bool = False
    zero_constant: int = 0
    scale: str = ""
    zero: str = ""
    granule_dim: int = 0
    granule_tokens: int = 1
    static: list = dataclasses.field(default_factory=list)  # Bit patterns.
    recipe: str = ""

    def text(self):
        out = f"{self.component} codes={self.codes}" + (" nibble=high" if self.high_nibble else "")
        out += f" op={self.operation.replace('N', str(self.zero_constant))}"
        if self.operation == "q*c":
            packed = struct.pack(f"<{len(self.static)}I", *self.static)
            out += f" static={len(self.static)}:{xxhash.xxh3_128_hexdigest(packed)}"
        if self.operation not in STORED:
            return out
        out += f" scale={self.scale}" + (f" zero={self.zero}" if self.operation == "(q-z)*s" else "")
        return out + f" granule=dim:{self.granule_dim},tok:{self.granule_tokens}"


FORM = re.compile(
    r"(?P<component>\S+) codes=(?P<codes>\w+)(?P<nibble> nibble=high)?"
    r" op=(?P<op>q|q\*s|\(q-z\)\*s|\(q-(?P<constant>\d+)\)\*s|q\*c)(?: static=\d+:[0-9a-f]{32})?"
    r"(?: scale=(?P<scale>\w+))?(?: zero=(?P<zero>\w+))?(?: granule=dim:(?P<dim>\d+),tok:(?P<tok>\d+))?"
)


def parse_form(text, recipe, static):
    match = FORM.fullmatch(text)
    if match is None:
        raise DescriptorError(f"form {text!r}")
    operation = "(q-N)*s" if match["constant"] else match["op"]
    form = Form(match["component"], match["codes"], operation, bool(match["nibble"]))
    form.zero_constant = int(match["constant"] or 0)
    form.scale, form.zero = match["scale"] or "", match["zero"] or ""
    form.granule_dim, form.granule_tokens = int(match["dim"] or 0), int(match["tok"] or 1)
    form.static, form.recipe = static, recipe
    for name in (form.codes, form.scale, form.zero):
        if name and name not in layout.BITS:
            raise DescriptorError(f"format {name}")
    return form


@dataclasses.dataclass
class Component:
    name: str
    heads: int
    dim: int
    token_axis: bool
    transforms: list


@dataclasses.dataclass
class Group:
    layers: list
    attention: str
    window: int
    components: list
    block_tokens: int
    forms: list
    layouts: dict  # (rank, part) -> canonical text without the part's name


@dataclasses.dataclass(order=True)
class Box:
    group: int
    rank: int
    layers: tuple
    heads: tuple
    replicas: tuple  # gqa, mla, data
    tokens: tuple  # begin, end, period; end 0 without a period: no end

    def text(self):
        kinds = zip(("gqa", "mla", "data"), self.replicas, strict=True)
        replica = ",".join(f"{kind}:{number}" for kind, number in kinds if number) or "0"
        out = "layers={}..{} heads={}..{}".format(*self.layers, *self.heads) + f" replica={replica}"
        if not any(self.tokens):
            return out
        begin, end, period = self.tokens
        out += f" tokens={begin}.." + (str(end) if end or period else "")
        return out + (f"%{period}" if period else "")


BOX = re.compile(
    r"layers=(\d+)\.\.(\d+) heads=(\d+)\.\.(\d+) replica=(0|[a-z:0-9,]+)"
    r"(?: tokens=(\d+)\.\.(\d*)(?:%(\d+))?)?"
)


def parse_box(group, rank, text):
    match = BOX.fullmatch(text)
    if match is None:
        raise DescriptorError(f"box {text!r}")
    numbers = {"gqa": 0, "mla": 0, "data": 0}
    for word in match[5].split(",") if match[5] != "0" else []:
        kind, _, number = word.partition(":")
        if kind not in numbers or not number.isdigit():
            raise DescriptorError(f"replica {word!r}")
        numbers[kind] = int(number)
    bounds = tuple(int(match[i]) for i in range(1, 5))
    tokens = tuple(int(match[i] or 0) for i in (6, 7, 8))
    return Box(group, rank, bounds[:2], bounds[2:], tuple(numbers.values()), tokens)


def runs(indices):
    out, begin = [], 0
    for i, index in enumerate(indices):
        if i + 1 == len(indices) or indices[i + 1] != index + 1:
            out.append(str(index) if i == begin else f"{indices[begin]}-{index}")
            begin = i + 1
    return ",".join(out)


def parse_runs(text):
    out = []
    for word in text.split(","):
        match = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", word)
        if match is None:
            raise DescriptorError(f"layers {text!r}")
        out += range(int(match[1]), int(match[2] or match[1]) + 1)
    return out


def scales(text):
    out = []
    for word in text.split(","):
        match = re.fullmatch(r"0x([0-9a-f]{8})(?:\*(\d{1,4}))?", word)
        if match is None:
            raise DescriptorError(f"static scales {word!r}")
        out += [int(match[1], 16)] * int(match[2] or 1)
    return out


def scales_text(patterns):
    out, begin = [], 0
    for i, pattern in enumerate(patterns):
        if i + 1 == len(patterns) or patterns[i + 1] != pattern:
            count = i + 1 - begin
            out.append(f"0x{pattern:08x}" + (f"*{count}" if count > 1 else ""))
            begin = i + 1
    return ",".join(out)


class Lines:
    """Values by path, each to be taken once."""

    def __init__(self, text):
        if text and not text.endswith("\n"):
            raise DescriptorError("the last line has no end")
        self.values = {}
        for line in text.split("\n")[:-1]:
            path, found, value = line.partition(" = ")
            if not found or path in self.values:
                raise DescriptorError(f"line {line!r}")
            self.values[path] = value
        self.all = dict(self.values)

    def text(self, path):
        if path not in self.values:
            raise DescriptorError(f"{path} is missing")
        return unescape(self.values.pop(path))

    def number(self, path):
        text = self.text(path)
        if re.fullmatch(r"0|[1-9]\d{0,18}", text) is None:
            raise DescriptorError(f"{path} = {text}")
        return int(text)

    def truth(self, path):
        text = self.text(path)
        if text not in ("true", "false"):
            raise DescriptorError(f"{path} = {text}")
        return text == "true"

    def optional(self, path):
        return self.text(path) if path in self.values else None


IDENTITY = ("architecture", "lineage", "config_digest", "tokenizer_digest")


class Descriptor:
    """What a canonical text says. Writing gives the same text back, or reading refuses it."""

    def __init__(self, text):
        lines = Lines(text)
        self.lines = lines.all
        self.major, self.minor = lines.number("schema.major"), lines.number("schema.minor")
        if self.major != MAJOR:
            raise DescriptorError(f"schema.major: {self.major} isn't known")
        self.identity = {name: lines.text(f"identity.{name}") for name in IDENTITY}
        count = lines.number("identity.adapters.count")
        if count > 64:
            raise DescriptorError("identity.adapters: too many")
        self.adapters = [
            (lines.text(f"identity.adapters.{i}.name"), lines.text(f"identity.adapters.{i}.digest"))
            for i in range(count)
        ]
        position = "identity.position."
        self.scheme, self.rope_scaling = (
            lines.text(position + "scheme"),
            lines.text(position + "rope_scaling"),
        )
        theta = lines.text(position + "rope_theta")
        if re.fullmatch(r"0x[0-9a-f]{16}", theta) is None:
            raise DescriptorError(f"rope_theta {theta}")
        self.rope_theta = struct.unpack(">d", bytes.fromhex(theta[2:]))[0]
        self.theta_bits = theta
        self.after_rotation = lines.truth(position + "key_after_rotation")
        self.first_position = lines.number(position + "first_position")
        self.recipe, self.weights_digest = lines.text("weights.recipe"), lines.text("weights.digest")
        count = lines.number("groups.count")
        if not 1 <= count <= 64:
            raise DescriptorError("groups: empty or too many")
        self.groups = [self.read_group(lines, f"groups.{i}") for i in range(count)]
        self.read_partition(lines)
        if lines.values:
            raise DescriptorError(f"{sorted(lines.values)[0]} isn't a field")
        if self.text() != text:
            raise DescriptorError("not in canonical form")

    @staticmethod
    def read_group(lines, path):
        at = f"{path}.geometry"
        group = Group(
            parse_runs(lines.text(f"{at}.layers")),
            lines.text(f"{at}.attention"),
            lines.number(f"{at}.window"),
            [],
            0,
            [],
            {},
        )
        for name in lines.text(f"{at}.components").split(","):
            own = f"{at}.component.{name}"
            component = Component(
                name,
                lines.number(f"{own}.heads"),
                lines.number(f"{own}.dim"),
                lines.truth(f"{own}.token_axis"),
                [one for one in lines.text(f"{own}.transforms").split(",") if one],
            )
            group.components.append(component)
            static = lines.optional(f"{path}.static.{name}")
            group.forms.append(
                parse_form(
                    lines.text(f"{path}.form.{name}"),
                    lines.text(f"{path}.recipe.{name}"),
                    scales(static) if static is not None else [],
                )
            )
        group.block_tokens = lines.number(f"{path}.block_tokens")
        return group

    def read_partition(self, lines):
        self.boxes = []
        for path in sorted(lines.values):
            match = re.fullmatch(r"partition\.group\.(0|[1-9]\d*)\.rank\.(0|[1-9]\d*)", path)
            if match:
                self.boxes.append(parse_box(int(match[1]), int(match[2]), lines.text(path)))
        if lines.number("partition.count") != len(self.boxes) or len(self.boxes) > 1024:
            raise DescriptorError("partition.count")
        self.boxes.sort()
        for box in self.boxes:
            if box.group >= len(self.groups):
                raise DescriptorError("partition: no such group")
            prefix = f"groups.{box.group}.layout.rank.{box.rank}."
            for path in [one for one in lines.values if one.startswith(prefix)]:
                part = path.removeprefix(prefix)
                self.groups[box.group].layouts[box.rank, part] = lines.text(path)

    def paths(self):
        """Every line's path and value before escaping."""
        yield "schema.major", str(self.major)
        yield "schema.minor", str(self.minor)
        for name, value in self.identity.items():
            yield f"identity.{name}", value
        yield "identity.adapters.count", str(len(self.adapters))
        for i, (name, value) in enumerate(self.adapters):
            yield f"identity.adapters.{i}.name", name
            yield f"identity.adapters.{i}.digest", value
        position = "identity.position."
        yield position + "scheme", self.scheme
        yield position + "rope_theta", self.theta_bits
        yield position + "rope_scaling", self.rope_scaling
        yield position + "key_after_rotation", str(self.after_rotation).lower()
        yield position + "first_position", str(self.first_position)
        yield "weights.recipe", self.recipe
        yield "weights.digest", self.weights_digest
        yield "groups.count", str(len(self.groups))
        for i, group in enumerate(self.groups):
            yield from self.group_paths(f"groups.{i}", group)
        yield "partition.count", str(len(self.boxes))
        for box in self.boxes:
            yield f"partition.group.{box.group}.rank.{box.rank}", box.text()

    @staticmethod
    def group_paths(path, group):
        at = f"{path}.geometry"
        yield f"{at}.layers", runs(group.layers)
        yield f"{at}.attention", group.attention
        yield f"{at}.window", str(group.window)
        yield f"{at}.components", ",".join(one.name for one in group.components)
        for component, form in zip(group.components, group.forms, strict=True):
            own = f"{at}.component.{component.name}"
            yield f"{own}.heads", str(component.heads)
            yield f"{own}.dim", str(component.dim)
            yield f"{own}.token_axis", str(component.token_axis).lower()
            yield f"{own}.transforms", ",".join(component.transforms)
            yield f"{path}.form.{component.name}", form.text()
            yield f"{path}.recipe.{component.name}", form.recipe
            if form.static:
                yield f"{path}.static.{component.name}", scales_text(form.static)
        yield f"{path}.block_tokens", str(group.block_tokens)
        for (rank, part), text in group.layouts.items():
            yield f"{path}.layout.rank.{rank}.{part}", text

    def text(self):
        return "".join(f"{path} = {escape(value)}\n" for path, value in sorted(self.paths()))

    def digest(self):
        return digest(self.text())
