// SPDX-License-Identifier: Apache-2.0
// Two descriptors from storage names, a policy, and kv's own explanation.
#include "cli/explain.h"

#include <fmt/format.h>

#include "cli/qualification_data.h"
#include "engine/probe/model_facts.h"
#include "fleet/fleet.h"
#include "kv/catalogue.h"

namespace isthmus::cli {
namespace {

Result<kv::Descriptor> descriptor_of(const ExplainCommand& command, const std::string& name) {
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

}  // namespace

Result<Explanation> explain(const ExplainCommand& command) {
  ISTHMUS_TRY(const kv::Descriptor source, descriptor_of(command, command.source));
  ISTHMUS_TRY(const kv::Descriptor target, descriptor_of(command, command.target));
  ISTHMUS_TRY(const kv::Policy policy, policy_of(command));
  Explanation explanation;
  explanation.text = kv::explain(source, target, policy);
  explanation.is_rejected = kv::negotiate(source, target, policy).kind == kv::VerdictKind::kReject;
  return explanation;
}

}  // namespace isthmus::cli
