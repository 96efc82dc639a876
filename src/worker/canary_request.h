// SPDX-License-Identifier: Apache-2.0
// POST /isthmus/canary: fetches a state by its ticket and answers how far it is from this engine's own.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "worker/canary.h"
#include "worker/incoming.h"
#include "worker/service.h"

namespace isthmus::worker {

inline constexpr std::uint64_t kCanaryTokensMax = 512;  // The engine serves nobody else meanwhile.

// Loop's thread. The service keeps it until it is over.
class Service::Canary : public std::enable_shared_from_this<Service::Canary> {
 public:
  Canary(Service& service, std::shared_ptr<http::Exchange> exchange, Prepared prepared);
  void start();

 private:
  void arrived(const Arrived& state);
  void compared(const Result<CanaryFindings>& findings);
  json::Value report(const CanaryFindings& findings, const std::vector<std::string>& wrong) const;
  void fail(const Error& why, Duration retry_after);
  void end(const char* outcome);

  Service& service_;
  std::shared_ptr<http::Exchange> exchange_;  // Null once it is over.
  Prepared prepared_;
  std::weak_ptr<Incoming> incoming_;
  bool is_comparing_ = false;            // On the engine's thread.
  CanaryLimits limits_;                  // Once the producer's state is known.
  handoff::Ending ending_;               // Of the handoff.
  handoff::GrantId own_ = 0, came_ = 0;  // Memory of this engine's sequence, and of the one that came.
};

}  // namespace isthmus::worker
