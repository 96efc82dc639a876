// SPDX-License-Identifier: Apache-2.0
// `isthmus fleet check`: a fleet file, and with --live its workers and pairs, as findings.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "base/time.h"
#include "fleet/check.h"
#include "fleet/fleet.h"
#include "kv/descriptor.h"
#include "watch/fetch.h"

namespace isthmus::watch {

// One prefill and one decode worker of a model, judged by their own descriptors.
struct PairVerdict {
  std::string model, prefill, decode;  // Names.
  std::string source, target;          // Storages, as the workers tell them.
  std::string verdict;                 // kv::name(VerdictKind)
  std::uint32_t roundings = 0;
  std::vector<std::string> reasons;  // Of a reject.
  std::vector<std::string> warnings;
};

struct FleetReport {
  std::string file, fleet_name;  // The name is "" if the file can't be read.
  std::vector<fleet::Finding> findings;
  std::vector<PairVerdict> pairs;  // Live only.
  bool is_live = false;
  std::size_t models = 0, workers = 0;

  std::size_t count(fleet::Severity severity) const;
  std::string text() const;
  std::string to_json() const;
};

// Reads and checks the file. With `live`, asks each worker within `timeout`. Errors: not_found, exhausted
// (the file can't be read at all); all else is a finding.
Result<FleetReport> check_fleet_file(const std::string& path, bool live, Duration timeout);

// The live part by itself: `answers` to live_asks(). Adds to the report.
std::vector<Ask> live_asks(const fleet::Fleet& fleet);
void judge_live(const fleet::Fleet& fleet, const fleet::Source& source, const Answers& answers,
                FleetReport& report);

}  // namespace isthmus::watch
