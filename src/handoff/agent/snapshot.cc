// SPDX-License-Identifier: Apache-2.0
// The shell's view of both cores, with what only the shell knows: peers, bytes, ages.
#include "handoff/agent/snapshot.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/clock.h"
#include "handoff/agent/shell.h"

namespace isthmus::handoff {
namespace {

std::string short_id(const Id128& id) {
  constexpr std::size_t kDigits = 8;
  return id.hex().substr(0, kDigits);
}
std::string short_id(const wire::HandoffId& id) {
  return fmt::format("{}.{}", short_id(id.consumer), id.sequence);
}

Duration left_until(Instant end, Instant at) {
  return std::max<Duration>(end - at, Duration::zero());
}

std::optional<std::uint64_t> total_of(const std::shared_ptr<const transform::Plan>& plan) {
  return plan ? std::optional(plan->total_bytes()) : std::nullopt;
}

}  // namespace

HandoffSnapshot Shell::snapshot_of(const ReservationView& view, Instant at) const {
  HandoffSnapshot shown;
  shown.id = short_id(*view.handoff);
  shown.is_producer = true;
  if (const auto peer = peers_.find(view.session); peer != peers_.end()) shown.peer = peer->second.name;
  shown.transport = links_->transport(view.session);
  shown.state = name(view.state);
  shown.tokens = view.tokens;
  shown.attempt = view.attempt;
  shown.generation = view.generation;
  shown.lease_left = left_until(view.lease_end, at);
  if (const auto held = held_.find(view.id); held != held_.end()) {
    shown.age = at - held->second.offered_at;
    shown.bytes_moved = held->second.ending.bytes;
  }
  const auto outgoing = outgoing_.find({*view.handoff, view.attempt});
  if (outgoing != outgoing_.end()) {
    shown.wire = one_line(outgoing->second->plan->wire());
    shown.bytes_total = total_of(outgoing->second->plan);
  }
  return shown;
}

HandoffSnapshot Shell::snapshot_of(const Incoming& incoming, Instant at) const {
  HandoffSnapshot shown;
  shown.state = "dialing";
  shown.peer = incoming.producer;
  shown.tokens = {incoming.known, incoming.fetch.prompt.size()};
  shown.age = at - incoming.begun_at;
  shown.bytes_moved = incoming.bytes;
  shown.bytes_total = total_of(incoming.plan);
  if (incoming.plan) shown.wire = one_line(incoming.plan->wire());
  return shown;
}

AgentSnapshot Shell::snapshot(std::size_t count_max) const {
  const Instant at = now();
  AgentSnapshot shown;
  shown.sessions = peers_.size();
  shown.quarantined = consumer_.quarantined();
  for (const ReservationView& view : producer_.view(count_max)) {
    ReservationSnapshot& reservation = shown.reservations.emplace_back();
    reservation.id = short_id(view.id);
    reservation.state = name(view.state);
    reservation.tokens = view.tokens;
    reservation.computed = view.watermark;
    reservation.lease_left = left_until(view.lease_end, at);
    if (const auto held = held_.find(view.id); held != held_.end())
      reservation.age = at - held->second.offered_at;
    if (view.handoff) shown.handoffs.push_back(snapshot_of(view, at));
  }
  shown.reservations_left_off = producer_.live() - shown.reservations.size();
  std::size_t consuming = 0;
  for (const auto& [id, incoming] : fetches_) {
    if (consuming++ == count_max) break;
    shown.handoffs.push_back(snapshot_of(*incoming, at));
    if (!incoming->is_begun) continue;
    const auto view = consumer_.find_view(incoming->handoff);
    if (!view) continue;  // Over, but for its destination.
    HandoffSnapshot& handoff = shown.handoffs.back();
    handoff.id = short_id(view->handoff);
    handoff.state = name(view->state);
    handoff.transport = links_->transport(view->session);
    handoff.attempt = view->attempt;
    handoff.generation = view->generation;
    if (view->lease_end != kFarFuture) handoff.lease_left = left_until(view->lease_end, at);
  }
  shown.handoffs_left_off = fetches_.size() - std::min(fetches_.size(), count_max);
  return shown;
}

}  // namespace isthmus::handoff
