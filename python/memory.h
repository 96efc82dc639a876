// SPDX-License-Identifier: Apache-2.0
// One rank's KV memory made of Python's arrays, which it keeps alive.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kv/descriptor.h"
#include "transform/redistribute.h"

namespace isthmus::python {

using Array = nanobind::ndarray<nanobind::device::cpu, nanobind::c_contig>;

// Where the tokens of one sequence lie in one layer group.
struct Placement {
  std::vector<std::uint32_t> blocks;
  std::uint64_t first_row = 0;
  std::uint64_t first_position = 0;
  kv::TokenRange valid;
};

class Memory {
 public:
  Memory(const kv::Descriptor& descriptor, std::uint32_t rank);
  // `arrays` by (region, layer within the rank's list); layer 0 for a region of all layers. `extent`: the
  // blocks or rows that each holds. Fails unless each array has exactly the bytes that the layout says.
  void bind(std::uint32_t group, const std::map<std::pair<std::string, std::uint32_t>, Array>& arrays,
            std::uint64_t extent, Placement placement);
  const transform::RankMemory& memory() const { return memory_; }

 private:
  const kv::Descriptor descriptor_;
  transform::RankMemory memory_;
  std::map<std::uint32_t, std::vector<Array>> kept_;  // By group.
};

}  // namespace isthmus::python
