// SPDX-License-Identifier: Apache-2.0
// See summary.h.
#include "qualify/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/rng.h"

namespace isthmus::qualify {
namespace {

constexpr std::size_t kDraws = 2000;
constexpr std::uint64_t kSeed = 1;

using OfDraw = std::function<double(std::span<const std::size_t> prompts)>;

// `figure` over all prompts, and the 2.5th and 97.5th percentile of it over prompts drawn anew.
Estimate bootstrap(std::size_t prompts, const OfDraw& figure) {
  std::vector<std::size_t> drawn(prompts);
  for (std::size_t i = 0; i < prompts; ++i) drawn[i] = i;
  Estimate result;
  result.mean = figure(drawn);
  std::vector<double> figures;
  for (std::size_t draw = 0; draw < kDraws; ++draw) {
    for (std::size_t i = 0; i < prompts; ++i)
      drawn[i] = static_cast<std::size_t>(uniform_at(kSeed, draw, i) * static_cast<double>(prompts));
    figures.push_back(figure(drawn));
  }
  std::ranges::sort(figures);
  result.low = figures[kDraws / 40];
  result.high = figures[kDraws - 1 - kDraws / 40];
  return result;
}

double ratio_of(double pair, double engines) {
  return engines > 0 ? pair / engines : pair > 0 ? 1e9 : 0;
}

Side side_of(std::span<const Measured> prompts, const Difference Measured::* whose) {
  const auto of = [&](double Difference::* figure) {
    return estimate(prompts, [=](const Measured& one) { return one.*whose.*figure; });
  };
  Side side;
  side.kl = of(&Difference::kl);
  side.first_kl = of(&Difference::first_kl);
  side.agreement = of(&Difference::agreement);
  const Estimate surprise = of(&Difference::surprise);
  side.perplexity_ratio = {std::exp(surprise.mean), std::exp(surprise.low), std::exp(surprise.high)};
  return side;
}

// "llamacpp.avx512/gguf-q4_1" -> "llamacpp/gguf-q4_1".
std::string without_instruction_set(const std::string& recipe) {
  const std::size_t slash = recipe.find('/');
  return recipe.substr(0, std::min(recipe.find('.'), slash)) + recipe.substr(slash);
}

// A quoted scalar, cut after each component: YAML joins what a backslash ends with the next line.
std::string quoted(std::string form) {
  for (std::size_t at = form.find(';'); at != std::string::npos; at = form.find(';', at + 1))
    form.insert(at + 1, "\\\n    ");
  return '"' + form + '"';
}

}  // namespace

Estimate estimate(std::span<const Measured> prompts, const std::function<double(const Measured&)>& figure) {
  std::vector<double> figures;
  for (const Measured& one : prompts) figures.push_back(figure(one));
  return bootstrap(prompts.size(), [&](std::span<const std::size_t> drawn) {
    double sum = 0;
    for (const std::size_t prompt : drawn) sum += figures[prompt];
    return sum / static_cast<double>(drawn.size());
  });
}

Summary summarise(std::span<const Measured> prompts) {
  Summary summary;
  summary.prompts = prompts.size();
  summary.perplexity_alone =
      std::exp(estimate(prompts, [](const Measured& one) { return one.surprise_alone; }).mean);
  summary.pair = side_of(prompts, &Measured::pair);
  summary.engines = side_of(prompts, &Measured::engines);
  summary.ratio = bootstrap(prompts.size(), [&](std::span<const std::size_t> drawn) {
    double pair = 0, engines = 0;
    for (const std::size_t prompt : drawn) {
      pair += prompts[prompt].pair.kl;
      engines += prompts[prompt].engines.kl;
    }
    return ratio_of(pair, engines);
  });
  summary.is_within_bar = summary.pair.kl.mean <= kv::kKlRatioMax * summary.engines.kl.mean;
  return summary;
}

kv::Qualification record_of(const kv::Descriptor& source, const kv::Descriptor& target, double kl_pair,
                            double kl_engines, std::size_t prompts) {
  return {.prefill_recipe = without_instruction_set(source.weights_recipe),
          .decode_recipe = without_instruction_set(target.weights_recipe),
          .lineage = source.identity.lineage,
          .wire_form = kv::qualification_form(source),
          .decode_form = kv::qualification_form(target),
          .kl_pair = kl_pair,
          .kl_engines = kl_engines,
          .prompts = static_cast<std::uint32_t>(prompts)};
}

std::string record_text(const kv::Qualification& record) {
  return fmt::format(
      "- prefill_recipe: {}\n  decode_recipe: {}\n  lineage: {}\n  wire_form: {}\n  decode_form: {}\n"
      "  kl_pair: {:.4e}\n  kl_engines: {:.4e}\n  prompts: {}\n",
      record.prefill_recipe, record.decode_recipe, record.lineage, quoted(record.wire_form),
      quoted(record.decode_form), record.kl_pair, record.kl_engines, record.prompts);
}

}  // namespace isthmus::qualify
