// SPDX-License-Identifier: Apache-2.0
// Engines, agents, and what a model answers.
#include "groups/crew.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "base/rng.h"
#include "kv/descriptor.h"
#include "transport/shm/shm.h"
#include "transport/tcp/tcp.h"

namespace isthmus::groups {

Crew::Crew(net::Loop& loop, const std::string& transport, const std::string& name,
           const engine::ReferenceOptions& engine, const handoff::Timings& timings,
           std::vector<std::uint32_t> here)
    : transport_(transport == "shm" ? transport::make_shm(loop) : transport::make_tcp(loop)),
      engine_(*engine::make_reference(engine)),
      here_(std::move(here)) {
  std::uint32_t ranks = 0;
  for (const kv::RankBox& box : engine_->descriptor().partition) ranks = std::max(ranks, box.rank + 1);
  if (here_.empty()) {
    for (std::uint32_t rank = 0; rank < ranks; ++rank) here_.push_back(rank);
  }
  agents_.resize(ranks);
  for (const std::uint32_t rank : here_) {
    metrics_.push_back(std::make_unique<MetricsRegistry>());
    handoff::AgentOptions options;
    options.name = fmt::format("{}/{}", name, rank);
    options.timings = timings;
    options.rank = rank;
    options.on_state = [this](const auto& state) {
      if (const auto* consumer = std::get_if<handoff::ConsumerState>(&state)) ++entered_[*consumer];
    };
    options.capacity = {.kv = {.bytes = engine_->usage().kv_bytes_total / ranks, .blocks = 0},
                        .staging_bytes = std::uint64_t{64} << 20};
    auto made = handoff::make_agent(loop, {transport_.get()}, engine_->descriptor(), std::move(options),
                                    *metrics_.back());
    if (!made.ok()) ADD_FAILURE() << made.error().text();
    if (made.ok()) agents_[rank] = *std::move(made);
  }
}

handoff::RankAgents Crew::agents() const {
  handoff::RankAgents agents;
  for (const std::uint32_t rank : here_) agents.push_back(agents_.at(rank));
  return agents;
}

int Crew::entered(handoff::ConsumerState state) const {
  const auto found = entered_.find(state);
  return found == entered_.end() ? 0 : found->second;
}

bool Crew::is_bare() const {
  const engine::EngineUsage usage = engine_->usage();
  return usage.sequences == 0 && usage.kv_bytes_used == 0 && usage.blocks_used == 0 &&
         std::ranges::all_of(agents_, [](const auto& agent) {
           if (agent == nullptr) return true;
           const handoff::AgentSnapshot left = agent->snapshot(1);
           return left.handoffs.empty() && left.reservations.empty() && left.quarantined == 0 &&
                  agent->ledger().live() == 0 && agent->ledger().check().ok();
         });
}

std::string Crew::holdings() const {
  std::string text = fmt::format("[{} sequences", engine_->usage().sequences);
  for (const auto& agent : agents_)
    text += agent == nullptr ? ", dead" : fmt::format(", {} grants", agent->ledger().live());
  return text + "]";
}

Tokens prompt_of(std::size_t tokens) {
  Tokens prompt(tokens);
  for (std::size_t i = 0; i < tokens; ++i)
    prompt[i] = static_cast<engine::TokenId>(uniform_at(5, 0, i) * 128);
  return prompt;
}

Digest128 chain_of(const Tokens& tokens) {
  kv::TokenChain chain;
  for (const engine::TokenId token : tokens) chain.append(token);
  return chain.digest();
}

Logits run(engine::Engine& engine, engine::SequenceId sequence, std::span<const engine::TokenId> tokens) {
  const engine::StepItem item{.sequence = sequence, .tokens = tokens, .logits = 1};
  const auto output = *engine.step({&item, 1});
  return {output.logits.begin(), output.logits.end()};
}

engine::TokenId best(std::span<const float> row) {
  return static_cast<engine::TokenId>(std::ranges::max_element(row) - row.begin());
}

Logits go_on(engine::Engine& engine, engine::SequenceId sequence, engine::TokenId first) {
  Logits rows;
  for (std::size_t i = 0; i < kAnswerTokens; ++i) {
    const Logits row = run(engine, sequence, {&first, 1});
    first = best(row);
    rows.insert(rows.end(), row.begin(), row.end());
  }
  return rows;
}

Logits alone(const engine::ReferenceOptions& options, const Tokens& prompt) {
  const auto engine = *engine::make_reference(options);
  const engine::SequenceId sequence = *engine->open(prompt.size() + kAnswerTokens);
  return go_on(*engine, sequence, best(run(*engine, sequence, prompt)));
}

}  // namespace isthmus::groups
