// SPDX-License-Identifier: Apache-2.0
// What is measured of a pair: KL to its decoder alone, against the engines' own distance
// (spec/qualification.md).
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "crossing/pair.h"
#include "engine/api/engine.h"
#include "kv/descriptor.h"

namespace isthmus::crossing {

// Tokens that are forced on everybody: the decoder's own greedy answer.
inline constexpr std::size_t kForced = 64;
inline constexpr double kRatioMax = 1.5;  // Pair against the engines' own distance.

// The record that the bounded policy would need is what these tests write.
extern const kv::Policy kUnqualified;

std::string model_path();

// An engine with one way to store KV: "llamacpp:f16".
struct Form {
  std::string engine, kv_type;
  std::string text() const { return engine + ":" + kv_type; }
  // Four bits hold too little to be judged by the bar; such forms report their figure.
  bool is_four_bit() const {
    return kv_type.find("u4") != std::string::npos || kv_type.find("q4") != std::string::npos;
  }
};

// Room for three sequences of the longest prompt; `threads` as engines' options have it.
Result<std::unique_ptr<engine::Engine>> make_engine(const Form& form, std::uint32_t threads);

// Lengths one below, at and above each block (32), tile and chunk (256) and step (512); three over 600.
std::span<const std::size_t> prompt_lengths();
// Number `index` of prompt_lengths(). Each begins elsewhere in the corpus, which is read round and round.
Tokens prompt(std::size_t index);

// The decoder's own greedy tokens: the slow part, one forward a token, so kept between runs in the build
// folder.
Tokens own_tokens(engine::Engine& engine, const Tokens& prompt);
// Rows 0..63: after the prompt, and after each of the first 63 forced tokens.
Logits rows_alone(engine::Engine& engine, const Tokens& prompt, const Tokens& forced);
// Rows 0..63 of a sequence that has its prompt already; closes it.
Logits rows_after(engine::Engine& engine, engine::SequenceId sequence, const Logits& first_row,
                  const Tokens& forced);
// The decoder alone: what others are compared with, position by position, in f64.
class Reference {
 public:
  Reference(const Logits& rows, std::size_t vocabulary);
  // KL(this ‖ rows) in nats: the mean over positions 1..63, and at position 0.
  double mean_kl(const Logits& rows) const;
  double first_kl(const Logits& rows) const { return kl_at(0, rows); }

 private:
  double kl_at(std::size_t position, const Logits& rows) const;

  std::size_t vocabulary_ = 0;
  std::vector<double> probabilities_;  // [position][vocabulary]
  std::vector<double> own_terms_;      // Σ p log p of each position.
};

// Sums over prompts.
struct Distance {
  double pair = 0, engines = 0, first = 0;
  std::size_t prompts = 0;

  double mean_pair() const { return pair / static_cast<double>(prompts); }
  double mean_engines() const { return engines / static_cast<double>(prompts); }
  double ratio() const { return engines > 0 ? pair / engines : pair > 0 ? 1e9 : 0; }
  bool within_bar() const { return pair <= kRatioMax * engines; }
};

// One list entry of a record file (spec/qualification.md) in two pieces: what the record covers, what was
// measured.
std::string qualification_head(const kv::Descriptor& source, const kv::Descriptor& target);
std::string qualification_figures(const Distance& distance);

}  // namespace isthmus::crossing
