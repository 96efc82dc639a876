// SPDX-License-Identifier: Apache-2.0
// Sessions between the processes of a consumer's ranks: authenticated as those between agents are. The lead
// listens, the others dial it. Their frames are GROUP_BEGIN, GROUP_WORD and GROUP_REPORT.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mac.h"
#include "base/status.h"
#include "handoff/agent/group.h"
#include "handoff/agent/group_seat.h"
#include "handoff/agent/links.h"
#include "kv/descriptor.h"
#include "net/loop.h"
#include "net/poster.h"
#include "transport/api/transport.h"

namespace isthmus::handoff {

struct GroupLinkOptions {
  std::string name;  // Of this process; unique in the fleet.
  Key fleet_key{};
  Timings timings;
};

// The lead's end. Loop's thread.
class GroupHub {
 public:
  struct Place {
    std::string name;  // Of the process.
    std::vector<std::uint32_t> ranks;
  };
  // Transports outlive it. Only processes of these names, with this descriptor, are taken.
  GroupHub(net::Loop& loop, std::vector<transport::Transport*> transports, const GroupLinkOptions& options,
           const kv::Descriptor& descriptor, std::vector<Place> places);
  // As Links.
  Status listen(const std::string& address) { return links_->listen(address); }
  const std::vector<std::string>& endpoints() const { return links_->endpoints(); }

  // For a lead, which this outlives and which attach() then makes the one that is told.
  std::vector<RemoteSeat> seats();
  void attach(GroupLead* lead);  // Null: before it is destroyed.
  bool is_complete() const;      // Every place has a session.

 private:
  Status up(SessionId session, const Peer& peer);
  void down(SessionId session);
  Status frame(SessionId session, const wire::Frame& frame);

  net::Poster poster_;
  Digest128 descriptor_;
  std::vector<Place> places_;
  std::vector<SessionId> sessions_;  // By place; 0: none.
  GroupLead* lead_ = nullptr;
  std::unique_ptr<Links> links_;
};

// Another process's end, and its seat. Loop's thread.
class SeatLink {
 public:
  struct Events {
    std::function<void(const Status&)> lost;         // See join().
    std::function<GroupFetchEvents(GroupId)> begun;  // As GroupSeat's.
  };
  // `lead`: the name of the lead's process.
  SeatLink(net::Loop& loop, std::vector<transport::Transport*> transports, const GroupLinkOptions& options,
           std::string lead, GroupSeat::Here here, Events events);
  // Dials the lead by the first endpoint that can be used. `lost` of the constructor is called, each time,
  // when that fails or the session ends; what to do about it is the caller's.
  void join(const std::vector<std::string>& endpoints);
  GroupSeat& seat() { return seat_; }

 private:
  net::Poster poster_;
  std::string lead_;
  Digest128 descriptor_;
  std::function<void(const Status&)> lost_;
  std::optional<SessionId> session_;
  bool has_been_up_ = false;  // Since join().
  GroupSeat seat_;
  std::unique_ptr<Links> links_;
};

}  // namespace isthmus::handoff
