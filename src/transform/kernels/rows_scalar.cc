// SPDX-License-Identifier: Apache-2.0
// The scalar twins: one number at a time, written for reading.
#include "transform/kernels/numbers.h"
#include "transform/kernels/rows_kernels.h"

namespace isthmus::transform::kernels {
namespace {

int nibble_at(const std::byte* from, std::uint64_t index) {
  return std::to_integer<int>(from[index / 2] >> static_cast<int>(index % 2 * 4)) & 0x0f;
}

float number_at(kv::Format format, const std::byte* from, std::uint64_t index) {
  switch (format) {
    case kv::Format::kF32:
      return load<float>(from + index * 4);
    case kv::Format::kF16:
      return f16_to_f32(load<std::uint16_t>(from + index * 2));
    case kv::Format::kBf16:
      return bf16_to_f32(load<std::uint16_t>(from + index * 2));
    case kv::Format::kU8:
      return static_cast<float>(load<std::uint8_t>(from + index));
    case kv::Format::kI8:
      return static_cast<float>(load<std::int8_t>(from + index));
    case kv::Format::kU4:
      return static_cast<float>(nibble_at(from, index));
    case kv::Format::kI4:
      return static_cast<float>((nibble_at(from, index) ^ 8) - 8);
    case kv::Format::kE8m0:
      return e8m0_to_f32(load<std::uint8_t>(from + index));
    default:
      return small_float_to_f32(load<std::uint8_t>(from + index), small_float(format));
  }
}

float number_at(const Numbers& from, std::uint64_t index) {
  return number_at(from.format, from.at, index);
}

bool is_finite(float value) {
  return is_finite_bits(std::bit_cast<std::uint32_t>(value));
}

void store_nibble(std::byte* codes, std::uint64_t index, std::uint8_t code) {
  const auto low = std::byte{static_cast<unsigned char>(code & 0x0f)};
  std::byte& at = codes[index / 2];
  at = index % 2 == 0 ? low : at | low << 4;
}

void store_number(kv::Format format, std::byte* to, std::uint64_t index, float value) {
  switch (format) {
    case kv::Format::kF32:
      return store(to + index * 4, value);
    case kv::Format::kF16:
      return store(to + index * 2, f32_to_f16(value));
    case kv::Format::kBf16:
      return store(to + index * 2, f32_to_bf16(value));
    case kv::Format::kI8:
    case kv::Format::kU8:
      return store(to + index, f32_to_integer(value, format));
    case kv::Format::kI4:
    case kv::Format::kU4:
      return store_nibble(to, index, f32_to_integer(value, format));
    case kv::Format::kE8m0:
      return store(to + index, f32_to_e8m0(value));
    default:
      return store(to + index, f32_to_small_float(value, small_float(format)));
  }
}

void decode_plain(kv::Format format, const std::byte* from, std::uint64_t elements, float* to) {
  for (std::uint64_t i = 0; i < elements; ++i) to[i] = number_at(format, from, i);
}

float decoded(const Scaled& from, std::uint64_t element, std::uint64_t granule) {
  const float scale = number_at(from.scale_format, from.scales, granule);
  const float code = number_at(from.code_format, from.codes, element);
  const float zero =
      from.zeros == nullptr ? from.zero_constant : number_at(from.zero_format, from.zeros, granule);
  return (code - zero) * scale;
}

Outcome outcome_of(float value, kv::Format format) {
  if (!is_finite(value)) return Outcome::kNotFinite;
  return is_beyond(value, format) ? Outcome::kSaturated : Outcome::kWhole;
}

Outcome decode_scaled(const Scaled& from, kv::Format format, std::byte* to) {
  Outcome outcome = Outcome::kWhole;
  for (std::uint64_t i = 0; i < from.granules * from.granule; ++i) {
    const float value = decoded(from, i, i / from.granule);
    outcome = worse(outcome, outcome_of(value, format));
    store_number(format, to, i, value);
  }
  return outcome;
}

Outcome decode_channels(const ScaledChannels& from, kv::Format format, std::byte* to) {
  Outcome outcome = Outcome::kWhole;
  for (std::uint64_t row = 0; row < from.rows; ++row) {
    for (std::uint32_t d = 0; d < from.dim; ++d) {
      const std::uint64_t at = row * from.dim + d;
      const float value = decoded(from.arrays, at, row / from.group * from.dim + d);
      outcome = worse(outcome, outcome_of(value, format));
      store_number(format, to, at, value);
    }
  }
  return outcome;
}

Outcome encode_plain(const PlainTarget& to, const Numbers& from, std::uint64_t elements) {
  Outcome outcome = Outcome::kWhole;
  for (std::uint64_t i = 0; i < elements; ++i) {
    const float given = number_at(from, i);
    if (!is_finite(given) || (to.format == kv::Format::kE8m0 && given <= 0)) return Outcome::kNotFinite;
    // A quotient may be infinite, and is clamped as any other.
    const float value = to.divisor == 1.0f ? given : given / to.divisor;
    if (is_beyond(value, to.format)) outcome = Outcome::kSaturated;
    if (to.truncates) {
      store(to.at + i, f32_to_vllm_fp8(value, to.format));
    } else {
      store_number(to.format, to.at, i, value);
    }
  }
  return outcome;
}

bool all_finite(const Numbers& from, std::uint64_t elements) {
  for (std::uint64_t i = 0; i < elements; ++i) {
    if (!is_finite(number_at(from, i))) return false;
  }
  return true;
}

// Lowest and highest of `count` values from element `first` on, `stride` apart.
struct Range {
  float lowest = 0, highest = 0;
};
Range range_of(const Numbers& from, std::uint64_t first, std::uint64_t count, std::uint64_t stride) {
  Range range{number_at(from, first), number_at(from, first)};
  for (std::uint64_t i = 0; i < count; ++i) {
    const float value = number_at(from, first + i * stride);
    range.lowest = value < range.lowest ? value : range.lowest;
    range.highest = value > range.highest ? value : range.highest;
  }
  return range;
}

bool encode_affine(kv::Format codes, const Numbers& from, const Encoded& to) {
  if (!all_finite(from, to.granules * to.granule)) return false;
  const float steps = codes == kv::Format::kU8 ? 255.0f : 15.0f;
  for (std::uint64_t g = 0; g < to.granules; ++g) {
    const auto [lowest, highest] = range_of(from, g * to.granule, to.granule, 1);
    const Affine affine = affine_row(lowest, highest, steps);
    if (!affine.finite()) return false;
    for (std::uint64_t i = g * to.granule; i < (g + 1) * to.granule; ++i) {
      const std::uint8_t code = affine_code(number_at(from, i), affine, steps);
      if (codes == kv::Format::kU8) {
        store(to.codes + i, code);
      } else {
        store_nibble(to.codes, i, code);
      }
    }
    store(to.scales + g * 4, affine.scale);
    store(to.zeros + g * 4, affine.zero);
  }
  return true;
}

bool encode_channels(const Numbers& from, const EncodedChannels& to) {
  if (!all_finite(from, to.rows * to.dim)) return false;
  for (std::uint64_t first = 0; first < to.rows; first += to.group) {
    const std::uint64_t count = std::min<std::uint64_t>(to.group, to.rows - first);
    for (std::uint32_t d = 0; d < to.dim; ++d) {
      const auto [lowest, highest] = range_of(from, first * to.dim + d, count, to.dim);
      const Affine affine = affine_channel(lowest, highest);
      if (!affine.finite()) return false;
      for (std::uint64_t i = first * to.dim + d; i < (first + count) * to.dim; i += to.dim) {
        store(to.codes + i, affine_code(number_at(from, i), affine, 255.0f));
      }
      const std::uint64_t unit = first / to.group * to.dim + d;
      store(to.scales + unit * 4, affine.scale);
      store(to.zeros + unit * 4, affine.zero);
    }
  }
  return true;
}

float largest_of(const Numbers& from, std::uint64_t begin, std::uint64_t count) {
  float largest = 0;
  for (std::uint64_t i = begin; i < begin + count; ++i) {
    largest = std::max(largest, std::fabs(number_at(from, i)));
  }
  return largest;
}

// Unit `unit` of the rows [first, first + count).
bool encode_amax_unit(const Numbers& from, const EncodedGroups& to, std::uint64_t first, std::uint64_t count,
                      std::uint64_t unit) {
  const auto begin = [&](std::uint64_t row) { return row * to.dim + unit * to.granule; };
  float largest = 0;
  for (std::uint64_t row = first; row < first + count; ++row) {
    largest = std::max(largest, largest_of(from, begin(row), to.granule));
  }
  const float scale = amax_scale(largest, to.code_format, to.scale_format, to.rule);
  if (!is_finite(scale)) return false;
  store_number(to.scale_format, to.scales, first / to.group * (to.dim / to.granule) + unit, scale);
  const float inverse = 1.0f / scale;
  for (std::uint64_t row = first; row < first + count; ++row) {
    for (std::uint64_t i = begin(row); i < begin(row) + to.granule; ++i) {
      const float value = number_at(from, i);
      store_number(to.code_format, to.codes, i,
                   to.rule == ScaleRule::kTile ? value / scale : value * inverse);
    }
  }
  return true;
}

bool encode_amax(const Numbers& from, const EncodedGroups& to) {
  if (!all_finite(from, to.rows * to.dim)) return false;
  for (std::uint64_t first = 0; first < to.rows; first += to.group) {
    const std::uint64_t count = std::min<std::uint64_t>(to.group, to.rows - first);
    for (std::uint64_t unit = 0; unit < to.dim / to.granule; ++unit) {
      if (!encode_amax_unit(from, to, first, count, unit)) return false;
    }
  }
  return true;
}

template <typename MakeBlock, typename MakeCode>
bool encode_q8_0_with(const Numbers& from, const Encoded& to, MakeBlock make_block, MakeCode make_code) {
  if (!all_finite(from, to.granules * to.granule)) return false;
  for (std::uint64_t g = 0; g < to.granules; ++g) {
    const Block block = make_block(largest_of(from, g * to.granule, to.granule));
    if (!block.fits_f16()) return false;
    store(to.scales + g * 2, f32_to_f16(block.scale));
    for (std::uint64_t i = g * to.granule; i < (g + 1) * to.granule; ++i) {
      store(to.codes + i, make_code(number_at(from, i), block));
    }
  }
  return true;
}

bool encode_q8_0(const Numbers& from, const Encoded& to) {
  return encode_q8_0_with(from, to, q8_0_block, q8_0_code);
}

bool encode_q8_0_reference(const Numbers& from, const Encoded& to) {
  return encode_q8_0_with(from, to, q8_0_reference_block, q8_0_reference_code);
}

bool encode_q4_0(const Numbers& from, const Encoded& to) {
  if (!all_finite(from, to.granules * to.granule)) return false;
  for (std::uint64_t g = 0; g < to.granules; ++g) {
    float extreme = 0;
    for (std::uint64_t i = g * to.granule; i < (g + 1) * to.granule; ++i) {
      const float value = number_at(from, i);
      if (std::fabs(value) > std::fabs(extreme)) extreme = value;
    }
    const Block block = q4_0_block(extreme);
    if (!block.fits_f16()) return false;
    store(to.scales + g * 2, f32_to_f16(block.scale));
    for (std::uint64_t i = g * to.granule; i < (g + 1) * to.granule; ++i) {
      store_nibble(to.codes, i, q4_0_code(number_at(from, i), block));
    }
  }
  return true;
}

void hadamard(float* values, std::uint64_t elements, std::uint32_t size) {
  const float factor = hadamard_factor(size);
  for (float* block = values; block < values + elements; block += size) {
    for (std::uint32_t step = 1; step < size; step *= 2) {
      for (std::uint32_t i = 0; i < size; ++i) {
        if ((i & step) != 0) continue;
        const float a = block[i], b = block[i + step];
        block[i] = a + b;
        block[i + step] = a - b;
      }
    }
    for (std::uint32_t i = 0; i < size; ++i) block[i] *= factor;
  }
}

}  // namespace

const KernelSet& scalar_kernels() {
  static constexpr KernelSet kSet{.decode_plain = decode_plain,
                                  .decode_scaled = decode_scaled,
                                  .decode_channels = decode_channels,
                                  .encode_plain = encode_plain,
                                  .encode_amax = encode_amax,
                                  .encode_affine = encode_affine,
                                  .encode_channels = encode_channels,
                                  .encode_q8_0 = encode_q8_0,
                                  .encode_q8_0_reference = encode_q8_0_reference,
                                  .encode_q4_0 = encode_q4_0,
                                  .hadamard = hadamard};
  return kSet;
}

}  // namespace isthmus::transform::kernels
