// SPDX-License-Identifier: Apache-2.0
// Tries each pair of workers by the canary as soon as both are there.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/time.h"
#include "doctor/pair.h"
#include "fleet/fleet.h"
#include "net/loop.h"
#include "router/core/core.h"

namespace isthmus::router::shell {

// Pairs of models whose fleet file asks for it. A worker takes part in one trial at a time. A pair is tried
// again when one of its workers has started anew, and some seconds after a trial that came to no end. Thread:
// the loop's.
class Trials {
 public:
  using Report = std::function<void(const core::PairTried&)>;
  // `fleet` must outlive this.
  Trials(net::Loop& loop, const fleet::Fleet& fleet, Report report);
  ~Trials();

  // What /ready said; another incarnation than before is another worker, whose pairs aren't known.
  void worker_ready(core::WorkerIndex worker, const std::string& incarnation);
  void worker_gone(core::WorkerIndex worker);
  // Two workers that are there haven't been tried yet.
  bool is_waiting() const;
  struct Finding {
    core::WorkerIndex prefill = 0, decode = 0;
    std::string text;  // For people: how near the states are, or why the pair isn't used.
  };
  std::vector<Finding> findings() const;  // Of pairs of which something was found.

 private:
  struct Pair {
    core::WorkerIndex prefill = 0, decode = 0;
    bool is_tried = false, is_stale = false;  // Stale: a worker has started anew while the trial ran.
    std::string finding;
    Instant due;
    std::unique_ptr<doctor::PairTrial> trial;
  };
  struct Worker {
    bool is_ready = false, is_busy = false;
    std::string incarnation;
  };
  bool is_there(const Pair& pair) const;
  void look_soon(Duration after);
  void look();
  void start(Pair& pair);
  void ended(Pair& pair, Result<doctor::PairReport> report);

  net::Loop& loop_;
  const fleet::Fleet& fleet_;
  Report report_;
  std::vector<Worker> workers_;
  std::vector<Pair> pairs_;
  std::vector<std::unique_ptr<doctor::PairTrial>> over_;  // Not destroyed from within their own callback.
  std::unique_ptr<net::Loop::Timer> timer_;
};

}  // namespace isthmus::router::shell
