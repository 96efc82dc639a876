// SPDX-License-Identifier: Apache-2.0
// Frames of groups over Links; what isn't a group's closes the session.
#include "handoff/agent/group_links.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/rng.h"

namespace isthmus::handoff {
namespace {

LinkOptions link_options(const GroupLinkOptions& options, const kv::Descriptor& descriptor) {
  return {.name = options.name,
          .fleet_key = options.fleet_key,
          .incarnation = random_id(),
          .descriptors = {descriptor},
          .connect_max = options.timings.connect_max,
          .handshake_max = options.timings.handshake_max,
          .silence_max = options.timings.open_max};
}

// Nothing comes by the data channel that each session has.
LinkEvents without_data() {
  LinkEvents events;
  events.channel_up = [](ChannelId) { return ok_status(); };
  events.channel_down = [](ChannelId, const Status&) {};
  events.incoming = [](ChannelId, const transport::Incoming&) -> Result<transport::Pieces> {
    return Error{Code::kMalformed, "data between the ranks of one end"};
  };
  events.data = [](ChannelId, const transport::Received&) {};
  events.fence = [](ChannelId, std::uint64_t) {};
  return events;
}

// Ranks of one engine describe the same.
Status check_peer(const Peer& peer, const Digest128& descriptor) {
  if (peer.descriptors.find(descriptor) != nullptr) return ok_status();
  return Error{Code::kIncompatible, fmt::format("{} has another descriptor", peer.name)};
}

// Later: whoever tells is in the middle of telling others.
void send(net::Poster& poster, Links& links, SessionId session, const wire::Frame& frame) {
  const Status sent = links.send(session, frame);
  if (!sent.ok()) poster.post([&links, session, sent] { links.close(session, sent); });
}

}  // namespace

GroupHub::GroupHub(net::Loop& loop, std::vector<transport::Transport*> transports,
                   const GroupLinkOptions& options, const kv::Descriptor& descriptor,
                   std::vector<Place> places)
    : poster_(loop), descriptor_(descriptor.digest()), places_(std::move(places)), sessions_(places_.size()) {
  LinkEvents events = without_data();
  events.session_up = [this](SessionId session, const Peer& peer) { return up(session, peer); };
  events.session_down = [this](SessionId session) { down(session); };
  events.frame = [this](SessionId session, const wire::Frame& one) { return frame(session, one); };
  links_ = std::make_unique<Links>(loop, std::move(transports), link_options(options, descriptor),
                                   std::move(events));
}

std::vector<RemoteSeat> GroupHub::seats() {
  std::vector<RemoteSeat> seats;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    seats.push_back({places_[i].ranks, [this, i](const wire::Frame& frame) {
                       if (sessions_[i] != 0) send(poster_, *links_, sessions_[i], frame);
                     }});
  }
  return seats;
}

void GroupHub::attach(GroupLead* lead) {
  lead_ = lead;
  for (std::size_t i = 0; lead_ != nullptr && i < sessions_.size(); ++i) {
    if (sessions_[i] != 0) lead_->seat_up(i);
  }
}

bool GroupHub::is_complete() const {
  return std::ranges::find(sessions_, SessionId{0}) == sessions_.end();
}

Status GroupHub::up(SessionId session, const Peer& peer) {
  const auto place = std::ranges::find(places_, peer.name, &Place::name);
  if (place == places_.end())
    return Error{Code::kUnavailable, fmt::format("{} is no process of this group's ranks", peer.name)};
  ISTHMUS_TRY(check_peer(peer, descriptor_));
  const auto i = static_cast<std::size_t>(place - places_.begin());
  // It has proved the fleet key: its past life is over, whether we have heard of that or not.
  if (const SessionId past = sessions_[i]; past != 0)
    links_->close(past, Error{Code::kAborted, "the process has come again"});
  sessions_[i] = session;
  if (lead_ != nullptr) lead_->seat_up(i);
  return ok_status();
}

void GroupHub::down(SessionId session) {
  const auto at = std::ranges::find(sessions_, session);
  if (at == sessions_.end()) return;
  *at = 0;
  const auto i = static_cast<std::size_t>(at - sessions_.begin());
  ISTHMUS_LOG(kWarn, "ranks lost", "process={}", places_[i].name);
  if (lead_ != nullptr) lead_->seat_down(i);
}

Status GroupHub::frame(SessionId session, const wire::Frame& frame) {
  const auto at = std::ranges::find(sessions_, session);
  const auto* report = std::get_if<wire::GroupReport>(&frame);
  if (report == nullptr || at == sessions_.end())
    return Error{Code::kMalformed, fmt::format("{} isn't a report", wire::name(frame))};
  if (lead_ == nullptr) return ok_status();
  return lead_->heard(static_cast<std::size_t>(at - sessions_.begin()), *report);
}

SeatLink::SeatLink(net::Loop& loop, std::vector<transport::Transport*> transports,
                   const GroupLinkOptions& options, std::string lead, GroupSeat::Here here, Events told)
    : poster_(loop),
      lead_(std::move(lead)),
      descriptor_(here.descriptor.digest()),
      lost_(std::move(told.lost)),
      seat_(
          loop, here,
          [this](const wire::GroupReport& report) {
            if (session_) send(poster_, *links_, *session_, report);
          },
          std::move(told.begun)) {
  LinkEvents events = without_data();
  events.session_up = [this](SessionId session, const Peer& peer) -> Status {
    ISTHMUS_TRY(check_peer(peer, descriptor_));
    session_ = session;
    has_been_up_ = true;
    return ok_status();
  };
  events.session_down = [this](SessionId session) {
    if (session_ != session) return;
    session_.reset();
    seat_.lead_lost();
    poster_.post([this] { lost_(Error{Code::kUnavailable, "the lead's session has ended"}); });
  };
  events.frame = [this](SessionId, const wire::Frame& frame) -> Status {
    if (const auto* begin = std::get_if<wire::GroupBegin>(&frame)) return seat_.hear(*begin);
    if (const auto* word = std::get_if<wire::GroupWord>(&frame)) return seat_.hear(*word);
    return Error{Code::kMalformed, fmt::format("{} isn't a lead's", wire::name(frame))};
  };
  links_ = std::make_unique<Links>(loop, std::move(transports), link_options(options, here.descriptor),
                                   std::move(events));
}

void SeatLink::join(const std::vector<std::string>& endpoints) {
  has_been_up_ = false;
  const std::vector<Links::Way> ways = links_->ways(endpoints);
  const auto way = std::ranges::find_if(ways, [](const auto& one) { return one.transport != nullptr; });
  if (way == ways.end()) {
    return poster_.post(
        [this] { lost_(Error{Code::kUnsupported, "the lead has no endpoint that can be used here"}); });
  }
  links_->connect(*way, lead_, [this](const Result<SessionId>& session) {
    if (!session.ok() && !has_been_up_) lost_(session.status());
  });
}

}  // namespace isthmus::handoff
