// SPDX-License-Identifier: Apache-2.0
// GET /state: both ends tell the same of a handoff in flight, and nothing of what they mustn't tell.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/bytes.h"
#include "faults/duo.h"
#include "watch/worker_state.h"
#include "wire/descriptor_codec.h"

namespace isthmus::faults {
namespace {

using testing::HasSubstr;
using testing::Not;

json::Value state_of(Duo& duo, Node& node) {
  const auto asking =
      duo.send(node.http, {.method = "GET", .path = "/state", .query = {}, .headers = {}, .body = {}});
  const Answer& answer = duo.finish(*asking);
  EXPECT_EQ(answer.status, 200);
  const auto parsed = json::parse(answer.body);
  EXPECT_TRUE(parsed.ok()) << answer.body;
  return parsed.ok() ? *parsed : json::Value();
}

std::uint64_t number(const json::Value& state, const char* path) {
  const auto found = state.require<std::uint64_t>(path);
  EXPECT_TRUE(found.ok()) << path << "\n" << state.dump();
  return found.ok() ? *found : 0;
}
std::string text(const json::Value& state, const char* path) {
  const auto found = state.require<std::string>(path);
  EXPECT_TRUE(found.ok()) << path << "\n" << state.dump();
  return found.ok() ? *found : std::string();
}

TEST(State, SaysWhatAnIdleWorkerIs) {
  Duo duo;
  const json::Value state = state_of(duo, duo.d());
  EXPECT_EQ(text(state, "worker.name"), "d");
  EXPECT_EQ(text(state, "worker.endpoints.0"), duo.d().worker->agent().endpoints().at(0));
  EXPECT_EQ(text(state, "engine.storage"), "openvino:f32");
  EXPECT_EQ(text(state, "descriptor.digest"), duo.d().worker->engine().descriptor().digest().hex());
  EXPECT_EQ(state.find("descriptor.lines")->as_array()->size(),
            duo.d().worker->engine().descriptor().canonical_lines().size());
  EXPECT_TRUE(state.find("agent.handoffs")->as_array()->empty());
  EXPECT_TRUE(state.find("agent.reservations")->as_array()->empty());
  EXPECT_EQ(number(state, "ledger.live"), 0u);
  EXPECT_EQ(number(state, "ledger.capacity.bytes"), number(state, "ledger.free.bytes"));
}

TEST(State, IsWhatPeoplesToolsRead) {
  Duo duo;
  for (Node* node : {&duo.p(), &duo.d()}) {
    const auto read = watch::parse_worker_state(state_of(duo, *node).dump());
    ASSERT_TRUE(read.ok()) << read.error().text();
    EXPECT_EQ(read->name, node->name);
    EXPECT_EQ(read->capacity_bytes, node->worker->agent().ledger().capacity().kv.bytes);
    EXPECT_EQ(read->ledger.size(), handoff::kCategoryCount);
  }
}

TEST(State, GivesTheDescriptorAsBytes) {
  Duo duo;
  const auto asking =
      duo.send(duo.d().http,
               {.method = "GET", .path = "/isthmus/descriptor.pb", .query = {}, .headers = {}, .body = {}});
  const auto decoded = wire::decode_descriptor(bytes_of(duo.finish(*asking).body));
  ASSERT_TRUE(decoded.ok()) << decoded.error().text();
  EXPECT_EQ(decoded->digest(), duo.d().worker->engine().descriptor().digest());
}

TEST(State, ShowsAHandoffInFlightAlikeAtBothEnds) {
  Duo duo;
  const std::string prompt = prompt_of(600);
  duo.p().gate.hold_after(1);
  const json::Value transfer = duo.prefill(prompt, "shown");
  const auto asking = duo.ask_decode(prompt, transfer, 4);
  ASSERT_TRUE(duo.until([&] {
    return duo.p().worker->agent().snapshot(8).handoffs.size() == 1 &&
           !duo.p().worker->engine().sequences().empty() &&
           duo.d().worker->agent().ledger().held(handoff::Category::kIncoming).bytes > 0;
  }));
  const json::Value p = state_of(duo, duo.p()), d = state_of(duo, duo.d());
  EXPECT_EQ(text(p, "agent.handoffs.0.id"), text(d, "agent.handoffs.0.id"));
  EXPECT_EQ(text(p, "agent.handoffs.0.side"), "producer");
  EXPECT_EQ(text(d, "agent.handoffs.0.side"), "consumer");
  EXPECT_EQ(text(p, "agent.handoffs.0.peer"), "d");
  EXPECT_EQ(text(d, "agent.handoffs.0.peer"), "p");
  EXPECT_EQ(text(p, "agent.handoffs.0.wire"), text(d, "agent.handoffs.0.wire"));
  EXPECT_EQ(number(p, "agent.handoffs.0.bytes_total"), number(d, "agent.handoffs.0.bytes_total"));
  EXPECT_GT(number(p, "agent.handoffs.0.bytes_total"), 0u);
  for (const json::Value* state : {&p, &d}) {
    const auto lease = state->require<double>("agent.handoffs.0.lease_left_seconds");
    EXPECT_TRUE(lease.ok() && *lease > 0) << state->dump();
  }
  EXPECT_EQ(number(p, "agent.reservations.0.tokens.1"), 600u);
  EXPECT_EQ(text(p, "engine.sequences.0.kind"), "prefill");
  EXPECT_GT(number(p, "ledger.held.pinned.bytes"), 0u);
  EXPECT_GT(number(d, "ledger.held.incoming.bytes"), 0u);
  const std::string ticket = transfer.require<std::string>("isthmus_ticket").value();
  for (const json::Value* state : {&p, &d}) {
    EXPECT_THAT(state->dump(), Not(HasSubstr(ticket)));
    EXPECT_THAT(state->dump(), Not(HasSubstr(prompt.substr(0, 40))));
  }
  duo.p().gate.open();
  EXPECT_EQ(duo.finish(*asking).text(), support::fake_answer(prompt, 4));
  EXPECT_TRUE(duo.settled());
  EXPECT_TRUE(state_of(duo, duo.p()).find("agent.handoffs")->as_array()->empty());
  EXPECT_TRUE(state_of(duo, duo.d()).find("agent.handoffs")->as_array()->empty());
}

}  // namespace
}  // namespace isthmus::faults
