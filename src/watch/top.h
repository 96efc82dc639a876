// SPDX-License-Identifier: Apache-2.0
// The moving picture of a fleet: samples of all workers and the router, and a page made of two of them.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/time.h"
#include "watch/fetch.h"
#include "watch/worker_state.h"

namespace isthmus::watch {

// Who is asked. Workers of a fleet file have its names and roles; those given by URL are named by it.
struct TopTargets {
  struct Worker {
    std::string name, role;
    net::Endpoint http;
  };
  std::vector<Worker> workers;
  std::optional<net::Endpoint> router;
};

// Sums of Prometheus samples by name and, where the caller gave a label, by its value: "name" or
// "name|value".
using Numbers = std::map<std::string, double>;
// Reads the text format; lines that aren't samples are skipped. `label` of a metric's samples splits its sum.
Numbers read_metrics(std::string_view text, const std::map<std::string, std::string>& label_by_metric);

struct WorkerSample {
  Result<WorkerState> state = Error{Code::kUnavailable, "not asked yet"};
  Numbers metrics;
};
struct Sample {
  Instant at;
  std::vector<WorkerSample> workers;  // In the order of the targets.
  std::optional<Result<Numbers>> router;
};

std::vector<Ask> asks_of(const TopTargets& targets);
// `answers` to asks_of() of the same targets.
Sample sample_of(const TopTargets& targets, const Answers& answers, Instant at);

struct PageOptions {
  std::string title;          // "fleet demo"
  std::size_t columns = 100;  // Lines are cut to it.
  std::string every;          // "1.0 s"; "" without a note on refreshing.
};
// Rates are over the time between the samples; without an earlier one they are left out.
std::string page(const TopTargets& targets, const Sample* before, const Sample& now,
                 const PageOptions& options);
// The same for programs: one JSON object.
std::string page_json(const TopTargets& targets, const Sample* before, const Sample& now);

}  // namespace isthmus::watch
