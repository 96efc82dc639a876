// SPDX-License-Identifier: Apache-2.0
// Two descriptors from storage names, a policy, and kv's own explanation.
#include "cli/explain.h"

#include <fmt/format.h>

#include <optional>
#include <span>
#include <string>
#include <utility>

#include "cli/kv_commands.h"
#include "cli/qualification_data.h"
#include "engine/probe/model_facts.h"
#include "fleet/fleet.h"
#include "http/json.h"
#include "kv/catalogue.h"
#include "kv/choose.h"
#include "kv/prices.h"
#include "kvs/file.h"

namespace isthmus::cli {
namespace {

Result<kv::Descriptor> descriptor_of(const ExplainCommand& command, const std::string& name) {
  if (is_kvs_file(name)) return descriptor_of_file(name);
  ISTHMUS_TRY(const kv::Storage* storage, kv::find_storage(name));
  if (command.model_path.empty()) {
    return kv::plain_descriptor(*storage,
                                {.layers = command.layers, .heads = command.heads, .dim = command.dim});
  }
  ISTHMUS_TRY(const engine::ModelFacts facts, engine::read_model_facts(command.model_path));
  return engine::describe(facts, *storage);
}

Result<kv::Policy> policy_of(const ExplainCommand& command) {
  kv::Policy policy;
  policy.exactness = kv::Exactness::kBounded;
  if (command.fleet_file.empty()) {
    ISTHMUS_TRY(policy.qualifications, built_in_qualifications());
  } else {
    ISTHMUS_TRY(const fleet::Fleet fleet, fleet::load_fleet(command.fleet_file));
    policy = fleet.policy(fleet.models.front());
  }
  if (command.exactness.has_value()) policy.exactness = *command.exactness;
  return policy;
}

Result<std::optional<kv::Prices>> prices_of(const ExplainCommand& command) {
  if (command.prices.empty()) return std::optional<kv::Prices>();
  if (command.prices == "reference") return std::optional(kv::Prices::reference(command.tokens));
  ISTHMUS_TRY(const kvs::InputFile file, kvs::open_input(command.prices));
  constexpr std::uint64_t kBytesMax = 256 * 1024;
  if (file.size > kBytesMax)
    return Error{Code::kExhausted, fmt::format("{}: {} bytes", command.prices, file.size)};
  std::string text(file.size, '\0');
  ISTHMUS_TRY(file.read(std::as_writable_bytes(std::span(text))));
  auto prices = kv::Prices::parse(text);
  if (!prices.ok()) return std::move(prices).error();
  return std::optional(*std::move(prices));
}

json::Value reasons(const std::vector<kv::Reason>& all) {
  json::Array items;
  for (const kv::Reason& one : all) {
    items.push_back(json::object(
        {{"path", one.path}, {"source", one.source}, {"target", one.target}, {"text", one.text}}));
  }
  return items;
}

json::Value ways(const kv::Choice& choice) {
  json::Array all;
  for (const kv::ComponentChoice& one : choice.components) {
    json::Array steps;
    for (const kv::ChosenStep& step : one.steps) {
      steps.push_back(json::object(
          {{"step", step.what}, {"where", step.where}, {"bytes", step.bytes}, {"nanoseconds", step.price}}));
    }
    all.push_back(json::object({{"group", one.group},
                                {"component", one.component},
                                {"way", one.way},
                                {"wire", one.wire.text()},
                                {"nanoseconds", one.price},
                                {"steps", std::move(steps)}}));
  }
  return all;
}

std::string to_json(const kv::Verdict& verdict, const std::optional<kv::Choice>& choice) {
  json::Array warnings;
  for (const std::string& warning : verdict.warnings) warnings.emplace_back(warning);
  return json::object({{"verdict", kv::name(verdict.kind)},
                       {"exact", verdict.exact},
                       {"roundings", verdict.roundings},
                       {"rejects", reasons(verdict.rejects)},
                       {"redistributions", reasons(verdict.redistributions)},
                       {"conversions", reasons(verdict.conversions)},
                       {"warnings", std::move(warnings)},
                       {"wire", choice ? choice->wire.text() : verdict.wire.text()},
                       {"ways", choice ? ways(*choice) : json::Value()},
                       {"nanoseconds", choice ? json::Value(choice->price) : json::Value()}})
             .dump() +
         "\n";
}

}  // namespace

Result<Explanation> explain(const ExplainCommand& command) {
  ISTHMUS_TRY(const kv::Descriptor source, descriptor_of(command, command.source));
  ISTHMUS_TRY(const kv::Descriptor target, descriptor_of(command, command.target));
  ISTHMUS_TRY(const kv::Policy policy, policy_of(command));
  Explanation explanation;
  ISTHMUS_TRY(const std::optional<kv::Prices> prices, prices_of(command));
  explanation.text = kv::explain(source, target, policy, prices ? &*prices : nullptr);
  const kv::Verdict verdict = kv::negotiate(source, target, policy);
  std::optional<kv::Choice> choice;
  if (prices && verdict.kind != kv::VerdictKind::kReject) {
    ISTHMUS_TRY(choice, kv::choose(source, target, verdict, *prices));
  }
  explanation.json = to_json(verdict, choice);
  explanation.is_rejected = verdict.kind == kv::VerdictKind::kReject;
  return explanation;
}

}  // namespace isthmus::cli
