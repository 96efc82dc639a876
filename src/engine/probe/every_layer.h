// SPDX-License-Identifier: Apache-2.0
// What can be said of layers whose right values aren't known.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "engine/probe/expectation.h"
#include "kv/binding.h"
#include "kv/descriptor.h"

namespace isthmus::engine {

// Positions 0.. to `tokens` of each layer, read as described: every number finite, K and V of a layer not all
// one number, no row of a token all zero (its place was never written), and no two layers alike. Whether the
// values are right is known of layer 0 only. incompatible names layer and component.
Status check_every_layer(const kv::Descriptor& descriptor, const kv::Binding& binding, std::uint64_t tokens);

// Of a sequence that repeats one token: whatever its layers attend to is the same at each position, so each
// row of K is that of position 0, turned. By the layer's own base? `tolerance` is of relative RMS errors.
// incompatible names the layer, and the base that would fit.
Status check_rotations(const kv::Descriptor& descriptor, const kv::Binding& binding, std::uint64_t tokens,
                       const RopeBases& bases, double tolerance);

}  // namespace isthmus::engine
