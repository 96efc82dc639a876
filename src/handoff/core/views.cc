// SPDX-License-Identifier: Apache-2.0
// Copies of live entries.
#include "handoff/core/views.h"

#include "handoff/core/consumer.h"
#include "handoff/core/producer.h"

namespace isthmus::handoff {

std::vector<ReservationView> ProducerCore::view(std::size_t count_max) const {
  std::vector<ReservationView> views;
  for (const auto& [id, entry] : reservations_) {
    if (views.size() == count_max) break;
    ReservationView& view = views.emplace_back();
    view.id = id;
    view.state = entry.state;
    view.tokens = entry.spec.tokens;
    view.watermark = entry.result ? entry.spec.tokens.end : entry.watermark;
    view.generation = entry.generation;
    view.lease_end = entry.lease_end;
    if (!entry.attempt) continue;
    view.handoff = entry.attempt->handoff;
    view.attempt = entry.attempt->number;
    view.session = entry.attempt->session;
  }
  return views;
}

std::optional<HandoffView> ConsumerCore::find_view(const wire::HandoffId& handoff) const {
  const auto found = handoffs_.find(handoff.sequence);
  if (found == handoffs_.end() || found->second.address.handoff != handoff) return std::nullopt;
  const Entry& entry = found->second;
  return HandoffView{entry.address.handoff, entry.address.attempt, entry.address.generation,
                     entry.state,           entry.lease_end,       entry.begin.session};
}

}  // namespace isthmus::handoff
