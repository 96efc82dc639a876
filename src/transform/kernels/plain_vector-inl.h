// SPDX-License-Identifier: Apache-2.0
// One vector of stored numbers to and from f32, and what the vector kernels share; compiled once per
// instruction set.
#if defined(ISTHMUS_TRANSFORM_KERNELS_PLAIN_VECTOR_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ISTHMUS_TRANSFORM_KERNELS_PLAIN_VECTOR_INL_H
#undef ISTHMUS_TRANSFORM_KERNELS_PLAIN_VECTOR_INL_H
#else
#define ISTHMUS_TRANSFORM_KERNELS_PLAIN_VECTOR_INL_H
#endif

#include "base/bytes.h"
#include "hwy/highway.h"
#include "kv/format.h"
#include "transform/kernels/numbers.h"
#include "transform/kernels/rows_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace isthmus::transform::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using U32 = hn::RebindToUnsigned<F32>;
using I32 = hn::RebindToSigned<F32>;
using U16 = hn::Rebind<std::uint16_t, F32>;
using F16 = hn::Rebind<hwy::float16_t, F32>;
using U8 = hn::Rebind<std::uint8_t, F32>;
using I8 = hn::Rebind<std::int8_t, F32>;
using Pairs = hn::RepartitionToWide<U8>;  // U8's bytes two by two.
using PackedU8 = hn::Rebind<std::uint8_t, Pairs>;

// Whole vectors of `D` at any address.
template <class D>
HWY_INLINE hn::Vec<D> load_bytes(D d, const std::byte* at) {
  return hn::BitCast(d, hn::LoadU(hn::Repartition<std::uint8_t, D>(), as_uchars(at)));
}
template <class D, class V>
HWY_INLINE void store_bytes(D, V value, std::byte* at) {
  const hn::Repartition<std::uint8_t, D> bytes;
  hn::StoreU(hn::BitCast(bytes, value), bytes, as_uchars(at));
}

HWY_INLINE hn::Vec<F32> f16_by_steps(hn::Vec<U16> halves) {
  const U32 u32;
  const F32 f32;
  const auto wide = hn::PromoteTo(u32, halves);
  const auto sign = hn::ShiftLeft<16>(hn::And(wide, hn::Set(u32, 0x8000u)));
  const auto shifted = hn::ShiftLeft<13>(hn::And(wide, hn::Set(u32, 0x7fffu)));
  const auto top = hn::Set(u32, 0x0f800000u);
  const auto rebias = hn::Set(u32, 112u << 23);
  const auto exponent = hn::And(shifted, top);
  auto bits = hn::Add(shifted, rebias);
  bits = hn::Add(bits, hn::IfThenElseZero(hn::Eq(exponent, top), rebias));
  const auto least = hn::Set(u32, 113u << 23);
  const auto subnormal = hn::Sub(hn::BitCast(f32, hn::Add(shifted, least)), hn::BitCast(f32, least));
  bits = hn::IfThenElse(hn::Eq(exponent, hn::Zero(u32)), hn::BitCast(u32, subnormal), bits);
  return hn::BitCast(f32, hn::Or(bits, sign));
}

HWY_INLINE hn::Vec<U32> magnitude_bits(hn::Vec<F32> value) {
  return hn::AndNot(hn::Set(U32(), kSign), hn::BitCast(U32(), value));
}

HWY_INLINE bool all_finite(hn::Vec<U32> largest) {
  return hn::AllFalse(U32(), hn::Gt(largest, hn::Set(U32(), kInfinity - 1)));
}

// Of values whose largest magnitude is known, as codes of a format.
template <kv::Format kTo>
HWY_INLINE Outcome outcome_of(hn::Vec<U32> largest) {
  if (!all_finite(largest)) return Outcome::kNotFinite;
  constexpr auto kHighest = std::bit_cast<std::uint32_t>(bounds_of(kTo).highest);
  return hn::AllFalse(U32(), hn::Gt(largest, hn::Set(U32(), kHighest))) ? Outcome::kWhole
                                                                        : Outcome::kSaturated;
}

// With F16C the machine converts; it quiets signalling NaNs, so what isn't finite is left to the steps.
HWY_INLINE hn::Vec<F32> f16_vector(hn::Vec<U16> halves) {
#if HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)
  const auto value = hn::PromoteTo(F32(), hn::BitCast(F16(), halves));
  if (HWY_LIKELY(all_finite(magnitude_bits(value)))) return value;
#endif
  return f16_by_steps(halves);
}

// As f16_vector() for callers who refuse what isn't finite: a NaN stays one, whatever its payload.
HWY_INLINE hn::Vec<F32> finite_f16_vector(hn::Vec<U16> halves) {
#if HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)
  return hn::PromoteTo(F32(), hn::BitCast(F16(), halves));
#else
  return f16_by_steps(halves);
#endif
}

HWY_INLINE hn::Vec<U16> f32_to_f16_vector(hn::Vec<U32> bits) {
  const U32 u32;
  const F32 f32;
#if HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)
  const auto largest = hn::BitCast(f32, hn::Set(u32, kF16MaxBits));
  const auto clamped = hn::Max(hn::Min(hn::BitCast(f32, bits), largest), hn::Neg(largest));
  return hn::BitCast(U16(), hn::DemoteTo(F16(), clamped));
#else
  const auto sign = hn::And(bits, hn::Set(u32, kSign));
  const auto magnitude = hn::Min(hn::Xor(bits, sign), hn::Set(u32, kF16MaxBits));
  const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(u32, 1));
  const auto normal = hn::ShiftRight<13>(hn::Add(hn::Add(magnitude, hn::Set(u32, 0xc8000fffu)), odd));
  const auto half = hn::Set(u32, kHalfBits);
  const auto rounded = hn::Add(hn::BitCast(f32, magnitude), hn::BitCast(f32, half));
  const auto subnormal = hn::Sub(hn::BitCast(u32, rounded), half);
  const auto is_subnormal = hn::Lt(magnitude, hn::Set(u32, kF16MinNormalBits));
  const auto value = hn::Or(hn::IfThenElse(is_subnormal, subnormal, normal), hn::ShiftRight<16>(sign));
  return hn::DemoteTo(U16(), hn::BitCast(I32(), value));
#endif
}

HWY_INLINE hn::Vec<U16> f32_to_bf16_vector(hn::Vec<U32> bits) {
  const U32 u32;
  const auto sign = hn::And(bits, hn::Set(u32, kSign));
  const auto magnitude = hn::Min(hn::Xor(bits, sign), hn::Set(u32, kBf16MaxBits));
  const auto odd = hn::And(hn::ShiftRight<16>(magnitude), hn::Set(u32, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(magnitude, hn::Set(u32, 0x7fffu)), odd));
  return hn::DemoteTo(U16(), hn::BitCast(I32(), hn::Or(rounded, hn::ShiftRight<16>(sign))));
}

// As many 4-bit codes as a vector has lanes, one a byte, low nibble first.
HWY_INLINE hn::Vec<U8> unpack_nibbles(const std::byte* from) {
  const Pairs pairs;
  const auto wide = hn::PromoteTo(pairs, load_bytes(PackedU8(), from));
  return hn::BitCast(U8(), hn::And(hn::Or(wide, hn::ShiftLeft<4>(wide)), hn::Set(pairs, 0x0f0f)));
}
// Codes one a byte, each below 16, to half as many bytes.
template <class V>
HWY_INLINE void pack_nibbles(V codes, std::byte* to) {
  const hn::RepartitionToWide<hn::DFromV<V>> pairs;
  const hn::Rebind<std::uint8_t, decltype(pairs)> packed_bytes;
  const auto wide = hn::BitCast(pairs, codes);
  const auto packed = hn::And(hn::Or(wide, hn::ShiftRight<4>(wide)), hn::Set(pairs, 0x00ff));
  // Signed, as Highway narrows; no packed pair is above 255.
  const hn::RebindToSigned<decltype(pairs)> narrowed;
  store_bytes(packed_bytes, hn::DemoteTo(packed_bytes, hn::BitCast(narrowed, packed)), to);
}

// Nearest even of a magnitude below 2^22, two's complement in the low byte: the sum has no bits for a
// fraction.
HWY_INLINE hn::Vec<U32> low_byte_nearest(hn::Vec<F32> value) {
  return hn::BitCast(U32(), hn::Add(value, hn::Set(F32(), 12582912.0f)));
}

// The low bytes of a vector; of four, in order.
HWY_INLINE hn::Vec<U8> low_bytes(hn::Vec<U32> codes) {
  return hn::DemoteTo(U8(), hn::BitCast(I32(), hn::And(codes, hn::Set(U32(), 0xffu))));
}
HWY_INLINE auto low_bytes(hn::Vec<U32> a, hn::Vec<U32> b, hn::Vec<U32> c, hn::Vec<U32> d) {
  const hn::Repartition<std::uint16_t, U32> u16;
  const hn::Repartition<std::uint8_t, U32> u8;
  const auto low = hn::ConcatEven(u16, hn::BitCast(u16, b), hn::BitCast(u16, a));
  const auto high = hn::ConcatEven(u16, hn::BitCast(u16, d), hn::BitCast(u16, c));
  return hn::ConcatEven(u8, hn::BitCast(u8, high), hn::BitCast(u8, low));
}

template <kv::Format kFormat>
HWY_INLINE hn::Vec<F32> small_float_vector(hn::Vec<U8> codes) {
  constexpr SmallFloat kSmall = small_float(kFormat);
  const U32 u32;
  const auto wide = hn::PromoteTo(u32, codes);
  const auto magnitude = hn::And(wide, hn::Set(u32, 0x7fu));
  auto sign = hn::ShiftLeft<24>(hn::Xor(wide, magnitude));
  auto bits =
      hn::Add(hn::ShiftLeft<23 - kSmall.mantissa_bits>(magnitude), hn::Set(u32, (127 - kSmall.bias) << 23));
  const auto subnormal =
      hn::Mul(hn::ConvertTo(F32(), hn::BitCast(I32(), magnitude)), hn::Set(F32(), kSmall.ulp()));
  const auto is_subnormal = hn::Lt(magnitude, hn::Set(u32, 1u << kSmall.mantissa_bits));
  bits = hn::IfThenElse(is_subnormal, hn::BitCast(u32, subnormal), bits);
  if constexpr (kSmall.is_fnuz) {
    const auto is_nan = hn::Eq(wide, hn::Set(u32, 0x80u));
    bits = hn::IfThenElse(is_nan, hn::Set(u32, kQuietNan), bits);
    sign = hn::IfThenZeroElse(is_nan, sign);
  } else {
    auto special = hn::Set(u32, kQuietNan);
    if constexpr (kSmall.mantissa_bits == 2) {
      special = hn::Or(hn::Set(u32, kInfinity), hn::ShiftLeft<21>(hn::And(magnitude, hn::Set(u32, 3))));
    }
    bits = hn::IfThenElse(hn::Gt(magnitude, hn::Set(u32, kSmall.largest)), special, bits);
  }
  return hn::BitCast(F32(), hn::Or(bits, sign));
}

// Elements [index, index + lanes) of an array as f32; `index` is even for 4-bit codes. NaN payloads of f16
// are only kept if kExact.
template <kv::Format kFormat, bool kExact = false>
HWY_INLINE hn::Vec<F32> load_numbers(const std::byte* from, std::uint64_t index) {
  const F32 f32;
  if constexpr (kFormat == kv::Format::kF32) {
    return load_bytes(f32, from + index * 4);
  } else if constexpr (kFormat == kv::Format::kF16) {
    const auto halves = load_bytes(U16(), from + index * 2);
    return kExact ? f16_vector(halves) : finite_f16_vector(halves);
  } else if constexpr (kFormat == kv::Format::kBf16) {
    const auto wide = hn::PromoteTo(U32(), load_bytes(U16(), from + index * 2));
    return hn::BitCast(f32, hn::ShiftLeft<16>(wide));
  } else if constexpr (kFormat == kv::Format::kU8) {
    return hn::ConvertTo(f32, hn::PromoteTo(I32(), load_bytes(U8(), from + index)));
  } else if constexpr (kFormat == kv::Format::kI8) {
    return hn::ConvertTo(f32, hn::PromoteTo(I32(), load_bytes(I8(), from + index)));
  } else if constexpr (is_small_float(kFormat)) {
    return small_float_vector<kFormat>(load_bytes(U8(), from + index));
  } else {
    static_assert(kFormat == kv::Format::kU4 || kFormat == kv::Format::kI4);
    const I32 i32;
    auto codes = hn::PromoteTo(i32, unpack_nibbles(from + index / 2));
    if constexpr (kFormat == kv::Format::kI4) {
      codes = hn::Sub(hn::Xor(codes, hn::Set(i32, 8)), hn::Set(i32, 8));
    }
    return hn::ConvertTo(f32, codes);
  }
}

// The code of a finite value, as numbers.h says, in the low byte.
template <kv::Format kFormat>
HWY_INLINE hn::Vec<U32> plain_codes(hn::Vec<F32> value) {
  const U32 u32;
  const F32 f32;
  if constexpr (is_small_float(kFormat)) {
    constexpr SmallFloat kSmall = small_float(kFormat);
    constexpr int kShift = 23 - static_cast<int>(kSmall.mantissa_bits);
    const auto bits = hn::BitCast(u32, value);
    const auto magnitude =
        hn::Min(hn::AndNot(hn::Set(u32, kSign), bits), hn::Set(u32, kSmall.largest_bits()));
    const auto sign = hn::ShiftLeft<7>(hn::ShiftRight<31>(bits));
    // Rounding up and the difference of the biases, in one sum; what is above the code is cut off later.
    constexpr std::uint32_t kBias = (127 - kSmall.bias) << 23;
    const auto odd = hn::And(hn::ShiftRight<kShift>(magnitude), hn::Set(u32, 1));
    const auto normal = hn::ShiftRight<kShift>(
        hn::Add(hn::Add(magnitude, odd), hn::Set(u32, (1u << (kShift - 1)) - 1 - kBias)));
    const auto base = hn::Set(f32, kSmall.ulp() * 8388608.0f);
    const auto subnormal =
        hn::Sub(hn::BitCast(u32, hn::Add(hn::BitCast(f32, magnitude), base)), hn::BitCast(u32, base));
    const auto is_subnormal = hn::Lt(magnitude, hn::Set(u32, kSmall.min_normal_bits()));
    const auto code = hn::IfThenElse(is_subnormal, subnormal, normal);
    if constexpr (!kSmall.is_fnuz) return hn::Or(code, sign);
    return hn::IfThenZeroElse(hn::Eq(code, hn::Zero(u32)), hn::Or(code, sign));
  } else {
    constexpr Bounds kBounds = bounds_of(kFormat);
    const auto codes = low_byte_nearest(
        hn::Min(hn::Max(value, hn::Set(f32, kBounds.lowest)), hn::Set(f32, kBounds.highest)));
    return kFormat == kv::Format::kI4 ? hn::And(codes, hn::Set(u32, 0x0fu)) : codes;
  }
}

// The values, rounded and clamped as numbers.h says, to elements [index, index + lanes).
template <kv::Format kFormat>
HWY_INLINE void store_numbers(hn::Vec<F32> value, std::byte* to, std::uint64_t index) {
  const auto bits = hn::BitCast(U32(), value);
  if constexpr (kFormat == kv::Format::kF32) {
    store_bytes(F32(), value, to + index * 4);
  } else if constexpr (kFormat == kv::Format::kF16) {
    store_bytes(U16(), f32_to_f16_vector(bits), to + index * 2);
  } else {
    static_assert(kFormat == kv::Format::kBf16);
    store_bytes(U16(), f32_to_bf16_vector(bits), to + index * 2);
  }
}

// Vectors first, then what is left by the scalar twin.
HWY_INLINE std::uint64_t whole_vectors(std::uint64_t elements) {
  return elements / hn::Lanes(F32()) * hn::Lanes(F32());
}

}  // namespace isthmus::transform::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
