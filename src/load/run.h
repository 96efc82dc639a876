// SPDX-License-Identifier: Apache-2.0
// One run of load against a server: sends what is due when it is due, whatever the answers do.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "base/time.h"
#include "load/report.h"
#include "load/shape.h"
#include "net/loop.h"
#include "net/stream.h"

namespace isthmus::load {

struct RunOptions {
  net::Endpoint to;
  std::string model;
  Lengths lengths;
  Draws draws{};
  LoadShape shape{};
  Slo slo{};
  Duration window = std::chrono::seconds(30);    // New requests are due within it.
  Duration timeout = std::chrono::seconds(120);  // Of one request, from when it was due.
  std::uint32_t connections_max = 1024;          // At once; a request that finds none is counted as unsent.
};

struct Progress {
  Duration since_start{0};
  std::uint64_t due = 0, in_flight = 0, ok = 0, refused = 0, other = 0;  // Requests.
};

// Open loop: a Poisson process of shape.rate; no answer moves an arrival. Closed loop: shape.concurrency
// requests at all times, the next when one has ended, or after Retry-After (else a second) if it wasn't
// whole.
class Run {
 public:
  // Loop's thread. `done` is called by the loop, once, when the window is over and every request has its
  // outcome. invalid_argument: the rate or the concurrency.
  static Result<std::unique_ptr<Run>> start(net::Loop& loop, RunOptions options,
                                            std::function<void(Report)> done);
  virtual ~Run() = default;  // Closes all connections; `done` isn't called any more.
  // Ends it now: requests under way are cut short, `done` gets what was measured.
  virtual void stop() = 0;
  virtual Progress progress() const = 0;
};

}  // namespace isthmus::load
