// SPDX-License-Identifier: Apache-2.0
// One prefill, two exports, one step of each sequence.
#include "worker/canary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <utility>

#include "engine/api/run_tokens.h"
#include "engine/api/sampler.h"
#include "kvs/state.h"

namespace isthmus::worker {
namespace {

using Row = std::vector<float>;

class OpenSequence {
 public:
  OpenSequence(engine::Engine& engine, engine::SequenceId id) : engine_(engine), id_(id) {}
  ~OpenSequence() { engine_.close(id_); }
  OpenSequence(const OpenSequence&) = delete;
  OpenSequence& operator=(const OpenSequence&) = delete;
  engine::SequenceId id() const { return id_; }

 private:
  engine::Engine& engine_;
  engine::SequenceId id_;
};

double kl(const Row& own, const Row& other) {
  const double of_own = engine::log_sum(own), of_other = engine::log_sum(other);
  double sum = 0;
  for (std::size_t i = 0; i < own.size(); ++i) {
    const double log_own = double{own[i]} - of_own;
    sum += std::exp(log_own) * (log_own - (double{other[i]} - of_other));
  }
  return sum;
}

struct Exported {
  std::unique_ptr<engine::ExportedKv> memory;  // What the state points to.
  kvs::State state;
};

Result<Exported> exported(engine::Engine& engine, engine::SequenceId sequence, kv::TokenRange tokens) {
  Exported one;
  ISTHMUS_TRY(one.memory, engine.kv_source()->export_range(sequence, tokens));
  const kv::Descriptor& descriptor = engine.descriptor();
  one.state.manifest = {.descriptor = descriptor, .tokens = tokens, .chain = std::nullopt, .note = ""};
  const auto bindings = one.memory->bindings();
  one.state.ranks.push_back({descriptor.partition.front().rank, {bindings.begin(), bindings.end()}});
  return one;
}

bool has_four_bits(const kv::Descriptor& descriptor) {
  return std::ranges::any_of(descriptor.representation, [](const kv::GroupRepresentation& group) {
    return std::ranges::any_of(group.forms,
                               [](const kv::DecodeForm& form) { return kv::bits(form.codes) <= 4; });
  });
}

}  // namespace

CanaryLimits limits_for(const kv::Descriptor& source, const kv::Descriptor& target) {
  CanaryLimits limits;
  if (has_four_bits(source) || has_four_bits(target)) limits.layer_rms_max = 0.5;
  return limits;
}

Result<CanaryFindings> compare_with_own(engine::Engine& engine, std::span<const engine::TokenId> prompt,
                                        engine::SequenceId handed, engine::TokenId first) {
  if (engine.kv_source() == nullptr || engine.kv_sink() == nullptr)
    return Error{Code::kUnsupported, fmt::format("{} can't show its state", engine.info().name)};
  const kv::TokenRange tokens{0, prompt.size()};
  ISTHMUS_TRY(engine.kv_sink()->adopt(handed, tokens));
  ISTHMUS_TRY(const engine::SequenceId id, engine.open(prompt.size() + 1));
  const OpenSequence own(engine, id);
  ISTHMUS_TRY(const Row first_row, engine::run_tokens(engine, own.id(), prompt));
  CanaryFindings findings;
  findings.first_own = engine::likeliest(first_row);
  findings.first_handed = first;
  {
    ISTHMUS_TRY(const Exported ours, exported(engine, own.id(), tokens));
    ISTHMUS_TRY(const Exported theirs, exported(engine, handed, tokens));
    ISTHMUS_TRY(findings.numbers, kvs::compare_numbers(ours.state, theirs.state));
  }
  ISTHMUS_TRY(const Row own_row, engine::run_tokens(engine, own.id(), std::span(&first, 1)));
  ISTHMUS_TRY(const Row handed_row, engine::run_tokens(engine, handed, std::span(&first, 1)));
  findings.kl = kl(own_row, handed_row);
  findings.top_own = engine::likeliest(own_row);
  findings.top_handed = engine::likeliest(handed_row);
  return findings;
}

std::vector<std::string> faults(const CanaryFindings& findings, const CanaryLimits& limits) {
  std::vector<std::string> found;
  if (findings.numbers.empty()) found.emplace_back("nothing was compared");
  for (const kvs::NumberDifference& one : findings.numbers) {
    const auto is_within = [&](double rms) { return rms <= limits.layer_rms_max; };
    const auto over = std::ranges::count_if(one.layer_rms, std::not_fn(is_within));
    if (over == 0) continue;
    const std::size_t worst = one.worst_layer();
    found.push_back(
        fmt::format("{} differs in {} of {} layers, most in layer {}: by {:.2g} of its own size, at most "
                    "{:.2g} is allowed",
                    one.component, over, one.layers.size(), one.layers[worst], one.layer_rms[worst],
                    limits.layer_rms_max));
  }
  if (!(findings.kl <= limits.kl_max)) {
    found.push_back(
        fmt::format("the next token's distribution is {:.2g} nats away, at most {:.2g} is allowed",
                    findings.kl, limits.kl_max));
  }
  return found;
}

}  // namespace isthmus::worker
