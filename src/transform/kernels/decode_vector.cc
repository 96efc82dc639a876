// SPDX-License-Identifier: Apache-2.0
// Vector kernels from codes to numbers, compiled once per instruction set by Highway. Memory is touched as
// bytes: any alignment is valid.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "transform/kernels/decode_vector.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, as Highway asks.
#include "hwy/highway.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "transform/kernels/plain_vector-inl.h"
#include "transform/kernels/rows_kernels.h"
#include "transform/kernels/vector_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace isthmus::transform::kernels::HWY_NAMESPACE {

template <kv::Format kFormat>
HWY_INLINE void decode_plain_as(const std::byte* from, std::uint64_t elements, float* to) {
  const F32 f32;
  const std::uint64_t whole = whole_vectors(elements);
  for (std::uint64_t i = 0; i < whole; i += hn::Lanes(f32)) {
    hn::StoreU(load_numbers<kFormat, true>(from, i), f32, to + i);
  }
  const std::uint64_t bytes = whole * kv::bits(kFormat) / 8;
  scalar_kernels().decode_plain(kFormat, from + bytes, elements - whole, to + whole);
}

void decode_plain(kv::Format format, const std::byte* from, std::uint64_t elements, float* to) {
  switch (format) {
    case kv::Format::kF32:
      return decode_plain_as<kv::Format::kF32>(from, elements, to);
    case kv::Format::kF16:
      return decode_plain_as<kv::Format::kF16>(from, elements, to);
    case kv::Format::kBf16:
      return decode_plain_as<kv::Format::kBf16>(from, elements, to);
    case kv::Format::kE4m3fn:
      return decode_plain_as<kv::Format::kE4m3fn>(from, elements, to);
    case kv::Format::kE4m3fnuz:
      return decode_plain_as<kv::Format::kE4m3fnuz>(from, elements, to);
    case kv::Format::kE5m2:
      return decode_plain_as<kv::Format::kE5m2>(from, elements, to);
    case kv::Format::kE5m2fnuz:
      return decode_plain_as<kv::Format::kE5m2fnuz>(from, elements, to);
    default:
      return scalar_kernels().decode_plain(format, from, elements, to);
  }
}

#if HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)
constexpr bool kHasF16c = true;
#else
constexpr bool kHasF16c = false;
#endif

// load_numbers() by way of f16 where the machine converts that: an 8-bit float is one with other exponents.
template <kv::Format kCodes>
HWY_INLINE hn::Vec<F32> load_codes(const std::byte* from, std::uint64_t index) {
#if HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)
  const U16 u16;
  const auto wide = [&] { return hn::PromoteTo(u16, load_bytes(U8(), from + index)); };
  if constexpr (kCodes == kv::Format::kE5m2) {
    return hn::PromoteTo(F32(), hn::BitCast(F16(), hn::ShiftLeft<8>(wide())));
  } else if constexpr (kCodes == kv::Format::kE4m3fn) {
    const auto code = wide(), magnitude = hn::And(code, hn::Set(u16, 0x7f));
    const auto nan = hn::Eq(magnitude, hn::Set(u16, 0x7f));
    const auto half = hn::IfThenElse(nan, hn::Set(u16, 0x7e00), hn::ShiftLeft<7>(magnitude));
    const auto sign = hn::ShiftLeft<8>(hn::Xor(code, magnitude));
    // Of f16's exponents a code has those that are 8 less.
    return hn::Mul(hn::PromoteTo(F32(), hn::BitCast(F16(), hn::Or(half, sign))), hn::Set(F32(), 256.0f));
  }
#endif
  return load_numbers<kCodes>(from, index);
}

// Two vectors of numbers, one behind the other; what lies beyond the format's isn't clamped.
template <kv::Format kTo>
HWY_INLINE void store_two(hn::Vec<F32> low, hn::Vec<F32> high, std::byte* to, std::uint64_t index) {
  if constexpr (kTo == kv::Format::kBf16 && !HWY_HAVE_SCALABLE) {
    const U32 u32;
    const hn::Repartition<std::uint16_t, U32> halves;
    const auto rounded = [&](hn::Vec<F32> value) {  // Above a carry into the sign nothing is finite.
      const auto bits = hn::BitCast(u32, value);
      const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(u32, 1));
      return hn::BitCast(halves, hn::Add(hn::Add(bits, hn::Set(u32, 0x7fffu)), odd));
    };
    store_bytes(halves, hn::ConcatOdd(halves, rounded(high), rounded(low)), to + index * 2);
  } else if constexpr (kTo == kv::Format::kF16 && kHasF16c) {
    store_bytes(U16(), hn::BitCast(U16(), hn::DemoteTo(F16(), low)), to + index * 2);
    store_bytes(U16(), hn::BitCast(U16(), hn::DemoteTo(F16(), high)), to + (index + hn::Lanes(F32())) * 2);
  } else {
    store_numbers<kTo>(low, to, index);
    store_numbers<kTo>(high, to, index + hn::Lanes(F32()));
  }
}

// One granule.
template <kv::Format kCodes, kv::Format kTo>
HWY_INLINE hn::Vec<U32> decode_granule(const std::byte* codes, std::uint64_t begin, std::uint32_t granule,
                                       hn::Vec<F32> zero, hn::Vec<F32> scale, std::byte* to) {
  const std::uint64_t lanes = hn::Lanes(F32()), end = begin + granule;
  auto largest = hn::Zero(U32());
  // Subtracting +0 changes no code, so forms without a zero point share the loop.
  const auto value_at = [&](std::uint64_t i) {
    return hn::Mul(hn::Sub(load_codes<kCodes>(codes, i), zero), scale);
  };
  std::uint64_t i = begin;
  for (; i + 2 * lanes <= end; i += 2 * lanes) {
    const auto low = value_at(i), high = value_at(i + lanes);
    largest = hn::Max(largest, hn::Max(magnitude_bits(low), magnitude_bits(high)));
    store_two<kTo>(low, high, to, i);
  }
  if (i == end) return largest;
  const auto last = value_at(i);
  store_numbers<kTo>(last, to, i);
  return hn::Max(largest, magnitude_bits(last));
}

template <kv::Format kCodes, kv::Format kTo>
HWY_INLINE Outcome decode_scaled_as(const Scaled from, std::byte* to) {
  constexpr std::uint64_t kAtOnce = 64;  // Scales are decoded apart, some at once.
  const F32 f32;
  std::array<float, kAtOnce> scales{}, zeros{};
  zeros.fill(from.zero_constant);
  const std::uint64_t scale_bytes = kv::bits(from.scale_format) / 8,
                      zero_bytes = kv::bits(from.zero_format) / 8;
  auto largest = hn::Zero(U32());
  for (std::uint64_t first = 0; first < from.granules; first += kAtOnce) {
    const std::uint64_t count = std::min(kAtOnce, from.granules - first);
    decode_plain(from.scale_format, from.scales + first * scale_bytes, count, scales.data());
    if (from.zeros != nullptr) {
      decode_plain(from.zero_format, from.zeros + first * zero_bytes, count, zeros.data());
    }
    for (std::uint64_t g = 0; g < count; ++g) {
      const auto seen = decode_granule<kCodes, kTo>(from.codes, (first + g) * from.granule, from.granule,
                                                    hn::Set(f32, zeros[g]), hn::Set(f32, scales[g]), to);
      largest = hn::Max(largest, seen);
    }
  }
  return outcome_of<kTo>(largest);
}

template <kv::Format kCodes>
HWY_INLINE Outcome decode_scaled_from(const Scaled& from, kv::Format format, std::byte* to) {
  switch (format) {
    case kv::Format::kF32:
      return decode_scaled_as<kCodes, kv::Format::kF32>(from, to);
    case kv::Format::kF16:
      return decode_scaled_as<kCodes, kv::Format::kF16>(from, to);
    default:
      return decode_scaled_as<kCodes, kv::Format::kBf16>(from, to);
  }
}

Outcome decode_scaled(const Scaled& from, kv::Format format, std::byte* to) {
  if (from.granule % hn::Lanes(F32()) != 0) return scalar_kernels().decode_scaled(from, format, to);
  switch (from.code_format) {
    case kv::Format::kU8:
      return decode_scaled_from<kv::Format::kU8>(from, format, to);
    case kv::Format::kI8:
      return decode_scaled_from<kv::Format::kI8>(from, format, to);
    case kv::Format::kU4:
      return decode_scaled_from<kv::Format::kU4>(from, format, to);
    case kv::Format::kI4:
      return decode_scaled_from<kv::Format::kI4>(from, format, to);
    case kv::Format::kE4m3fn:
      return decode_scaled_from<kv::Format::kE4m3fn>(from, format, to);
    case kv::Format::kE4m3fnuz:
      return decode_scaled_from<kv::Format::kE4m3fnuz>(from, format, to);
    case kv::Format::kE5m2:
      return decode_scaled_from<kv::Format::kE5m2>(from, format, to);
    case kv::Format::kE5m2fnuz:
      return decode_scaled_from<kv::Format::kE5m2fnuz>(from, format, to);
    default:
      return scalar_kernels().decode_scaled(from, format, to);
  }
}

template <kv::Format kTo>
HWY_INLINE Outcome decode_channels_as(const ScaledChannels from, std::byte* to) {
  const F32 f32;
  const Scaled arrays = from.arrays;
  auto largest = hn::Zero(U32());
  for (std::uint64_t row = 0; row < from.rows; ++row) {
    const std::byte* scales = arrays.scales + row / from.group * from.dim * sizeof(float);
    const std::byte* zeros = arrays.zeros + row / from.group * from.dim * sizeof(float);
    for (std::uint32_t d = 0; d < from.dim; d += hn::Lanes(f32)) {
      const auto code = load_numbers<kv::Format::kU8>(arrays.codes, row * from.dim + d);
      const auto scale = load_bytes(f32, scales + d * sizeof(float));
      const auto zero = load_bytes(f32, zeros + d * sizeof(float));
      const auto value = hn::Mul(hn::Sub(code, zero), scale);
      largest = hn::Max(largest, magnitude_bits(value));
      store_numbers<kTo>(value, to, row * from.dim + d);
    }
  }
  return outcome_of<kTo>(largest);
}

Outcome decode_channels(const ScaledChannels& from, kv::Format format, std::byte* to) {
  const Scaled& arrays = from.arrays;
  const bool fits = arrays.code_format == kv::Format::kU8 && arrays.scale_format == kv::Format::kF32 &&
                    arrays.zero_format == kv::Format::kF32 && arrays.zeros != nullptr &&
                    from.dim % hn::Lanes(F32()) == 0;
  if (!fits) return scalar_kernels().decode_channels(from, format, to);
  switch (format) {
    case kv::Format::kF32:
      return decode_channels_as<kv::Format::kF32>(from, to);
    case kv::Format::kF16:
      return decode_channels_as<kv::Format::kF16>(from, to);
    default:
      return decode_channels_as<kv::Format::kBf16>(from, to);
  }
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
HWY_EXPORT(hadamard);

void use_vector_decoders(KernelSet& set) {
  set.decode_plain = [](kv::Format format, const std::byte* from, std::uint64_t elements, float* to) {
    HWY_DYNAMIC_DISPATCH(decode_plain)(format, from, elements, to);
  };
  set.decode_scaled = [](const Scaled& from, kv::Format format, std::byte* to) {
    return HWY_DYNAMIC_DISPATCH(decode_scaled)(from, format, to);
  };
  set.decode_channels = [](const ScaledChannels& from, kv::Format format, std::byte* to) {
    return HWY_DYNAMIC_DISPATCH(decode_channels)(from, format, to);
  };
  set.hadamard = [](float* values, std::uint64_t elements, std::uint32_t size) {
    HWY_DYNAMIC_DISPATCH(hadamard)(values, elements, size);
  };
}

}  // namespace isthmus::transform::kernels
#endif
