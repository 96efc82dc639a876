// SPDX-License-Identifier: Apache-2.0
// What may go wrong in the virtual world, and how often.
#pragma once

#include <cstdint>

namespace isthmus::handoff::sim {

// Probabilities.
struct Faults {
  // Of a control frame. Slow: seconds late.
  double control_lost = 0, control_repeated = 0, control_slow = 0;
  // Of a chunk: its data channel dies under it.
  double channel_dies = 0;
  // Of a request, at a random moment: one direction of a link stands still; all its connections break; an
  // agent dies, stops, or stops with its clock. Agents die right after owning as often.
  double partition = 0, cut = 0, crash = 0, pause = 0, clock_stops = 0;
  // Of a chunk: a bit flips where it has landed, or where it has been placed.
  double flips_in_staging = 0, flips_when_placed = 0;
  // Of an allocation. Small pools: the ledgers refuse too.
  double refuses_memory = 0;
  bool small_pools = false;
  // Of a pack, a placement, a reading back: it takes seconds, and may fail then. Of a seal ten times as
  // often.
  double sticks = 0;
  // Of a handoff: each placement takes long.
  double slow_reader = 0;
  // Of a request. Preempt: of each step of prefill, and once after it.
  double cancel = 0, preempt = 0, prefill_fails = 0, finished = 0;
  double supersede = 0, second_opener = 0, promised = 0, other_tokens = 0;
  // Of a consumer's life: its OPENs let small states come before CREDIT.
  double early = 0;
  // Of a handoff: its consumer has some tiles of the state already, and asks for the rest.
  double known = 0;
  // Of a request: it is read directly, it is a rank of a group.
  double direct = 0, grouped = 0;
  // Of a making of a plan: it fails.
  double plan_fails = 0;
  // Frames and fences that no core has sent, and reports that no core has asked for; so many a request.
  double lies = 0, strays = 0;
};

// What goes wrong under this seed. Each kind of fault is absent in a third of the seeds, so that what one
// would hide another seed shows.
Faults faults_of(std::uint64_t seed);

}  // namespace isthmus::handoff::sim
