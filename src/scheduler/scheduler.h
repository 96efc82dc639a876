// SPDX-License-Identifier: Apache-2.0
// Which tokens run in the next forward: continuous batching of decodes and prefill chunks, over memory that
// is promised and taken back by spec/scheduler.md. Pure.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "base/status.h"
#include "scheduler/room.h"

namespace isthmus::scheduler {

struct Limits {
  std::uint32_t step_tokens_max = 512;  // Tokens of one forward.
  std::uint32_t sequences_max = 8;      // Running at once; one token of the budget is kept for each.
  // Prefill is cut at multiples of this position, the tile of the wire form: each step publishes whole tiles.
  std::uint32_t prefill_cut_tokens = 256;
  // Every chunk but the prompt's last ends at a multiple of this: the engine's block, where a chunk that ends
  // inside one would cost it bits, and never one token, which engines compute by other kernels than several.
  // Divides prefill_cut_tokens.
  std::uint32_t prefill_unit_tokens = 2;

  // Whether any mix of sequences_max requests advances: 2 or more a unit, whole units in a cut, and room in a
  // step for a decode of each other sequence and two tokens more than a unit.
  bool are_sound() const;
};

// Positions [begin, end) of one request run in the next step.
struct Item {
  RequestId request = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  bool completes_prompt = false;  // Its last logits row is the first that is sampled from.
  bool is_decode = false;
};

// Requests are served in the order of their arrival; decodes go first, so that a long prefill costs each of
// them at most one step of step_tokens_max. Prefill gets what is left of the budget, so it isn't starved
// either. A chunk of prefill has two tokens or more, unless one is all that a request lacks.
class Scheduler {
 public:
  explicit Scheduler(const Limits& limits, const Memory& memory = {});  // Sound ones.

  // Whether memory may be promised to one more, and who has it from now on, until close(). `lingering`: as
  // Room's.
  bool admits(const Claim& claim, std::uint64_t lingering) const { return room_.admits(claim, lingering); }
  void open(RequestId request, const Claim& claim) { room_.open(request, claim); }

  // A request with `prompt` tokens of which `computed` have state already (all of them: it decodes next) runs
  // from now on. exhausted if sequences_max run.
  Status add(RequestId request, std::uint64_t prompt, std::uint64_t computed);
  void remove(RequestId request);  // It keeps its memory. Any time; unknown ids are ignored.
  void close(RequestId request);   // Removed too.
  std::size_t size() const { return running_.size(); }

  // What must move so that the next step has its memory. Before each step.
  Moves settle(std::uint64_t lingering);
  bool is_preempted(RequestId request) const { return room_.is_preempted(request); }
  Room::Usage room() const { return room_.usage(); }

  // What runs next; empty if nothing can. Calling it changes nothing.
  std::vector<Item> next() const;
  // The step that next() described was run.
  void ran(const std::vector<Item>& items);

 private:
  struct Running {
    RequestId request = 0;
    std::uint64_t prompt = 0;
    std::uint64_t computed = 0;
  };
  bool may_end_at(const Running& running, std::uint64_t end) const;
  std::uint64_t cut(const Running& running, std::uint64_t budget) const;

  Limits limits_;
  Room room_;
  std::deque<Running> running_;
};

}  // namespace isthmus::scheduler
