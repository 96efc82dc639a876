// SPDX-License-Identifier: Apache-2.0
// The two workers of a Duo as a fleet file would list them.
#pragma once

#include <utility>
#include <vector>

#include "faults/duo.h"
#include "fleet/fleet.h"

namespace isthmus::faults {

inline std::vector<fleet::Worker> workers_of(Duo& duo) {
  std::vector<fleet::Worker> workers;
  for (const auto& [node, role] :
       {std::pair{&duo.p(), fleet::Role::kPrefill}, {&duo.d(), fleet::Role::kDecode}}) {
    fleet::Worker& worker = workers.emplace_back();
    worker.name = node->name;
    worker.role = role;
    worker.model = kModel;
    worker.http = node->http;
  }
  return workers;
}

}  // namespace isthmus::faults
