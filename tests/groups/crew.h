// SPDX-License-Identifier: Apache-2.0
// A reference engine with an agent beside each of its ranks, all on one loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/digest.h"
#include "base/metrics.h"
#include "base/status.h"
#include "base/time.h"
#include "engine/reference/reference.h"
#include "handoff/agent/agent.h"
#include "handoff/agent/group.h"
#include "net/loop.h"
#include "transport/api/transport.h"

namespace isthmus::groups {

// Generous: what should happen happens in milliseconds, and sanitizers on a busy machine take their time.
inline constexpr Duration kPatience = std::chrono::seconds(60);
inline constexpr std::size_t kAnswerTokens = 6;

using Tokens = std::vector<engine::TokenId>;
using Logits = std::vector<float>;  // [rows][vocabulary]

class Crew {
 public:
  // `transport`: "tcp" or "shm". `here`: the ranks that have an agent here; none: all of them.
  Crew(net::Loop& loop, const std::string& transport, const std::string& name,
       const engine::ReferenceOptions& engine, const handoff::Timings& timings = {},
       std::vector<std::uint32_t> here = {});

  engine::ReferenceEngine& engine() { return *engine_; }
  std::uint32_t ranks() const { return static_cast<std::uint32_t>(agents_.size()); }
  handoff::Agent& agent(std::uint32_t rank) { return *agents_.at(rank); }
  const std::vector<std::uint32_t>& here() const { return here_; }
  handoff::RankAgents agents() const;  // Of the ranks here.
  transport::Transport* transport() { return transport_.get(); }
  // Destroys the rank's agent, as a process that dies does for its peers.
  void kill(std::uint32_t rank) { agents_.at(rank) = nullptr; }
  // How often a consumer's handoff of any rank has entered the state.
  int entered(handoff::ConsumerState state) const;
  // Nothing of any handoff is held any more, by the ranks that live.
  bool is_bare() const;
  std::string holdings() const;  // For messages of tests.

 private:
  std::unique_ptr<transport::Transport> transport_;
  std::unique_ptr<engine::ReferenceEngine> engine_;
  std::vector<std::unique_ptr<MetricsRegistry>> metrics_;
  std::map<handoff::ConsumerState, int> entered_;
  std::vector<std::shared_ptr<handoff::Agent>> agents_;  // By rank; null elsewhere, and of one that died.
  std::vector<std::uint32_t> here_;
};

Tokens prompt_of(std::size_t tokens);
Digest128 chain_of(const Tokens& tokens);
// Row after the last of `tokens`, run behind what the sequence has.
Logits run(engine::Engine& engine, engine::SequenceId sequence, std::span<const engine::TokenId> tokens);
engine::TokenId best(std::span<const float> row);
// Rows after each of kAnswerTokens tokens, the first of which is `first`, each next one the best.
Logits go_on(engine::Engine& engine, engine::SequenceId sequence, engine::TokenId first);
// What one engine alone answers: go_on() after the prompt.
Logits alone(const engine::ReferenceOptions& options, const Tokens& prompt);

}  // namespace isthmus::groups
