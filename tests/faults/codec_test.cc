// SPDX-License-Identifier: Apache-2.0
// Bodies under a codec between two workers: where the price says so, never otherwise, and whatever comes
// instead of them.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "faults/duo.h"
#include "kv/prices.h"
#include "support/tcp_relay.h"
#include "wire/chunk_header.h"

namespace isthmus::faults {
namespace {

using support::Direction;
using support::Passage;
using support::RelayedFrame;
using support::TcpRelay;
using testing::HasSubstr;
using testing::StartsWith;
using transport::FrameType;

constexpr std::size_t kTokens = 8;
constexpr std::uint64_t kSlow = 10, kLoopback = 100'000;  // Bytes a microsecond.

kv::Prices prices_of(std::uint64_t link) {
  kv::Prices prices = kv::Prices::reference(1);
  prices.link = link;
  prices.codecs = {{"any", 400, 800, 800}};
  return prices;
}

struct Setting {
  std::string p_storage = "llamacpp:f16", d_storage = "openvino:f32";
  std::optional<kv::Prices> prices = prices_of(kSlow);
  std::vector<std::string> transports = {"tcp"};
};

std::unique_ptr<Duo> duo_of(const Setting& setting) {
  return std::make_unique<Duo>(setting.p_storage, setting.d_storage, [&](Node& p, Node& d) {
    p.prices = setting.prices;
    p.transports = d.transports = setting.transports;
  });
}

struct Crossed {
  double bodies = 0, stored = 0;
};

Crossed crossed(const Node& node, std::string_view side) {
  const std::string label = fmt::format("side=\"{}\"", side);
  return {Duo::count(node, "isthmus_handoff_bytes_total", {label}),
          Duo::count(node, "isthmus_handoff_stored_bytes_total", {label})};
}

// Between the two: every chunk passes `judge`.
class Between {
 public:
  Between(Duo& duo, const std::function<Passage(RelayedFrame&)>& judge)
      : duo_(duo), relay_(duo.loop(), *net::Endpoint::parse(duo.p().agent)) {
    relay_.set_judge([judge](RelayedFrame& frame) {
      const bool is_chunk = frame.type == FrameType::kData && frame.direction == Direction::kFromTarget;
      return is_chunk ? judge(frame) : Passage::kForward;
    });
  }
  Answer ask(const std::string& prompt, bool fail) {
    json::Value transfer = duo_.prefill(prompt, "id");
    transfer.set("isthmus_endpoints", json::array({relay_.endpoint().text()}));
    const auto asking = duo_.ask_decode(prompt, transfer, kTokens, {.fail = fail});
    Answer answer = duo_.finish(*asking);
    duo_.cancel("id");
    EXPECT_TRUE(duo_.settled()) << Duo::holdings(duo_.p()) << Duo::holdings(duo_.d());
    return answer;
  }

 private:
  Duo& duo_;
  TcpRelay relay_;
};

class EveryPair : public testing::TestWithParam<std::pair<const char*, const char*>> {};

// Read back exactly; not so; and in place at both ends, where nothing is compressed.
INSTANTIATE_TEST_SUITE_P(Of, EveryPair,
                         testing::Values(std::pair("llamacpp:f16", "openvino:f32"),
                                         std::pair("openvino:f32", "openvino:u8"),
                                         std::pair("openvino:f32", "openvino:f32")),
                         [](const auto& each) {
                           std::string name = fmt::format("{}To{}", each.param.first, each.param.second);
                           std::erase(name, ':');
                           return name;
                         });

TEST_P(EveryPair, ASlowLinkCarriesFewerBytesAndTheAnswerIsTheSame) {
  const auto duo = duo_of({.p_storage = GetParam().first, .d_storage = GetParam().second});
  double payload = 0;
  Between between(*duo, [&](RelayedFrame& frame) {
    payload += static_cast<double>(frame.payload.size());
    return Passage::kForward;
  });
  const std::string prompt = prompt_of(600);
  for (int i = 0; i < 2; ++i) {
    const Answer answer = between.ask(prompt, true);
    EXPECT_EQ(answer.text(), support::fake_answer(prompt, kTokens)) << answer.body;
    EXPECT_THAT(answer.route(), StartsWith("handoff"));
  }
  const Crossed sent = crossed(duo->p(), "producer"), received = crossed(duo->d(), "consumer");
  EXPECT_GT(sent.bodies, 0);
  EXPECT_EQ(sent.bodies, received.bodies);
  EXPECT_LT(received.stored, received.bodies * 0.9);
  EXPECT_EQ(sent.stored, received.stored);
  EXPECT_EQ(payload, received.stored);
  EXPECT_EQ(duo->d().worker->engine().stats().prompt_tokens_computed, 0U);
}

TEST(CodecOfAHandoff, IsForLinksThatAreSaidToBeSlow) {
  for (const std::optional<kv::Prices>& prices :
       {std::optional<kv::Prices>(), std::optional(prices_of(kLoopback))}) {
    const auto duo = duo_of({.prices = prices});
    const std::string prompt = prompt_of(600);
    EXPECT_EQ(duo->hand_over(prompt, kTokens).text(), support::fake_answer(prompt, kTokens));
    EXPECT_TRUE(duo->settled());
    const Crossed received = crossed(duo->d(), "consumer");
    EXPECT_GT(received.bodies, 0);
    EXPECT_EQ(received.stored, received.bodies);
  }
}

TEST(CodecOfAHandoff, IsNeverUsedOverSharedMemory) {
  const auto duo = duo_of({.transports = {"shm"}});
  const std::string prompt = prompt_of(600);
  const Answer answer = duo->hand_over(prompt, kTokens);
  EXPECT_EQ(answer.text(), support::fake_answer(prompt, kTokens));
  EXPECT_THAT(answer.route(), HasSubstr("transport=shm"));
  EXPECT_TRUE(duo->settled());
  const Crossed received = crossed(duo->d(), "consumer");
  EXPECT_GT(received.bodies, 0);
  EXPECT_EQ(received.stored, received.bodies);
}

TEST(CodecOfAHandoff, AFlippedBitInABodyIsCaught) {
  for (const std::uint64_t index : {0, 1, 2}) {
    SCOPED_TRACE(index);
    const auto duo = duo_of({});
    bool damages = true;
    Between between(*duo, [&](RelayedFrame& frame) {
      if (std::exchange(damages, damages && frame.index != index) && !damages)
        frame.payload[frame.payload.size() / 3] ^= std::byte{0x10};
      return Passage::kForward;
    });
    const std::string prompt = prompt_of(600);
    EXPECT_THAT(between.ask(prompt, true).error(),
                AllOf(StartsWith("corrupt: "), HasSubstr("the stored body has checksum")));
    EXPECT_FALSE(damages);
    EXPECT_EQ(Duo::count(duo->d(), "isthmus_handoffs_total", {"side=\"consumer\"", "outcome=\"corrupt\""}),
              1);
  }
}

// With a checksum that is right.
TEST(CodecOfAHandoff, WhatIsNoFrameOfTheBodyEndsInNoToken) {
  const auto duo = duo_of({});
  std::uint64_t lies = 0;
  Between between(*duo, [&](RelayedFrame& frame) {
    wire::ChunkHeader header = *wire::decode_chunk_header(frame.immediate);
    EXPECT_EQ(header.codec, wire::Codec::kZstdPlanes);
    frame.payload.back() ^= std::byte{1};  // Inside the last block.
    frame.payload[5] ^= std::byte{0x20};   // In the size that the frame states.
    header.body_checksum = digest64(frame.payload);
    std::ranges::copy(*wire::encode_chunk_header(header), frame.immediate.begin());
    ++lies;
    return Passage::kForward;
  });
  const std::string prompt = prompt_of(600);
  EXPECT_THAT(between.ask(prompt, true).error(),
              AllOf(StartsWith("malformed: "), HasSubstr("stored bytes aren't one zstd frame of")));
  EXPECT_GT(lies, 0u);
  const Answer answer = between.ask(prompt, false);
  EXPECT_EQ(answer.text(), support::fake_answer(prompt, kTokens)) << answer.body;
  EXPECT_THAT(answer.route(), StartsWith("recompute"));
}

// The channel is closed, and the handoff goes on over another one.
TEST(CodecOfAHandoff, AChunkWithOneThatWasNotAgreedOnIsRefused) {
  const auto duo = duo_of({.prices = {}});
  int lies = 0;
  Between between(*duo, [&](RelayedFrame& frame) {
    if (++lies > 1) return Passage::kForward;
    wire::ChunkHeader header = *wire::decode_chunk_header(frame.immediate);
    header.codec = wire::Codec::kZstdPlanes;
    ++header.raw_bytes;  // A header that makes sense by itself.
    header.body_checksum = digest64(frame.payload);
    std::ranges::copy(*wire::encode_chunk_header(header), frame.immediate.begin());
    return Passage::kForward;
  });
  const std::string prompt = prompt_of(600);
  const Answer answer = between.ask(prompt, true);
  EXPECT_EQ(answer.text(), support::fake_answer(prompt, kTokens)) << answer.body;
  EXPECT_THAT(answer.route(), StartsWith("handoff"));
  EXPECT_EQ(Duo::count(duo->p(), "isthmus_handoffs_total", {"side=\"producer\"", "outcome=\"peer_lost\""}),
            1);
}

TEST(CodecOfAHandoff, WhatALostConnectionLeavesIsCompressedToo) {
  const auto duo = duo_of({});
  std::uint64_t plain = 0;
  Between between(*duo, [&](RelayedFrame& frame) {
    plain += wire::decode_chunk_header(frame.immediate)->codec == wire::Codec::kNone ? 1 : 0;
    return frame.index == 1 ? Passage::kCutWithin : Passage::kForward;
  });
  const std::string prompt = prompt_of(1500);
  const Answer answer = between.ask(prompt, true);
  EXPECT_EQ(answer.text(), support::fake_answer(prompt, kTokens)) << answer.body;
  EXPECT_THAT(answer.route(), StartsWith("handoff"));
  EXPECT_EQ(Duo::count(duo->p(), "isthmus_handoffs_total", {"side=\"producer\"", "outcome=\"peer_lost\""}),
            1);
  EXPECT_EQ(plain, 0u);
}

}  // namespace
}  // namespace isthmus::faults
