// SPDX-License-Identifier: Apache-2.0
// Element access to a KV state by the plain offset formula; shares nothing with the code that moves states.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kv/binding.h"
#include "kv/descriptor.h"
#include "kv/layout.h"

namespace isthmus::support {

// One layer group on one rank; whole-byte elements only. The binding must outlive it.
class StateView {
 public:
  StateView(const kv::Descriptor& descriptor, const kv::Binding& binding);

  std::uint32_t layers() const { return layers_; }
  std::uint32_t heads() const { return heads_; }
  std::uint32_t dim() const { return dim_; }
  kv::TokenRange positions() const { return binding_.valid; }
  bool has(const std::string& part) const;
  std::size_t bytes(const std::string& part) const;
  std::byte* at(const std::string& part, std::uint32_t layer, std::uint64_t position, std::uint32_t head,
                std::uint32_t dim) const {
    return element(place(part, layer), layer, position, head, dim);
  }

  // One row of component "k" or "v" in numbers: plain f16 and f32, and u8 with scale and zero point of the
  // row.
  std::vector<float> read_row(const std::string& component, std::uint32_t layer, std::uint64_t position,
                              std::uint32_t head) const;
  void write_row(const std::string& component, std::uint32_t layer, std::uint64_t position,
                 std::uint32_t head, const std::vector<float>& row) const;

  // Calls `f(layer, position, head)` for each row.
  template <typename F>
  void each_row(F f) const {
    for (std::uint32_t layer = 0; layer < layers(); ++layer) {
      for (std::uint64_t position = positions().begin; position < positions().end; ++position) {
        for (std::uint32_t head = 0; head < heads(); ++head) f(layer, position, head);
      }
    }
  }

 private:
  // Where a part of one layer lies; looked up once a row.
  struct Place {
    const kv::PartLayout* part;
    const kv::RegionMemory* memory;
  };
  Place place(const std::string& part, std::uint32_t layer) const;
  std::byte* element(const Place& place, std::uint32_t layer, std::uint64_t position, std::uint32_t head,
                     std::uint32_t dim) const;

  std::uint32_t layers_, heads_, dim_;
  kv::Layout layout_;
  const kv::Binding& binding_;
};

}  // namespace isthmus::support
