// SPDX-License-Identifier: Apache-2.0
// See measure.h.
#include "qualify/measure.h"

#include <cmath>
#include <utility>

#include "engine/api/sampler.h"

namespace isthmus::qualify {

Result<Tokens> own_answer(engine::Engine& engine, const Tokens& prompt) {
  ISTHMUS_TRY(const engine::SequenceId sequence, engine.open(prompt.size() + kForced));
  const auto answer = [&]() -> Result<Tokens> {
    ISTHMUS_TRY(const Logits last, run_prompt(engine, sequence, prompt));
    return run_greedy(engine, sequence, last, kForced);
  }();
  engine.close(sequence);
  return answer;
}

Result<Logits> rows_alone(engine::Engine& engine, const Tokens& prompt, const Tokens& forced) {
  ISTHMUS_TRY(const engine::SequenceId sequence, engine.open(prompt.size() + kForced));
  const Result<Logits> first = run_prompt(engine, sequence, prompt);
  if (!first.ok()) {
    engine.close(sequence);
    return first.error();
  }
  return rows_after(engine, sequence, *first, forced);
}

Result<Logits> rows_after(engine::Engine& engine, engine::SequenceId sequence, const Logits& first_row,
                          const Tokens& forced) {
  const Result<Logits> more = run_forced(engine, sequence, std::span(forced).first(kForced - 1));
  engine.close(sequence);
  if (!more.ok()) return more.error();
  Logits rows = first_row;
  rows.insert(rows.end(), more->begin(), more->end());
  return rows;
}

Reference::Reference(const Logits& rows, const Tokens& forced, std::size_t vocabulary)
    : vocabulary_(vocabulary), forced_(forced) {
  probabilities_.reserve(rows.size());
  for (std::size_t at = 0; at < rows.size(); at += vocabulary) {
    const std::span<const float> row(rows.data() + at, vocabulary);
    const double sum = engine::log_sum(row);
    double term = 0;
    for (const float value : row) {
      const double log_p = static_cast<double>(value) - sum;
      probabilities_.push_back(std::exp(log_p));
      term += probabilities_.back() * log_p;
    }
    own_terms_.push_back(term);
    likeliness_.push_back(double{row[static_cast<std::size_t>(forced_[likeliness_.size()])]} - sum);
    likeliest_.push_back(engine::likeliest(row));
  }
}

Reference::Position Reference::position(std::size_t at, std::span<const float> row) const {
  const double sum = engine::log_sum(row);
  const double* p = probabilities_.data() + at * vocabulary_;
  double crossed = 0;
  for (std::size_t i = 0; i < vocabulary_; ++i) crossed += p[i] * (static_cast<double>(row[i]) - sum);
  return {.likeliness = double{row[static_cast<std::size_t>(forced_[at])]} - sum,
          .kl = own_terms_[at] - crossed,
          .likeliest = engine::likeliest(row)};
}

Difference Reference::difference(const Logits& rows) const {
  Difference sum;
  const std::size_t positions = own_terms_.size();
  for (std::size_t i = 0; i < positions; ++i) {
    const Position other = position(i, std::span(rows).subspan(i * vocabulary_, vocabulary_));
    if (i == 0) {
      sum.first_kl = other.kl;
      continue;
    }
    sum.kl += other.kl;
    sum.agreement += other.likeliest == likeliest_[i] ? 1 : 0;
    sum.surprise += likeliness_[i] - other.likeliness;
  }
  const auto count = static_cast<double>(positions - 1);
  sum.kl /= count;
  sum.agreement /= count;
  sum.surprise /= count;
  return sum;
}

double Reference::surprise() const {
  double sum = 0;
  for (std::size_t i = 1; i < likeliness_.size(); ++i) sum -= likeliness_[i];
  return sum / static_cast<double>(likeliness_.size() - 1);
}

Result<Measured> measure(Pair& pair, engine::Engine& prefill, engine::Engine& decode, const Tokens& prompt) {
  ISTHMUS_TRY(const Tokens forced, own_answer(decode, prompt));
  ISTHMUS_TRY(const Logits alone_rows, rows_alone(decode, prompt, forced));
  const Reference alone(alone_rows, forced, decode.info().vocabulary);
  ISTHMUS_TRY(const HandedOver handed, pair.hand_over(prompt, prompt.size() + kForced));
  ISTHMUS_TRY(const Logits engines, rows_after(prefill, handed.source, handed.first_row, forced));
  ISTHMUS_TRY(const Logits crossed, rows_after(decode, handed.sequence, handed.first_row, forced));
  return Measured{.tokens = prompt.size(),
                  .surprise_alone = alone.surprise(),
                  .pair = alone.difference(crossed),
                  .engines = alone.difference(engines)};
}

}  // namespace isthmus::qualify
