// SPDX-License-Identifier: Apache-2.0
// Vector kernels, compiled once per instruction set by Highway. Memory is touched as bytes: any alignment is
// valid.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "transform/kernels/rows_vector.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, as Highway asks.
#include "hwy/highway.h"

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
using U8 = hn::Rebind<std::uint8_t, F32>;
using I8 = hn::Rebind<std::int8_t, F32>;

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

HWY_INLINE hn::Vec<F32> f16_vector(hn::Vec<U16> halves) {
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

HWY_INLINE hn::Vec<U16> f32_to_f16_vector(hn::Vec<U32> bits) {
  const U32 u32;
  const F32 f32;
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

HWY_INLINE hn::Vec<F32> codes_vector(kv::Format format, const std::byte* from) {
  const auto wide = format == kv::Format::kU8 ? hn::PromoteTo(I32(), load_bytes(U8(), from))
                                              : hn::PromoteTo(I32(), load_bytes(I8(), from));
  return hn::ConvertTo(F32(), wide);
}

void decode_scaled(const Scaled& from, float* to) {
  const F32 f32;
  const std::size_t lanes = hn::Lanes(f32);
  const bool bytes = from.code_format == kv::Format::kU8 || from.code_format == kv::Format::kI8;
  if (!bytes || from.granule % lanes != 0) return scalar_kernels().decode_scaled(from, to);
  for (std::uint64_t g = 0; g < from.granules; ++g) {
    float scale = 0, zero = 0;
    const std::uint64_t scale_bytes = kv::bits(from.scale_format) / 8,
                        zero_bytes = kv::bits(from.zero_format) / 8;
    scalar_kernels().decode_plain(from.scale_format, from.scales + g * scale_bytes, 1, &scale);
    if (from.zeros != nullptr) {
      scalar_kernels().decode_plain(from.zero_format, from.zeros + g * zero_bytes, 1, &zero);
    }
    // Subtracting +0 changes no code, so forms without a zero point share the loop.
    const auto scales = hn::Set(f32, scale), zeros = hn::Set(f32, zero);
    for (std::uint64_t i = g * from.granule; i < (g + 1) * from.granule; i += lanes) {
      const auto codes = codes_vector(from.code_format, from.codes + i);
      hn::StoreU(hn::Mul(hn::Sub(codes, zeros), scales), f32, to + i);
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

HWY_INLINE bool encode_granule(const float* from, std::uint32_t granule, std::byte* codes, Affine& affine) {
  const F32 f32;
  const U32 u32;
  const std::size_t lanes = hn::Lanes(f32);
  auto lowest = hn::LoadU(f32, from), highest = lowest;
  auto largest = hn::Zero(u32);
  for (std::uint32_t i = 0; i < granule; i += lanes) {
    const auto value = hn::LoadU(f32, from + i);
    lowest = hn::Min(lowest, value);
    highest = hn::Max(highest, value);
    largest = hn::Max(largest, hn::AndNot(hn::Set(u32, kSign), hn::BitCast(u32, value)));
  }
  if (!hn::AllFalse(u32, hn::Gt(largest, hn::Set(u32, kInfinity - 1)))) return false;
  affine = affine_u8(hn::GetLane(hn::MinOfLanes(f32, lowest)), hn::GetLane(hn::MaxOfLanes(f32, highest)));
  const auto inverse = hn::Set(f32, affine.inverse), zero = hn::Set(f32, affine.zero);
  for (std::uint32_t i = 0; i < granule; i += lanes) {
    auto code = hn::MulAdd(hn::LoadU(f32, from + i), inverse, zero);
    code = hn::IfThenElseZero(hn::Gt(code, hn::Zero(f32)), code);
    code = hn::Min(code, hn::Set(f32, 255.0f));
    store_bytes(U8(), hn::DemoteTo(U8(), hn::NearestInt(code)), codes + i);
  }
  return affine.finite();
}

bool encode_affine_u8(const float* from, const AffineU8& to) {
  // Without a fused multiply-add the codes could differ from the recipe's by one.
  if (HWY_NATIVE_FMA == 0 || to.granule % hn::Lanes(F32()) != 0)
    return scalar_kernels().encode_affine_u8(from, to);
  for (std::uint64_t g = 0; g < to.granules; ++g) {
    Affine affine;
    if (!encode_granule(from + g * to.granule, to.granule, to.codes + g * to.granule, affine)) return false;
    store(to.scales + g * 4, affine.scale);
    store(to.zeros + g * 4, affine.zero);
  }
  return true;
}

}  // namespace isthmus::transform::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace isthmus::transform::kernels {

HWY_EXPORT(decode_plain);
HWY_EXPORT(decode_scaled);
HWY_EXPORT(encode_plain);
HWY_EXPORT(encode_affine_u8);

const KernelSet& vector_kernels() {
  static constexpr KernelSet kSet{
      [](kv::Format format, const std::byte* from, std::uint64_t elements, float* to) {
        HWY_DYNAMIC_DISPATCH(decode_plain)(format, from, elements, to);
      },
      [](const Scaled& from, float* to) { HWY_DYNAMIC_DISPATCH(decode_scaled)(from, to); },
      [](kv::Format format, const float* from, std::uint64_t elements, std::byte* to) {
        return HWY_DYNAMIC_DISPATCH(encode_plain)(format, from, elements, to);
      },
      [](const float* from, const AffineU8& to) { return HWY_DYNAMIC_DISPATCH(encode_affine_u8)(from, to); }};
  return kSet;
}

}  // namespace isthmus::transform::kernels
#endif
