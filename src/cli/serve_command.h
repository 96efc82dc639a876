// SPDX-License-Identifier: Apache-2.0
// `isthmus bench serve`: load against a server, from its values to its exit code.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/time.h"
#include "load/report.h"
#include "load/shape.h"
#include "net/stream.h"

namespace isthmus::cli {

struct ServeCommand {
  net::Endpoint to;
  std::string model;          // "": the first that the server lists.
  std::vector<double> rates;  // One run each. Of these three exactly one is given.
  std::uint32_t concurrency = 0;
  bool overload = false;
  Duration window{0}, timeout{0};
  load::Lengths lengths = load::Lengths({}, {});
  load::Slo slo;
  std::uint64_t seed = 1;
  std::uint32_t connections_max = 1024;
  bool json = false;   // One object a line instead of a table.
  bool check = false;  // A run that isn't valid and a missed bar are errors.
};

int run_serve(const ServeCommand& command);

}  // namespace isthmus::cli
