# SPDX-License-Identifier: Apache-2.0
"""What crosses, cut into chunks: spec/wire-form.md §2 and §3."""

import dataclasses
import itertools
import math

from . import layout

TILE, CHUNK_BYTES, ALIGN = 256, 1 << 18, 64


@dataclasses.dataclass
class Chunk:
    group: int
    layers: tuple
    heads: tuple
    tokens: tuple
    size: int
    ends: tuple  # Ranks of the source and of the target that hold it.

    def text(self):
        ranks = [",".join(map(str, one)) for one in self.ends]
        return (
            f"group={self.group} layers={self.layers[0]}..{self.layers[1]}"
            f" heads={self.heads[0]}..{self.heads[1]} tokens={self.tokens[0]}..{self.tokens[1]}"
            f" bytes={self.size} from={ranks[0]} to={ranks[1]}"
        )


def layer_bytes(group, heads, tokens):
    """Body bytes of one layer: each part of each component, from a multiple of 64 on."""
    total = 0
    for component, form in zip(group.components, group.forms, strict=True):
        parts = [(form.codes, 1, 1)]
        parts += [(side, form.granule_dim, form.granule_tokens) for side in (form.scale, form.zero) if side]
        for code, elements, span in parts:
            row = component.dim // elements * layout.BITS[code] // 8
            total += -(-heads * -(-tokens // span) * row // ALIGN) * ALIGN
    return total


def pieces(first, last, step):
    return [(at, min(at + step, last)) for at in range(first, last, step)]


def has_position(box, position):
    begin, end, period = box.tokens
    if period:
        return begin <= position % period < end
    return begin <= position and (not end or position < end)


def holders(end, group, layers, heads, position):
    inside = [
        box.rank
        for box in end.boxes
        if box.group == group
        and box.layers[0] <= layers[0] <= layers[1] <= box.layers[1]
        and box.heads[0] <= heads[0] <= heads[1] <= box.heads[1]
        and has_position(box, position)
    ]
    return tuple(sorted(inside))


def token_sets(boxes, first, last):
    """Positions of [first, last) that the same of the boxes have, by first position."""
    sets = {}
    for position in range(first, last):
        sets.setdefault(tuple(has_position(box, position) for box in boxes), []).append(position)
    return list(sets.values())


def first_token(groups, begin, end):
    """Where a group begins: of a window only what the next step reads, in whole granules of both ends."""
    if groups[0].attention == "recurrent":
        return end - 1
    if groups[0].attention != "sliding":
        return begin
    granule = math.lcm(*(form.granule_tokens for group in groups for form in group.forms))
    return max(begin, max(begin, end - groups[0].window) // granule * granule)


def chunks(source, target, begin, end):
    """Chunks of a handoff of tokens [begin, end) whose wire form is the source's."""
    out = []
    token_cuts = sorted({begin, end, *range(-(-begin // TILE) * TILE, end, TILE)})
    for tokens in itertools.pairwise(token_cuts):
        for index, group in enumerate(source.groups):
            first = max(tokens[0], first_token((group, target.groups[index]), begin, end))
            if first >= tokens[1]:
                continue
            boxes = [box for side in (source, target) for box in side.boxes if box.group == index]
            layer_cuts = sorted({0, len(group.layers), *(at for box in boxes for at in box.layers)})
            head_cuts = sorted({0, group.components[0].heads, *(at for box in boxes for at in box.heads)})
            products = itertools.product(itertools.pairwise(layer_cuts), itertools.pairwise(head_cuts))
            products = list(products)
            for own in token_sets(boxes, first, tokens[1]):
                for layers, heads in products:
                    out += cut(source, target, index, (layers, heads, own))
    return out


def cut(source, target, index, piece):
    layers, heads, tokens = piece
    group, count = source.groups[index], len(tokens)
    layer_run = max(1, CHUNK_BYTES // layer_bytes(group, heads[1] - heads[0], count))
    head_run = heads[1] - heads[0]
    if min(layer_run, layers[1] - layers[0]) == 1:
        head_run = max(1, CHUNK_BYTES // layer_bytes(group, 1, count))
    out = []
    for own_layers, own_heads in itertools.product(pieces(*layers, layer_run), pieces(*heads, head_run)):
        size = (own_layers[1] - own_layers[0]) * layer_bytes(group, own_heads[1] - own_heads[0], count)
        ends = tuple(holders(side, index, own_layers, own_heads, tokens[0]) for side in (source, target))
        out.append(Chunk(index, own_layers, own_heads, (tokens[0], tokens[-1] + 1), size, ends))
    return out
