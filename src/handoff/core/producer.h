// SPDX-License-Identifier: Apache-2.0
// The producer's side of all handoffs of one agent: reservations, slots, leases, seals. Pure: events and
// `now` in, actions out; no clock, thread or socket.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "base/status.h"
#include "base/time.h"
#include "handoff/core/chunk_set.h"
#include "handoff/core/deadlines.h"
#include "handoff/core/events.h"
#include "handoff/core/ledger.h"
#include "handoff/core/protocol.h"
#include "handoff/core/states.h"
#include "handoff/core/views.h"
#include "kv/descriptor.h"
#include "kv/negotiate.h"
#include "wire/frames.h"
#include "wire/ticket.h"

namespace isthmus::handoff {

// One send: the attempt and generation it was issued for, and the chunk.
struct ChunkRef {
  wire::HandoffId handoff;
  std::uint32_t attempt = 0;
  std::uint32_t generation = 0;
  std::uint32_t index = 0;
  friend auto operator<=>(const ChunkRef&, const ChunkRef&) = default;
};

// --- Producer's actions, beside SendFrame, MakePlan and RevokeChannel (protocol.h).

// Pack the chunk out of the reservation's pages and send it with its header on the channel. Then
// chunk_packed() once the payload has been handed to the channel and the pages will not be read for it again,
// and chunk_sent() when the channel has reported; a pack that fails is chunk_sent(error) alone.
struct SendChunk {
  ChunkRef chunk;
  Id128 reservation;
  ChannelId channel;
  std::uint32_t slot = 0;
  wire::Codec codec = wire::Codec::kNone;  // That the body may have, if it gets smaller by it.
};

// Channel::send_fence(token), after every payload handed to the channel before.
struct SendFence {
  ChannelId channel;
  std::uint64_t token = 0;
};

// All chunks of this generation are packed and prefill is done: give the root of their tile digests,
// seal_ready().
struct ComputeSeal {
  wire::HandoffId handoff;
  std::uint32_t attempt = 0;
  std::uint32_t generation = 0;
  Id128 reservation;
};

// The holder goes on as attempt `next`, with a part of the plan only: what the shell has of `attempt` (plan,
// tiles of the chunks that were packed) is that attempt's. The end of `attempt` follows.
struct ResumeAttempt {
  wire::HandoffId handoff;
  std::uint32_t attempt = 0, next = 0;
};

// The reservation's pages are free: nothing of ours reads them. Exactly once a reservation that was admitted.
struct ReleasePins {
  Id128 reservation;
};

// The producer's one terminal event of a handoff's attempt. The reservation may live on.
struct ProducerHandoffEnded {
  wire::HandoffId handoff;
  std::uint32_t attempt = 0;
  Id128 reservation;  // Zero if the ticket named none of ours.
  TerminalKind kind = TerminalKind::kDone;
  Status why;  // ok for kDone and kFinished.
  wire::TicketFault fault = wire::TicketFault::kNone;
};

// The one terminal event of a reservation: stop the prefill if it still runs. Pages: ReleasePins, now or
// later.
struct ReservationEnded {
  Id128 reservation;
  TerminalKind kind = TerminalKind::kDone;
  Status why;
};

using ProducerAction = std::variant<SendFrame, MakePlan, RevokeChannel, SendChunk, SendFence, ComputeSeal,
                                    ResumeAttempt, ReleasePins, ProducerHandoffEnded, ReservationEnded>;
using ProducerActions = std::vector<ProducerAction>;

struct ProducerOptions {
  std::string name;
  Id128 incarnation;
  Instant started;  // Origin of tickets' expiry.
  Key fleet_key{};
  DescriptorSet descriptors;  // Those of the HELLO.
  Timings timings;
  Limits limits;
};

// A state that will exist: pages are pinned (or will be, as prefill goes) from admitted() to ReleasePins.
struct Reservation {
  Id128 id;          // Never reused.
  Id128 nonce;       // Fresh random value for the ticket.
  Digest128 source;  // Descriptor, one of the options'.
  kv::TokenRange tokens;
  Duration lease = std::chrono::seconds(10);  // How long it waits for a consumer.
  Instant deadline = kFarFuture;              // The request's; caps every lease.
  kv::Policy policy;
  Amount pinned;                                              // At most, when prefill is done.
  std::optional<wire::Membership> membership = std::nullopt;  // Of a group's: for the ticket.
};

struct PrefillResult {
  Digest128 token_digest;  // kv::TokenChain over ids [0, tokens.end).
  std::vector<std::int32_t> first_tokens;
  wire::FinishState finish =
      wire::FinishState::kNone;  // Not kNone: nothing is left to decode, SEAL goes at once.
};

// Unless said otherwise an event about something unknown or over is ignored: shells report late and twice,
// peers lie. `out` is appended to. Cost of an event: logarithmic in the number of live reservations.
class ProducerCore {
 public:
  // `ledger` outlives the core; pinned bytes are granted in it.
  ProducerCore(ProducerOptions options, Ledger* ledger);

  // Prefill is admitted: the ticket to hand out. Errors: exhausted (reservations, or no room for the pinned
  // bytes), cancelled (it was cancelled before), invalid_argument (id reused, empty range, unknown
  // descriptor).
  Result<std::string> admitted(const Reservation& reservation, Instant now, ProducerActions& out);
  // Positions below `watermark` won't change again, in this generation.
  void grew(const Id128& reservation, std::uint64_t watermark, Instant now, ProducerActions& out);
  void prefill_done(const Id128& reservation, PrefillResult result, Instant now, ProducerActions& out);
  void prefill_failed(const Id128& reservation, Error why, Instant now, ProducerActions& out);
  // Prefill starts again from the first token: all pages may change. After SEAL this is nothing: the bytes
  // have gone.
  void preempted(const Id128& reservation, Instant now, ProducerActions& out);
  // The slot is for another consumer though its holder's lease lives: a failover. The ticket that comes back,
  // with this fresh nonce, is the only one that opens it from now on; frames of the past holder count no
  // more. It may own what was sealed for it: who asks for this takes no answer of it. Errors: not_found
  // (unknown, not admitted, or over).
  Result<std::string> supersede(const Id128& reservation, const Id128& nonce, Instant now,
                                ProducerActions& out);
  // Our own side doesn't want it any more; works before admission too (tombstone).
  void cancel(const Id128& reservation, Error why, Instant now, ProducerActions& out);

  // exhausted: close the session. A new incarnation of a known name ends the handoffs of the old one.
  Status session_up(SessionId session, Peer peer, Instant now, ProducerActions& out);
  void session_down(SessionId session, Instant now, ProducerActions& out);
  void channel_up(ChannelId channel);
  void channel_down(ChannelId channel, Instant now, ProducerActions& out);
  // A frame that is_for_consumer() says isn't. malformed: the peer broke the protocol; close the session.
  Status frame_in(SessionId session, const wire::Frame& frame, Instant now, ProducerActions& out);

  void plan_ready(const wire::HandoffId& handoff, std::uint32_t attempt, PlanFacts plan, Instant now,
                  ProducerActions& out);
  void plan_failed(const wire::HandoffId& handoff, std::uint32_t attempt, Error why, Instant now,
                   ProducerActions& out);
  void chunk_packed(const ChunkRef& chunk, Instant now, ProducerActions& out);
  void chunk_sent(const ChunkRef& chunk, Status status, Instant now, ProducerActions& out);
  void seal_ready(const wire::HandoffId& handoff, std::uint32_t attempt, std::uint32_t generation,
                  Digest128 tile_root, Instant now, ProducerActions& out);

  // When tick() has something to do; kFarFuture if never.
  Instant next_deadline() const { return deadlines_.next(); }
  void tick(Instant now, ProducerActions& out);

  // For tests, metrics and people.
  std::optional<ProducerState> state_of(const Id128& reservation) const;
  std::uint64_t live() const { return reservations_.size(); }
  std::vector<ReservationView> view(std::size_t count_max) const;  // In order of ids.
  Status check() const;  // Own invariants and the ledger's; internal, naming what is wrong.
  using Observer = std::function<void(ProducerState from, ProducerState to, std::string_view cause)>;
  void observe(Observer observer) { observer_ = std::move(observer); }
  // Each event with the state that it meets.
  using EventObserver = std::function<void(ProducerState, ProducerEvent)>;
  void observe_events(EventObserver observer) { event_observer_ = std::move(observer); }

 private:
  struct End {
    TerminalKind kind = TerminalKind::kFailed;
    Status why;
    bool ends_reservation = false;  // Else the slot is free for another handoff afterwards.
    bool tell_peer = false;
    std::string_view cause = "ended";  // Of the transition.
  };
  struct Sending {
    ChannelId channel;
    bool packed = false;
  };
  // The slot's holder.
  struct Attempt {
    wire::HandoffId handoff;
    std::uint32_t number = 0;
    SessionId session = 0;
    Digest128 target;
    bool direct = false;
    // What OPEN allows before CREDIT.
    std::uint64_t early_bytes = 0;
    std::uint32_t early_chunks = 0;
    std::vector<ChannelId> early_channels;
    wire::Plan offer;  // PLAN, complete once `plan` is there.
    bool may_compress = false;
    GrantId staging = 0;  // The codec's; until the attempt is over.
    std::optional<PlanFacts> plan;
    std::vector<ChannelId> channels;       // From the first CREDIT.
    std::uint32_t slots = 0, granted = 0;  // From CREDIT, of the current generation.
    ChunkSet wanted;               // Once the plan is there: all of it, or what an earlier attempt left.
    std::uint32_t next_chunk = 0;  // Position in `wanted`.
    std::map<ChunkRef, Sending> sending;  // Not yet reported by chunk_sent(), of any attempt and generation.
    bool seal_asked = false, fenced = false;
    std::optional<wire::Seal> seal;
    std::uint64_t progress_renewed = 0;  // Progress at the last lease granted.
    std::uint32_t placed = 0;            // As the consumer reports.
    Status lost;                         // When severed: why.
    // When quiescing.
    End end;
    std::optional<End> reservation_end;  // The reservation ended meanwhile.
    wire::Address end_address;           // Of the consumer's frame that ended it.
    std::optional<wire::ReleaseOutcome> reply;
    bool revoked = false;
  };
  struct PromisedOpen {
    SessionId session = 0;
    wire::Open open;
  };
  struct Entry {
    Reservation spec;
    ProducerState state = ProducerState::kPinned;
    std::uint32_t generation = 1;
    std::uint64_t watermark = 0;
    std::optional<PrefillResult> result;
    Instant lease_end;               // Of the reservation; a granted lease moves it on.
    Instant state_end = kFarFuture;  // The state's own deadline.
    GrantId grant = 0;
    std::optional<Attempt> attempt;
    std::optional<PromisedOpen> promised;
    std::optional<Id128> only_nonce;            // Superseded: of the one ticket that still opens it.
    std::optional<wire::HandoffId> superseded;  // The last holder that was.
  };
  struct Ended {
    std::uint32_t attempt = 0;
    TerminalKind kind = TerminalKind::kDone;
    Code code = Code::kOk;
    std::string detail;
    wire::TicketFault fault = wire::TicketFault::kNone;
    std::vector<kv::Reason> reasons;
    Instant until;
  };
  template <typename Id>
  struct Tombstones {
    std::map<Id, Ended> by_id;
    std::deque<Id> order;
    void put(const Id& id, Ended ended, std::uint32_t limit);
    const Ended* find(const Id& id, Instant now) const;
  };
  struct Refusal {
    Code code = Code::kIncompatible;
    std::string detail;
    wire::TicketFault fault = wire::TicketFault::kNone;
    std::vector<kv::Reason> reasons;
  };

  wire::Ticket ticket_of(const Reservation& reservation, Instant lease_end) const;
  Status check_reservation(const Reservation& reservation, Instant now) const;
  void end_life(const Id128& incarnation, Instant now, ProducerActions& out);
  // Frames.
  void on_open(SessionId session, const wire::Open& open, Instant now, ProducerActions& out);
  void on_credit(SessionId session, const wire::Credit& credit, Instant now, ProducerActions& out);
  void on_done(SessionId session, const wire::Done& done, Instant now, ProducerActions& out);
  void on_stop(SessionId session, const wire::Address& address, const std::vector<std::uint32_t>& channels,
               End end, Instant now, ProducerActions& out);
  void on_renew(SessionId session, const wire::Renew& renew, Instant now, ProducerActions& out);
  void on_valid(SessionId session, const wire::Valid& valid, Instant now, ProducerActions& out);
  // OPEN in steps.
  bool repeat_answer(SessionId session, const wire::Open& open, Instant now, ProducerActions& out);
  bool resume_answer(SessionId session, const wire::Open& open, Instant now, ProducerActions& out);
  std::optional<Refusal> check_ticket(SessionId session, const wire::Open& open,
                                      const wire::SignedTicket& ticket, std::optional<Instant> now) const;
  std::optional<Refusal> check_reserved(const Entry& entry, const wire::Open& open,
                                        const wire::Ticket& ticket) const;
  void promise(SessionId session, const wire::Open& open, const wire::Ticket& ticket, Instant now,
               ProducerActions& out);
  void open_slot(Entry& entry, SessionId session, const wire::Open& open, Instant now, ProducerActions& out);
  void take_slot(Entry& entry, SessionId session, const wire::Open& open, Instant now, ProducerActions& out);
  void reject(SessionId session, const wire::Open& open, const Id128& reservation, Refusal refusal,
              Instant now, ProducerActions& out);
  void send_plan(Entry& entry, Instant now, ProducerActions& out);
  std::optional<wire::Renewed::Item> renew_one(const wire::Renewal& item, SessionId session, Instant now,
                                               ProducerActions& out);
  // Progress.
  void pump(Entry& entry, Instant now, ProducerActions& out);
  void maybe_seal(Entry& entry, Instant now, ProducerActions& out);
  void send_seal(Entry& entry, Digest128 tile_root, Instant now, ProducerActions& out);
  void maybe_fence(Entry& entry, ProducerActions& out);
  // Resuming.
  void sever(Entry& entry, Error why, Instant now, ProducerActions& out);
  void resume(Entry& entry, SessionId session, const wire::Open& open, Instant now, ProducerActions& out);
  static bool is_superseded(const Entry& entry, const wire::Ticket& ticket);
  Entry* successor_of(const wire::HandoffId& superseded);
  void extend_lease(Entry& entry, const wire::Open& open, Instant now) const;
  // Ends. Each may erase the entry.
  Ended tombstone(const End& end, std::uint32_t attempt, Instant now) const;
  void end_attempt(Entry& entry, End end, Instant now, ProducerActions& out);
  void end_promise(Entry& entry, End end, Instant now, ProducerActions& out);
  void end_reservation(Entry& entry, End end, Instant now, ProducerActions& out);
  void end_reservation_event(Entry& entry, const End& end, Instant now, ProducerActions& out);
  void release(Entry& entry, std::string_view cause, ProducerActions& out);
  std::optional<End> close_attempt(Entry& entry, Instant now, ProducerActions& out);
  void settle(Entry& entry, Instant now, ProducerActions& out);
  void on_quiesce_timeout(Entry& entry, Instant now, ProducerActions& out);
  void on_due(Entry& entry, Instant now, ProducerActions& out);
  // Small parts.
  Entry* find(const Id128& reservation);
  Entry* find(const wire::HandoffId& handoff);
  Entry* find(const wire::HandoffId& handoff, std::uint32_t attempt);  // The slot's present holder only.
  void meet(const Entry* entry, ProducerEvent event) const;            // Null: unknown, or over.
  void meet_open(const Entry& holder, const wire::Open& open) const;
  void move(Entry& entry, ProducerState to, std::string_view cause);
  void arm(Entry& entry);
  bool may_send_early(const Attempt& attempt) const;
  bool may_compress(SessionId session, const wire::Open& open) const;
  wire::Codec granted_codec(Attempt& attempt);
  void fence_channels(SessionId session, const wire::Address& address,
                      const std::vector<std::uint32_t>& numbers, ProducerActions& out);
  wire::Address address_of(const Entry& entry) const;
  const Peer* peer(SessionId session) const;
  SessionId session_to(const Id128& incarnation, SessionId preferred) const;  // 0 if there's none.
  Instant lease_until(const Entry& entry, Instant now) const;

  ProducerOptions options_;
  Ledger* ledger_;
  Verdicts verdicts_;
  std::map<SessionId, Peer> sessions_;
  std::map<std::string, Id128> lives_;  // Last established incarnation of each name.
  std::set<ChannelId> channels_;
  std::map<Id128, Entry> reservations_;
  std::map<wire::HandoffId, Id128> handoffs_;  // Slot holders.
  Tombstones<wire::HandoffId> ended_handoffs_;
  Tombstones<Id128> ended_reservations_;
  Deadlines<Id128> deadlines_;
  Observer observer_;
  EventObserver event_observer_;
};

}  // namespace isthmus::handoff
