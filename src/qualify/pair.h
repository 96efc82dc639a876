// SPDX-License-Identifier: Apache-2.0
// Two engines and their agents in one process: states cross through the real protocol over tcp.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "base/status.h"
#include "engine/api/engine.h"
#include "handoff/agent/agent.h"
#include "net/loop.h"
#include "transport/api/transport.h"

namespace isthmus::qualify {

using Tokens = std::vector<engine::TokenId>;
using Logits = std::vector<float>;  // [rows][vocabulary]

// A state that was prefilled by one engine and is a sequence of the other's now.
struct HandedOver {
  engine::SequenceId sequence = 0;  // The decoder's; the caller closes it.
  engine::SequenceId source = 0;    // The producer's, with room for `room` tokens too; the caller closes it.
  Logits first_row;                 // The producer's, from which the first token is sampled.
  handoff::SealInfo seal;
  handoff::Ending ending;
};

// A sequence of the producer whose prompt has been computed.
struct Computed {
  engine::SequenceId sequence = 0;
  Tokens prompt;
  Logits first_row;  // After the prompt.
};

class Pair {
 public:
  // Both engines outlive the pair. Unlike weight recipes pass under `policy`.
  Pair(engine::Engine& prefill, engine::Engine& decode, const kv::Policy& policy);
  ~Pair();

  // Prefills in tiles, moves the state while it grows, and adopts it. `before_adopt` sees the destination's
  // memory.
  Result<HandedOver> hand_over(const Tokens& prompt, std::uint64_t room,
                               const std::function<void(const kv::Binding&)>& before_adopt = {});
  // Moves the state of `source`, which stays as it is: one prefill serves many decoders. The result has no
  // source of its own.
  Result<HandedOver> hand_over(const Computed& source, std::uint64_t room);

 private:
  struct Crossing;
  // What produces and publishes the state of a reservation, tile by tile; answers with the last row.
  using Produce = std::function<Result<Logits>(Id128 reservation)>;
  Result<HandedOver> cross(const Tokens& prompt, std::uint64_t room, const Produce& produce,
                           const std::function<void(const kv::Binding&)>& before_adopt);
  Status publish(Id128 reservation, engine::SequenceId sequence, kv::TokenRange range);
  handoff::FetchEvents events(const std::shared_ptr<Crossing>& crossing);

  engine::Engine& prefill_;
  engine::Engine& decode_;
  net::Loop loop_;
  MetricsRegistry prefill_metrics_, decode_metrics_;
  std::unique_ptr<transport::Transport> transport_;
  std::unique_ptr<handoff::Agent> producer_, consumer_;
};

// Logits of the last row of `prompt`, computed in tiles like a worker does.
Result<Logits> run_prompt(engine::Engine& engine, engine::SequenceId sequence, const Tokens& prompt);
// Rows after each of `forced`, run as one chunk behind what the sequence has.
Result<Logits> run_forced(engine::Engine& engine, engine::SequenceId sequence,
                          std::span<const engine::TokenId> forced);
// Greedy tokens: `count` of them, the first from `last_row`.
Result<Tokens> run_greedy(engine::Engine& engine, engine::SequenceId sequence, const Logits& last_row,
                          std::size_t count);

}  // namespace isthmus::qualify
