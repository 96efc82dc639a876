// SPDX-License-Identifier: Apache-2.0
// Models whose layers don't all keep the same: each group's state crosses in one handoff.
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <utility>

#include "base/clock.h"
#include "groups/crew.h"
#include "net/run_until.h"

namespace isthmus::groups {
namespace {

using engine::ReferenceAttention;

// Beyond a tile, so that it crosses in pieces, and with an incomplete one at the end.
constexpr std::size_t kPrompt = 300;
constexpr std::size_t kTile = 256;

struct Kind {
  const char* name;
  ReferenceAttention attention;
  const char *prefill, *decode;  // Storages of the same numbers.
};
constexpr Kind kKinds[] = {
    {"Full", ReferenceAttention::kFull, "vllm:flash_nhd", "vllm:flash_hnd"},
    {"SlidingMix", ReferenceAttention::kSlidingMix, "vllm:flash_nhd", "vllm:flash_hnd"},
    {"Mla", ReferenceAttention::kMla, "vllm:mla_bf16", "ascend:mla_nz"},
};

engine::ReferenceOptions options_of(const Kind& kind, const char* storage) {
  engine::ReferenceOptions options{.storage = storage, .kv_tokens = 1024};
  options.shape.attention = kind.attention;
  if (kind.attention == ReferenceAttention::kMla) {
    options.shape.kv_heads = 1;
    options.shape.dim = 128;
  }
  return options;
}

class LayerGroups : public testing::TestWithParam<std::tuple<Kind, const char*>> {};

TEST_P(LayerGroups, EachGroupsStateCrossesInOneHandoff) {
  const auto& [kind, transport] = GetParam();
  net::Loop loop;
  Crew p(loop, transport, "p", options_of(kind, kind.prefill));
  Crew d(loop, transport, "d", options_of(kind, kind.decode));
  const Tokens prompt = prompt_of(kPrompt);
  const Instant deadline = now() + kPatience;

  bool is_released = false, is_over = false;
  handoff::Ending ending;
  const engine::SequenceId source = *p.engine().open(kPrompt);
  const auto offered = p.agent(0).offer(
      {.prompt_tokens = kPrompt, .pinned = {.bytes = kPrompt}, .deadline = deadline}, [&](const auto&) {
        is_released = true;
        p.engine().close(source);
      });
  ASSERT_TRUE(offered.ok()) << offered.error().text();

  engine::SequenceId target = 0;
  handoff::SealInfo sealed;
  handoff::GrantId grant = 0;
  handoff::FetchEvents events;
  events.reserve = [&](kv::TokenRange range, const auto& done) {
    target = *d.engine().open(kPrompt + kAnswerTokens);
    done(d.engine().kv_sink()->bind(target, range));
  };
  events.release = [&] { d.engine().close(target); };
  events.owned = [&](const handoff::SealInfo& seal, handoff::GrantId mine, const handoff::Ending& end) {
    sealed = seal;
    grant = mine;
    ending = end;
    is_over = true;
  };
  events.ended = [&](const handoff::SealInfo*, const handoff::Ending& end) {
    ending = end;
    is_over = true;
  };
  ASSERT_TRUE(d.agent(0)
                  .fetch({.ticket = offered->ticket,
                          .endpoints = p.agent(0).endpoints(),
                          .prompt = kv::TokenChain(prompt),
                          .destination = {.bytes = kPrompt},
                          .deadline = deadline},
                         std::move(events))
                  .ok());

  Logits row;
  for (std::size_t begin = 0; begin < kPrompt; begin += kTile) {
    const kv::TokenRange range{begin, std::min(kPrompt, begin + kTile)};
    row = run(p.engine(), source, std::span(prompt).subspan(begin, range.size()));
    p.agent(0).publish(offered->reservation, range, *p.engine().kv_source()->export_range(source, range));
  }
  p.agent(0).seal(offered->reservation, {.tokens = {0, kPrompt},
                                         .token_digest = chain_of(prompt),
                                         .tile_root = {},
                                         .first_tokens = {best(row)}});
  ASSERT_TRUE(net::run_until(loop, [&] { return is_over && is_released; }, kPatience));
  ASSERT_EQ(ending.kind, handoff::TerminalKind::kOwned) << ending.error.text();
  ASSERT_TRUE(d.engine().kv_sink()->adopt(target, {0, kPrompt}).ok());
  EXPECT_EQ(go_on(d.engine(), target, sealed.first_tokens.at(0)),
            alone(options_of(kind, kind.decode), prompt));
  EXPECT_EQ(d.engine().usage().tokens_computed, kAnswerTokens) << "the decoder computed what P had";
  d.engine().close(target);
  d.agent(0).free_memory(grant);
  EXPECT_TRUE(p.is_bare() && d.is_bare()) << p.holdings() << d.holdings();
}

INSTANTIATE_TEST_SUITE_P(Kinds, LayerGroups,
                         testing::Combine(testing::ValuesIn(kKinds), testing::Values("tcp", "shm")),
                         [](const auto& each) {
                           return std::string(std::get<0>(each.param).name) + std::get<1>(each.param);
                         });

}  // namespace
}  // namespace isthmus::groups
