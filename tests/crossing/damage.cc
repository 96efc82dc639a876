// SPDX-License-Identifier: Apache-2.0
// Damage by the plain offset formula, so that it shares nothing with the code that placed the state.
#include "crossing/damage.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "support/state_view.h"

namespace isthmus::crossing {
namespace {

void swap_bytes(std::byte* a, std::byte* b, std::size_t n) {
  std::swap_ranges(a, a + n, b);
}

// Interleaved pairs become halves, as if the rope pairing had been mistaken.
void permute_rope(const kv::Descriptor& descriptor, const kv::Binding& binding) {
  const support::StateView state(descriptor, binding);
  const std::size_t size = state.bytes("k");
  const std::uint32_t dim = state.dim();
  std::vector<std::byte> row(dim * size);
  state.each_row([&](std::uint32_t layer, std::uint64_t position, std::uint32_t head) {
    for (std::uint32_t d = 0; d < dim; ++d)
      std::memcpy(&row[d * size], state.at("k", layer, position, head, d), size);
    for (std::uint32_t i = 0; i < dim / 2; ++i) {
      std::memcpy(state.at("k", layer, position, head, i), &row[2 * i * size], size);
      std::memcpy(state.at("k", layer, position, head, i + dim / 2), &row[(2 * i + 1) * size], size);
    }
  });
}

void swap_k_v(const kv::Descriptor& descriptor, const kv::Binding& binding) {
  const support::StateView state(descriptor, binding);
  state.each_row([&](std::uint32_t layer, std::uint64_t position, std::uint32_t head) {
    for (std::uint32_t d = 0; d < state.dim(); ++d) {
      swap_bytes(state.at("k", layer, position, head, d), state.at("v", layer, position, head, d),
                 state.bytes("k"));
    }
    for (const char* side : {".s", ".z"}) {
      const std::string k = std::string("k") + side, v = std::string("v") + side;
      if (state.has(k))
        swap_bytes(state.at(k, layer, position, head, 0), state.at(v, layer, position, head, 0),
                   state.bytes(k));
    }
  });
}

void drop_layer(const kv::Descriptor& descriptor, const kv::Binding& binding) {
  const support::StateView state(descriptor, binding);
  const std::uint32_t missing = state.layers() / 2;
  state.each_row([&](std::uint32_t layer, std::uint64_t position, std::uint32_t head) {
    if (layer != missing) return;
    for (const char* part : {"k", "v"}) {
      for (std::uint32_t d = 0; d < state.dim(); ++d)
        std::memset(state.at(part, layer, position, head, d), 0, state.bytes(part));
    }
    for (const char* part : {"k.s", "k.z", "v.s", "v.z"}) {
      if (state.has(part)) std::memset(state.at(part, layer, position, head, 0), 0, state.bytes(part));
    }
  });
}

// Each head's codes get the scale and zero point of the next head.
void shift_scales(const kv::Descriptor& descriptor, const kv::Binding& binding) {
  const support::StateView state(descriptor, binding);
  state.each_row([&](std::uint32_t layer, std::uint64_t position, std::uint32_t head) {
    if (head + 1 == state.heads()) return;
    for (const char* part : {"k.s", "k.z", "v.s", "v.z"}) {
      swap_bytes(state.at(part, layer, position, head, 0), state.at(part, layer, position, head + 1, 0),
                 state.bytes(part));
    }
  });
}

}  // namespace

std::vector<Damage> damages(const kv::Descriptor& descriptor) {
  std::vector<Damage> all{{"a needless rope permutation", permute_rope},
                          {"K and V swapped", swap_k_v},
                          {"one layer missing", drop_layer}};
  if ((*descriptor.layout(0, 0)).part("k.s").ok()) all.push_back({"scales off by one head", shift_scales});
  return all;
}

}  // namespace isthmus::crossing
