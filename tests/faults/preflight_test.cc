// SPDX-License-Identifier: Apache-2.0
// Which transport a handoff takes, and what is told of those that it didn't.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "faults/duo.h"
#include "net/stream.h"

namespace isthmus::faults {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::size_t kTokens = 6;

class Preflight : public ::testing::Test {
 protected:
  // The answer of D, given these endpoints of P.
  Answer decode(const json::Value& endpoints, bool fail = false) {
    json::Value transfer = duo_.prefill(prompt_);
    transfer.set("isthmus_endpoints", endpoints);
    const auto asking = duo_.ask_decode(prompt_, transfer, kTokens, {.fail = fail});
    return duo_.finish(*asking);
  }
  // P's own endpoint over a transport.
  std::string endpoint(std::string_view scheme) {
    for (const std::string& one : duo_.p().worker->agent().endpoints()) {
      if (one.starts_with(scheme)) return one;
    }
    ADD_FAILURE() << "none over " << scheme;
    return "";
  }
  double chosen(std::string_view transport) {
    return Duo::count(duo_.d(), "isthmus_transport_chosen_total", {transport});
  }
  double refused(std::string_view transport, std::string_view reason) {
    return Duo::count(duo_.d(), "isthmus_transport_refused_total", {transport, reason});
  }

  Duo duo_;
  std::string prompt_ = prompt_of(300);
};

TEST_F(Preflight, SharedMemoryIsPreferredOnOneHostWhateverTheOrder) {
  const Answer answer = decode(json::array({endpoint("tcp://"), endpoint("shm://")}));
  EXPECT_TRUE(answer.is_whole()) << answer.body;
  EXPECT_THAT(answer.route(), HasSubstr("transport=shm"));
  EXPECT_EQ(chosen("shm"), 1);
  EXPECT_EQ(chosen("tcp"), 0);
  EXPECT_TRUE(duo_.settled());
}

TEST_F(Preflight, AnEndpointWithoutASchemeIsTcps) {
  const Answer answer = decode(json::array({duo_.p().agent}));
  EXPECT_THAT(answer.route(), HasSubstr("transport=tcp"));
}

TEST_F(Preflight, WhatCannotBeUsedIsPassedOverAndCounted) {
  const Answer answer =
      decode(json::array({"shm://0123456789abcdef-1/x", "rdma://fast:1", endpoint("tcp://")}));
  EXPECT_TRUE(answer.is_whole()) << answer.body;
  EXPECT_THAT(answer.route(), StartsWith("handoff"));
  EXPECT_THAT(answer.route(), HasSubstr("transport=tcp"));
  EXPECT_EQ(refused("transport=\"shm\"", "reason=\"unsupported\""), 1);
  EXPECT_EQ(refused("transport=\"other\"", "reason=\"unsupported\""), 1);
  EXPECT_EQ(chosen("tcp"), 1);
}

TEST_F(Preflight, ASocketThatNobodyListensOnIsPassedOver) {
  const std::string gone = endpoint("shm://") + "0";
  const Answer answer = decode(json::array({gone, endpoint("tcp://")}));
  EXPECT_THAT(answer.route(), HasSubstr("transport=tcp"));
  EXPECT_EQ(refused("transport=\"shm\"", "reason=\"unavailable\""), 1);
}

TEST_F(Preflight, EveryReasonIsToldWhenNoWayLeadsToTheProducer) {
  const Answer answer =
      decode(json::array({"rdma://fast:1", "shm://0123456789abcdef-1/x", "nonsense"}), true);
  EXPECT_NE(answer.status, 200);
  EXPECT_THAT(answer.error(), HasSubstr("rdma://fast:1: unsupported"));
  EXPECT_THAT(answer.error(), HasSubstr("shm://0123456789abcdef-1/x: unsupported"));
  EXPECT_THAT(answer.error(), HasSubstr("nonsense: invalid_argument"));
}

TEST(PreflightOfOneTransport, EachIsEnoughAlone) {
  for (const char* transport : {"shm", "tcp"}) {
    SCOPED_TRACE(transport);
    Duo duo("llamacpp:f16", "openvino:f32", [&](Node& p, Node& d) {
      p.transports = {transport};
      d.transports = {"tcp", "shm"};
    });
    EXPECT_EQ(duo.p().worker->agent().endpoints().size(), 1u);
    const Answer answer = duo.hand_over(prompt_of(300), kTokens);
    EXPECT_THAT(answer.route(), HasSubstr(std::string("transport=") + transport));
    EXPECT_TRUE(duo.settled());
  }
}

TEST(PreflightOfOneTransport, AnUnknownNameStopsTheWorkersStart) {
  net::Loop loop;
  worker::WorkerParts parts;
  parts.transports = {"pigeon"};
  const auto worker = worker::Worker::start(loop, std::move(parts));
  ASSERT_FALSE(worker.ok());
  EXPECT_THAT(worker.error().text(), HasSubstr("'pigeon' isn't one of shm, tcp"));
}

}  // namespace
}  // namespace isthmus::faults
