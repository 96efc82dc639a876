// SPDX-License-Identifier: Apache-2.0
// The agent's metrics. Handles are kept, because to look one up in the registry takes as long as to send a
// message.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "base/metrics.h"
#include "base/status.h"
#include "base/time.h"
#include "handoff/core/protocol.h"

namespace isthmus::handoff {

// Loop's thread; the handles from any.
class Meters {
 public:
  explicit Meters(MetricsRegistry& registry) : registry_(registry) {}

  Counter busy(const std::string& stage);  // Processor seconds of the mover.
  // Bytes of chunk bodies: as they are, and as they crossed.
  struct Moved {
    Counter bodies, stored;
    void add(std::uint64_t body_bytes, std::uint64_t stored_bytes) const {
      bodies.add(static_cast<double>(body_bytes));
      stored.add(static_cast<double>(stored_bytes));
    }
  };
  Moved moved(const std::string& side, const std::string& wire);
  void ended(const std::string& side, TerminalKind kind);
  void stage(const std::string& stage, Duration took);
  void transport_chosen(const std::string& transport);
  void transport_refused(std::string_view transport, Code why);
  void peer_refused(Code why);
  void ticket_refused(std::string_view why);
  void quarantined();
  void consumer_reached();

 private:
  MetricsRegistry& registry_;
  std::map<std::pair<std::string, std::string>, Moved> moved_;
  std::map<std::pair<std::string, std::string>, Counter> ended_;
  std::map<std::string, Counter> chosen_;
  std::map<std::string, Histogram> stages_;
};

}  // namespace isthmus::handoff
