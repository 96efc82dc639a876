// SPDX-License-Identifier: Apache-2.0
// Fleets for tests, made of short texts.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

#include "fleet/fleet.h"

namespace isthmus::router::core {

// "p1:prefill d1:decode@west b1:both" → workers of model "m"; '@' names a plane.
inline fleet::Fleet test_fleet(std::string_view workers,
                               fleet::OnFailure on_failure = fleet::OnFailure::kRecompute) {
  fleet::Fleet fleet;
  fleet.name = "test";
  fleet::Model model;
  model.name = "m";
  model.on_failure = on_failure;
  model.canary = fleet::Canary::kOff;
  fleet.models.push_back(model);
  while (!workers.empty()) {
    const auto end = std::min(workers.find(' '), workers.size());
    const std::string_view word = workers.substr(0, end);
    workers.remove_prefix(std::min(end + 1, workers.size()));
    const auto colon = word.find(':');
    const auto at = std::min(word.find('@'), word.size());
    fleet::Worker worker;
    worker.name = word.substr(0, colon);
    worker.role = *fleet::role_from_name(word.substr(colon + 1, at - colon - 1));
    worker.model = "m";
    worker.plane = at < word.size() ? word.substr(at + 1) : "";
    worker.http = {"127.0.0.1", static_cast<std::uint16_t>(1 + fleet.workers.size())};
    fleet.workers.push_back(worker);
  }
  return fleet;
}

}  // namespace isthmus::router::core
