// SPDX-License-Identifier: Apache-2.0
// A verdict as text for people, in aligned columns.
#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "kv/choose.h"
#include "kv/negotiate.h"
#include "kv/prices.h"

namespace isthmus::kv {
namespace {

constexpr std::size_t kLabelColumn = 14;

std::string line(std::string_view label, std::string_view value) {
  return fmt::format("{:<{}}{}\n", label, kLabelColumn, value);
}

std::string_view name(Exactness exactness) {
  constexpr std::array<std::string_view, 3> kNames{"lossless", "bounded", "unqualified"};
  return kNames.at(static_cast<std::size_t>(exactness));
}

// Path, then both values below each other, so that the eye finds what differs.
std::string reasons(std::string_view title, const std::vector<Reason>& all, bool with_text) {
  if (all.empty()) return "";
  std::size_t width = 0;
  for (const Reason& reason : all) width = std::max(width, reason.path.size());
  std::string out = fmt::format("\n{}\n", title);
  for (const Reason& reason : all) {
    const auto value = [](const std::string& text) { return text.empty() ? std::string("(none)") : text; };
    out += fmt::format("  {:<{}}  source  {}\n", reason.path, width, value(reason.source));
    out += fmt::format("  {:<{}}  target  {}\n", "", width, value(reason.target));
    if (with_text) out += fmt::format("  {:<{}}  why     {}\n", "", width, reason.text);
  }
  return out;
}

std::string wire_text(const WireForm& wire) {
  std::string out = "\nwire form (rows in head, token, element order; the source's numbers)\n";
  for (std::size_t group = 0; group < wire.groups.size(); ++group) {
    for (const WireComponent& component : wire.groups[group])
      out += fmt::format("  group {:<4}  {}\n", group, component.text());
  }
  return out;
}

std::string steps_text(const Verdict& verdict) {
  const bool converts = !verdict.conversions.empty();
  std::vector<std::array<std::string_view, 3>> steps{
      {"pack", "producer", "source layout to wire rows, digesting each tile"},
      {"move", "transport", "chunks as prefill publishes them"},
      {"check", "consumer", "tile digests, before anything is placed"},
  };
  if (converts) steps.push_back({"convert", "consumer", "wire form to the target's, through f32, once"});
  steps.push_back({"place", "consumer", "wire rows to target layout"});
  steps.push_back({"verify", "consumer",
                   verdict.exact ? "read back, exact inverse or digests taken in the conversion"
                                 : "read back, digests of the target's form"});
  std::string out = "\nsteps\n";
  for (const auto& [step, where, what] : steps)
    out += fmt::format("  {:<10}  {:<10}  {}\n", step, where, what);
  return out;
}

std::string microseconds(std::uint64_t nanoseconds) {
  return fmt::format("{}.{:03}", nanoseconds / 1000, nanoseconds % 1000);
}

// Steps of one kind at one place, all components together, in the order of the way.
std::string priced_text(const Choice& choice, const Prices& prices) {
  std::vector<ChosenStep> steps;
  for (const std::string_view what :
       {"pack", "digest", "hop", "convert", "encode", "move", "decode", "check", "place", "verify"}) {
    for (const ComponentChoice& component : choice.components) {
      for (const ChosenStep& one : component.steps) {
        if (one.what != what) continue;
        const auto known = std::find_if(steps.begin(), steps.end(), [&](const ChosenStep& step) {
          return step.what == one.what && step.where == one.where;
        });
        if (known == steps.end()) {
          steps.push_back(one);
        } else {
          known->bytes += one.bytes;
          known->price += one.price;
        }
      }
    }
  }
  std::string out = "\nwire form (rows in head, token, element order), by the cheapest way\n";
  for (const ComponentChoice& one : choice.components)
    out += fmt::format("  group {:<4}  {}, {}: {} us\n", one.group, one.wire.text(), one.way,
                       microseconds(one.price));
  out += fmt::format("\nsteps for {} tokens, by prices {}\n", prices.tokens, prices.digest().hex());
  for (const ChosenStep& one : steps) {
    out += fmt::format("  {:<10}  {:<10}  {:>14} bytes  {:>14} us\n", one.what, one.where, one.bytes,
                       microseconds(one.price));
  }
  return out + fmt::format("  {:<10}  {:<10}  {:>14}        {:>14} us\n", "all", "", "",
                           microseconds(choice.price));
}

std::string bytes_text(const Descriptor& source, const Descriptor& target, const WireForm& crossing) {
  const auto forms = [](const Descriptor& descriptor) {
    std::vector<std::vector<DecodeForm>> all;
    all.reserve(descriptor.representation.size());
    for (const GroupRepresentation& group : descriptor.representation) all.push_back(group.forms);
    return all;
  };
  std::vector<std::vector<DecodeForm>> wire;
  for (const std::vector<WireComponent>& group : crossing.groups) {
    std::vector<DecodeForm>& forms_of_group = wire.emplace_back();
    for (const WireComponent& component : group) forms_of_group.push_back(component.form);
  }
  const std::array<std::pair<std::string_view, double>, 3> rows{{
      {"source", bytes_per_token(source.groups, forms(source))},
      {"wire", bytes_per_token(source.groups, wire)},
      {"target", bytes_per_token(target.groups, forms(target))},
  }};
  std::string out = "\nbytes a token\n";
  for (const auto& [where, bytes] : rows) out += fmt::format("  {:<10}  {:>12.0f}\n", where, bytes);
  return out;
}

std::string weights_text(const Descriptor& source, const Descriptor& target, const Policy& policy) {
  std::string out = line("weights", fmt::format("{} -> {}", source.weights_recipe, target.weights_recipe));
  const Qualification* record = find_qualification(source, target, policy);
  if (record != nullptr) {
    out += line("qualified",
                fmt::format("KL {:.3g} to the decoder alone, {:.3g} between the engines, {} prompts",
                            record->kl_pair, record->kl_engines, record->prompts));
  }
  return out;
}

}  // namespace

std::string explain(const Descriptor& source, const Descriptor& target, const Policy& policy,
                    const Prices* prices) {
  const Verdict verdict = negotiate(source, target, policy);
  const bool is_reject = verdict.kind == VerdictKind::kReject;
  std::string out = line("verdict", name(verdict.kind));
  if (!is_reject) {
    out += line("exact", verdict.exact ? "yes, the target's bits restore the source's"
                                       : fmt::format("no, roundings: {}", verdict.roundings));
  }
  out +=
      line("policy", fmt::format("{}, roundings at most {}", name(policy.exactness), policy.roundings_max));
  if (!is_reject) {
    out += line("model", fmt::format("{} {}", source.identity.architecture, source.identity.lineage));
    out += weights_text(source, target, policy);
  }
  out += reasons("forbidden by", verdict.rejects, true);
  out += reasons("redistribute", verdict.redistributions, false);
  out += reasons("convert", verdict.conversions, false);
  if (!verdict.warnings.empty()) out += "\nwarnings\n";
  for (const std::string& warning : verdict.warnings) out += fmt::format("  {}\n", warning);
  if (is_reject) return out;
  if (prices == nullptr)
    return out + wire_text(verdict.wire) + steps_text(verdict) + bytes_text(source, target, verdict.wire);
  const Result<Choice> choice = choose(source, target, verdict, *prices);
  if (!choice.ok()) return out + fmt::format("\nno way by these prices: {}\n", choice.error().detail);
  return out + priced_text(*choice, *prices) + bytes_text(source, target, choice->wire);
}

}  // namespace isthmus::kv
