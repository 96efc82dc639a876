// SPDX-License-Identifier: Apache-2.0
// Asks each worker again and again whether it is ready.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/time.h"
#include "fleet/fleet.h"
#include "http/client.h"
#include "net/loop.h"
#include "router/core/core.h"

namespace isthmus::router::shell {

// GET /ready of every worker at once and then `interval` after each answer. 200 is ready; anything else, or
// no answer within two seconds, is not, with a reason. Thread: the loop's.
class Health {
 public:
  using Report = std::function<void(core::WorkerIndex worker, bool ready, std::string reason)>;
  // `workers` must outlive this. `report` is called after each check, never from within start() or
  // check_soon().
  Health(net::Loop& loop, const std::vector<fleet::Worker>& workers, Duration interval, Report report);
  ~Health();

  void start();
  // A request just failed there: don't wait for the interval. A check in flight counts as that.
  void check_soon(core::WorkerIndex worker);
  // Endpoints of the worker's handoff agent, a JSON array's text as it last told them; "" if it hasn't.
  const std::string& agent_endpoints(core::WorkerIndex worker) const { return checks_[worker].agent; }
  // Of the process that was ready last, as it told it: another one after each start. "" if it hasn't.
  const std::string& incarnation(core::WorkerIndex worker) const { return checks_[worker].incarnation; }

 private:
  struct Check {
    std::unique_ptr<http::Call> call;
    std::unique_ptr<net::Loop::Timer> next;
    bool in_flight = false;
    std::string agent, incarnation;
  };
  void check(core::WorkerIndex worker);
  void answered(core::WorkerIndex worker, const Result<http::Response>& answer);

  net::Loop& loop_;
  const std::vector<fleet::Worker>& workers_;
  Duration interval_;
  Report report_;
  std::unique_ptr<http::Client> client_;
  std::vector<Check> checks_;
};

}  // namespace isthmus::router::shell
