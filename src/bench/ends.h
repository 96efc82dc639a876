// SPDX-License-Identifier: Apache-2.0
// Two processes that hand synthetic states over with real agents, and move the same bytes bare for
// comparison.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "base/status.h"
#include "bench/synthetic.h"

namespace isthmus::bench {

struct EndsSpec {
  std::string source, target;  // Storages.
  Geometry geometry;
  std::uint64_t tokens = 0;
  bool is_shared_memory = false;  // By shm instead of tcp.
};

// One handoff, from the consumer's fetch() to its owned().
struct HandoffTime {
  double seconds = 0;
  std::uint64_t bytes = 0;  // Of chunk bodies.
  // Seconds that each stage was busy: "pack", "place", "verify" on the movers' threads; "send", "receive" on
  // the loops'.
  std::map<std::string, double> busy;
};

// The producer lives in this process, the consumer in a child that ends with the object. Both time by
// themselves what they do; one call at a time.
class Ends {
 public:
  // Call before the process has threads. Errors: those of describe(), unavailable, exhausted.
  static Result<std::unique_ptr<Ends>> start(const EndsSpec& spec);
  virtual ~Ends() = default;

  // New numbers at the source, none at the target, then a handoff that must end owned. The first one also
  // connects. Errors: what ended it.
  virtual Result<HandoffTime> handoff(std::uint64_t seed) = 0;
  // New numbers likewise, then the source's memory, as it lies, through one plain tcp connection into the
  // target's (which is filled as often as it takes), `chunk_bytes` a call. Seconds at the receiver.
  virtual Result<double> plain_loop(std::uint64_t seed, std::uint64_t chunk_bytes) = 0;
  // New numbers in a memfd of the source's size, then the consumer's memcpy from its mapping of that into the
  // target's memory (which is filled as often as it takes). Seconds of the copy alone; both are mapped and
  // touched before.
  virtual Result<double> plain_copy(std::uint64_t seed) = 0;
  // One byte there and back, seconds; the median of `count`.
  virtual Result<double> round_trip(std::uint32_t count) = 0;
  virtual std::uint64_t source_bytes() const = 0;
};

}  // namespace isthmus::bench
