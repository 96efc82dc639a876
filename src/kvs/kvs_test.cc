// SPDX-License-Identifier: Apache-2.0
// Files there and back, every byte of one damaged in turn, and what a liar may say.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/bytes.h"
#include "kv/published.h"
#include "kvs/compare.h"
#include "kvs/file.h"
#include "kvs/state.h"
#include "wire/chunk_header.h"

namespace isthmus::kvs {
namespace {

using testing::HasSubstr;
using Bytes = std::vector<std::byte>;

Manifest manifest_of(const char* storage, kv::TokenRange tokens, transform::Degrees degrees = {}) {
  Manifest manifest;
  manifest.descriptor =
      kv::plain_descriptor(*kv::find_storage(storage).value(), {.layers = 2, .heads = 2, .dim = 64}).value();
  EXPECT_TRUE(transform::split_ranks(manifest.descriptor, degrees).ok());
  manifest.tokens = tokens;
  manifest.chain = Digest128{1, 2};
  manifest.note = "a test";
  return manifest;
}

Bytes saved(const State& state, Compression compression = Compression::kNone) {
  Bytes bytes;
  const auto write = [&](std::span<const std::byte> more) {
    bytes.insert(bytes.end(), more.begin(), more.end());
    return ok_status();
  };
  const auto root = save(state, write, compression);
  EXPECT_TRUE(root.ok()) << (root.ok() ? "" : root.error().text());
  return bytes;
}

ReadExactly reading(const Bytes& bytes) {
  return [&bytes, at = std::size_t{0}](std::span<std::byte> into) mutable -> Status {
    if (into.size() > bytes.size() - at) return Error{Code::kMalformed, "too early"};
    std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(at), into.size(), into.begin());
    at += into.size();
    return ok_status();
  };
}

Result<Digest128> verified(const Bytes& bytes) {
  ISTHMUS_TRY(Reader reader, Reader::open(reading(bytes), bytes.size()));
  while (reader.next_index() < reader.plan()->chunk_count()) ISTHMUS_TRY(reader.next());
  return reader.finish();
}

TEST(Kvs, AStateComesBackAsItWas) {
  for (const char* storage :
       {"llamacpp:f16_v_transposed", "openvino:u8", "openvino:u4", "vllm:cpu_amx", "llamacpp:q8_0"}) {
    SCOPED_TRACE(storage);
    const State state = sample(manifest_of(storage, {32, 300}, {2, 1}), 7).value();
    const Bytes bytes = saved(state);
    Reader reader = Reader::open(reading(bytes), bytes.size()).value();
    EXPECT_EQ(reader.manifest().descriptor.digest(), state.manifest.descriptor.digest());
    EXPECT_EQ(reader.manifest().tokens, state.manifest.tokens);
    EXPECT_EQ(reader.manifest().chain, state.manifest.chain);
    EXPECT_EQ(reader.manifest().note, "a test");
    const auto loaded = load(reader);
    ASSERT_TRUE(loaded.ok()) << loaded.error().text();
    EXPECT_EQ(loaded->bytes, state.bytes);
    EXPECT_EQ(saved(*loaded), bytes);
  }
}

TEST(Kvs, TheRootKnowsNothingOfLayoutBlocksAndRanks) {
  const auto root = [](const char* storage, transform::Degrees degrees) {
    return verified(saved(sample(manifest_of(storage, {5, 300}, degrees), 7).value())).value();
  };
  const Digest128 plain = root("vllm:flash_nhd", {});
  EXPECT_EQ(root("vllm:flash_nhd", {2, 2}), plain);
  EXPECT_EQ(root("tensorrt_llm:paged", {1, 2}), plain);
  EXPECT_EQ(root("sglang:page", {8, 1}), plain);
}

TEST(Kvs, StatesWhosePositionsAreDealtOutAreTheSameState) {
  const auto file = [](const char* storage, transform::Degrees degrees) {
    return saved(sample(manifest_of(storage, {32, 700}, degrees), 7).value());
  };
  const Bytes whole = file("vllm:flash_nhd", {});
  for (const transform::Degrees& degrees : {transform::Degrees{.context = 2, .run = 1},
                                            {.tensor = 2, .pipeline = 2, .context = 4, .run = 64},
                                            {.context = 3, .run = 200, .is_striped = false}}) {
    const Bytes dealt = file("sglang:page", degrees);
    ASSERT_TRUE(verified(dealt).ok());
    Reader a = Reader::open(reading(whole), whole.size()).value();
    Reader b = Reader::open(reading(dealt), dealt.size()).value();
    const Result<Comparison> comparison = compare(a, b);
    ASSERT_TRUE(comparison.ok()) << comparison.error().text();
    EXPECT_TRUE(comparison->is_same_state());
    EXPECT_GT(comparison->tiles_equal, 0U);
  }
  const Bytes scaled = file("openvino:u8_channel", {}),
              dealt = file("openvino:u8_channel", {.context = 2, .run = 96});
  Reader a = Reader::open(reading(scaled), scaled.size()).value();
  Reader b = Reader::open(reading(dealt), dealt.size()).value();
  EXPECT_TRUE(compare(a, b)->is_same_state());
}

// Full attention beside a recurrent state, which crosses as it is whatever the other group is stored as.
TEST(Kvs, AHybridStateIsSavedConvertedAndCompared) {
  Manifest manifest;
  manifest.descriptor = kv::published::hybrid(kv::Format::kF32, 2);
  manifest.tokens = {0, 20};
  const Bytes bytes = saved(sample(manifest, 7).value());
  Reader reader = Reader::open(reading(bytes), bytes.size()).value();
  const State loaded = load(reader).value();
  const kv::Descriptor other =
      stored_as(manifest.descriptor, **kv::find_storage("sglang:page"), 0, {.tensor = 4}).value();
  EXPECT_EQ(other.representation[1], manifest.descriptor.representation[1]);
  const Result<Converted> converted = convert(loaded, other, {});
  ASSERT_TRUE(converted.ok()) << converted.error().text();
  const Bytes elsewhere = saved(converted->state);
  Reader x = Reader::open(reading(bytes), bytes.size()).value();
  Reader y = Reader::open(reading(elsewhere), elsewhere.size()).value();
  EXPECT_TRUE(compare(x, y)->is_same_state());
  EXPECT_FALSE(stored_as(manifest.descriptor, **kv::find_storage("vllm:mla_bf16"), 0, {}).ok());
}

class WholeFile : public testing::TestWithParam<Compression> {};
INSTANTIATE_TEST_SUITE_P(Kvs, WholeFile, testing::Values(Compression::kNone, Compression::kZstd),
                         [](const auto& each) {
                           return each.param == Compression::kNone ? "Plain" : "Zstd";
                         });

TEST_P(WholeFile, WithAnyByteDamagedIsRefused) {
  const Bytes good = saved(sample(manifest_of("llamacpp:f32", {0, 3}), 7).value(), GetParam());
  ASSERT_TRUE(verified(good).ok());
  Bytes bad = good;
  for (std::size_t at = 0; at < bad.size(); ++at) {
    bad[at] ^= std::byte{0x10};
    ASSERT_FALSE(verified(bad).ok()) << "byte " << at << " of " << bad.size();
    bad[at] = good[at];
  }
}

TEST_P(WholeFile, ThatEndsEarlyOrLateIsRefused) {
  const Bytes good = saved(sample(manifest_of("llamacpp:f32", {0, 3}), 7).value(), GetParam());
  for (std::size_t size = 0; size < good.size(); size += size < 4000 ? 1 : 97) {
    const Bytes bad(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size));
    ASSERT_EQ(verified(bad).code(), Code::kMalformed) << size;
  }
  Bytes longer = good;
  longer.push_back(std::byte{0});
  EXPECT_EQ(verified(longer).code(), Code::kMalformed);
}

TEST(Kvs, ACompressedFileIsSmallerAndHoldsTheSameState) {
  for (const char* storage : {"llamacpp:f32", "llamacpp:f16_v_transposed", "openvino:u8", "openvino:u4",
                              "llamacpp:q8_0", "vllm:flash_nhd_fp8"}) {
    SCOPED_TRACE(storage);
    Manifest manifest = manifest_of(storage, {32, 300});
    const State state = sample(std::move(manifest), 7).value();
    const Bytes plain = saved(state), packed = saved(state, Compression::kZstd);
    EXPECT_LE(packed.size(), plain.size());
    if (storage == std::string("llamacpp:f32")) EXPECT_LT(packed.size(), plain.size() * 9 / 10);
    EXPECT_EQ(verified(packed).value(), verified(plain).value());
    Reader reader = Reader::open(reading(packed), packed.size()).value();
    EXPECT_TRUE(reader.is_compressed());
    EXPECT_EQ(load(reader).value().bytes, state.bytes);
  }
}

// A frame whose checksums are right, and which holds something else.
TEST(Kvs, AFrameThatIsNotTheBodysIsRefused) {
  const Bytes good = saved(sample(manifest_of("llamacpp:f32", {0, 3}), 7).value(), Compression::kZstd);
  const std::span<const std::byte> all = good;
  const std::size_t header = kHeadBytes + load_le<std::uint32_t>(all.subspan(12));
  ASSERT_EQ(load_le<std::uint32_t>(all.subspan(header + 84)), 1u) << "its codec";
  const auto stored = load_le<std::uint64_t>(all.subspan(header + 112));
  const std::size_t tiles = load_le<std::uint32_t>(all.subspan(header + 128));
  const std::size_t body = header + wire::kChunkFixedBytes + tiles * wire::kTileDigestBytes;
  for (const std::size_t at : {std::size_t{0}, std::size_t{4}, std::size_t{20}, stored / 2, stored - 1}) {
    Bytes bad = good;
    bad[body + at] ^= std::byte{0x41};
    const std::span<std::byte> fixed = std::span(bad).subspan(header, wire::kChunkFixedBytes);
    store_le(fixed.subspan(120), digest64(std::span<const std::byte>(bad).subspan(body, stored)));
    store_le(fixed.last(8), digest64(std::span<const std::byte>(fixed).first(fixed.size() - 8)));
    const auto result = verified(bad);
    ASSERT_FALSE(result.ok()) << at;
    EXPECT_TRUE(result.code() == Code::kMalformed || result.code() == Code::kCorrupt)
        << result.error().text();
  }
}

// A manifest that says something else, with its checksum right.
class Lies : public testing::Test {
 protected:
  template <typename T>
  void say(std::size_t at, T value) {
    store_le(std::span(bytes_).subspan(kHeadBytes + at), value);
    const auto length = load_le<std::uint32_t>(std::span<const std::byte>(bytes_).subspan(12));
    store_le(std::span(bytes_).subspan(16),
             digest64(std::span<const std::byte>(bytes_).subspan(kHeadBytes, length)));
  }
  void expect_refused(Code code, std::string_view text) const {
    const auto result = verified(bytes_);
    ASSERT_EQ(result.code(), code) << result.error().text();
    EXPECT_THAT(result.error().detail, HasSubstr(std::string(text)));
  }
  Bytes bytes_ = saved(sample(manifest_of("llamacpp:f16", {0, 3}), 7).value());
};

TEST_F(Lies, AboutTokens) {
  say(8, std::uint64_t{5});
  expect_refused(Code::kMalformed, "manifest: plan digest");
  say(8, std::uint64_t{1} << 39);
  expect_refused(Code::kExhausted, "chunks; hand over a shorter token range");
  say(8, std::uint64_t{0});
  expect_refused(Code::kInvalidArgument, "is empty");
}
TEST_F(Lies, AboutFlagsAndChain) {
  say(16, std::uint32_t{5});
  expect_refused(Code::kMalformed, "flags 0x5 are unknown");
  say(16, std::uint32_t{0});
  expect_refused(Code::kMalformed, "a token chain that its flag denies");
}
TEST_F(Lies, AboutChunks) {
  say(52, std::uint32_t{9});
  expect_refused(Code::kMalformed, "9 chunks where its plan has 1");
}
TEST_F(Lies, AboutTheNotesLength) {
  say(56, std::uint32_t{0xffffffff});
  expect_refused(Code::kMalformed, "the note is too long");
}
TEST_F(Lies, AboutTheManifestsLength) {
  store_le(std::span(bytes_).subspan(12), std::uint32_t{0x7fffffff});
  expect_refused(Code::kMalformed, "manifest length 2147483647");
}
TEST_F(Lies, AboutTheVersion) {
  store_le(std::span(bytes_).subspan(8), std::uint32_t{2});
  expect_refused(Code::kUnsupported, "version 2; this side reads 1");
}

TEST(Kvs, MemoryIsBoundedByWhatTheFileHolds) {
  Manifest manifest = manifest_of("vllm:flash_nhd", {0, 3});
  std::string& layout = manifest.descriptor.representation[0].layout_text;
  layout = "region KV per layer = blk@1099511627776 { slot head dim k:bf16 ; slot head dim v:bf16 }";
  ASSERT_TRUE(manifest.descriptor.validate().ok());
  const auto state = sample(manifest, 1);
  ASSERT_EQ(state.code(), Code::kExhausted);
  EXPECT_THAT(state.error().detail, HasSubstr("rank 0, region KV"));
}

TEST(Kvs, AConvertedStateIsTheSameStateElsewhere) {
  const State state = sample(manifest_of("vllm:flash_nhd", {10, 300}, {2, 1}), 7).value();
  const kv::Storage& storage = *kv::find_storage("vllm:cpu_amx").value();
  const auto to = stored_as(state.manifest.descriptor, storage, 64, {1, 2});
  ASSERT_TRUE(to.ok()) << to.error().text();
  const auto other = convert(state, *to, {});
  ASSERT_TRUE(other.ok()) << other.error().text();
  const Bytes a = saved(state), b = saved(other->state);
  Reader x = Reader::open(reading(a), a.size()).value(), y = Reader::open(reading(b), b.size()).value();
  const Comparison comparison = compare(x, y).value();
  EXPECT_TRUE(comparison.is_same_state());
  EXPECT_FALSE(comparison.descriptors.empty());
  EXPECT_EQ(comparison.tiles_equal, 2u * 2 * 2 * 2);
  ASSERT_EQ(comparison.numbers.size(), 2u);
  EXPECT_EQ(comparison.numbers[1].max, 0);
}

TEST(Kvs, WhatALossyConversionChangedIsMeasured) {
  const State state = sample(manifest_of("llamacpp:f16", {0, 40}), 7).value();
  const auto to = stored_as(state.manifest.descriptor, *kv::find_storage("openvino:u8").value(), 0, {});
  kv::Policy policy;
  EXPECT_EQ(convert(state, *to, policy).code(), Code::kIncompatible);
  policy.exactness = kv::Exactness::kBounded;
  const State other = convert(state, *to, policy).value().state;
  const Bytes a = saved(state), b = saved(other);
  Reader x = Reader::open(reading(a), a.size()).value(), y = Reader::open(reading(b), b.size()).value();
  const Comparison comparison = compare(x, y).value();
  EXPECT_FALSE(comparison.same_numbers);
  ASSERT_EQ(comparison.numbers.size(), 2u);
  EXPECT_GT(comparison.numbers[0].rms, 1e-4);
  EXPECT_LT(comparison.numbers[0].rms, 0.01);
  EXPECT_THAT(comparison.numbers[0].where, HasSubstr("layer "));
}

TEST(Kvs, WhatAConversionClampedIsCounted) {
  State state = sample(manifest_of("llamacpp:f32", {0, 40}), 7).value();
  const kv::RegionMemory& memory = state.ranks[0].groups[0].memory[0];
  const std::span<float> values = view_as<float>(std::span(memory.base, memory.bytes));
  values[5] = 1e9f;
  values[6] = -65536;
  const auto to = stored_as(state.manifest.descriptor, *kv::find_storage("openvino:f16").value(), 0, {});
  kv::Policy policy{.exactness = kv::Exactness::kBounded, .qualifications = {}};
  EXPECT_EQ(convert(state, *to, policy)->counts, (transform::ConversionCounts{2, 0}));
  values[7] = -std::numeric_limits<float>::infinity();
  values[8] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(convert(state, *to, policy).code(), Code::kCorrupt);
  policy.non_finite = kv::NonFinite::kReplace;
  EXPECT_EQ(convert(state, *to, policy)->counts, (transform::ConversionCounts{3, 2}));
}

TEST(Kvs, OneChangedElementIsNamedByItsTile) {
  const State state = sample(manifest_of("llamacpp:f32", {0, 40}), 7).value();
  State other = sample(manifest_of("llamacpp:f32", {0, 40}), 7).value();
  // Region K of layer 1: token 20, head 1, element 3.
  const kv::RegionMemory& memory = other.ranks[0].groups[0].memory[1];
  ASSERT_EQ(memory.region, "K");
  view_as<float>(std::span(memory.base, memory.bytes))[(20 * 2 + 1) * 64 + 3] += 100;
  const Bytes a = saved(state), b = saved(other);
  Reader x = Reader::open(reading(a), a.size()).value(), y = Reader::open(reading(b), b.size()).value();
  const Comparison comparison = compare(x, y).value();
  EXPECT_EQ(comparison.tiles_different, 1u);
  EXPECT_EQ(comparison.first_tiles,
            (std::vector<std::string>{"group 0, layer 1, part k, head 1, tokens [0, 40)"}));
  EXPECT_EQ(comparison.numbers[0].where, "layer 1, head 1, position 20, element 3");
  EXPECT_NEAR(comparison.numbers[0].max, 100, 1e-3);
}

TEST(Kvs, AFileOnDiskIsThereWholeOrNotAtAll) {
  const auto folder = std::filesystem::temp_directory_path() / fmt::format("kvs_test.{}", ::getpid());
  std::filesystem::create_directory(folder);
  const std::string path = (folder / "a.kvs").string();
  const State state = sample(manifest_of("llamacpp:f16", {0, 3}), 7).value();
  {
    OutputFile file = OutputFile::create(path).value();
    ASSERT_TRUE(save(state, file.writer()).ok());
    EXPECT_FALSE(std::filesystem::exists(path));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder)) << "what wasn't closed is gone";
  OutputFile file = OutputFile::create(path).value();
  ASSERT_TRUE(save(state, file.writer()).ok());
  ASSERT_TRUE(file.close().ok());
  InputFile input = open_input(path).value();
  Reader reader = Reader::open(input.read, input.size).value();
  EXPECT_EQ(load(reader).value().bytes, state.bytes);
  EXPECT_EQ(open_input((folder / "b.kvs").string()).code(), Code::kNotFound);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace isthmus::kvs
