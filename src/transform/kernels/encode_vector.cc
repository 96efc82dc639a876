// SPDX-License-Identifier: Apache-2.0
// Vector kernels from plain numbers to codes, compiled once per instruction set by Highway. Memory is touched
// as bytes: any alignment is valid.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "transform/kernels/encode_vector.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, as Highway asks.
#include "hwy/highway.h"

#include <algorithm>
#include <array>
#include <bit>
#include <span>
#include <type_traits>

#include "transform/kernels/plain_vector-inl.h"
#include "transform/kernels/rows_kernels.h"
#include "transform/kernels/vector_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace isthmus::transform::kernels::HWY_NAMESPACE {

template <kv::Format kFrom, kv::Format kTo>
HWY_INLINE Outcome encode_plain_as(const std::byte* from, std::uint64_t elements, std::byte* to) {
  const std::uint64_t whole = whole_vectors(elements);
  auto largest = hn::Zero(U32());
  for (std::uint64_t i = 0; i < whole; i += hn::Lanes(F32())) {
    const auto value = load_numbers<kFrom>(from, i);
    largest = hn::Max(largest, magnitude_bits(value));
    store_numbers<kTo>(value, to, i);
  }
  constexpr std::uint64_t kBits = 8;
  const Numbers left{kFrom, from + whole * kv::bits(kFrom) / kBits};
  std::byte* end = to + whole * kv::bits(kTo) / kBits;
  return worse(scalar_kernels().encode_plain({kTo, end}, left, elements - whole), outcome_of<kTo>(largest));
}

// Statistics of as many granules as a vector has lanes are turned into one vector, one lane a granule, so
// that divisions and roundings of scales are paid once a vector.
constexpr std::size_t kLanes = HWY_HAVE_SCALABLE ? 1 : hn::MaxLanes(F32());

// Pairs of neighbours of two vectors, first those of `low`.
template <class Combine, class V>
HWY_INLINE V join_pairs(Combine combine, V low, V high) {
  const hn::DFromV<V> d;
  return combine(hn::ConcatEven(d, high, low), hn::ConcatOdd(d, high, low));
}

struct Lower {
  HWY_INLINE hn::Vec<F32> operator()(hn::Vec<F32> a, hn::Vec<F32> b) const { return hn::Min(a, b); }
};
struct Higher {
  HWY_INLINE hn::Vec<F32> operator()(hn::Vec<F32> a, hn::Vec<F32> b) const { return hn::Max(a, b); }
};

// Lane i of the answer combines all lanes of vector i; every vector is overwritten.
template <class Combine, class V>
HWY_INLINE V combine_lanes(Combine combine, V* all) {
  for (std::size_t count = kLanes; count > 1; count /= 2) {
    for (std::size_t i = 0; i < count / 2; ++i) all[i] = join_pairs(combine, all[2 * i], all[2 * i + 1]);
  }
  return all[0];
}

// The first `count` lanes.
template <class D, class V>
HWY_INLINE void store_first(D d, V value, std::size_t count, std::byte* to) {
  std::array<hn::TFromD<D>, kLanes> lanes;
  hn::StoreU(value, d, lanes.data());
  std::memcpy(to, lanes.data(), count * sizeof(lanes[0]));
}

// Stores the codes that are the low bytes of code_of(0), code_of(1), … code_of(vectors - 1).
template <bool kNibbles, class CodeOf>
HWY_INLINE void store_codes(std::size_t vectors, CodeOf code_of, std::byte* to) {
  constexpr std::size_t kBytes = kNibbles ? kLanes / 2 : kLanes;  // Of one vector's codes.
  std::size_t v = 0;
  for (; v + 4 <= vectors; v += 4) {
    const auto codes = low_bytes(code_of(v), code_of(v + 1), code_of(v + 2), code_of(v + 3));
    if constexpr (kNibbles) {
      pack_nibbles(codes, to + v * kBytes);
    } else {
      store_bytes(hn::DFromV<decltype(codes)>(), codes, to + v * kBytes);
    }
  }
  for (; v < vectors; ++v) {
    const auto codes = low_bytes(code_of(v));
    if constexpr (kNibbles) {
      pack_nibbles(codes, to + v * kBytes);
    } else {
      store_bytes(U8(), codes, to + v * kBytes);
    }
  }
}

// Plain codes of a byte or half of one, and the largest magnitude seen.
template <kv::Format kTo>
struct PlainCodes {
  const float* from;
  hn::Vec<U32>* largest;
  HWY_INLINE hn::Vec<U32> operator()(std::size_t v) const {
    const auto value = hn::LoadU(F32(), from + v * hn::Lanes(F32()));
    *largest = hn::Max(*largest, magnitude_bits(value));
    if constexpr (bounds_of(kTo).lowest == 0) {  // What is negative counts as large, but finite.
      const auto below = hn::RebindMask(U32(), hn::Lt(value, hn::Zero(F32())));
      *largest = hn::Max(*largest, hn::IfThenElseZero(below, hn::Set(U32(), kInfinity - 1)));
    }
    return plain_codes<kTo>(value);
  }
};
// f32_to_vllm_fp8().
template <kv::Format kTo>
struct VllmCodes {
  const float* from;
  hn::Vec<U32>* largest;
  HWY_INLINE hn::Vec<U32> operator()(std::size_t v) const {
    constexpr SmallFloat kSmall = small_float(kTo);
    const U32 u32;
    const F32 f32;
    const auto value = hn::LoadU(f32, from + v * hn::Lanes(f32));
    const auto size = magnitude_bits(value);
    *largest = hn::Max(*largest, size);
    const auto magnitude = hn::Min(size, hn::Set(u32, kSmall.largest_bits()));
    auto code =
        hn::ShiftRight<20>(hn::BitCast(u32, hn::Mul(hn::BitCast(f32, magnitude), hn::Set(f32, kVllmScale))));
    if constexpr (kTo == kv::Format::kE5m2) {
      const auto normal = hn::Sub(hn::ShiftRight<21>(magnitude), hn::Set(u32, (127 - kSmall.bias) << 2));
      const auto ulps = hn::Mul(hn::BitCast(f32, magnitude), hn::Set(f32, 1.0f / kSmall.ulp()));
      const auto is_subnormal = hn::Lt(magnitude, hn::Set(u32, kSmall.min_normal_bits()));
      code = hn::IfThenElse(is_subnormal, hn::BitCast(u32, hn::ConvertTo(I32(), ulps)), normal);
    }
    const auto sign = hn::ShiftLeft<7>(hn::ShiftRight<31>(hn::BitCast(u32, value)));
    return hn::IfThenZeroElse(hn::Eq(size, hn::Zero(u32)), hn::Or(code, sign));
  }
};

// `whole` elements, full vectors.
template <template <kv::Format> class Codes, kv::Format kTo>
HWY_INLINE Outcome encode_codes_as(const float* from, std::uint64_t whole, std::byte* to) {
  auto largest = hn::Zero(U32());
  constexpr bool kNibbles = kTo == kv::Format::kI4 || kTo == kv::Format::kU4;
  store_codes<kNibbles>(whole / hn::Lanes(F32()), Codes<kTo>{from, &largest}, to);
  return outcome_of<kTo>(largest);
}

Outcome encode_codes(const PlainTarget& to, const float* from, std::uint64_t whole) {
  if (to.truncates) {
    return to.format == kv::Format::kE4m3fn
               ? encode_codes_as<VllmCodes, kv::Format::kE4m3fn>(from, whole, to.at)
               : encode_codes_as<VllmCodes, kv::Format::kE5m2>(from, whole, to.at);
  }
  switch (to.format) {
    case kv::Format::kE4m3fn:
      return encode_codes_as<PlainCodes, kv::Format::kE4m3fn>(from, whole, to.at);
    case kv::Format::kE4m3fnuz:
      return encode_codes_as<PlainCodes, kv::Format::kE4m3fnuz>(from, whole, to.at);
    case kv::Format::kE5m2:
      return encode_codes_as<PlainCodes, kv::Format::kE5m2>(from, whole, to.at);
    case kv::Format::kE5m2fnuz:
      return encode_codes_as<PlainCodes, kv::Format::kE5m2fnuz>(from, whole, to.at);
    case kv::Format::kI8:
      return encode_codes_as<PlainCodes, kv::Format::kI8>(from, whole, to.at);
    case kv::Format::kU8:
      return encode_codes_as<PlainCodes, kv::Format::kU8>(from, whole, to.at);
    case kv::Format::kI4:
      return encode_codes_as<PlainCodes, kv::Format::kI4>(from, whole, to.at);
    case kv::Format::kU4:
      return encode_codes_as<PlainCodes, kv::Format::kU4>(from, whole, to.at);
    default:
      return scalar_kernels().encode_plain(
          to, {kv::Format::kF32, std::as_bytes(std::span(from, whole)).data()}, whole);
  }
}

// False if a value isn't finite. An infinite quotient becomes the largest f32, which every format clamps.
bool divide(std::span<float> values, float divisor) {
  const F32 f32;
  const auto highest = hn::Set(f32, bounds_of(kv::Format::kF32).highest);
  const std::uint64_t whole = whole_vectors(values.size());
  auto largest = hn::Zero(U32());
  for (std::uint64_t i = 0; i < whole; i += hn::Lanes(f32)) {
    const auto value = hn::LoadU(f32, &values[i]);
    largest = hn::Max(largest, magnitude_bits(value));
    const auto quotient = hn::Div(value, hn::Set(f32, divisor));
    hn::StoreU(hn::Min(hn::Max(quotient, hn::Neg(highest)), highest), f32, &values[i]);
  }
  bool finite = all_finite(largest);
  for (float& value : values.subspan(whole)) {
    finite = finite && is_finite_bits(std::bit_cast<std::uint32_t>(value));
    const auto [low, high] = bounds_of(kv::Format::kF32);
    value = std::clamp(value / divisor, low, high);
  }
  return finite;
}

// Led through f32, some elements at a time: a loop for each pair of formats would be much code for little.
Outcome encode_through_f32(const PlainTarget& to, const Numbers& from, std::uint64_t elements) {
  std::array<float, 1024> values;
  Outcome outcome = Outcome::kWhole;
  for (std::uint64_t first = 0; first < elements && outcome != Outcome::kNotFinite; first += values.size()) {
    const std::uint64_t count = std::min<std::uint64_t>(values.size(), elements - first);
    vector_kernels().decode_plain(from.format, from.at + first * kv::bits(from.format) / 8, count,
                                  values.data());
    if (to.divisor != 1.0f && !divide(std::span(values).first(count), to.divisor)) return Outcome::kNotFinite;
    const std::uint64_t whole = HWY_HAVE_SCALABLE ? 0 : whole_vectors(count);
    PlainTarget at{to.format, to.at + first * kv::bits(to.format) / 8, 1, to.truncates};
    outcome = worse(outcome, encode_codes(at, values.data(), whole));
    at.at += whole * kv::bits(to.format) / 8;
    const Numbers rest{kv::Format::kF32, std::as_bytes(std::span(values)).data() + whole * sizeof(float)};
    outcome = worse(outcome, scalar_kernels().encode_plain(at, rest, count - whole));
  }
  return outcome;
}

template <kv::Format kFrom>
HWY_INLINE Outcome encode_plain_from(const PlainTarget& to, const std::byte* from, std::uint64_t elements) {
  switch (to.format) {
    case kv::Format::kF32:
      return encode_plain_as<kFrom, kv::Format::kF32>(from, elements, to.at);
    case kv::Format::kF16:
      return encode_plain_as<kFrom, kv::Format::kF16>(from, elements, to.at);
    case kv::Format::kBf16:
      return encode_plain_as<kFrom, kv::Format::kBf16>(from, elements, to.at);
    default:
      return encode_through_f32(to, {kFrom, from}, elements);
  }
}

Outcome encode_plain(const PlainTarget& to, const Numbers& from, std::uint64_t elements) {
  switch (from.format) {
    case kv::Format::kF32:
      return encode_plain_from<kv::Format::kF32>(to, from.at, elements);
    case kv::Format::kF16:
      return encode_plain_from<kv::Format::kF16>(to, from.at, elements);
    default:
      return encode_plain_from<kv::Format::kBf16>(to, from.at, elements);
  }
}

#if !HWY_HAVE_SCALABLE && HWY_NATIVE_FMA
// affine_code() of the vectors of one granule, for a finite inverse: then no sum is a NaN.
template <kv::Format kFrom>
struct AffineCodes {
  const std::byte* from;
  std::uint64_t begin;
  hn::Vec<F32> inverse, zero, steps;
  HWY_INLINE hn::Vec<U32> operator()(std::size_t v) const {
    const auto code = hn::MulAdd(load_numbers<kFrom>(from, begin + v * kLanes), inverse, zero);
    return low_byte_nearest(hn::Min(hn::Max(code, hn::Zero(F32())), steps));
  }
};

// Lowest and highest of each granule, by lanes.
struct Ranges {
  hn::Vec<F32> lowest, highest;
  hn::Vec<U32> products;  // Magnitudes; one isn't finite if any value isn't.
};
template <kv::Format kFrom>
HWY_NOINLINE Ranges ranges_of(const std::byte* from, std::uint64_t begin, std::uint32_t granule,
                              std::size_t count) {
  const F32 f32;
  hn::Vec<F32> lows[kLanes], highs[kLanes];  // NOLINT(*-avoid-c-arrays) as hadamard_registers()
  auto products = hn::Zero(U32());
  for (std::size_t g = 0; g < count; ++g, begin += granule) {
    auto low = load_numbers<kFrom>(from, begin), high = low;
    auto product = hn::Mul(low, hn::Zero(f32));
    for (std::uint32_t i = kLanes; i < granule; i += kLanes) {
      const auto value = load_numbers<kFrom>(from, begin + i);
      low = hn::Min(low, value);
      high = hn::Max(high, value);
      product = hn::MulAdd(value, hn::Zero(f32), product);
    }
    lows[g] = low;
    highs[g] = high;
    products = hn::Max(products, magnitude_bits(product));
  }
  for (std::size_t g = count; g < kLanes; ++g) lows[g] = highs[g] = hn::Zero(f32);
  return {combine_lanes(Lower(), lows), combine_lanes(Higher(), highs), products};
}

// Granules [first, first + count), at most kLanes of them.
template <kv::Format kFrom, bool kNibbles>
HWY_INLINE bool encode_affine_batch(const std::byte* from, const Encoded to, std::uint64_t first,
                                    std::size_t count) {
  const F32 f32;
  const auto steps = hn::Set(f32, kNibbles ? 15.0f : 255.0f);
  const std::uint64_t begin = first * to.granule;
  const Ranges ranges = ranges_of<kFrom>(from, begin, to.granule, count);
  // The minimum of zeros depends on their order; adding +0 makes it +0.
  const auto lowest = hn::Add(ranges.lowest, hn::Zero(f32));
  const auto step = hn::Div(hn::Sub(ranges.highest, lowest), steps);
  const auto scale = hn::IfThenElse(hn::Eq(step, hn::Zero(f32)), hn::Set(f32, 1e-4f), step);
  const auto inverse = hn::Div(hn::Set(f32, 1.0f), scale), zero = hn::Div(hn::Neg(lowest), scale);
  const auto largest = hn::Max(hn::Max(magnitude_bits(scale), magnitude_bits(zero)), ranges.products);
  if (!all_finite(largest)) return false;
  store_first(f32, scale, count, to.scales + first * 4);
  store_first(f32, zero, count, to.zeros + first * 4);
  if (HWY_UNLIKELY(!all_finite(magnitude_bits(inverse)))) {
    const Encoded batch{to.codes + begin / (kNibbles ? 2 : 1), to.scales + first * 4, to.zeros + first * 4,
                        count, to.granule};
    const Numbers values{kFrom, from + begin * (kv::bits(kFrom) / 8)};
    return scalar_kernels().encode_affine(kNibbles ? kv::Format::kU4 : kv::Format::kU8, values, batch);
  }
  std::array<float, kLanes> inverses, zeros;
  hn::StoreU(inverse, f32, inverses.data());
  hn::StoreU(zero, f32, zeros.data());
  for (std::size_t g = 0; g < count; ++g) {
    const std::uint64_t at = begin + g * to.granule;
    const AffineCodes<kFrom> codes{from, at, hn::Set(f32, inverses[g]), hn::Set(f32, zeros[g]), steps};
    store_codes<kNibbles>(to.granule / kLanes, codes, to.codes + at / (kNibbles ? 2 : 1));
  }
  return true;
}

template <kv::Format kFrom, bool kNibbles>
HWY_INLINE bool encode_affine_as(const std::byte* from, const Encoded to) {
  for (std::uint64_t first = 0; first < to.granules; first += kLanes) {
    const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(kLanes, to.granules - first));
    if (!encode_affine_batch<kFrom, kNibbles>(from, to, first, count)) return false;
  }
  return true;
}

template <kv::Format kFrom>
HWY_INLINE bool encode_affine_from(kv::Format codes, const std::byte* from, const Encoded& to) {
  return codes == kv::Format::kU8 ? encode_affine_as<kFrom, false>(from, to)
                                  : encode_affine_as<kFrom, true>(from, to);
}
#endif

bool encode_affine(kv::Format codes, const Numbers& from, const Encoded& to) {
#if !HWY_HAVE_SCALABLE && HWY_NATIVE_FMA  // Without it the codes could differ from the recipe's by one.
  if (to.granule % kLanes == 0) {
    switch (from.format) {
      case kv::Format::kF32:
        return encode_affine_from<kv::Format::kF32>(codes, from.at, to);
      case kv::Format::kF16:
        return encode_affine_from<kv::Format::kF16>(codes, from.at, to);
      default:
        return encode_affine_from<kv::Format::kBf16>(codes, from.at, to);
    }
  }
#endif
  return scalar_kernels().encode_affine(codes, from, to);
}

#if !HWY_HAVE_SCALABLE && HWY_NATIVE_FMA
// One vector of channels of one token group: `count` rows from element `first` on, `to.dim` elements apart.
template <kv::Format kFrom>
HWY_INLINE bool encode_channel_vector(const std::byte* from, const EncodedChannels& to, std::uint64_t first,
                                      std::uint64_t count, std::uint64_t unit) {
  const F32 f32;
  auto lowest = load_numbers<kFrom>(from, first), highest = lowest;
  auto largest = hn::Zero(U32());
  for (std::uint64_t row = 0; row < count; ++row) {
    const auto value = load_numbers<kFrom>(from, first + row * to.dim);
    lowest = hn::Min(lowest, value);
    highest = hn::Max(highest, value);
    largest = hn::Max(largest, magnitude_bits(value));
  }
  lowest = hn::Add(lowest, hn::Zero(f32));
  auto scale = hn::Mul(hn::Sub(highest, lowest), hn::Set(f32, 1.0f / 255.0f));
  scale = hn::IfThenElse(hn::Eq(scale, hn::Zero(f32)), hn::Set(f32, 1e-4f), scale);
  const auto inverse = hn::Div(hn::Set(f32, 1.0f), scale), zero = hn::Div(hn::Neg(lowest), scale);
  largest = hn::Max(largest, hn::Max(magnitude_bits(scale), magnitude_bits(zero)));
  if (!all_finite(largest)) return false;
  for (std::uint64_t row = 0; row < count; ++row) {
    const std::uint64_t at = first + row * to.dim;
    const auto sum = hn::MulAdd(load_numbers<kFrom>(from, at), inverse, zero);
    // A NaN, of an infinite inverse, becomes 0.
    const auto code = hn::IfThenElseZero(hn::Gt(sum, hn::Zero(f32)), sum);
    store_bytes(U8(), low_bytes(low_byte_nearest(hn::Min(code, hn::Set(f32, 255.0f)))), to.codes + at);
  }
  store_bytes(f32, scale, to.scales + unit * 4);
  store_bytes(f32, zero, to.zeros + unit * 4);
  return true;
}

template <kv::Format kFrom>
HWY_INLINE bool encode_channels_as(const std::byte* from, const EncodedChannels& to) {
  for (std::uint64_t first = 0; first < to.rows; first += to.group) {
    const std::uint64_t count = std::min<std::uint64_t>(to.group, to.rows - first);
    for (std::uint32_t d = 0; d < to.dim; d += kLanes) {
      const std::uint64_t unit = first / to.group * to.dim + d;
      if (!encode_channel_vector<kFrom>(from, to, first * to.dim + d, count, unit)) return false;
    }
  }
  return true;
}
#endif

bool encode_channels(const Numbers& from, const EncodedChannels& to) {
#if !HWY_HAVE_SCALABLE && HWY_NATIVE_FMA
  if (to.dim % kLanes == 0) {
    switch (from.format) {
      case kv::Format::kF32:
        return encode_channels_as<kv::Format::kF32>(from.at, to);
      case kv::Format::kF16:
        return encode_channels_as<kv::Format::kF16>(from.at, to);
      default:
        return encode_channels_as<kv::Format::kBf16>(from.at, to);
    }
  }
#endif
  return scalar_kernels().encode_channels(from, to);
}

#if !HWY_HAVE_SCALABLE
// Blocks of a power of two vectors: their number as a shift.
HWY_INLINE bool is_block(std::uint32_t granule) {
  return granule % kLanes == 0 && std::has_single_bit(granule / kLanes);
}
HWY_INLINE std::size_t shift_of(std::uint32_t granule) {
  return static_cast<std::size_t>(std::countr_zero(granule / kLanes));
}

struct Largest {
  // Magnitudes, compared as integers: one that isn't finite is larger than all that are.
  HWY_INLINE hn::Vec<F32> operator()(hn::Vec<F32> a, hn::Vec<F32> b) const {
    const I32 i32;
    return hn::BitCast(F32(), hn::Max(hn::BitCast(i32, a), hn::BitCast(i32, b)));
  }
};

// Some granules: that of the first begins at an element, the others follow. Each goes on in further rows.
struct Granules {
  std::uint64_t begin = 0;
  std::uint32_t granule = 0;
  std::size_t count = 0;
  std::uint64_t rows = 1, row_elements = 0;
};

// Lane g: the largest magnitude of granule g.
template <kv::Format kFrom>
HWY_NOINLINE hn::Vec<F32> largest_magnitudes(const std::byte* from, const Granules& of) {
  const F32 f32;
  const std::size_t count = of.count;
  hn::Vec<F32> all[kLanes];  // NOLINT(*-avoid-c-arrays)
  for (std::size_t g = 0; g < count; ++g) {
    auto largest = hn::Zero(f32);
    for (std::uint64_t row = 0; row < of.rows; ++row) {
      const std::uint64_t begin = of.begin + g * of.granule + row * of.row_elements;
      for (std::uint64_t i = begin; i < begin + of.granule; i += kLanes) {
        largest = Largest()(largest, hn::Abs(load_numbers<kFrom>(from, i)));
      }
    }
    all[g] = largest;
  }
  for (std::size_t g = count; g < kLanes; ++g) all[g] = hn::Zero(f32);
  return combine_lanes(Largest(), all);
}

// Stores scales, f16; false if one doesn't fit.
HWY_INLINE bool store_f16_scales(hn::Vec<F32> scale, std::size_t count, std::byte* scales) {
  const auto overflow = hn::Set(U32(), std::bit_cast<std::uint32_t>(kF16OverflowFrom) - 1);
  if (!hn::AllFalse(U32(), hn::Gt(magnitude_bits(scale), overflow))) return false;
  store_first(U16(), f32_to_f16_vector(hn::BitCast(U32(), scale)), count, scales);
  return true;
}

// Codes of the vectors of a batch of blocks that are 2^shift vectors each.
template <kv::Format kFrom>
struct BlockCodes {
  const std::byte* from;
  std::uint64_t begin;
  std::size_t shift;
  std::array<float, kLanes> inverses;
  HWY_INLINE hn::Vec<F32> product(std::size_t v) const {
    return hn::Mul(load_numbers<kFrom>(from, begin + v * kLanes), hn::Set(F32(), inverses[v >> shift]));
  }
};
template <kv::Format kFrom>
struct Q80Codes : BlockCodes<kFrom> {
  HWY_INLINE hn::Vec<U32> operator()(std::size_t v) const { return low_byte_nearest(this->product(v)); }
};
template <kv::Format kFrom>
struct Q80ReferenceCodes : BlockCodes<kFrom> {
  HWY_INLINE hn::Vec<U32> operator()(std::size_t v) const {
    const auto value = this->product(v), whole = hn::Trunc(value);
    const auto rest = hn::Abs(hn::Sub(value, whole));
    const auto up = hn::IfThenElseZero(hn::Ge(rest, hn::Set(F32(), 0.5f)), hn::Set(F32(), 1.0f));
    return low_byte_nearest(hn::Add(whole, hn::CopySign(up, value)));
  }
};
template <kv::Format kFrom, kv::Format kTo>
struct AmaxCodes : BlockCodes<kFrom> {
  HWY_INLINE hn::Vec<U32> operator()(std::size_t v) const { return plain_codes<kTo>(this->product(v)); }
};
// Of the rule that divides: `inverses` are the scales themselves.
template <kv::Format kFrom, kv::Format kTo>
struct TileCodes : BlockCodes<kFrom> {
  HWY_INLINE hn::Vec<U32> operator()(std::size_t v) const {
    const auto value = load_numbers<kFrom>(this->from, this->begin + v * kLanes);
    return plain_codes<kTo>(hn::Div(value, hn::Set(F32(), this->inverses[v >> this->shift])));
  }
};
template <kv::Format kFrom>
struct Q40Codes : BlockCodes<kFrom> {
  HWY_INLINE hn::Vec<U32> operator()(std::size_t v) const {
    const auto code = hn::ConvertTo(I32(), hn::Add(this->product(v), hn::Set(F32(), 8.5f)));
    return hn::BitCast(U32(), hn::Min(code, hn::Set(I32(), 15)));
  }
};

// scale_up() to a format other than f16.
HWY_INLINE hn::Vec<F32> scale_up_vector(hn::Vec<F32> scale, kv::Format format) {
  const U32 u32;
  const auto bits = hn::BitCast(u32, scale);
  const auto rounded = [&](std::uint32_t below) {
    return hn::BitCast(F32(), hn::AndNot(hn::Set(u32, below), hn::Add(bits, hn::Set(u32, below))));
  };
  if (format == kv::Format::kBf16) return rounded(0xffffu);
  return format == kv::Format::kE8m0 ? rounded(0x7fffffu) : scale;
}

HWY_INLINE void store_scales(hn::Vec<F32> scale, kv::Format format, std::size_t count, std::byte* to) {
  const auto bits = hn::BitCast(U32(), scale);
  if (format == kv::Format::kF32) return store_first(F32(), scale, count, to);
  if (format == kv::Format::kBf16) return store_first(U16(), f32_to_bf16_vector(bits), count, to);
  store_first(U8(), low_bytes(hn::ShiftRight<23>(bits)), count, to);
}

// amax_scale() to a format other than f16.
template <kv::Format kTo, ScaleRule kRule>
HWY_INLINE hn::Vec<F32> amax_scale_vector(hn::Vec<F32> largest, kv::Format scale_format) {
  const F32 f32;
  constexpr bool kPower = kRule == ScaleRule::kPowerOfTwo;
  if constexpr (kPower) largest = hn::Max(largest, hn::Set(f32, kLeastPowerOfTwoMagnitude));
  const auto least = hn::Div(largest, hn::Set(f32, amax_limit(kTo)));
  return hn::IfThenElse(hn::Lt(least, hn::Set(f32, kLeastScale)), hn::Set(f32, scale_of_nothing(kRule)),
                        scale_up_vector(least, kPower ? kv::Format::kE8m0 : scale_format));
}

// At most kLanes granules, whose scales go to `scales`.
template <kv::Format kFrom, kv::Format kTo, ScaleRule kRule>
HWY_INLINE bool encode_amax_batch(const std::byte* from, const EncodedGroups& to, const Granules& of,
                                  std::byte* scales) {
  constexpr bool kDivides = kRule == ScaleRule::kTile;
  const F32 f32;
  const auto largest = largest_magnitudes<kFrom>(from, of);
  if (!all_finite(magnitude_bits(largest))) return false;
  const auto scale = amax_scale_vector<kTo, kRule>(largest, to.scale_format);
  store_scales(scale, to.scale_format, of.count, scales);
  std::conditional_t<kDivides, TileCodes<kFrom, kTo>, AmaxCodes<kFrom, kTo>> codes{
      {from, of.begin, shift_of(of.granule), {}}};
  hn::StoreU(kDivides ? scale : hn::Div(hn::Set(f32, 1.0f), scale), f32, codes.inverses.data());
  constexpr bool kNibbles = kTo == kv::Format::kI4;
  for (std::uint64_t row = 0; row < of.rows; ++row, codes.begin += of.row_elements) {
    store_codes<kNibbles>(of.count * (of.granule / kLanes), codes,
                          to.codes + codes.begin / (kNibbles ? 2 : 1));
  }
  return true;
}

template <kv::Format kFrom>
HWY_INLINE bool encode_q8_0_reference_batch(const std::byte* from, const Encoded to, std::uint64_t first,
                                            std::size_t count) {
  const F32 f32;
  const auto largest = largest_magnitudes<kFrom>(from, {first * to.granule, to.granule, count});
  if (!all_finite(magnitude_bits(largest))) return false;
  const auto scale = hn::Div(largest, hn::Set(f32, 127.0f));
  if (!store_f16_scales(scale, count, to.scales + first * 2)) return false;
  const auto inverse = hn::IfThenElseZero(hn::Ne(scale, hn::Zero(f32)), hn::Div(hn::Set(f32, 1.0f), scale));
  const std::uint64_t begin = first * to.granule;
  if (HWY_UNLIKELY(!all_finite(magnitude_bits(inverse)))) {
    const Encoded batch{to.codes + begin, to.scales + first * 2, nullptr, count, to.granule};
    return scalar_kernels().encode_q8_0_reference({kFrom, from + begin * (kv::bits(kFrom) / 8)}, batch);
  }
  Q80ReferenceCodes<kFrom> codes{{from, begin, shift_of(to.granule), {}}};
  hn::StoreU(inverse, f32, codes.inverses.data());
  store_codes<false>(count * (to.granule / kLanes), codes, to.codes + begin);
  return true;
}

template <kv::Format kFrom>
HWY_INLINE bool encode_q8_0_batch(const std::byte* from, const Encoded to, std::uint64_t first,
                                  std::size_t count) {
  const F32 f32;
  const auto largest = largest_magnitudes<kFrom>(from, {first * to.granule, to.granule, count});
  if (!all_finite(magnitude_bits(largest))) return false;
  const auto limit = hn::Set(f32, 127.0f);
  if (!store_f16_scales(hn::Div(largest, limit), count, to.scales + first * 2)) return false;
  const auto inverse = hn::IfThenElseZero(hn::Ne(largest, hn::Zero(f32)), hn::Div(limit, largest));
  const std::uint64_t begin = first * to.granule;
  if (HWY_UNLIKELY(!all_finite(magnitude_bits(inverse)))) {
    const Encoded batch{to.codes + begin, to.scales + first * 2, nullptr, count, to.granule};
    return scalar_kernels().encode_q8_0({kFrom, from + begin * (kv::bits(kFrom) / 8)}, batch);
  }
  Q80Codes<kFrom> codes{{from, begin, shift_of(to.granule), {}}};
  hn::StoreU(inverse, f32, codes.inverses.data());
  store_codes<false>(count * (to.granule / kLanes), codes, to.codes + begin);
  return true;
}

// The first value of the granule whose magnitude is `size`; one is.
template <kv::Format kFrom>
HWY_INLINE float first_with(const std::byte* from, std::uint64_t index, float size) {
  for (;; index += kLanes) {
    const auto value = load_numbers<kFrom>(from, index);
    const std::intptr_t lane = hn::FindFirstTrue(F32(), hn::Eq(hn::Abs(value), hn::Set(F32(), size)));
    if (lane < 0) continue;
    std::array<float, kLanes> values;
    hn::StoreU(value, F32(), values.data());
    return values[static_cast<std::size_t>(lane)];
  }
}

template <kv::Format kFrom>
HWY_INLINE bool encode_q4_0_batch(const std::byte* from, const Encoded to, std::uint64_t first,
                                  std::size_t count) {
  const F32 f32;
  std::array<float, kLanes> extremes;
  const auto largest = largest_magnitudes<kFrom>(from, {first * to.granule, to.granule, count});
  if (!all_finite(magnitude_bits(largest))) return false;
  hn::StoreU(largest, f32, extremes.data());
  for (std::size_t g = 0; g < count; ++g) {
    // A block of zeros has scale -0 as the recipe's first extreme is +0, whatever their signs.
    if (extremes[g] != 0) extremes[g] = first_with<kFrom>(from, (first + g) * to.granule, extremes[g]);
  }
  const auto scale = hn::Div(hn::LoadU(f32, extremes.data()), hn::Set(f32, -8.0f));
  if (!store_f16_scales(scale, count, to.scales + first * 2)) return false;
  const auto inverse = hn::IfThenElseZero(hn::Ne(scale, hn::Zero(f32)), hn::Div(hn::Set(f32, 1.0f), scale));
  const std::uint64_t begin = first * to.granule;
  if (HWY_UNLIKELY(!all_finite(magnitude_bits(inverse)))) {
    const Encoded batch{to.codes + begin / 2, to.scales + first * 2, nullptr, count, to.granule};
    return scalar_kernels().encode_q4_0({kFrom, from + begin * (kv::bits(kFrom) / 8)}, batch);
  }
  Q40Codes<kFrom> codes{{from, begin, shift_of(to.granule), {}}};
  hn::StoreU(inverse, f32, codes.inverses.data());
  store_codes<true>(count * (to.granule / kLanes), codes, to.codes + begin / 2);
  return true;
}

enum class BlockRecipe : std::uint8_t { kQ80, kQ80Reference, kQ40 };

template <kv::Format kFrom, BlockRecipe kRecipe>
HWY_INLINE bool encode_blocks_as(const std::byte* from, const Encoded to) {
  for (std::uint64_t first = 0; first < to.granules; first += kLanes) {
    const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(kLanes, to.granules - first));
    bool finite = false;
    if constexpr (kRecipe == BlockRecipe::kQ80) {
      finite = encode_q8_0_batch<kFrom>(from, to, first, count);
    } else if constexpr (kRecipe == BlockRecipe::kQ80Reference) {
      finite = encode_q8_0_reference_batch<kFrom>(from, to, first, count);
    } else {
      finite = encode_q4_0_batch<kFrom>(from, to, first, count);
    }
    if (!finite) return false;
  }
  return true;
}

template <BlockRecipe kRecipe>
HWY_INLINE bool encode_blocks(const Numbers& from, const Encoded& to) {
  switch (from.format) {
    case kv::Format::kF32:
      return encode_blocks_as<kv::Format::kF32, kRecipe>(from.at, to);
    case kv::Format::kF16:
      return encode_blocks_as<kv::Format::kF16, kRecipe>(from.at, to);
    default:
      return encode_blocks_as<kv::Format::kBf16, kRecipe>(from.at, to);
  }
}

template <kv::Format kFrom, kv::Format kTo, ScaleRule kRule>
HWY_INLINE bool encode_amax_as(const std::byte* from, const EncodedGroups to) {
  // Granules of single rows follow each other, so all rows are one.
  const std::uint64_t dim = to.group == 1 ? to.rows * to.dim : to.dim, rows = to.group == 1 ? 1 : to.rows;
  const std::uint64_t units = dim / to.granule;
  for (std::uint64_t row = 0; row < rows; row += to.group) {
    for (std::uint64_t unit = 0; unit < units; unit += kLanes) {
      const Granules of{row * dim + unit * to.granule, to.granule,
                        static_cast<std::size_t>(std::min<std::uint64_t>(kLanes, units - unit)),
                        std::min<std::uint64_t>(to.group, rows - row), dim};
      std::byte* scales = to.scales + (row / to.group * units + unit) * kv::bits(to.scale_format) / 8;
      if (!encode_amax_batch<kFrom, kTo, kRule>(from, to, of, scales)) return false;
    }
  }
  return true;
}

template <kv::Format kTo, ScaleRule kRule = ScaleRule::kAmax>
HWY_INLINE bool encode_amax_to(const Numbers& from, const EncodedGroups& to) {
  switch (from.format) {
    case kv::Format::kF32:
      return encode_amax_as<kv::Format::kF32, kTo, kRule>(from.at, to);
    case kv::Format::kF16:
      return encode_amax_as<kv::Format::kF16, kTo, kRule>(from.at, to);
    default:
      return encode_amax_as<kv::Format::kBf16, kTo, kRule>(from.at, to);
  }
}
#endif

bool encode_amax(const Numbers& from, const EncodedGroups& to) {
#if !HWY_HAVE_SCALABLE
  if (is_block(to.granule) && to.scale_format != kv::Format::kF16) {
    if (to.rule == ScaleRule::kTile) return encode_amax_to<kv::Format::kE4m3fn, ScaleRule::kTile>(from, to);
    if (to.rule == ScaleRule::kPowerOfTwo)
      return encode_amax_to<kv::Format::kE4m3fn, ScaleRule::kPowerOfTwo>(from, to);
    switch (to.code_format) {
      case kv::Format::kE4m3fn:
        return encode_amax_to<kv::Format::kE4m3fn>(from, to);
      case kv::Format::kE4m3fnuz:
        return encode_amax_to<kv::Format::kE4m3fnuz>(from, to);
      case kv::Format::kE5m2:
        return encode_amax_to<kv::Format::kE5m2>(from, to);
      case kv::Format::kE5m2fnuz:
        return encode_amax_to<kv::Format::kE5m2fnuz>(from, to);
      case kv::Format::kI8:
        return encode_amax_to<kv::Format::kI8>(from, to);
      default:
        return encode_amax_to<kv::Format::kI4>(from, to);
    }
  }
#endif
  return scalar_kernels().encode_amax(from, to);
}

bool encode_q8_0(const Numbers& from, const Encoded& to) {
#if !HWY_HAVE_SCALABLE
  if (is_block(to.granule)) return encode_blocks<BlockRecipe::kQ80>(from, to);
#endif
  return scalar_kernels().encode_q8_0(from, to);
}

bool encode_q8_0_reference(const Numbers& from, const Encoded& to) {
#if !HWY_HAVE_SCALABLE
  if (is_block(to.granule)) return encode_blocks<BlockRecipe::kQ80Reference>(from, to);
#endif
  return scalar_kernels().encode_q8_0_reference(from, to);
}

bool encode_q4_0(const Numbers& from, const Encoded& to) {
#if !HWY_HAVE_SCALABLE
  if (is_block(to.granule)) return encode_blocks<BlockRecipe::kQ40>(from, to);
#endif
  return scalar_kernels().encode_q4_0(from, to);
}

}  // namespace isthmus::transform::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace isthmus::transform::kernels {

HWY_EXPORT(encode_plain);
HWY_EXPORT(encode_amax);
HWY_EXPORT(encode_affine);
HWY_EXPORT(encode_channels);
HWY_EXPORT(encode_q8_0);
HWY_EXPORT(encode_q8_0_reference);
HWY_EXPORT(encode_q4_0);

void use_vector_encoders(KernelSet& set) {
  set.encode_plain = [](const PlainTarget& to, const Numbers& from, std::uint64_t elements) {
    return HWY_DYNAMIC_DISPATCH(encode_plain)(to, from, elements);
  };
  set.encode_amax = [](const Numbers& from, const EncodedGroups& to) {
    return HWY_DYNAMIC_DISPATCH(encode_amax)(from, to);
  };
  set.encode_affine = [](kv::Format codes, const Numbers& from, const Encoded& to) {
    return HWY_DYNAMIC_DISPATCH(encode_affine)(codes, from, to);
  };
  set.encode_channels = [](const Numbers& from, const EncodedChannels& to) {
    return HWY_DYNAMIC_DISPATCH(encode_channels)(from, to);
  };
  set.encode_q8_0 = [](const Numbers& from, const Encoded& to) {
    return HWY_DYNAMIC_DISPATCH(encode_q8_0)(from, to);
  };
  set.encode_q8_0_reference = [](const Numbers& from, const Encoded& to) {
    return HWY_DYNAMIC_DISPATCH(encode_q8_0_reference)(from, to);
  };
  set.encode_q4_0 = [](const Numbers& from, const Encoded& to) {
    return HWY_DYNAMIC_DISPATCH(encode_q4_0)(from, to);
  };
}

const KernelSet& vector_kernels() {
  static const KernelSet kSet = [] {
    KernelSet set;
    use_vector_decoders(set);
    use_vector_encoders(set);
    return set;
  }();
  return kSet;
}

}  // namespace isthmus::transform::kernels
#endif
