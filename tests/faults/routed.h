// SPDX-License-Identifier: Apache-2.0
// The two workers of a Duo as a fleet file would list them.
#pragma once

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "faults/duo.h"
#include "fleet/fleet.h"
#include "net/run_until.h"

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

// As the router sees them.
inline std::size_t ready_workers(Duo& duo, const net::Endpoint& router) {
  const auto asking =
      duo.send(router, {.method = "GET", .path = "/isthmus/workers", .query = {}, .headers = {}, .body = {}});
  EXPECT_TRUE(net::run_until(duo.loop(), [&] { return asking->answer.is_over; }, kPatience));
  std::size_t found = 0;
  for (auto at = asking->answer.body.find("\"ready\":true"); at != std::string::npos;
       at = asking->answer.body.find("\"ready\":true", at + 1)) {
    ++found;
  }
  return found;
}

}  // namespace isthmus::faults
