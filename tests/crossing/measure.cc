// SPDX-License-Identifier: Apache-2.0
// See measure.h.
#include "crossing/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/digest.h"
#include "engine/llamacpp/llamacpp.h"
#include "engine/llamacpp/tokenizer.h"
#include "engine/openvino/openvino.h"

namespace isthmus::crossing {
namespace {

constexpr std::size_t kLengths[] = {3,   5,   9,   16,  31,  32,  33,  48,  63,  64,  65,  100,  127,
                                    128, 129, 200, 255, 256, 257, 400, 511, 512, 513, 801, 1200, 2000};
constexpr std::uint64_t kEngineTokens = 3 * (2048 + 128);

const Tokens& corpus() {
  static const Tokens kTokens = [] {
    const auto tokenizer = *engine::llamacpp::make_tokenizer(model_path());
    std::ifstream file(ISTHMUS_CROSSING_PROMPTS);
    std::stringstream text;
    text << file.rdbuf();
    return *tokenizer->encode(text.str(), false, false);
  }();
  return kTokens;
}

double log_sum(std::span<const float> row) {
  const double top = *std::max_element(row.begin(), row.end());
  double sum = 0;
  for (const float value : row) sum += std::exp(static_cast<double>(value) - top);
  return top + std::log(sum);
}

// "llamacpp.avx512/gguf-q4_1" -> "llamacpp/gguf-q4_1": such a record covers each instruction set.
std::string without_instruction_set(const std::string& recipe) {
  const std::size_t slash = recipe.find('/');
  return recipe.substr(0, std::min(recipe.find('.'), slash)) + recipe.substr(slash);
}

}  // namespace

const kv::Policy kUnqualified{
    .exactness = kv::Exactness::kUnqualified, .roundings_max = 1, .qualifications = {}};

std::string model_path() {
  const char* path = std::getenv("ISTHMUS_TEST_MODEL");
  return path == nullptr ? "(ISTHMUS_TEST_MODEL is unset: name the GGUF file in it)" : path;
}

Result<std::unique_ptr<engine::Engine>> make_engine(const Form& form, std::uint32_t threads) {
  if (form.engine == "llamacpp") {
    return engine::llamacpp::make_llamacpp({.model_path = model_path(),
                                            .kv_type = form.kv_type,
                                            .threads = threads,
                                            .context_tokens = kEngineTokens,
                                            .sequences_max = 4});
  }
  return engine::openvino::make_openvino({.gguf_path = model_path(),
                                          .kv_type = form.kv_type,
                                          .threads = threads,
                                          .kv_tokens = kEngineTokens,
                                          .sequences_max = 4});
}

std::span<const std::size_t> prompt_lengths() {
  return kLengths;
}

Tokens prompt(std::size_t index) {
  Tokens tokens;
  for (std::size_t i = 0; i < kLengths[index]; ++i)
    tokens.push_back(corpus()[(index * 71 + i) % corpus().size()]);
  return tokens;
}

Tokens own_tokens(engine::Engine& engine, const Tokens& prompt) {
  std::string key = engine.info().version + engine.descriptor().digest().hex();
  for (const engine::TokenId token : prompt) key += fmt::format(" {}", token);
  const std::filesystem::path path = std::filesystem::path("crossing_baselines") / digest128(key).hex();
  Tokens tokens;
  if (std::ifstream file(path); file) {
    for (engine::TokenId token = 0; file >> token;) tokens.push_back(token);
    if (tokens.size() == kForced) return tokens;
  }
  const engine::SequenceId sequence = *engine.open(prompt.size() + kForced);
  const Logits last = *run_prompt(engine, sequence, prompt);
  tokens = *run_greedy(engine, sequence, last, kForced);
  engine.close(sequence);
  std::filesystem::create_directories(path.parent_path());
  std::ofstream file(path);
  for (const engine::TokenId token : tokens) file << token << ' ';
  return tokens;
}

Logits rows_alone(engine::Engine& engine, const Tokens& prompt, const Tokens& forced) {
  const engine::SequenceId sequence = *engine.open(prompt.size() + kForced);
  const Logits first = *run_prompt(engine, sequence, prompt);
  return rows_after(engine, sequence, first, forced);
}

Logits rows_after(engine::Engine& engine, engine::SequenceId sequence, const Logits& first_row,
                  const Tokens& forced) {
  Logits rows = first_row;
  const Logits more = *run_forced(engine, sequence, std::span(forced).first(kForced - 1));
  engine.close(sequence);
  rows.insert(rows.end(), more.begin(), more.end());
  return rows;
}

Reference::Reference(const Logits& rows, std::size_t vocabulary) : vocabulary_(vocabulary) {
  probabilities_.reserve(rows.size());
  for (std::size_t at = 0; at < rows.size(); at += vocabulary) {
    const std::span<const float> row(rows.data() + at, vocabulary);
    const double sum = log_sum(row);
    double term = 0;
    for (const float value : row) {
      const double log_p = static_cast<double>(value) - sum;
      probabilities_.push_back(std::exp(log_p));
      term += probabilities_.back() * log_p;
    }
    own_terms_.push_back(term);
  }
}

double Reference::kl_at(std::size_t position, const Logits& rows) const {
  const std::span<const float> row(rows.data() + position * vocabulary_, vocabulary_);
  const double sum = log_sum(row);
  const double* p = probabilities_.data() + position * vocabulary_;
  double crossed = 0;
  for (std::size_t i = 0; i < vocabulary_; ++i) crossed += p[i] * (static_cast<double>(row[i]) - sum);
  return own_terms_[position] - crossed;
}

double Reference::mean_kl(const Logits& rows) const {
  double sum = 0;
  for (std::size_t i = 1; i < own_terms_.size(); ++i) sum += kl_at(i, rows);
  return sum / static_cast<double>(own_terms_.size() - 1);
}

namespace {

// A quoted scalar, cut after each component: YAML joins what a backslash ends with the next line.
std::string quoted(std::string form) {
  for (std::size_t at = form.find(';'); at != std::string::npos; at = form.find(';', at + 1))
    form.insert(at + 1, "\\\n    ");
  return '"' + form + '"';
}

}  // namespace

std::string qualification_head(const kv::Descriptor& source, const kv::Descriptor& target) {
  return fmt::format(
      "- prefill_recipe: {}\n  decode_recipe: {}\n  lineage: {}\n  wire_form: {}\n  decode_form: {}\n",
      without_instruction_set(source.weights_recipe), without_instruction_set(target.weights_recipe),
      source.identity.lineage, quoted(kv::qualification_form(source)),
      quoted(kv::qualification_form(target)));
}

std::string qualification_figures(const Distance& distance) {
  return fmt::format("  kl_pair: {:.4e}\n  kl_engines: {:.4e}\n  prompts: {}\n", distance.mean_pair(),
                     distance.mean_engines(), distance.prompts);
}

}  // namespace isthmus::crossing
