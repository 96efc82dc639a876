// SPDX-License-Identifier: Apache-2.0
#include "watch/worker_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "watch/inspect.h"
#include "watch/sample_state_test.h"

namespace isthmus::watch {
namespace {

using ::testing::HasSubstr;

TEST(WorkerStateOfJson, IsReadMemberByMember) {
  const auto state = parse_worker_state(sample_state("d1", "consumer"));
  ASSERT_TRUE(state.ok()) << state.error().text();
  EXPECT_EQ(state->name, "d1");
  EXPECT_EQ(state->blocks_total, 100u);
  ASSERT_EQ(state->handoffs.size(), 1u);
  EXPECT_EQ(state->handoffs[0].bytes_total, 4194304u);
  EXPECT_EQ(state->handoffs[0].tokens, (kv::TokenRange{0, 600}));
  ASSERT_EQ(state->ledger.size(), 3u);
  EXPECT_EQ(state->ledger[1].category, "incoming");
  EXPECT_EQ(state->ledger[1].blocks, 32u);
  EXPECT_EQ(state->descriptor_lines.size(), 2u);
}

TEST(WorkerStateOfJson, NamesTheFirstMemberAtFault) {
  EXPECT_EQ(parse_worker_state("<html>").code(), Code::kMalformed);
  EXPECT_THAT(parse_worker_state("{}").error().detail, HasSubstr("'worker.name'"));
  std::string text = sample_state("d1", "consumer");
  text.replace(text.find("\"age_seconds\":0.4"), 17, "\"age_seconds\":\"x\"");
  const auto state = parse_worker_state(text);
  EXPECT_EQ(state.code(), Code::kMalformed);
  EXPECT_THAT(state.error().detail, HasSubstr("age_seconds"));
}

TEST(Inspection, ShowsDescriptorPoolsAndStates) {
  const std::string text =
      inspection(parse_worker_state(sample_state("d1", "consumer")).value(), "http://127.0.0.1:8002");
  EXPECT_THAT(text, HasSubstr("d1 at http://127.0.0.1:8002: decode worker of m\n"));
  EXPECT_THAT(text, HasSubstr("storage openvino:u8, blocks of 32 tokens"));
  EXPECT_THAT(text, HasSubstr("625 KiB of 3.1 MiB, 20 of 100 blocks, 2 of 8 sequences"));
  EXPECT_THAT(text, HasSubstr("incoming    977 KiB, 32 blocks"));
  EXPECT_THAT(text, HasSubstr("sequence 7           resume             [0, 612)"));
  EXPECT_THAT(text, HasSubstr("handoff c0ffee01.17  receiving from p1  [0, 600)"));
  EXPECT_THAT(text, HasSubstr("1.0 MiB of 4.0 MiB over tcp"));
  EXPECT_THAT(text, HasSubstr("  groups.0.layout  region K\n                   region V\n"));
}

}  // namespace
}  // namespace isthmus::watch
