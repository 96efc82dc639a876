# SPDX-License-Identifier: Apache-2.0
"""Digests of every conversion that spec/wire-form.md §7 defines, by numpy and ml_dtypes: the oracle of
numerics_test.cc, with which it shares nothing. `golden.py FILE` writes them, `golden.py --check FILE`
compares them.

A line is `CASE DIGESTS`. Inputs are all 2^16 codes of f16 or bf16 in ascending order, sixteen digests of
4,096 inputs each; what isn't finite is replaced by 1, for e8m0 what isn't positive too. With scales, input i
is code i * 37 mod 2^16, in rows of 64 elements, and the scales follow the codes. Behind a recipe's name
stands what isn't usual: `amax:e8m0`, scales in e8m0; `amax:tok16`, one scale for 16 rows;
`nearest_even:0.37`, a static scale; `vllm.fp8_ds_mla:near`, values of a row within a few binades,
where a quotient and a product differ. Decoding: f32 bits of all
codes, each NaN as 0x7fc00000. The digest is FNV-1a of 64 bits.
"""

import sys

import ml_dtypes
import numpy as np

SMALL = {"e4m3fn": ml_dtypes.float8_e4m3fn, "e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
         "e5m2": ml_dtypes.float8_e5m2, "e5m2fnuz": ml_dtypes.float8_e5m2fnuz}
HALVES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}
INTEGERS = {"i8": (-128, 127), "u8": (0, 255), "i4": (-8, 7), "u4": (0, 15)}
f32 = np.float32


def fnv(data):
    digest = 0xCBF29CE484222325
    for byte in data:
        digest = (digest ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{digest:016x}"


def pieces(codes, count=16):
    return " ".join(fnv(part.tobytes()) for part in np.split(codes, count))


def inputs(source):
    values = np.arange(1 << 16, dtype=np.uint16).view(HALVES[source]).astype(f32)
    return np.where(np.isfinite(values), values, f32(1))


def largest(target):
    if target in INTEGERS:
        return f32(INTEGERS[target][1])
    kind = {**SMALL, **HALVES}[target]
    return f32(ml_dtypes.finfo(kind).max)


def nearest(values, target):
    """Codes, in as many bytes as they need; one a byte for 4 bits."""
    if target in INTEGERS:
        return np.rint(np.clip(values, *INTEGERS[target])).astype(np.int16).astype(np.uint8) & (
            15 if target.endswith("4") else 255)
    if target == "e8m0":
        positive = np.where(values > 0, values, f32(1))
        mantissa, exponent = np.frexp(positive.astype(np.float64))  # In [0.5, 1).
        codes = np.clip(exponent + 126 + (mantissa >= 0.75), 0, 254).astype(np.uint8)
        # ml_dtypes 0.5.4 rounds f32 subnormals just above 2^-127 to 2^-126, which isn't the nearest.
        normal = (positive >= f32(2.0**-126)) & (positive <= f32(2.0**127))
        assert np.array_equal(codes[normal], positive[normal].astype(ml_dtypes.float8_e8m0fnu).view(np.uint8))
        return codes
    limit = largest(target)
    kind = {**SMALL, **HALVES}[target]
    return np.clip(values, -limit, limit).astype(kind).view(np.uint16 if target in HALVES else np.uint8)


def vllm(values, target):
    """The largest code whose number isn't above the magnitude, found in the table of all numbers."""
    table = np.arange(0x7F if target == "e4m3fn" else 0x7C, dtype=np.uint8).view(SMALL[target]).astype(f32)
    magnitude = np.minimum(np.abs(values), table[-1])
    if target == "e4m3fn":
        small = np.rint(magnitude.astype(np.float64) * 2.0**29) / 2.0**29
        magnitude = np.where(magnitude < 2.0**-6, small, magnitude)
    codes = (np.searchsorted(table, magnitude, side="right") - 1).astype(np.uint8)
    return np.where(values == 0, 0, codes | np.signbit(values).astype(np.uint8) << 7).astype(np.uint8)


def rows(source):
    order = (np.arange(1 << 16, dtype=np.uint64) * 37 % (1 << 16)).astype(np.int64)
    return inputs(source)[order].reshape(-1, 64)


def near_rows(source):
    """Rows of 64 values of either sign from two to sixteen binades, some of which lie between two codes."""
    at = np.arange(1 << 16, dtype=np.uint64)
    mixed = ((at * 25173 + at // 64 * 7) % (1 << 16)).astype(np.uint32)
    codes = (mixed & 0x8000) | ((0x3800 if source == "f16" else 0x3F00) + (mixed & 0x7FF))
    return codes.astype(np.uint16).view(HALVES[source]).astype(f32).reshape(-1, 64)


def scale_up(scale, kind):
    """The smallest number of a format that isn't below: as f32, and as it is stored."""
    if kind == "f32":
        return scale, scale
    if kind == "e8m0":
        mantissa, exponent = np.frexp(scale.astype(np.float64))
        exponent = np.where(mantissa == 0.5, exponent - 1, exponent)
        return np.ldexp(f32(1), exponent).astype(f32), (exponent + 127).astype(np.uint8)
    stored = scale.astype(HALVES[kind])
    stored = np.where(stored.astype(f32) < scale, stored.view(np.uint16) + 1, stored.view(np.uint16))
    stored = stored.astype(np.uint16)
    return stored.view(HALVES[kind]).astype(f32), stored


def amax(values, target, kind="f32", tokens=1):
    groups = values.reshape(-1, tokens, 64)
    scale = np.max(np.abs(groups), axis=(1, 2)) / largest(target)
    scale, stored = scale_up(np.where(scale < f32(2.0**-126), f32(1), scale).astype(f32), kind)
    return nearest(groups * (f32(1) / scale)[:, None, None], target), stored


def vllm_tile(values):
    """vLLM's concat_and_cache_ds_mla: the quotient itself is rounded; a scale is never subnormal."""
    groups = values.reshape(-1, 64)
    scale = np.maximum(np.max(np.abs(groups), axis=1) / f32(448), f32(2.0**-126)).astype(f32)
    return nearest(groups / scale[:, None], "e4m3fn"), scale


def vllm_ue8m0(values, kind="f32"):
    """vLLM's caches with power-of-two scales, with the f32 logarithm that its kernels take."""
    groups = values.reshape(-1, 64)
    largest = np.maximum(np.max(np.abs(groups), axis=1), f32(1e-4)).astype(f32)
    exponent = np.ceil(np.log2(largest / f32(448)))
    assert exponent.dtype == f32
    codes = nearest(groups * np.exp2(-exponent)[:, None], "e4m3fn")
    return codes, (exponent + 127).astype(np.uint8) if kind == "e8m0" else np.exp2(exponent)


def q8_0_reference(values):
    blocks = values.reshape(-1, 32)
    scale = np.max(np.abs(blocks), axis=1) / f32(127)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        inverse = np.where(scale == 0, f32(0), f32(1) / scale)
        product = blocks * inverse[:, None]
        whole = np.trunc(product)
        away = whole + np.where(np.abs(product - whole) >= 0.5, np.sign(product), f32(0))
    codes = np.where(np.isfinite(inverse)[:, None], away, f32(-128)).astype(np.int8).view(np.uint8)
    return codes, scale.astype(np.float16)


def cases():
    with np.errstate(over="ignore", under="ignore"):
        for source in HALVES:
            values = inputs(source)
            for target in [*HALVES, *SMALL, *INTEGERS, "e8m0"]:
                yield f"nearest_even {source} {target}", pieces(nearest(values, target))
            for target in ["e4m3fn", "e5m2"]:
                yield f"vllm.cpu.fp8 {source} {target}", pieces(vllm(values, target))
            for target in [*SMALL, "i8", "i4"]:
                codes, scale = amax(rows(source), target)
                yield f"amax {source} {target}", f"{pieces(codes)} {pieces(scale, 1)}"
            for target in [*SMALL, "i8"]:
                yield f"nearest_even:0.37 {source} {target}", pieces(nearest(values / f32(0.37), target))
            for target in ["e4m3fn", "e5m2"]:
                yield f"vllm.cpu.fp8:0.37 {source} {target}", pieces(vllm(values / f32(0.37), target))
            for target in ["e4m3fn", "i8"]:
                for kind in ["bf16", "e8m0", *(["f16"] if source == "f16" else [])]:
                    codes, scale = amax(rows(source), target, kind)
                    yield f"amax:{kind} {source} {target}", f"{pieces(codes)} {pieces(scale, 1)}"
                codes, scale = amax(rows(source), target, tokens=16)
                yield f"amax:tok16 {source} {target}", f"{pieces(codes)} {pieces(scale, 1)}"
            for name, values_of in [("", rows), (":near", near_rows)]:
                codes, scale = vllm_tile(values_of(source))
                yield f"vllm.fp8_ds_mla{name} {source} e4m3fn", f"{pieces(codes)} {pieces(scale, 1)}"
            for kind in ["f32", "e8m0"]:
                codes, scale = vllm_ue8m0(rows(source), kind)
                name = "vllm.fp8.ue8m0" + ("" if kind == "f32" else ":e8m0")
                yield f"{name} {source} e4m3fn", f"{pieces(codes)} {pieces(scale, 1)}"
        # bf16 has values whose scale no f16 holds.
        codes, scale = q8_0_reference(rows("f16"))
        yield "ggml.q8_0.reference f16 i8", f"{pieces(codes)} {pieces(scale, 1)}"
    for name, kind in {**HALVES, **SMALL, "e8m0": ml_dtypes.float8_e8m0fnu}.items():
        size = np.uint16 if name in HALVES else np.uint8
        codes = np.arange(1 << 8 * np.dtype(size).itemsize, dtype=np.uint32).astype(size)
        values = codes.view(kind).astype(f32)
        bits = np.where(np.isnan(values), np.uint32(0x7FC00000), values.view(np.uint32)).astype(np.uint32)
        yield f"decode {name} f32", pieces(bits, 1)


def main(arguments):
    text = "# Made by tests/numerics/golden.py; see there.\n" + "".join(f"{a} {b}\n" for a, b in cases())
    if arguments[0] != "--check":
        with open(arguments[0], "w", encoding="ascii") as file:
            file.write(text)
        return 0
    with open(arguments[1], encoding="ascii") as file:
        same = file.read() == text
    print("golden: all good" if same else f"golden: {arguments[1]} isn't what numpy and ml_dtypes give")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
