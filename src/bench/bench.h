// SPDX-License-Identifier: Apache-2.0
// Speed of the crossing, each figure beside a reference that was measured in the same run.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/record.h"

namespace isthmus::bench {

struct Options {
  std::uint64_t size_bytes = std::uint64_t{256} << 20;  // Of the source's state.
  std::uint32_t runs = 7;
  std::vector<std::string> cases;  // Those whose name contains one of these; empty: all.

  bool wants(std::string_view name) const {
    return cases.empty() || std::ranges::any_of(cases, [&](const std::string& part) {
             return name.find(part) != std::string_view::npos;
           });
  }
};

struct Sink {
  std::function<void(const Record&)> record;         // Each when it is known.
  std::function<void(const std::string&)> progress;  // What is being measured now.
};

// Two processes with real agents. Call before the process has threads. A case that fails gives a record that
// says so.
void bench_handoff(const Options& options, const Sink& sink);
// Packing, placing and reading back on one thread: each kind of rewriting that the catalogue asks for.
void bench_kv(const Options& options, const Sink& sink);

// Planning: product, proof, the target's blocks unique, runs of tokens. No byte moves.
void bench_plan(const Options& options, const Sink& sink);

// Names of the cases, in order.
std::vector<std::string> handoff_cases();
std::vector<std::string> kv_cases();
std::vector<std::string> plan_cases();

}  // namespace isthmus::bench
