// SPDX-License-Identifier: Apache-2.0
// Vector kernels, compiled once per instruction set by Highway. Memory is touched as bytes: any alignment is
// valid.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "transform/kernels/rows_vector.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, as Highway asks.
#include "hwy/highway.h"

#include <algorithm>
#include <array>

#include "base/bytes.h"
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

// With F16C the machine converts; it quiets signalling NaNs, so what isn't finite is left to the steps.
HWY_INLINE hn::Vec<F32> f16_vector(hn::Vec<U16> halves) {
#if HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)
  const auto value = hn::PromoteTo(F32(), hn::BitCast(F16(), halves));
  if (HWY_LIKELY(all_finite(magnitude_bits(value)))) return value;
#endif
  return f16_by_steps(halves);
}

HWY_INLINE hn::Vec<U16> f32_to_f16_vector(hn::Vec<U32> bits) {
  const U32 u32;
  const F32 f32;
  const auto sign = hn::And(bits, hn::Set(u32, kSign));
  const auto magnitude = hn::Min(hn::Xor(bits, sign), hn::Set(u32, kF16MaxBits));
#if HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)
  return hn::BitCast(U16(), hn::DemoteTo(F16(), hn::BitCast(f32, hn::Or(magnitude, sign))));
#else
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

// Vectors first, then what is left by the scalar twin.
HWY_INLINE std::uint64_t whole_vectors(std::uint64_t elements) {
  return elements / hn::Lanes(F32()) * hn::Lanes(F32());
}

void decode_plain(kv::Format format, const std::byte* from, std::uint64_t elements, float* to) {
  const F32 f32;
  const std::size_t lanes = hn::Lanes(f32);
  const std::uint64_t whole = whole_vectors(elements);
  if (format == kv::Format::kF16) {
    for (std::uint64_t i = 0; i < whole; i += lanes) {
      hn::StoreU(f16_vector(load_bytes(U16(), from + i * 2)), f32, to + i);
    }
    scalar_kernels().decode_plain(format, from + whole * 2, elements - whole, to + whole);
  } else if (format == kv::Format::kBf16) {
    for (std::uint64_t i = 0; i < whole; i += lanes) {
      const auto wide = hn::PromoteTo(U32(), load_bytes(U16(), from + i * 2));
      hn::StoreU(hn::BitCast(f32, hn::ShiftLeft<16>(wide)), f32, to + i);
    }
    scalar_kernels().decode_plain(format, from + whole * 2, elements - whole, to + whole);
  } else {
    scalar_kernels().decode_plain(format, from, elements, to);
  }
}

// As many 4-bit codes as a vector has lanes, one a byte, low nibble first.
HWY_INLINE hn::Vec<U8> unpack_nibbles(const std::byte* from) {
  const Pairs pairs;
  const auto wide = hn::PromoteTo(pairs, load_bytes(PackedU8(), from));
  return hn::BitCast(U8(), hn::And(hn::Or(wide, hn::ShiftLeft<4>(wide)), hn::Set(pairs, 0x0f0f)));
}
HWY_INLINE void pack_nibbles(hn::Vec<U8> codes, std::byte* to) {
  const Pairs pairs;
  const auto wide = hn::BitCast(pairs, codes);
  const auto packed = hn::And(hn::Or(wide, hn::ShiftRight<4>(wide)), hn::Set(pairs, 0x00ff));
  // Signed, as Highway narrows; no packed pair is above 255.
  store_bytes(PackedU8(), hn::DemoteTo(PackedU8(), hn::BitCast(hn::RebindToSigned<Pairs>(), packed)), to);
}

// Codes [index, index + lanes) as numbers.
template <kv::Format kFormat>
HWY_INLINE hn::Vec<F32> codes_vector(const std::byte* from, std::uint64_t index) {
  if constexpr (kFormat == kv::Format::kU8) {
    return hn::ConvertTo(F32(), hn::PromoteTo(I32(), load_bytes(U8(), from + index)));
  } else if constexpr (kFormat == kv::Format::kI8) {
    return hn::ConvertTo(F32(), hn::PromoteTo(I32(), load_bytes(I8(), from + index)));
  } else {
    return hn::ConvertTo(F32(), hn::PromoteTo(I32(), unpack_nibbles(from + index / 2)));
  }
}

template <kv::Format kFormat>
HWY_INLINE void decode_scaled_as(const Scaled& from, float* to) {
  constexpr std::uint64_t kAtOnce = 64;  // Scales are decoded apart, some at once.
  const F32 f32;
  std::array<float, kAtOnce> scales{}, zeros{};
  zeros.fill(from.zero_constant);
  const std::uint64_t scale_bytes = kv::bits(from.scale_format) / 8,
                      zero_bytes = kv::bits(from.zero_format) / 8;
  for (std::uint64_t first = 0; first < from.granules; first += kAtOnce) {
    const std::uint64_t count = std::min(kAtOnce, from.granules - first);
    decode_plain(from.scale_format, from.scales + first * scale_bytes, count, scales.data());
    if (from.zeros != nullptr) {
      decode_plain(from.zero_format, from.zeros + first * zero_bytes, count, zeros.data());
    }
    for (std::uint64_t g = 0; g < count; ++g) {
      // Subtracting +0 changes no code, so forms without a zero point share the loop.
      const auto scale = hn::Set(f32, scales[g]), zero = hn::Set(f32, zeros[g]);
      const std::uint64_t begin = (first + g) * from.granule;
      for (std::uint64_t i = begin; i < begin + from.granule; i += hn::Lanes(f32)) {
        hn::StoreU(hn::Mul(hn::Sub(codes_vector<kFormat>(from.codes, i), zero), scale), f32, to + i);
      }
    }
  }
}

void decode_scaled(const Scaled& from, float* to) {
  if (from.granule % hn::Lanes(F32()) != 0) return scalar_kernels().decode_scaled(from, to);
  switch (from.code_format) {
    case kv::Format::kU8:
      return decode_scaled_as<kv::Format::kU8>(from, to);
    case kv::Format::kI8:
      return decode_scaled_as<kv::Format::kI8>(from, to);
    case kv::Format::kU4:
      return decode_scaled_as<kv::Format::kU4>(from, to);
    default:
      return scalar_kernels().decode_scaled(from, to);
  }
}

void decode_channels(const ScaledChannels& from, float* to) {
  const F32 f32;
  const std::size_t lanes = hn::Lanes(f32);
  const Scaled& arrays = from.arrays;
  const bool fits = arrays.code_format == kv::Format::kU8 && arrays.scale_format == kv::Format::kF32 &&
                    arrays.zero_format == kv::Format::kF32 && arrays.zeros != nullptr &&
                    from.dim % lanes == 0;
  if (!fits) return scalar_kernels().decode_channels(from, to);
  for (std::uint64_t row = 0; row < from.rows; ++row) {
    const std::byte* scales = arrays.scales + row / from.group * from.dim * sizeof(float);
    const std::byte* zeros = arrays.zeros + row / from.group * from.dim * sizeof(float);
    for (std::uint32_t d = 0; d < from.dim; d += lanes) {
      const auto code = codes_vector<kv::Format::kU8>(arrays.codes, row * from.dim + d);
      const auto scale = load_bytes(f32, scales + d * sizeof(float));
      const auto zero = load_bytes(f32, zeros + d * sizeof(float));
      hn::StoreU(hn::Mul(hn::Sub(code, zero), scale), f32, to + row * from.dim + d);
    }
  }
}

template <kv::Format kFormat>
HWY_INLINE void store_as(hn::Vec<F32> value, std::byte* to, std::uint64_t index) {
  const auto bits = hn::BitCast(U32(), value);
  if constexpr (kFormat == kv::Format::kF32) {
    store_bytes(F32(), value, to + index * 4);
  } else if constexpr (kFormat == kv::Format::kF16) {
    store_bytes(U16(), f32_to_f16_vector(bits), to + index * 2);
  } else {
    store_bytes(U16(), f32_to_bf16_vector(bits), to + index * 2);
  }
}

template <kv::Format kFormat>
HWY_INLINE bool encode_as(const float* from, std::uint64_t elements, std::byte* to) {
  const F32 f32;
  const U32 u32;
  const std::uint64_t whole = whole_vectors(elements);
  auto largest = hn::Zero(u32);
  for (std::uint64_t i = 0; i < whole; i += hn::Lanes(f32)) {
    const auto value = hn::LoadU(f32, from + i);
    largest = hn::Max(largest, hn::AndNot(hn::Set(u32, kSign), hn::BitCast(u32, value)));
    store_as<kFormat>(value, to, i);
  }
  const bool finite = hn::AllFalse(u32, hn::Gt(largest, hn::Set(u32, kInfinity - 1)));
  const std::uint64_t bytes = kv::bits(kFormat) / 8;
  return scalar_kernels().encode_plain(kFormat, from + whole, elements - whole, to + whole * bytes) && finite;
}

bool encode_plain(kv::Format format, const float* from, std::uint64_t elements, std::byte* to) {
  switch (format) {
    case kv::Format::kF32:
      return encode_as<kv::Format::kF32>(from, elements, to);
    case kv::Format::kF16:
      return encode_as<kv::Format::kF16>(from, elements, to);
    case kv::Format::kBf16:
      return encode_as<kv::Format::kBf16>(from, elements, to);
    default:
      ISTHMUS_CHECK(false);
  }
}

// The codes of affine_code(), as i32 lanes.
HWY_INLINE hn::Vec<I32> affine_codes(hn::Vec<F32> value, hn::Vec<F32> inverse, hn::Vec<F32> zero,
                                     hn::Vec<F32> steps) {
  auto code = hn::MulAdd(value, inverse, zero);
  code = hn::IfThenElseZero(hn::Gt(code, hn::Zero(F32())), code);
  return hn::NearestInt(hn::Min(code, steps));
}

template <bool kNibbles>
HWY_INLINE void store_codes(hn::Vec<I32> codes, std::byte* to, std::uint64_t index) {
  const auto narrow = hn::DemoteTo(U8(), codes);
  if constexpr (kNibbles) {
    pack_nibbles(narrow, to + index / 2);
  } else {
    store_bytes(U8(), narrow, to + index);
  }
}

template <bool kNibbles>
HWY_INLINE bool encode_affine_as(const float* from, const Encoded& to) {
  const F32 f32;
  const std::size_t lanes = hn::Lanes(f32);
  const float steps = kNibbles ? 15.0f : 255.0f;
  for (std::uint64_t g = 0; g < to.granules; ++g) {
    const float* granule = from + g * to.granule;
    auto lowest = hn::LoadU(f32, granule), highest = lowest;
    auto largest = hn::Zero(U32());
    for (std::uint32_t i = 0; i < to.granule; i += lanes) {
      const auto value = hn::LoadU(f32, granule + i);
      lowest = hn::Min(lowest, value);
      highest = hn::Max(highest, value);
      largest = hn::Max(largest, magnitude_bits(value));
    }
    if (!all_finite(largest)) return false;
    const Affine affine = affine_row(hn::GetLane(hn::MinOfLanes(f32, lowest)),
                                     hn::GetLane(hn::MaxOfLanes(f32, highest)), steps);
    if (!affine.finite()) return false;
    const auto inverse = hn::Set(f32, affine.inverse), zero = hn::Set(f32, affine.zero);
    for (std::uint32_t i = 0; i < to.granule; i += lanes) {
      const auto codes = affine_codes(hn::LoadU(f32, granule + i), inverse, zero, hn::Set(f32, steps));
      store_codes<kNibbles>(codes, to.codes, g * to.granule + i);
    }
    store(to.scales + g * 4, affine.scale);
    store(to.zeros + g * 4, affine.zero);
  }
  return true;
}

bool encode_affine(kv::Format codes, const float* from, const Encoded& to) {
  // Without a fused multiply-add the codes could differ from the recipe's by one.
  if (HWY_NATIVE_FMA == 0 || to.granule % hn::Lanes(F32()) != 0)
    return scalar_kernels().encode_affine(codes, from, to);
  return codes == kv::Format::kU8 ? encode_affine_as<false>(from, to) : encode_affine_as<true>(from, to);
}

// One vector of channels of one token group: rows [0, count) at a distance of to.dim elements.
HWY_INLINE bool encode_channel_vector(const float* from, const EncodedChannels& to, std::uint64_t count,
                                      std::byte* codes, std::uint64_t unit) {
  const F32 f32;
  auto lowest = hn::LoadU(f32, from), highest = lowest;
  auto largest = hn::Zero(U32());
  for (std::uint64_t row = 0; row < count; ++row) {
    const auto value = hn::LoadU(f32, from + row * to.dim);
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
    const auto value = hn::LoadU(f32, from + row * to.dim);
    store_codes<false>(affine_codes(value, inverse, zero, hn::Set(f32, 255.0f)), codes, row * to.dim);
  }
  store_bytes(f32, scale, to.scales + unit * 4);
  store_bytes(f32, zero, to.zeros + unit * 4);
  return true;
}

bool encode_channels(const float* from, const EncodedChannels& to) {
  const std::size_t lanes = hn::Lanes(F32());
  if (HWY_NATIVE_FMA == 0 || to.dim % lanes != 0) return scalar_kernels().encode_channels(from, to);
  for (std::uint64_t first = 0; first < to.rows; first += to.group) {
    const std::uint64_t count = std::min<std::uint64_t>(to.group, to.rows - first);
    for (std::uint32_t d = 0; d < to.dim; d += lanes) {
      const std::uint64_t at = first * to.dim + d;
      if (!encode_channel_vector(from + at, to, count, to.codes + at, first / to.group * to.dim + d))
        return false;
    }
  }
  return true;
}

// Bits of the largest magnitude among `count` values, a multiple of the lanes.
HWY_INLINE std::uint32_t largest_bits(const float* from, std::uint32_t count) {
  auto largest = hn::Zero(U32());
  for (std::uint32_t i = 0; i < count; i += hn::Lanes(F32())) {
    largest = hn::Max(largest, magnitude_bits(hn::LoadU(F32(), from + i)));
  }
  return hn::GetLane(hn::MaxOfLanes(U32(), largest));
}

bool encode_q8_0(const float* from, const Encoded& to) {
  const F32 f32;
  if (to.granule % hn::Lanes(f32) != 0) return scalar_kernels().encode_q8_0(from, to);
  for (std::uint64_t g = 0; g < to.granules; ++g) {
    const float* granule = from + g * to.granule;
    std::byte* codes = to.codes + g * to.granule;
    const std::uint32_t largest = largest_bits(granule, to.granule);
    const Block block = q8_0_block(std::bit_cast<float>(largest));
    if (largest >= kInfinity || !block.fits_f16()) return false;
    store(to.scales + g * 2, f32_to_f16(block.scale));
    if (!block.has_codes()) {
      std::fill_n(codes, to.granule, std::byte{0x80});
      continue;
    }
    const auto inverse = hn::Set(f32, block.inverse);
    for (std::uint32_t i = 0; i < to.granule; i += hn::Lanes(f32)) {
      const auto code = hn::NearestInt(hn::Mul(hn::LoadU(f32, granule + i), inverse));
      store_bytes(I8(), hn::DemoteTo(I8(), code), codes + i);
    }
  }
  return true;
}

// The first value whose magnitude has these bits; one has.
HWY_INLINE float first_with(const float* from, std::uint32_t bits) {
  const auto wanted = hn::Set(U32(), bits);
  for (;; from += hn::Lanes(F32())) {
    const auto found = hn::Eq(magnitude_bits(hn::LoadU(F32(), from)), wanted);
    const std::intptr_t lane = hn::FindFirstTrue(U32(), found);
    if (lane >= 0) return from[lane];
  }
}

bool encode_q4_0(const float* from, const Encoded& to) {
  const F32 f32;
  if (to.granule % hn::Lanes(f32) != 0) return scalar_kernels().encode_q4_0(from, to);
  for (std::uint64_t g = 0; g < to.granules; ++g) {
    const float* granule = from + g * to.granule;
    const std::uint32_t largest = largest_bits(granule, to.granule);
    if (largest >= kInfinity) return false;
    // A block of zeros has scale -0 as the recipe's first extreme is +0, whatever their signs.
    const Block block = q4_0_block(largest == 0 ? 0.0f : first_with(granule, largest));
    if (!block.fits_f16()) return false;
    store(to.scales + g * 2, f32_to_f16(block.scale));
    if (!block.has_codes()) {
      std::fill_n(to.codes + g * to.granule / 2, to.granule / 2, std::byte{0});
      continue;
    }
    const auto inverse = hn::Set(f32, block.inverse), half = hn::Set(f32, 8.5f);
    for (std::uint32_t i = 0; i < to.granule; i += hn::Lanes(f32)) {
      const auto product = hn::Mul(hn::LoadU(f32, granule + i), inverse);
      const auto code = hn::ConvertTo(I32(), hn::Add(product, half));
      store_codes<true>(hn::Min(code, hn::Set(I32(), 15)), to.codes, g * to.granule + i);
    }
  }
  return true;
}

// Sum and difference with the lane at a distance of 1, 2, 4 or 8: what is upper is negated by the product,
// exactly.
template <int kDistance>
HWY_INLINE hn::Vec<F32> butterfly(hn::Vec<F32> value) {
  const F32 f32;
  const auto upper = hn::Ne(hn::And(hn::Iota(U32(), 0), hn::Set(U32(), kDistance)), hn::Zero(U32()));
  const auto sign = hn::IfThenElse(hn::RebindMask(f32, upper), hn::Set(f32, -1.0f), hn::Set(f32, 1.0f));
  hn::Vec<F32> partner = value;
  if constexpr (kDistance == 1) {
    partner = hn::Shuffle2301(value);
  } else if constexpr (kDistance == 2) {
    partner = hn::Shuffle1032(value);
  } else if constexpr (kDistance * 2 == hn::MaxLanes(F32())) {
    partner = hn::ConcatLowerUpper(f32, value, value);
  } else {
    partner = hn::SwapAdjacentBlocks(value);
  }
  return hn::MulAdd(value, sign, partner);
}

// All steps inside one vector.
HWY_INLINE hn::Vec<F32> hadamard_vector(hn::Vec<F32> value) {
  value = butterfly<2>(butterfly<1>(value));
  if constexpr (hn::MaxLanes(F32()) >= 8) value = butterfly<4>(value);
  if constexpr (hn::MaxLanes(F32()) >= 16) value = butterfly<8>(value);
  return value;
}

// Butterflies at a distance of `step` elements, whole vectors.
HWY_INLINE void hadamard_pass(float* block, std::uint32_t size, std::uint32_t step) {
  const F32 f32;
  for (std::uint32_t base = 0; base < size; base += 2 * step) {
    for (std::uint32_t i = base; i < base + step; i += hn::Lanes(f32)) {
      const auto a = hn::LoadU(f32, block + i), b = hn::LoadU(f32, block + i + step);
      hn::StoreU(hn::Add(a, b), f32, block + i);
      hn::StoreU(hn::Sub(a, b), f32, block + i + step);
    }
  }
}

// Any size: vector steps, then passes over memory.
HWY_INLINE void hadamard_block(float* block, std::uint32_t size, hn::Vec<F32> factor) {
  const F32 f32;
  const auto lanes = static_cast<std::uint32_t>(hn::Lanes(f32));
  for (std::uint32_t i = 0; i < size; i += lanes) {
    hn::StoreU(hadamard_vector(hn::LoadU(f32, block + i)), f32, block + i);
  }
  for (std::uint32_t step = lanes; step < size; step *= 2) hadamard_pass(block, size, step);
  for (std::uint32_t i = 0; i < size; i += lanes) {
    hn::StoreU(hn::Mul(hn::LoadU(f32, block + i), factor), f32, block + i);
  }
}

#if !HWY_HAVE_SCALABLE
// kVectors vectors that stay in registers.
template <std::size_t kVectors>
HWY_INLINE void hadamard_registers(float* block, hn::Vec<F32> factor) {
  const F32 f32;
  const std::size_t lanes = hn::Lanes(f32);
  hn::Vec<F32> all[kVectors];  // NOLINT(*-avoid-c-arrays) std::array can't be inlined at every target
  for (std::size_t i = 0; i < kVectors; ++i) all[i] = hadamard_vector(hn::LoadU(f32, block + i * lanes));
  for (std::size_t step = 1; step < kVectors; step *= 2) {
    for (std::size_t i = 0; i < kVectors; ++i) {
      if ((i & step) != 0) continue;
      const auto a = all[i], b = all[i + step];
      all[i] = hn::Add(a, b);
      all[i + step] = hn::Sub(a, b);
    }
  }
  for (std::size_t i = 0; i < kVectors; ++i) hn::StoreU(hn::Mul(all[i], factor), f32, block + i * lanes);
}
#endif

void hadamard(float* values, std::uint64_t elements, std::uint32_t size) {
  const F32 f32;
  const std::size_t lanes = hn::Lanes(f32);
  // Butterflies within a vector are written for 4, 8 and 16 lanes.
  if (HWY_HAVE_SCALABLE || lanes < 4 || lanes > 16 || size % lanes != 0) {
    return scalar_kernels().hadamard(values, elements, size);
  }
  const auto factor = hn::Set(f32, hadamard_factor(size));
  for (float* block = values; block < values + elements; block += size) {
#if !HWY_HAVE_SCALABLE
    if (size == 4 * lanes) {
      hadamard_registers<4>(block, factor);
      continue;
    }
    if (size == 8 * lanes) {
      hadamard_registers<8>(block, factor);
      continue;
    }
#endif
    hadamard_block(block, size, factor);
  }
}

}  // namespace isthmus::transform::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace isthmus::transform::kernels {

HWY_EXPORT(decode_plain);
HWY_EXPORT(decode_scaled);
HWY_EXPORT(decode_channels);
HWY_EXPORT(encode_plain);
HWY_EXPORT(encode_affine);
HWY_EXPORT(encode_channels);
HWY_EXPORT(encode_q8_0);
HWY_EXPORT(encode_q4_0);
HWY_EXPORT(hadamard);

const KernelSet& vector_kernels() {
  static constexpr KernelSet kSet{
      [](kv::Format format, const std::byte* from, std::uint64_t elements, float* to) {
        HWY_DYNAMIC_DISPATCH(decode_plain)(format, from, elements, to);
      },
      [](const Scaled& from, float* to) { HWY_DYNAMIC_DISPATCH(decode_scaled)(from, to); },
      [](const ScaledChannels& from, float* to) { HWY_DYNAMIC_DISPATCH(decode_channels)(from, to); },
      [](kv::Format format, const float* from, std::uint64_t elements, std::byte* to) {
        return HWY_DYNAMIC_DISPATCH(encode_plain)(format, from, elements, to);
      },
      [](kv::Format codes, const float* from, const Encoded& to) {
        return HWY_DYNAMIC_DISPATCH(encode_affine)(codes, from, to);
      },
      [](const float* from, const EncodedChannels& to) {
        return HWY_DYNAMIC_DISPATCH(encode_channels)(from, to);
      },
      [](const float* from, const Encoded& to) { return HWY_DYNAMIC_DISPATCH(encode_q8_0)(from, to); },
      [](const float* from, const Encoded& to) { return HWY_DYNAMIC_DISPATCH(encode_q4_0)(from, to); },
      [](float* values, std::uint64_t elements, std::uint32_t size) {
        HWY_DYNAMIC_DISPATCH(hadamard)(values, elements, size);
      }};
  return kSet;
}

}  // namespace isthmus::transform::kernels
#endif
