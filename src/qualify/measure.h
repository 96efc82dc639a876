// SPDX-License-Identifier: Apache-2.0
// What is measured of a pair: how its answers differ from its decoder's alone, against how the engines differ
// from each other (spec/qualification.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/api/engine.h"
#include "qualify/pair.h"

namespace isthmus::qualify {

// Tokens that are forced on everybody: the decoder's own greedy answer.
inline constexpr std::size_t kForced = 64;

// The decoder's own greedy answer to `prompt`: kForced tokens.
Result<Tokens> own_answer(engine::Engine& engine, const Tokens& prompt);
// Rows 0..63: after the prompt, and after each of the first 63 forced tokens.
Result<Logits> rows_alone(engine::Engine& engine, const Tokens& prompt, const Tokens& forced);
// Rows 0..63 of a sequence that has its prompt already; closes it.
Result<Logits> rows_after(engine::Engine& engine, engine::SequenceId sequence, const Logits& first_row,
                          const Tokens& forced);

// Rows of somebody against the decoder's alone, along the decoder's own answer; means over positions 1..63.
struct Difference {
  double kl = 0;         // KL(decoder alone ‖ somebody), nats.
  double first_kl = 0;   // Of position 0, which is sampled where the prompt was computed.
  double agreement = 0;  // Share of positions where both find the same token likeliest.
  double surprise = 0;   // Nats by which the decoder's answer is less likely, a token; below 0: likelier.
};

// The decoder alone: what others are compared with, position by position, in f64.
class Reference {
 public:
  // `rows` as of rows_alone(), along `forced`.
  Reference(const Logits& rows, const Tokens& forced, std::size_t vocabulary);
  Difference difference(const Logits& rows) const;
  double surprise() const;  // Nats a token of its own answer, positions 1..63.

 private:
  struct Position {
    double likeliness;  // Log of the forced token's probability.
    double kl;          // KL(this ‖ other).
    engine::TokenId likeliest;
  };
  Position position(std::size_t at, std::span<const float> row) const;

  std::size_t vocabulary_ = 0;
  Tokens forced_;
  std::vector<double> probabilities_;  // [position][vocabulary]
  std::vector<double> own_terms_;      // Σ p log p of each position.
  std::vector<double> likeliness_;     // Of the forced tokens.
  Tokens likeliest_;
};

// One prompt.
struct Measured {
  std::size_t tokens = 0;
  double surprise_alone = 0;  // Reference::surprise() of the decoder.
  Difference pair, engines;   // Of the pair, and of the prefill engine alone.
};

// One prompt through the pair of `prefill` and `decode`, and through each alone. The state moves as it grows.
Result<Measured> measure(Pair& pair, engine::Engine& prefill, engine::Engine& decode, const Tokens& prompt);

}  // namespace isthmus::qualify
