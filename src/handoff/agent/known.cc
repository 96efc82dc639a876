// SPDX-License-Identifier: Apache-2.0
// What of a state is here already: looked up before OPEN, so that only the rest is asked for. spec/prefix.md.
#include "handoff/agent/known.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "handoff/agent/shell.h"

namespace isthmus::handoff {
std::uint64_t repeated_tokens(const kv::Descriptor& source, const kv::Descriptor& target,
                              std::uint64_t tokens) {
  const bool has_all = std::ranges::all_of(source.groups, [](const kv::LayerGroup& group) {
    return group.attention == kv::AttentionKind::kFull || group.attention == kv::AttentionKind::kMla;
  });
  return has_all ? transform::whole_groups_from(source, target, tokens) : 0;
}

std::uint64_t usable_tokens(const kv::Descriptor& source, const kv::Descriptor& target, std::uint64_t tokens,
                            std::uint64_t unit) {
  for (;;) {
    tokens -= tokens % unit;
    const std::uint64_t whole = transform::whole_groups_from(source, target, tokens);
    if (whole == tokens) return tokens;
    tokens = whole;
  }
}

void Shell::look_up(const std::shared_ptr<Incoming>& incoming, SessionId session) {
  const Peer& peer = peers_.at(session);
  const kv::Descriptor* const source = peer.descriptors.find(incoming->source);
  const bool may_know = peer.repeats_states && incoming->events.known && !incoming->is_whole &&
                        !incoming->fetch.is_member && source != nullptr && !transform::is_split(*source) &&
                        !transform::is_split(descriptor_);
  const std::uint64_t repeated =
      may_know ? repeated_tokens(*source, descriptor_, incoming->fetch.prompt.size()) : 0;
  if (repeated == 0) return begin(incoming, session);
  const kv::Verdict verdict =
      verdicts_.of({*source, incoming->source}, {descriptor_, descriptor_digest_}, options_.policy);
  if (verdict.kind == kv::VerdictKind::kReject) return begin(incoming, session);
  incoming->events.known({peer.incarnation, incoming->source, verdict.wire.text()}, repeated,
                         [this, incoming, session](KnownState known) {
                           if (is_closing_ || incoming->is_cancelled || incoming->is_ended) return;
                           const auto now_peer = peers_.find(session);
                           if (now_peer == peers_.end()) {  // Lost meanwhile.
                             incoming->is_whole = true;
                             incoming->next_way = 0;
                             return dial(incoming);
                           }
                           const kv::Descriptor* const from =
                               now_peer->second.descriptors.find(incoming->source);
                           if (known.held) use_known(*incoming, *from, std::move(known));
                           begin(incoming, session);
                         });
}

void Shell::use_known(Incoming& incoming, const kv::Descriptor& source, KnownState known) const {
  if (known.held->tokens() >= incoming.fetch.prompt.size()) return;  // SEAL carries the first token.
  const std::uint64_t tokens = usable_tokens(source, descriptor_, known.held->tokens(), known.unit_tokens);
  const std::uint64_t units = tokens / known.unit_tokens;
  const Amount retained{units * known.unit.bytes, units * known.unit.blocks};
  const Amount& destination = incoming.fetch.destination;
  if (tokens == 0 || retained.bytes > destination.bytes || retained.blocks > destination.blocks) return;
  incoming.known = tokens;
  incoming.retained = retained;
  incoming.held = std::move(known.held);
}

// There is no room beside what is held, or no way any more: another handoff of the same ticket asks for
// everything. False: nothing was held.
bool Shell::begin_whole(const std::shared_ptr<Incoming>& incoming) {
  if (incoming->known == 0) return false;
  ISTHMUS_LOG(kInfo, "handoff begins again", "producer={} known={}", incoming->producer, incoming->known);
  by_handoff_.erase(incoming->handoff);
  incoming->handoff = {};
  incoming->is_begun = false;
  incoming->is_whole = true;
  incoming->known = 0;
  incoming->retained = {};
  incoming->held.reset();
  incoming->plan.reset();
  incoming->placer.reset();
  incoming->in_place = {};
  incoming->tiles.clear();
  incoming->early.clear();
  incoming->early_taken = 0;
  incoming->next_way = 0;
  incoming->refused.clear();
  poster_.post([this, incoming] { dial(incoming); });
  return true;
}

}  // namespace isthmus::handoff
