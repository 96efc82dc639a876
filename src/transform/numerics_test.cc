// SPDX-License-Identifier: Apache-2.0
// Every conversion of every f16 and bf16 against digests that numpy and ml_dtypes made
// (tests/numerics/golden.py), on each instruction set of the machine; all f32 vector against scalar by
// `make numerics`.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <map>
#include <numeric>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "kv/encoding.h"
#include "transform/every_target.h"
#include "transform/form_parts.h"
#include "transform/rows.h"

namespace isthmus::transform {
namespace {

constexpr std::uint64_t kCodes = 65536;
constexpr std::uint32_t kDim = 64;
constexpr std::array kChoices{KernelChoice::kVector, KernelChoice::kScalar};

std::string fnv(std::span<const std::byte> bytes) {
  std::uint64_t digest = 0xcbf29ce484222325u;
  for (const std::byte byte : bytes)
    digest = (digest ^ std::to_integer<std::uint64_t>(byte)) * 0x100000001b3u;
  return fmt::format("{:016x}", digest);
}

std::string pieces(std::span<const std::byte> bytes, std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) {
    text += (i == 0 ? "" : " ") + fnv(bytes.subspan(i * (bytes.size() / count), bytes.size() / count));
  }
  return text;
}

// Digests by case, "amax bf16 e4m3fn".
std::map<std::string, std::string> golden() {
  std::map<std::string, std::string> all;
  std::ifstream file(ISTHMUS_SPEC_DIR "/vectors/kv/numerics.txt");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with('#')) continue;
    std::istringstream words(line);
    std::string recipe, source, target, digests;
    words >> recipe >> source >> target >> std::ws;
    std::getline(words, digests);
    all[fmt::format("{} {} {}", recipe, source, target)] = digests;
  }
  return all;
}

kv::Format format_of(const std::string& name) {
  return kv::parse_format(name).value();
}

kv::DecodeForm plain(kv::Format format, const std::string& recipe = "nearest_even") {
  return {.component = "k", .codes = format, .recipe = recipe};
}

// "amax", or with what isn't usual behind it: "amax:e8m0", "amax:tok16", "nearest_even:0.37".
kv::DecodeForm target_form(const std::string& text, kv::Format format) {
  const std::string recipe = text.substr(0, text.find(':'));
  const std::string unusual = recipe.size() == text.size() ? "" : text.substr(recipe.size() + 1);
  kv::DecodeForm form = plain(format, recipe);
  if (unusual == "0.37") {
    form.operation = kv::DecodeOperation::kStaticScaled;
    form.static_scales = {0.37f};
  }
  const bool is_q8_0 = recipe == "ggml.q8_0.reference";
  if (!is_q8_0 && recipe != "amax" && !recipe.starts_with("vllm.fp8")) return form;
  form.operation = kv::DecodeOperation::kScaled;
  form.scale = is_q8_0 ? kv::Format::kF16 : kv::Format::kF32;
  form.granule_dim = is_q8_0 ? 32 : kDim;
  if (unusual == "tok16") {
    form.granule_tokens = 16;
  } else if (!unusual.empty() && unusual != "near") {
    form.scale = format_of(unusual);
  }
  return form;
}

// All codes of a 16-bit format, in order or spread; what the target refuses is 1.
std::vector<std::uint16_t> inputs(kv::Format source, bool is_spread, bool only_positive) {
  std::vector<std::uint16_t> codes(kCodes);
  for (std::uint64_t i = 0; i < kCodes; ++i) codes[i] = static_cast<std::uint16_t>(is_spread ? i * 37 : i);
  std::vector<float> values(kCodes);
  decode_rows(plain(source), kDim, kCodes / kDim, std::as_bytes(std::span(codes)).data(), values,
              KernelChoice::kScalar);
  const std::uint16_t one = source == kv::Format::kF16 ? 0x3c00 : 0x3f80;
  for (std::uint64_t i = 0; i < kCodes; ++i) {
    if (!std::isfinite(values[i]) || (only_positive && values[i] <= 0)) codes[i] = one;
  }
  return codes;
}

// Rows of values within a few binades, of either sign.
std::vector<std::uint16_t> near_inputs(kv::Format source) {
  const std::uint64_t base = source == kv::Format::kF16 ? 0x3800 : 0x3f00;
  std::vector<std::uint16_t> codes(kCodes);
  for (std::uint64_t i = 0; i < kCodes; ++i) {
    const std::uint64_t mixed = i * 25173 + i / kDim * 7;
    codes[i] = static_cast<std::uint16_t>((mixed & 0x8000) | (base + (mixed & 0x7ff)));
  }
  return codes;
}

// One code a byte for 4-bit formats.
std::vector<std::byte> spread_nibbles(std::span<const std::byte> packed) {
  std::vector<std::byte> codes;
  for (const std::byte pair : packed) {
    codes.push_back(pair & std::byte{15});
    codes.push_back(pair >> 4);
  }
  return codes;
}

std::string encoded_digests(const std::string& recipe, kv::Format source, kv::Format target,
                            KernelChoice choice) {
  const kv::DecodeForm form = target_form(recipe, target);
  const bool has_scales = has_stored_scale(form.operation);
  const auto codes = recipe.ends_with(":near") ? near_inputs(source)
                                               : inputs(source, has_scales, target == kv::Format::kE8m0);
  const auto parts = form_parts(form, kDim).value();
  constexpr std::uint64_t kRows = kCodes / kDim;
  std::vector<std::byte> made(parts[0].tile_bytes(kRows)), scales;
  if (has_scales) scales.resize(parts[1].tile_bytes(kRows));
  const RowForm rows{form, form.static_scales.empty() ? 1.0f : form.static_scales.front()};
  // False where a value saturates, as it has to be counted; the codes are there all the same.
  (void)recode_rows(plain(source), rows, {kDim, kRows}, std::as_bytes(std::span(codes)).data(),
                    {made.data(), scales.data(), nullptr}, choice);
  if (kv::bits(target) == 4) made = spread_nibbles(made);
  return pieces(made, 16) + (has_scales ? " " + pieces(scales, 1) : "");
}

std::string decoded_digest(kv::Format format, KernelChoice choice) {
  const std::uint32_t bytes = kv::bits(format) / 8;
  const std::uint64_t count = std::uint64_t{1} << kv::bits(format);
  std::vector<std::byte> codes(count * bytes);
  for (std::uint64_t i = 0; i < count; ++i) std::memcpy(codes.data() + i * bytes, &i, bytes);
  std::vector<float> values(count);
  decode_rows(plain(format), kDim, count / kDim, codes.data(), values, choice);
  for (float& value : values) {
    if (std::isnan(value)) value = std::bit_cast<float>(0x7fc00000u);
  }
  return pieces(std::as_bytes(std::span(values)), 1);
}

class Numerics : public EveryTarget {};
INSTANTIATE_TEST_SUITE_P(Machine, Numerics, every_target(), target_name);

TEST_P(Numerics, EveryHalfBecomesTheCodeThatNumpyAndMlDtypesGive) {
  const auto expected = golden();
  ASSERT_EQ(expected.size(), 82U);
  for (const auto& [name, digests] : expected) {
    std::istringstream words(name);
    std::string recipe, source, target;
    words >> recipe >> source >> target;
    for (const KernelChoice choice : kChoices) {
      const std::string made = recipe == "decode"
                                   ? decoded_digest(format_of(source), choice)
                                   : encoded_digests(recipe, format_of(source), format_of(target), choice);
      EXPECT_EQ(made, digests) << name << (choice == KernelChoice::kScalar ? " scalar" : " vector");
    }
  }
}

TEST_P(Numerics, IntegersBecomeTheirNumbers) {
  for (const char* name : {"i8", "u8", "i4", "u4"}) {
    const kv::Format format = format_of(name);
    const int count = 1 << kv::bits(format);
    std::vector<std::byte> codes(256);
    for (int i = 0; i < 256; ++i)
      codes[static_cast<std::size_t>(i)] = std::byte{static_cast<unsigned char>(i)};
    for (const KernelChoice choice : kChoices) {
      std::vector<float> values(256);
      decode_rows(plain(format), kDim, 4, codes.data(), values, choice);
      for (int i = 0; i < 256; ++i) {
        int code = kv::bits(format) == 8 ? i : (i / 2 >> (i % 2 * 4)) & 15;
        if (name[0] == 'i' && code >= count / 2) code -= count;
        ASSERT_EQ(values[static_cast<std::size_t>(i)], static_cast<float>(code)) << name << " " << i;
      }
    }
  }
}

// Minutes for each instruction set: `make numerics`.
TEST_P(Numerics, DISABLED_EveryF32BecomesTheScalarCode) {
  constexpr std::uint64_t kPiece = std::uint64_t{1} << 16;
  std::vector<kv::DecodeForm> forms;
  for (const char* name : {"f16", "bf16", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "i8", "u8", "i4", "u4"}) {
    forms.push_back(plain(format_of(name)));
  }
  for (const char* name : {"e4m3fn", "e5m2"}) forms.push_back(plain(format_of(name), "vllm.cpu.fp8"));
  std::vector<float> values(kPiece);
  std::vector<std::byte> vector(kPiece * 2), scalar(kPiece * 2);
  for (std::uint64_t first = 0; first < std::uint64_t{1} << 32; first += kPiece) {
    if ((first & 0x7fffffff) >= 0x7f800000) continue;  // Not finite.
    for (std::uint64_t i = 0; i < kPiece; ++i) {
      values[i] = std::bit_cast<float>(static_cast<std::uint32_t>(first + i));
    }
    for (const kv::DecodeForm& form : forms) {
      ASSERT_TRUE(encode_rows(form, kDim, kPiece / kDim, values, {vector.data(), nullptr, nullptr}).ok());
      ASSERT_TRUE(encode_rows(form, kDim, kPiece / kDim, values, {scalar.data(), nullptr, nullptr},
                              KernelChoice::kScalar)
                      .ok());
      ASSERT_EQ(vector, scalar) << form.text() << " from " << first;
    }
  }
}

}  // namespace
}  // namespace isthmus::transform
