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

// A model of the given shape. Identity and recipe are alike at both ends, so that the verdict is about
// storage.
Result<kv::Descriptor> plain_descriptor(const ExplainCommand& command, const kv::Storage& storage) {
  kv::Descriptor descriptor;
  descriptor.identity.architecture = "any";
  descriptor.identity.lineage = "any";
  descriptor.identity.config_digest = "any";
  descriptor.identity.tokenizer_digest = "any";
  descriptor.identity.position_scheme = "rope";
  descriptor.identity.rope_theta = 10000;
  descriptor.identity.rope_scaling = "none";
  descriptor.weights_recipe = "any";
  kv::LayerGroup group;
  for (std::uint32_t layer = 0; layer < command.layers; ++layer) group.layers.push_back(layer);
  for (const kv::DecodeForm& form : storage.forms) {
    kv::Component component;
    component.name = form.component;
    component.heads = command.heads;
    component.dim = command.dim;
    if (form.component == "k") component.value_transforms = {"rope:interleaved"};
    group.components.push_back(std::move(component));
  }
  ISTHMUS_TRY(kv::StoredGroup stored, kv::represent(storage, std::move(group)));
  descriptor.groups.push_back(std::move(stored.group));
  descriptor.representation.push_back(std::move(stored.representation));
  kv::RankBox box;
  box.layer_end = command.layers;
  box.head_end = command.heads;
  descriptor.partition.push_back(box);
  ISTHMUS_TRY(descriptor.validate());
  return descriptor;
}

Result<kv::Descriptor> descriptor_of(const ExplainCommand& command, const std::string& name) {
  ISTHMUS_TRY(const kv::Storage* storage, kv::find_storage(name));
  if (command.model_path.empty()) return plain_descriptor(command, *storage);
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
