// SPDX-License-Identifier: Apache-2.0
// Two descriptors from storage names, a policy, and kv's own explanation.
#include "cli/explain.h"

#include <fmt/format.h>

#include "cli/kv_commands.h"
#include "cli/qualification_data.h"
#include "engine/probe/model_facts.h"
#include "fleet/fleet.h"
#include "http/json.h"
#include "kv/catalogue.h"

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

json::Value reasons(const std::vector<kv::Reason>& all) {
  json::Array items;
  for (const kv::Reason& one : all) {
    items.push_back(json::object(
        {{"path", one.path}, {"source", one.source}, {"target", one.target}, {"text", one.text}}));
  }
  return items;
}

std::string to_json(const kv::Verdict& verdict) {
  json::Array warnings;
  for (const std::string& warning : verdict.warnings) warnings.emplace_back(warning);
  return json::object({{"verdict", kv::name(verdict.kind)},
                       {"exact", verdict.exact},
                       {"roundings", verdict.roundings},
                       {"rejects", reasons(verdict.rejects)},
                       {"redistributions", reasons(verdict.redistributions)},
                       {"conversions", reasons(verdict.conversions)},
                       {"warnings", std::move(warnings)},
                       {"wire", verdict.wire.text()}})
             .dump() +
         "\n";
}

}  // namespace

Result<Explanation> explain(const ExplainCommand& command) {
  ISTHMUS_TRY(const kv::Descriptor source, descriptor_of(command, command.source));
  ISTHMUS_TRY(const kv::Descriptor target, descriptor_of(command, command.target));
  ISTHMUS_TRY(const kv::Policy policy, policy_of(command));
  Explanation explanation;
  explanation.text = kv::explain(source, target, policy);
  const kv::Verdict verdict = kv::negotiate(source, target, policy);
  explanation.json = to_json(verdict);
  explanation.is_rejected = verdict.kind == kv::VerdictKind::kReject;
  return explanation;
}

}  // namespace isthmus::cli
