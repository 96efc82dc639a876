// SPDX-License-Identifier: Apache-2.0
// Encoders and value steps: bits that the engines' own libraries gave, and vector against scalar on hard
// inputs.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <numeric>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "kv/catalogue.h"
#include "kv/encoding.h"
#include "transform/every_target.h"
#include "transform/form_parts.h"
#include "transform/rows.h"

namespace isthmus::transform {
namespace {

using testing::HasSubstr;

constexpr std::array kChoices{KernelChoice::kVector, KernelChoice::kScalar};

// Form of component k, or v, in rows of `dim` elements.
kv::DecodeForm form_of(const char* storage, std::uint32_t dim, std::size_t component = 0) {
  kv::DecodeForm form = kv::find_storage(storage).value()->forms[component];
  if (form.operation != kv::DecodeOperation::kPlain && form.granule_dim == 0) form.granule_dim = dim;
  return form;
}

// With the only static scale of a form that has one.
RowForm rows_of(const kv::DecodeForm& form) {
  return {form, form.static_scales.empty() ? 1.0f : form.static_scales.front()};
}

struct Arrays {
  std::vector<std::byte> codes, scales, zeros;
  Arrays(const kv::DecodeForm& form, std::uint32_t dim, std::uint64_t rows) {
    const auto parts = form_parts(form, dim).value();
    codes.resize(parts[0].tile_bytes(rows));
    if (parts.size() > 1) scales.resize(parts[1].tile_bytes(rows));
    if (parts.size() > 2) zeros.resize(parts[2].tile_bytes(rows));
  }
  RowArrays rows() { return {codes.data(), scales.data(), zeros.data()}; }
  friend bool operator==(const Arrays&, const Arrays&) = default;
};

std::vector<float> floats_of(const std::string& hex) {
  std::vector<float> out;
  for (std::size_t at = 0; at + 8 <= hex.size(); at += 8) {
    out.push_back(
        std::bit_cast<float>(static_cast<std::uint32_t>(std::stoul(hex.substr(at, 8), nullptr, 16))));
  }
  return out;
}

std::byte byte_at(const std::string& hex, std::size_t index) {
  return std::byte{static_cast<unsigned char>(std::stoul(hex.substr(2 * index, 2), nullptr, 16))};
}

// A block as ggml stores it: scale, then codes; q4_0 has elements i and i + 16 in byte i.
std::vector<std::byte> block_of(Arrays& arrays, bool nibbles) {
  std::vector<std::byte> block = arrays.scales;
  if (!nibbles) block.insert(block.end(), arrays.codes.begin(), arrays.codes.end());
  for (std::size_t i = 0; nibbles && i < 16; ++i) {
    const auto code = [&](std::size_t at) {
      return (arrays.codes[at / 2] >> static_cast<int>(at % 2 * 4)) & std::byte{0x0f};
    };
    block.push_back(code(i) | code(i + 16) << 4);
  }
  return block;
}

TEST(EncodeRows, GgmlBlocksAreThoseOfGgml) {
  std::ifstream file(ISTHMUS_SPEC_DIR "/vectors/kv/encodings.txt");
  std::string line;
  std::uint32_t blocks = 0;  // Read so far.
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string recipe, values, expected;
    words >> recipe >> values >> expected;
    if (recipe.empty() || recipe == "#") continue;
    const bool nibbles = recipe == "ggml.q4_0";
    const kv::DecodeForm form = form_of("llamacpp:q8_0_v_q4_0", 32, nibbles ? 1 : 0);
    ASSERT_EQ(form.recipe, recipe);
    for (const KernelChoice choice : kChoices) {
      Arrays arrays(form, 32, 1);
      const auto made = encode_rows(form, 32, 1, floats_of(values), arrays.rows(), choice);
      ASSERT_TRUE(made.ok()) << made.error().text();
      const std::vector<std::byte> block = block_of(arrays, nibbles);
      ASSERT_EQ(block.size() * 2, expected.size());
      for (std::size_t i = 0; i < block.size(); ++i) {
        ASSERT_EQ(block[i], byte_at(expected, i)) << recipe << " line " << blocks << " byte " << i;
      }
    }
    ++blocks;
  }
  EXPECT_EQ(blocks, 117U);
}

// Rows of one kind each: usual values, constants, zeros of both signs, extremes, subnormals, outliers.
std::vector<float> hard_rows(std::uint64_t rows, std::uint32_t dim) {
  std::vector<float> values(rows * dim);
  for (std::uint64_t i = 0; i < values.size(); ++i) {
    const auto hash = static_cast<std::uint32_t>((i + 1) * 0x9e3779b97f4a7c15ull >> 32);
    const float unit = static_cast<float>(hash & 0xffffff) / 8388608.0f - 1.0f;
    const std::array<float, 8> kinds{unit,
                                     unit * 1e5f,
                                     0.75f,
                                     i % 2 == 0 ? 0.0f : -0.0f,
                                     unit * 1e-39f,
                                     i % dim == 5 ? -3000.0f : unit,
                                     (i % 3 == 0 ? -2.0f : 2.0f),
                                     std::round(unit * 64) / 2};
    values[i] = kinds[i / dim / 3 % kinds.size()];
  }
  return values;
}

// Every scale format, granules over one token and over several.
void add_amax_groups(std::vector<kv::DecodeForm>& forms, std::uint32_t dim) {
  for (const kv::Format scale : {kv::Format::kF32, kv::Format::kF16, kv::Format::kBf16, kv::Format::kE8m0}) {
    for (const std::uint32_t tokens : {1U, 4U, 32U}) {
      for (const std::uint32_t granule : {dim, dim % 64 == 0 ? dim / 2 : dim / 3, 1U}) {
        const kv::Format codes = tokens == 4 ? kv::Format::kI4 : kv::Format::kE4m3fn;
        kv::DecodeForm form{.component = "k",
                            .codes = codes,
                            .operation = kv::DecodeOperation::kScaled,
                            .scale = scale,
                            .granule_dim = granule,
                            .granule_tokens = tokens,
                            .recipe = "amax"};
        if (kv::movable(form, dim).ok()) forms.push_back(form);
      }
    }
  }
}

void add_vllm_fp8(std::vector<kv::DecodeForm>& forms, std::uint32_t dim) {
  for (const auto& [recipe, scale] : {std::pair{"vllm.fp8_ds_mla", kv::Format::kF32},
                                      {"vllm.fp8.ue8m0", kv::Format::kF32},
                                      {"vllm.fp8.ue8m0", kv::Format::kE8m0}}) {
    for (const std::uint32_t granule : {dim, dim % 64 == 0 ? dim / 2 : dim / 3, 1U}) {
      forms.push_back({.component = "k",
                       .codes = kv::Format::kE4m3fn,
                       .operation = kv::DecodeOperation::kScaled,
                       .scale = scale,
                       .granule_dim = granule,
                       .recipe = recipe});
    }
  }
}

std::vector<kv::DecodeForm> encoded_forms(std::uint32_t dim) {
  std::vector<kv::DecodeForm> forms{form_of("openvino:u8", dim),         form_of("openvino:u4", dim),
                                    form_of("openvino:u8_channel", dim), form_of("llamacpp:f16", dim),
                                    form_of("llamacpp:bf16", dim),       form_of("llamacpp:f32", dim)};
  for (const kv::Format codes : {kv::Format::kE4m3fn, kv::Format::kE4m3fnuz, kv::Format::kE5m2,
                                 kv::Format::kE5m2fnuz, kv::Format::kI8, kv::Format::kI4}) {
    forms.push_back({.component = "k",
                     .codes = codes,
                     .operation = kv::DecodeOperation::kScaled,
                     .granule_dim = dim % 64 == 0 ? dim / 2 : dim,
                     .recipe = "amax"});
    forms.push_back({.component = "k", .codes = codes, .recipe = "nearest_even"});
    forms.push_back({.component = "k",
                     .codes = codes,
                     .operation = kv::DecodeOperation::kStaticScaled,
                     .recipe = "nearest_even",
                     .static_scales = {0.37f}});
    if (codes != kv::Format::kE4m3fn && codes != kv::Format::kE5m2) continue;
    forms.push_back(forms.back());
    forms.back().recipe = "vllm.cpu.fp8";
  }
  add_amax_groups(forms, dim);
  add_vllm_fp8(forms, dim);
  if (dim % 32 == 0) {
    forms.push_back(form_of("llamacpp:q8_0", dim));
    forms.push_back(form_of("llamacpp:q8_0", dim));
    forms.back().recipe = "ggml.q8_0.reference";
    forms.push_back(form_of("llamacpp:q8_0_v_q4_0", dim, 1));
  }
  return forms;
}

INSTANTIATE_TEST_SUITE_P(Machine, EveryTarget, every_target(), target_name);

TEST_P(EveryTarget, HalfPrecisionCodesAndRoundingsAreTheScalarOnes) {
  const kv::DecodeForm f16 = form_of("llamacpp:f16", 64);
  std::vector<std::uint16_t> codes(65536), vector_codes(65536), scalar_codes(65536);
  std::iota(codes.begin(), codes.end(), std::uint16_t{0});
  const auto* from = std::as_bytes(std::span(codes)).data();
  std::vector<float> vector(65536), scalar(65536);
  decode_rows(f16, 64, 1024, from, vector);
  decode_rows(f16, 64, 1024, from, scalar, KernelChoice::kScalar);
  ASSERT_EQ(std::memcmp(vector.data(), scalar.data(), vector.size() * sizeof(float)), 0);
  // Each code, what is just beyond the middle to the next one, and magnitudes beyond the largest.
  for (const float factor : {1.0f, 1.000244140625f, 1.00048828125f, 1.0005f, 3e4f}) {
    for (std::size_t i = 0; i < scalar.size(); ++i) {
      vector[i] = std::isfinite(scalar[i] * factor) ? scalar[i] * factor : 0.0f;
    }
    RowArrays to{std::as_writable_bytes(std::span(vector_codes)).data(), nullptr, nullptr};
    ASSERT_TRUE(encode_rows(f16, 64, 1024, vector, to).ok());
    to.codes = std::as_writable_bytes(std::span(scalar_codes)).data();
    ASSERT_TRUE(encode_rows(f16, 64, 1024, vector, to, KernelChoice::kScalar).ok());
    ASSERT_EQ(vector_codes, scalar_codes) << factor;
  }
}

TEST_P(EveryTarget, GivesTheScalarBitsThereAndBack) {
  constexpr std::uint64_t kRows = 75;  // Two token groups and a part of one.
  for (const std::uint32_t dim : {64U, 96U, 128U, 72U, 6U}) {
    const std::vector<float> values = hard_rows(kRows, dim);
    for (const kv::DecodeForm& form : encoded_forms(dim)) {
      SCOPED_TRACE(fmt::format("{} dim {}", form.text(), dim));
      Arrays vector(form, dim, kRows), scalar(form, dim, kRows);
      const RowForm rows = rows_of(form);
      const auto by_vector = encode_rows(rows, dim, kRows, values, vector.rows());
      const auto by_scalar = encode_rows(rows, dim, kRows, values, scalar.rows(), KernelChoice::kScalar);
      ASSERT_TRUE(by_vector.ok() && by_scalar.ok());
      ASSERT_EQ(*by_vector, *by_scalar);
      ASSERT_EQ(vector, scalar);
      std::vector<float> one(values.size()), other(values.size());
      decode_rows(rows, dim, kRows, vector.rows(), one);
      decode_rows(rows, dim, kRows, vector.rows(), other, KernelChoice::kScalar);
      ASSERT_EQ(std::memcmp(one.data(), other.data(), one.size() * sizeof(float)), 0);
    }
  }
}

TEST_P(EveryTarget, OnePassGivesTheBitsOfTwo) {
  constexpr std::uint64_t kRows = 75;
  for (const std::uint32_t dim : {64U, 96U, 128U, 72U, 6U}) {
    const std::vector<float> values = hard_rows(kRows, dim);
    const std::vector<kv::DecodeForm> forms = encoded_forms(dim);
    std::uint32_t recoded = 0;
    for (const kv::DecodeForm& from : forms) {
      Arrays stored(from, dim, kRows);
      ASSERT_TRUE(encode_rows(rows_of(from), dim, kRows, values, stored.rows(), KernelChoice::kScalar).ok());
      std::vector<float> between(values.size());
      decode_rows(rows_of(from), dim, kRows, stored.rows(), between, KernelChoice::kScalar);
      for (const kv::DecodeForm& to : forms) {
        if (!can_recode(from, to)) continue;
        SCOPED_TRACE(fmt::format("{} to {} dim {}", from.text(), to.text(), dim));
        Arrays expected(to, dim, kRows);
        const auto saturated =
            encode_rows(rows_of(to), dim, kRows, between, expected.rows(), KernelChoice::kScalar);
        ASSERT_TRUE(saturated.ok());
        for (const KernelChoice choice : kChoices) {
          Arrays made(to, dim, kRows);
          const bool is_whole =
              recode_rows(rows_of(from), rows_of(to), {dim, kRows}, stored.rows(), made.rows(), choice);
          // What saturates, or perhaps does, is left to the other way.
          ASSERT_TRUE(is_whole || kv::bits(to.codes) < 32);
          ASSERT_TRUE(!is_whole || *saturated == 0);
          if (is_whole) ASSERT_EQ(made, expected);
          recoded += is_whole ? 1 : 0;
        }
      }
    }
    ASSERT_GT(recoded, 2 * forms.size());
  }
}

// All codes, NaNs and infinities among them, under scales from subnormal to beyond what is finite.
TEST_P(EveryTarget, OnePassOfEachSmallFloatGivesTheBitsOfTwo) {
  constexpr std::uint32_t kDim = 64;
  std::uint32_t whole = 0, refused = 0;
  for (const kv::Format codes :
       {kv::Format::kE4m3fn, kv::Format::kE4m3fnuz, kv::Format::kE5m2, kv::Format::kE5m2fnuz}) {
    const kv::DecodeForm from{.component = "k",
                              .codes = codes,
                              .operation = kv::DecodeOperation::kScaled,
                              .granule_dim = kDim,
                              .recipe = "amax"};
    for (const char* storage : {"llamacpp:f16", "llamacpp:bf16", "llamacpp:f32"}) {
      const kv::DecodeForm to = form_of(storage, kDim);
      for (const float scale :
           {0x1p-149f, 0x1.8p-130f, 0x1.01p-120f, 0x1.55p-9f, 1.0f, 0x1.91p+3f, 0x1.1p+111f, 0x1.fp+118f,
            0x1p+119f, 0x1.7p+125f, -0.75f, 0.0f, std::numeric_limits<float>::infinity()}) {
        for (std::uint32_t row = 0; row < 256; ++row) {  // Code `row` among others that are finite.
          std::array<std::byte, kDim> stored{};
          for (std::uint32_t i = 0; i < kDim; ++i) stored.at(i) = std::byte{static_cast<unsigned char>(i)};
          stored.at(row % kDim) = std::byte{static_cast<unsigned char>(row)};
          const ConstRowArrays arrays(stored.data(), std::as_bytes(std::span(&scale, 1)).data());
          Arrays vector(to, kDim, 1), scalar(to, kDim, 1);
          const bool is_whole = recode_rows(from, to, {kDim, 1}, arrays, vector.rows());
          ASSERT_EQ(is_whole, recode_rows(from, to, {kDim, 1}, arrays, scalar.rows(), KernelChoice::kScalar))
              << from.text() << " to " << storage << " code " << row << " scale " << scale;
          if (is_whole) ASSERT_EQ(vector, scalar) << from.text() << " code " << row << " scale " << scale;
          ++(is_whole ? whole : refused);
        }
      }
    }
  }
  EXPECT_GT(whole, 10000U);
  EXPECT_GT(refused, 5000U);
}

TEST_P(EveryTarget, OnePassRefusesWhatIsNotFinite) {
  constexpr std::uint32_t kDim = 64;
  const kv::DecodeForm f16 = form_of("llamacpp:f16", kDim), bf16 = form_of("llamacpp:bf16", kDim);
  for (const auto& [from, bad] :
       {std::pair{f16, 0x7c01}, std::pair{f16, 0xfc00}, std::pair{bf16, 0x7f80}, std::pair{bf16, 0xffff}}) {
    for (const kv::DecodeForm& to : encoded_forms(kDim)) {
      for (const std::size_t at : {std::size_t{0}, std::size_t{33 * kDim + 63}, std::size_t{40 * kDim - 1}}) {
        for (const KernelChoice choice : kChoices) {
          std::vector<std::uint16_t> codes(40 * kDim, 0x3c00);
          codes[at] = static_cast<std::uint16_t>(bad);
          Arrays made(to, kDim, 40);
          ASSERT_FALSE(
              recode_rows(from, to, {kDim, 40}, std::as_bytes(std::span(codes)).data(), made.rows(), choice))
              << to.text() << " " << at;
        }
      }
    }
  }
  // A scale that makes numbers that aren't finite.
  const kv::DecodeForm u8 = form_of("openvino:u8", kDim);
  Arrays stored(u8, kDim, 2);
  std::fill(stored.codes.begin(), stored.codes.end(), std::byte{200});
  const float scale = 3e38f;
  std::memcpy(stored.scales.data() + 4, &scale, sizeof(scale));
  for (const KernelChoice choice : kChoices) {
    Arrays made(f16, kDim, 2);
    ASSERT_FALSE(recode_rows(u8, f16, {kDim, 2}, stored.rows(), made.rows(), choice));
  }
}

TEST(EncodeRows, EachFormRefusesValuesThatAreNotFinite) {
  constexpr std::uint32_t kDim = 64;
  for (const kv::DecodeForm& form : encoded_forms(kDim)) {
    for (const float bad :
         {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      for (const KernelChoice choice : kChoices) {
        std::vector<float> values(40 * kDim, 0.5f);
        values[37 * kDim + 63] = bad;
        Arrays arrays(form, kDim, 40);
        const auto made = encode_rows(form, kDim, 40, values, arrays.rows(), choice);
        ASSERT_EQ(made.code(), Code::kCorrupt) << form.text();
        EXPECT_THAT(made.error().detail, HasSubstr("row 37, element 63"));
      }
    }
  }
}

TEST(EncodeRows, AScaleThatItsFormatCannotHoldIsCorrupt) {
  for (const auto& [storage, component, value] :
       {std::tuple{"llamacpp:q8_0", 0, 8.4e6f}, std::tuple{"llamacpp:q8_0_v_q4_0", 1, -6e5f},
        std::tuple{"openvino:u8_channel", 0, 3e38f}}) {
    const kv::DecodeForm form = form_of(storage, 64, static_cast<std::size_t>(component));
    for (const KernelChoice choice : kChoices) {
      std::vector<float> values(2 * 64, 1.0f);
      values[70] = value;
      values[6] = -value;
      Arrays arrays(form, 64, 2);
      const auto made = encode_rows(form, 64, 2, values, arrays.rows(), choice);
      ASSERT_EQ(made.code(), Code::kCorrupt) << form.text();
      EXPECT_THAT(made.error().detail, HasSubstr("no finite scale"));
    }
  }
}

TEST_P(EveryTarget, HadamardIsTheSylvesterMatrixAndItsOwnInverse) {
  for (const std::uint32_t size : {2U, 8U, 16U, 64U, 128U, 256U}) {
    const std::uint32_t dim = std::max(size, 64U);
    const std::vector<float> values = hard_rows(1, dim * 2);
    const kv::ValueStep step{kv::ValueStepKind::kHadamard, size};
    std::vector<float> row(dim), vector = values, scalar = values;
    apply_step(step, dim, vector, row);
    apply_step(step, dim, scalar, row, KernelChoice::kScalar);
    ASSERT_EQ(std::memcmp(vector.data(), scalar.data(), vector.size() * sizeof(float)), 0) << size;
    for (std::size_t i = 0; i < values.size(); ++i) {
      double sum = 0;
      for (std::size_t j = 0; j < size; ++j) {
        sum += (std::popcount(i % size & j) % 2 == 0 ? 1 : -1) * double{values[i / size * size + j]};
      }
      ASSERT_NEAR(vector[i], sum / std::sqrt(size), 1e-5) << size << " " << i;
    }
    apply_step(step, dim, vector, row);
    for (std::size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(vector[i], values[i], 1e-5);
  }
}

TEST(ApplyStep, PairingsMovePairsApartAndTogether) {
  const kv::ValueStep apart{kv::ValueStepKind::kInterleavedToHalves, 0};
  const kv::ValueStep together{kv::ValueStepKind::kHalvesToInterleaved, 0};
  std::vector<float> values{0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15}, row(6);
  const std::vector<float> before = values;
  apply_step(apart, 6, values, row);
  EXPECT_EQ(values, (std::vector<float>{0, 2, 4, 1, 3, 5, 10, 12, 14, 11, 13, 15}));
  apply_step(together, 6, values, row);
  EXPECT_EQ(values, before);
}

TEST(CanStep, RefusesRowsThatDoNotDivide) {
  EXPECT_TRUE(can_step({kv::ValueStepKind::kHadamard, 64}, 128).ok());
  EXPECT_EQ(can_step({kv::ValueStepKind::kHadamard, 64}, 96).code(), Code::kUnsupported);
  EXPECT_EQ(can_step({kv::ValueStepKind::kHadamard, 48}, 96).code(), Code::kUnsupported);
  EXPECT_EQ(can_step({kv::ValueStepKind::kInterleavedToHalves, 0}, 63).code(), Code::kUnsupported);
}

}  // namespace
}  // namespace isthmus::transform
