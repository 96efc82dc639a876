// SPDX-License-Identifier: Apache-2.0
// Which numbers cross, and where each step runs: the cheapest way that a verdict allows. Pure; both ends run
// it on one snapshot of prices and must agree.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "kv/descriptor.h"
#include "kv/negotiate.h"
#include "kv/prices.h"

namespace isthmus::kv {

// One step of one component's way, all layers, heads and tokens together.
struct ChosenStep {
  std::string_view what;    // "pack", "convert", "digest", "hop", "encode", "move", "decode", …
  std::string_view where;   // A place's name, or "transport".
  std::uint64_t bytes = 0;  // That it reads.
  std::uint64_t price = 0;  // Nanoseconds; the largest number for more than fit.
};

// What crosses of one component.
struct ComponentChoice {
  std::uint32_t group = 0;
  std::string component;
  // "direct" (nothing is converted); "producer", "beside", "consumer" (converted there, once); "through f32"
  // and the like (widened exactly at the producer, narrowed at the consumer).
  std::string way;
  WireComponent wire;
  std::vector<ChosenStep> steps;  // In the order of the way.
  std::uint64_t price = 0;        // Sum of the steps'.
};

// Inputs of a plan.
struct Choice {
  WireForm wire;
  std::vector<ComponentChoice> components;  // By group and component.
  std::uint64_t price = 0;                  // Nanoseconds, as if no step overlapped another.
  bool is_compressed = false;               // Bodies cross under the codec.
  // "0 k consumer 0123…" lines, prices and digest of the snapshot: what both ends compare.
  std::string text(const Prices& prices) const;
};

// The verdict is negotiate()'s on these two. No way rounds where the verdict says exact, none more than once.
// Of equal prices the way whose name comes first is taken, and no codec. Errors: incompatible (the verdict is
// a reject), unsupported (no place of the snapshot can run a step; naming the component).
Result<Choice> choose(const Descriptor& source, const Descriptor& target, const Verdict& verdict,
                      const Prices& prices);

// Whether bodies of `wire`, which is that of a verdict on this source, are to cross under the codec: to
// encode them, to move what is left and to decode it costs less than to move them as they are. False where a
// price of it isn't there.
bool compression_pays(const Descriptor& source, const WireForm& wire, const Prices& prices);

}  // namespace isthmus::kv
