// SPDX-License-Identifier: Apache-2.0
// Rates that leave most requests whole: a world where nothing succeeds shows nothing.
#include "sim/faults.h"

#include "base/rng.h"

namespace isthmus::handoff::sim {

Faults faults_of(std::uint64_t seed) {
  constexpr std::uint64_t kStream = 0x6661756c7473;  // Apart from all other draws.
  std::uint64_t draws = 0;
  const auto some = [&](double rate) {
    const double draw = uniform_at(seed, kStream, draws++);
    return draw < 1.0 / 3 ? 0.0 : draw < 2.0 / 3 ? rate : 3 * rate;
  };
  Faults faults;
  faults.control_lost = some(0.02);
  faults.control_repeated = some(0.04);
  faults.control_slow = some(0.01);
  faults.channel_dies = some(0.003);
  faults.partition = some(0.03);
  faults.cut = some(0.02);
  faults.crash = some(0.02);
  faults.pause = some(0.02);
  faults.clock_stops = some(0.01);
  faults.flips_in_staging = some(0.001);
  faults.flips_when_placed = some(0.001);
  faults.refuses_memory = some(0.01);
  faults.small_pools = some(1) > 2;
  faults.sticks = some(0.01);
  faults.slow_reader = some(0.05);
  faults.cancel = some(0.03);
  faults.preempt = some(0.03);
  faults.prefill_fails = some(0.005);
  faults.finished = some(0.05);
  faults.supersede = some(0.03);
  faults.second_opener = some(0.1);
  faults.promised = some(0.1);
  faults.other_tokens = some(0.02);
  faults.direct = some(0.1);
  faults.grouped = some(0.1);
  faults.early = some(0.3);
  faults.plan_fails = some(0.005);
  faults.lies = some(0.15);
  faults.strays = some(0.7);
  faults.known = some(0.2);
  return faults;
}

}  // namespace isthmus::handoff::sim
