// SPDX-License-Identifier: Apache-2.0
// A chunk's body there and back, and what comes instead of it.
#include "handoff/agent/compression.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "base/digest.h"
#include "transform/program.h"
#include "transform/test_allocations.h"
#include "transform/test_state.h"

namespace isthmus::handoff {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

constexpr kv::TokenRange kTokens{0, 512};

class ChunkCompression : public ::testing::Test {
 protected:
  ChunkCompression() {
    transform::TestMemory from(source_, 0, 0, kTokens);
    from.fill(kTokens);
    transform::Packer packer = *transform::Packer::make(plan_, source_);
    std::vector<Digest128> tiles(chunk_.tile_count());
    EXPECT_TRUE(packer.pack(chunk_, from.binding(), body_, tiles).ok());
  }
  // As it crosses, with its header.
  wire::ChunkHeader shrunk(Bytes& body) {
    const StoredBody stored = compression_.shrink(chunk_, body);
    body.resize(stored.bytes);
    wire::ChunkHeader header;
    header.codec = stored.codec;
    header.raw_bytes = chunk_.body_bytes;
    header.stored_bytes = stored.bytes;
    header.body_checksum = stored.checksum;
    return header;
  }

  const kv::Descriptor source_ = transform::test_descriptor("llamacpp:f16", {});
  const kv::Descriptor target_ = transform::test_descriptor("openvino:f32", {});
  const std::shared_ptr<const transform::Plan> plan_ = std::make_shared<const transform::Plan>(
      *transform::Plan::make(source_, target_, transform::test_verdict(source_, target_), kTokens));
  const transform::Chunk chunk_ = plan_->chunk(0);
  Bytes body_ = Bytes(chunk_.body_bytes);
  Compression compression_;
};

TEST_F(ChunkCompression, GoesThereAndBack) {
  Bytes stored = body_;
  const wire::ChunkHeader header = shrunk(stored);
  EXPECT_EQ(header.codec, wire::Codec::kZstdPlanes);
  EXPECT_LT(stored.size(), body_.size());
  const auto back = compression_.restore(chunk_, header, stored);
  ASSERT_TRUE(back.ok()) << back.error().text();
  EXPECT_TRUE(std::ranges::equal(*back, body_));
}

TEST_F(ChunkCompression, WhatGetsNoSmallerStaysAsItIs) {
  std::uint64_t state = 7;
  for (std::byte& byte : body_) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    byte = std::byte{static_cast<unsigned char>(state >> 56)};
  }
  Bytes stored = body_;
  const wire::ChunkHeader header = shrunk(stored);
  EXPECT_EQ(header.codec, wire::Codec::kNone);
  EXPECT_EQ(header.body_checksum, 0u);
  EXPECT_EQ(stored, body_);
}

TEST_F(ChunkCompression, AllocatesForTheFirstChunkAlone) {
  if (!transform::are_allocations_counted())
    GTEST_SKIP() << "a sanitizer's operator new stands before the one that counts";
  Bytes stored = body_;
  const wire::ChunkHeader header = shrunk(stored);
  ASSERT_TRUE(compression_.restore(chunk_, header, stored).ok());
  Bytes again = body_;
  const std::uint64_t before = transform::allocations();
  const StoredBody made = compression_.shrink(chunk_, again);
  const bool is_right = compression_.restore(chunk_, header, std::span(again).first(made.bytes)).ok();
  EXPECT_EQ(transform::allocations(), before);
  EXPECT_TRUE(is_right);
}

TEST_F(ChunkCompression, ABitThatFlipsIsFoundBeforeAnythingIsDecoded) {
  Bytes stored = body_;
  const wire::ChunkHeader header = shrunk(stored);
  for (const std::size_t at : {std::size_t{0}, stored.size() / 2, stored.size() - 1}) {
    Bytes damaged = stored;
    damaged[at] ^= std::byte{0x10};
    const auto back = compression_.restore(chunk_, header, damaged);
    EXPECT_EQ(back.code(), Code::kCorrupt) << at;
    EXPECT_THAT(back.error().detail, HasSubstr("the stored body has checksum"));
  }
}

// Each with a checksum that is right: a peer made it so.
TEST_F(ChunkCompression, AFrameOfMoreOrFewerBytesThanTheBodyIsRefused) {
  codec::ZstdPlanesEncoder encoder;
  for (const std::size_t size : {std::size_t{64}, body_.size() - 1, body_.size() + 1, 1000 * body_.size()}) {
    const Bytes other(size, std::byte{0});
    const auto frame = *encoder.encode(other, {});
    ASSERT_LT(frame.size(), body_.size());
    wire::ChunkHeader header;
    header.codec = wire::Codec::kZstdPlanes;
    header.body_checksum = digest64(frame);
    EXPECT_EQ(compression_.restore(chunk_, header, frame).code(), Code::kMalformed) << size;
  }
  Bytes cut = body_;
  wire::ChunkHeader header = shrunk(cut);
  cut.pop_back();
  header.body_checksum = digest64(cut);
  EXPECT_EQ(compression_.restore(chunk_, header, cut).code(), Code::kMalformed);
}

}  // namespace
}  // namespace isthmus::handoff
