// SPDX-License-Identifier: Apache-2.0
// Whose KV memory is promised, who must wait, and whose blocks are parked meanwhile: spec/scheduler.md. Pure.
#pragma once

#include <cstdint>
#include <vector>

namespace isthmus::scheduler {

using RequestId = std::uint64_t;

// Of the engine, in blocks. block_tokens = 0: it reserves by itself, and all that it opens has room.
struct Memory {
  std::uint64_t block_tokens = 0;
  std::uint64_t pool = 0;
  std::uint64_t parking = 0;  // Beside the pool.
};

// When a request, once opened, may not wait: others read or write its blocks.
enum class Pinned : std::uint8_t { kNever, kUntilStarted, kAlways };

// What a request may come to need.
struct Claim {
  std::uint64_t tokens_now = 0;  // With its opening: its prompt.
  std::uint64_t tokens_max = 0;  // At most, 1 or more.
  Pinned pinned = Pinned::kNever;
};

// What must happen in the engine before the next step, in this order.
struct Moves {
  struct Park {
    RequestId request = 0;
    std::uint64_t blocks = 0;  // So many of its first may stay in the pool, the rest are parked.
  };
  std::vector<Park> park;
  std::vector<RequestId> unpark;  // All of its blocks.
};

// Counts in full, as if no request shared a block. `lingering`: blocks that closed requests still hold, since
// somebody reads them; what was closed counts there from its close on, as long as it does.
class Room {
 public:
  explicit Room(const Memory& memory) : memory_(memory) {}

  // Whether it may be opened now.
  bool admits(const Claim& claim, std::uint64_t lingering) const;
  void open(RequestId request, const Claim& claim);
  void start(RequestId request);  // It runs from now on; once.
  void close(RequestId request);  // Any time; unknown ones are ignored.

  struct Need {
    RequestId request = 0;
    std::uint64_t tokens = 0;  // That it has after the next step.
  };
  // Who comes back and who is preempted, so that the rest of `needs`, of started requests, have their blocks.
  Moves settle(const std::vector<Need>& needs, std::uint64_t lingering);
  bool is_preempted(RequestId request) const;

  struct Usage {
    std::uint64_t held = 0, parked = 0;  // Blocks.
    std::uint64_t preempted = 0;         // Requests.
    std::uint64_t preemptions = 0;       // Since the start.
  };
  Usage usage() const;

 private:
  struct Holder {
    RequestId request = 0;
    std::uint64_t claim = 0, held = 0, parked = 0;  // Blocks.
    Pinned pinned = Pinned::kNever;
    bool is_preempted = false;

    bool is_pinned() const { return pinned != Pinned::kNever; }
    bool may_grow() const { return held + parked < claim; }
  };
  std::uint64_t blocks(std::uint64_t tokens) const;
  Holder* find(RequestId request);
  // Blocks that nobody holds beyond one for each that runs or is pinned and may grow; 0 if there are fewer.
  std::uint64_t spare(std::uint64_t lingering) const;
  void resume_oldest(Moves& moves, std::uint64_t lingering);
  void grow(Holder& holder, Moves& moves, std::uint64_t lingering);
  bool free_one(Moves& moves);

  Memory memory_;
  std::vector<Holder> holders_;  // The oldest first.
  std::uint64_t preemptions_ = 0;
};

}  // namespace isthmus::scheduler
