// SPDX-License-Identifier: Apache-2.0
// Known engine storages, as data: layout text, block size, decode forms, with engine version and source.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "kv/descriptor.h"

namespace isthmus::kv {

// What an engine does to a component's rows before it stores them, besides rope.
struct StoredTransform {
  std::string component;
  // The orthonormal Hadamard transform of each `block` elements where block divides the row, else nothing.
  std::uint32_t block = 0;
  bool grows = false;  // Of the largest block · 2^n that divides the row instead.
};

struct Storage {
  std::string name;  // "llamacpp:f16", "openvino:u8"
  std::string engine, version, source;
  std::string layout_text;  // In the notation, with the parameters of Descriptor::layout.
  std::uint32_t block_tokens =
      0;  // The engine's usual block; 0 for rows. An engine that runs with another says so.
  // granule_dim 0 with stored scales means the whole row; static scales come from the checkpoint.
  std::vector<DecodeForm> forms;
  std::vector<StoredTransform> transforms = {};
};

// All storages, in a fixed order.
const std::vector<Storage>& catalogue();
// not_found with the list of names.
Result<const Storage*> find_storage(std::string_view name);

// A layer group as one storage holds it.
struct StoredGroup {
  LayerGroup group;  // The model's, the storage's value transforms appended to the components'.
  GroupRepresentation representation;
};
// Of a checkpoint, by component: what the engine divides by before it stores codes with static scales.
using StaticScales = std::map<std::string, std::vector<float>>;
// `group` is as the model has it: components with the transforms that any storage of the engine sees
// ("rope:…"). incompatible, naming the component, if the storage holds others; not_found if it has static
// scales and the checkpoint gives none: a missing scale isn't 1.
Result<StoredGroup> represent(const Storage& storage, LayerGroup group, const StaticScales& scales = {});

// A model that isn't there, as `storage` holds it: full attention, one rank, static scales of 1, identity and
// recipe the same for every storage, so that verdicts between two of them are about storage alone.
struct PlainShape {
  std::uint32_t layers = 0, heads = 0, dim = 0;
};
// Errors: as Descriptor::validate().
Result<Descriptor> plain_descriptor(const Storage& storage, const PlainShape& shape);

}  // namespace isthmus::kv
