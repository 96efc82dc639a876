// SPDX-License-Identifier: Apache-2.0
// The consumer's side of all handoffs of one agent: it opens, grants credit, judges chunks, and decides when
// a state is its own. Pure: events and `now` in, actions out; no clock, thread or socket.
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
#include "wire/chunk_header.h"
#include "wire/frames.h"

namespace isthmus::handoff {

// --- Consumer's actions, beside SendFrame, MakePlan and RevokeChannel (protocol.h).

// The ledger has granted the transient peak: make the memory real, then capacity_ready() or
// capacity_refused(). ReleaseDestination may come before that answer: then the memory isn't wanted any more.
struct ReserveCapacity {
  wire::HandoffId handoff;
  std::uint32_t attempt = 0;
  std::uint64_t tag = 0;
  Amount destination;
  std::uint32_t slots = 0;
  std::uint64_t slot_bytes = 0, codec_bytes = 0;  // The codec's are beside the slots, in the same grant.
};

// A chunk lies whole in its slot, which stays as it is until chunk_placed(): check its body, place it.
struct PlaceChunk {
  wire::HandoffId handoff;
  std::uint32_t attempt = 0;
  std::uint32_t generation = 0, index = 0, slot = 0;
};

// All chunks are placed and every channel is fenced: compare root and read back, then verified().
struct Verify {
  wire::HandoffId handoff;
  std::uint32_t attempt = 0;
  SealInfo seal;
};

// RESTART: what was placed is void; forget tile digests of earlier generations.
struct VoidChunks {
  wire::HandoffId handoff;
  std::uint32_t attempt = 0;
  std::uint32_t generation = 0;  // The new one.
};

// Chunks that came before there was memory for them can go into it now: early_chunk() for each, then
// early_given(). One that is still coming follows when it is there.
struct TakeEarly {
  wire::HandoffId handoff;
  std::uint32_t attempt = 0;
};

// A member has read its state back: tell the group's lead, then decide() or abandon(); repeated until then.
struct Verified {
  wire::HandoffId handoff;
  std::uint32_t attempt = 0;
  std::uint64_t tag = 0;
  SealInfo seal;
};

// The state is the engine's. `destination` is its grant in the ledger, active now: the engine's owner
// releases it.
struct Own {
  wire::HandoffId handoff;
  std::uint32_t attempt = 0;
  std::uint64_t tag = 0;
  SealInfo seal;
  GrantId destination = 0;
};

// The handoff has lost its session, or all data channels of it: find another one with the same producer, then
// session_found() or session_refused(). Once a loss.
struct NeedSession {
  wire::HandoffId handoff;
  std::uint64_t tag = 0;
};

// Staging slots are quiet: free them. Once a handoff that reserved any.
struct ReleaseStaging {
  wire::HandoffId handoff;
  std::uint32_t attempt = 0;
};

// The destination is quiet and not owned: give it back. Once a handoff that reserved one, unless owned. After
// a quarantine it comes when the last placement has reported.
struct ReleaseDestination {
  wire::HandoffId handoff;
  std::uint32_t attempt = 0;
};

enum class Destination : std::uint8_t { kNone, kOwned, kFreed, kQuarantined };

// The consumer's one terminal event of a handoff's attempt; not before the destination is quiet (or
// quarantined), so that recompute in place may begin at once if it was freed.
struct ConsumerHandoffEnded {
  wire::HandoffId handoff;
  std::uint32_t attempt = 0;
  std::uint64_t tag = 0;
  TerminalKind kind = TerminalKind::kOwned;
  Status why;  // ok for kOwned and kFinished.
  Destination destination = Destination::kNone;
  Duration retry_after{0};       // kExhausted: when memory may be free.
  std::optional<SealInfo> seal;  // kOwned, kFinished: first tokens and finish state.
};

using ConsumerAction = std::variant<SendFrame, MakePlan, RevokeChannel, ReserveCapacity, PlaceChunk, Verify,
                                    VoidChunks, TakeEarly, NeedSession, Verified, Own, ReleaseStaging,
                                    ReleaseDestination, ConsumerHandoffEnded>;
using ConsumerActions = std::vector<ConsumerAction>;

struct ConsumerOptions {
  std::string name;
  Id128 incarnation;
  Key fleet_key{};
  DescriptorSet descriptors;  // Those of the HELLO.
  std::uint32_t slots = 8;    // Staging slots a handoff asks for: in flight at once.
  Timings timings;
  Limits limits;
  std::uint32_t rank = 0;  // Of the descriptors' ranks, this agent's.
};

struct Begin {
  SessionId session = 0;  // Established, with the ticket's producer.
  std::string ticket;
  Digest128 target;        // Descriptor, one of the options'.
  kv::TokenRange wanted;   // Inside the ticket's range; its end is the ticket's.
  Digest128 token_digest;  // kv::TokenChain over the own ids [0, wanted.end); SEAL must say the same.
  kv::Policy policy;
  Instant deadline = kFarFuture;  // Of the request.
  Amount destination;             // Memory that `wanted` takes here.
  std::uint64_t tag = 0;          // The shell's; comes back in actions.
  // No chunks: after SEAL the shell reads the producer's memory itself, in Verify.
  bool is_direct = false;
  bool is_member = false;  // Of a group: Verified, then its word.
  // Memory of what is here before `wanted`: kRetained until it is the owned destination's too. A handoff with
  // any doesn't wait for memory: it ends exhausted.
  Amount retained = {};
};

// What to do with a data message whose header has come.
struct Judgement {
  bool place = false;  // Into the slot; else read and drop it (a stale attempt or generation), or
  bool early = false;  // read and keep it until TakeEarly, in memory beside staging.
  wire::HandoffId handoff;
  std::uint32_t attempt = 0, index = 0, slot = 0;
  std::uint64_t bytes = 0;  // Payload; when `place`, the plan's body or, with a codec, fewer.
};

// Unless said otherwise an event about something unknown or over is ignored. `out` is appended to.
class ConsumerCore {
 public:
  // `ledger` outlives the core; destinations and staging are granted in it.
  ConsumerCore(ConsumerOptions options, Ledger* ledger);

  // Start a handoff: OPEN goes out. On an error nothing was begun and no terminal event comes: malformed,
  // aborted (ticket altered or of another life), incompatible (verdict; the detail lists each difference),
  // invalid_argument (range, unknown target), unavailable (no session, or no data channel), exhausted
  // (handoffs or quarantine full, no memory to retain), deadline_exceeded.
  Result<wire::HandoffId> begin(Begin begin, Instant now, ConsumerActions& out);
  // Not wanted any more; nothing after owning. The terminal event follows when the destination is quiet.
  void cancel(const wire::HandoffId& handoff, Error why, Instant now, ConsumerActions& out);

  // exhausted: close the session. A new incarnation of a known name ends the handoffs with the old one.
  Status session_up(SessionId session, Peer peer, Instant now, ConsumerActions& out);
  // The session's data channels close too: RevokeChannel for each.
  void session_down(SessionId session, Instant now, ConsumerActions& out);
  // Bound to the session at both ends (Session::confirm_data). exhausted beyond wire::kChannelsMax.
  Status channel_up(ChannelId channel);
  // From now on the transport touches no memory given to it for this channel.
  void channel_down(ChannelId channel, Status why, Instant now, ConsumerActions& out);
  // A frame that is_for_consumer(). malformed: the peer broke the protocol; close the session.
  Status frame_in(SessionId session, const wire::Frame& frame, Instant now, ConsumerActions& out);

  void plan_ready(const wire::HandoffId& handoff, std::uint32_t attempt, PlanFacts plan, Instant now,
                  ConsumerActions& out);
  void plan_failed(const wire::HandoffId& handoff, std::uint32_t attempt, Error why, Instant now,
                   ConsumerActions& out);
  void capacity_ready(const wire::HandoffId& handoff, std::uint32_t attempt, Instant now,
                      ConsumerActions& out);
  void capacity_refused(const wire::HandoffId& handoff, std::uint32_t attempt, Error why, Instant now,
                        ConsumerActions& out);

  // Of NeedSession. The session is established and has a data channel; one with another life of the producer
  // ends the handoff.
  void session_found(const wire::HandoffId& handoff, SessionId session, Instant now, ConsumerActions& out);
  void session_refused(const wire::HandoffId& handoff, Error why, Instant now, ConsumerActions& out);

  // Called inside on_incoming: decides at once, gives no actions. `bytes` is the transport's payload length.
  // An error (malformed: not this plan's, no credit, wrong slot, after the fence) means: close the channel
  // with it. Each judgement is followed by chunk_arrived() or channel_down() of that channel before the next
  // one.
  Result<Judgement> judge(ChannelId channel, const wire::ChunkHeader& header, std::uint64_t bytes,
                          Instant now);
  // The payload judged last on this channel has come.
  void chunk_arrived(ChannelId channel, Instant now, ConsumerActions& out);
  // Of a chunk judged early, after TakeEarly: as judge() and chunk_arrived() at once.
  Result<Judgement> early_chunk(ChannelId channel, const wire::ChunkHeader& header, ConsumerActions& out);
  void early_given(const wire::HandoffId& handoff, std::uint32_t attempt, Instant now, ConsumerActions& out);
  // Exactly once for each PlaceChunk.
  void chunk_placed(const PlaceChunk& chunk, Status status, Instant now, ConsumerActions& out);
  void fence_seen(ChannelId channel, std::uint64_t token, Instant now, ConsumerActions& out);
  // Exactly once for each Verify. corrupt: the root or a tile differs.
  void verified(const wire::HandoffId& handoff, std::uint32_t attempt, Status status, Instant now,
                ConsumerActions& out);

  // The group's word on a member: it may own, once it has confirmed; or all members end.
  void decide(const wire::HandoffId& handoff, Instant now, ConsumerActions& out);
  void abandon(const wire::HandoffId& handoff, Error why, Instant now, ConsumerActions& out);

  // Memory was released in the ledger by someone else: handoffs that wait for it may go on.
  void memory_freed(ConsumerActions& out) { serve_waiting(out); }

  Instant next_deadline() const { return deadlines_.next(); }
  void tick(Instant now, ConsumerActions& out);

  // The MakePlan that a PLAN will bring, so that the shell can make it while OPEN is under way; none once it
  // has come.
  std::optional<MakePlan> coming_plan(const wire::HandoffId& handoff) const;

  // For tests, metrics and people.
  std::optional<ConsumerState> state_of(const wire::HandoffId& handoff) const;
  std::uint64_t live() const { return handoffs_.size(); }
  std::optional<HandoffView> find_view(const wire::HandoffId& handoff) const;
  std::uint64_t quarantined() const { return quarantined_; }
  Status check() const;  // Own invariants and the ledger's; internal, naming what is wrong.
  using Observer = std::function<void(ConsumerState from, ConsumerState to, std::string_view cause)>;
  void observe(Observer observer) { observer_ = std::move(observer); }
  // Each event with the state that it meets.
  using EventObserver = std::function<void(ConsumerState, ConsumerEvent)>;
  void observe_events(EventObserver observer) { event_observer_ = std::move(observer); }

 private:
  enum class SlotUse : std::uint8_t { kFree, kGranted, kLanding, kPlacing };
  struct Slot {
    SlotUse use = SlotUse::kFree;
    std::uint32_t generation = 0;
    std::uint32_t index = 0;
    ChannelId channel;  // kLanding.
  };
  // What came before memory was there for it, of the current attempt.
  struct Early {
    std::uint64_t bytes_left = 0;
    std::uint32_t chunks_left = 0;
    std::vector<ChannelId> fenced;
    std::optional<wire::Seal> seal;
  };
  struct Entry {
    wire::Address address;
    Begin begin;
    Id128 nonce;     // The ticket's.
    Id128 producer;  // Incarnation.
    Key session_key{};
    Digest128 source;
    kv::Verdict verdict;
    ConsumerState state = ConsumerState::kOpening;
    Instant opened_at;  // OPEN first sent: the first lease counts from here.
    Instant state_end = kFarFuture;
    Instant resend_at = kFarFuture;
    Instant lease_end = kFarFuture;
    Instant renew_at = kFarFuture;
    std::uint64_t renew_number = 0;
    Instant renew_sent;
    std::optional<wire::Plan> offered;
    std::optional<PlanFacts> plan;
    bool memory_reserved = false;                         // ReserveCapacity has been given.
    bool has_codec_memory = false, offers_codec = false;  // In what is reserved; in the attempt's OPEN.
    bool memory_ready = false;                            // And answered.
    bool busy = false;                                    // The next OPEN is another attempt.
    Ledger::Peak peak;
    GrantId retained = 0;
    std::vector<std::uint32_t> channels;  // Named in CREDIT.
    std::set<ChannelId> unquiet;          // Of these, not yet fenced or closed.
    std::vector<Slot> slots;
    std::vector<bool> placed;        // By chunk, of this generation; empty before anything was received.
    ChunkSet wanted;                 // Of this attempt.
    std::uint32_t placed_count = 0;  // In all attempts.
    std::uint32_t granted = 0;       // Positions in `wanted`.
    std::uint32_t resumes = 0;
    std::optional<Early> early;  // Chunks may come before CREDIT, until all are here.
    bool session_asked = false;  // NeedSession has been given and not answered.
    Status lost;                 // When resuming: why.
    std::optional<SealInfo> seal;
    bool verifying = false;                     // Verify has been given and not answered.
    std::uint64_t valid_number = 0;             // Of the last VALID?; the first goes out after the last read.
    bool is_valid = false, is_decided = false;  // When confirming.
    std::uint32_t done_sent = 0;
    // When quiescing.
    TerminalKind end_kind = TerminalKind::kFailed;
    Status end_why;
    Duration retry_after{0};
    bool revoked = false;
  };

  // Frames.
  void on_handoff_frame(Entry& entry, const wire::Frame& frame, Instant now, ConsumerActions& out);
  void on_plan(Entry& entry, const wire::Plan& plan, Instant now, ConsumerActions& out);
  void on_reject(Entry& entry, const wire::Reject& reject, Instant now, ConsumerActions& out);
  void on_seal(Entry& entry, const wire::Seal& seal, Instant now, ConsumerActions& out);
  void on_restart(Entry& entry, const wire::Restart& restart, Instant now, ConsumerActions& out);
  void on_renewed(SessionId session, const wire::Renewed& renewed, Instant now, ConsumerActions& out);
  void agree(Entry& entry, Instant now, ConsumerActions& out);
  Status check_plan(const Entry& entry, const wire::Plan& plan) const;
  MakePlan plan_of(const Entry& entry) const;
  Status check_seal(const Entry& entry, const wire::Seal& seal) const;
  // Progress.
  Result<Entry> check_begin(Begin begin, Instant now);
  void send_open(Entry& entry, Instant now, ConsumerActions& out);
  bool try_reserve(Entry& entry, ConsumerActions& out);
  void serve_waiting(ConsumerActions& out);
  std::vector<std::uint32_t> channels_of(SessionId session) const;
  void start_receiving(Entry& entry, Instant now, ConsumerActions& out);
  bool extend_credit(Entry& entry) const;  // True if it grew.
  void grant_credit(Entry& entry, bool repeat, ConsumerActions& out);
  Result<Judgement> judge_current(Entry& entry, ChannelId channel, const wire::ChunkHeader& header);
  void maybe_verify(Entry& entry, Instant now, ConsumerActions& out);
  void confirm(Entry& entry, Instant now, ConsumerActions& out);
  void ask_again(Entry& entry, Instant now, ConsumerActions& out);
  void on_validity(Entry& entry, const wire::Validity& validity, Instant now, ConsumerActions& out);
  void maybe_own(Entry& entry, Instant now, ConsumerActions& out);
  void own(Entry& entry, Instant now, ConsumerActions& out);
  void send_done(Entry& entry, Instant now, ConsumerActions& out);
  void allow_early(Entry& entry, wire::Open& open);
  void drop_early(Entry& entry);
  static bool may_come_early(const Entry& entry, const wire::Address& address);
  Result<Judgement> judge_early(Entry& entry, ChannelId channel, const wire::ChunkHeader& header);
  // Resuming.
  void lose(Entry& entry, Error why, Instant now, ConsumerActions& out);
  void maybe_resume(Entry& entry, Instant now, ConsumerActions& out);
  SessionId session_with_channels(const Entry& entry) const;  // 0: none.
  void void_chunks(Entry& entry, ConsumerActions& out);
  static std::vector<wire::ChunkRange> missing_of(const Entry& entry);
  // Ends. Each may erase the entry.
  enum class Tell : std::uint8_t { kNothing, kAbort, kCancel, kDone };
  void end(Entry& entry, TerminalKind kind, Status why, Tell tell, Instant now, ConsumerActions& out);
  void settle(Entry& entry, ConsumerActions& out);
  bool has_work_in_flight(const Entry& entry) const;
  void give_terminal(Entry& entry, Destination destination, ConsumerActions& out);
  void free_memory(Entry& entry, ConsumerActions& out);
  void close(Entry& entry, std::string_view cause);
  void on_quiesce_timeout(Entry& entry, Instant now, ConsumerActions& out);
  void drop_channel(ChannelId channel, Instant now, ConsumerActions& out);
  void lose_session(Entry& entry, Instant now, ConsumerActions& out);
  void on_due(Entry& entry, Instant now, ConsumerActions& out);
  bool end_if_late(Entry& entry, Instant now, ConsumerActions& out);  // True if it ended.
  // Small parts.
  Entry* find(std::uint64_t sequence);
  Entry* find(const wire::HandoffId& handoff);
  Entry* find(const wire::HandoffId& handoff, std::uint32_t attempt);
  void meet(const Entry* entry, ConsumerEvent event) const;  // Null: over.
  void move(Entry& entry, ConsumerState to, std::string_view cause, Instant state_end);
  void arm(Entry& entry);
  // The handoff's, or another of that producer's life; 0: none.
  SessionId session_of(const Entry& entry) const;
  void send(const Entry& entry, wire::Frame frame, ConsumerActions& out) const;

  struct Landing {
    std::uint64_t sequence = 0;
    std::uint32_t slot = 0;
    bool place = false;
  };

  ConsumerOptions options_;
  Ledger* ledger_;
  Verdicts verdicts_;
  std::map<SessionId, Peer> sessions_;
  std::map<std::string, Id128> lives_;
  std::set<ChannelId> channels_;
  std::map<ChannelId, Landing> landing_;       // At most one a channel.
  std::map<std::uint64_t, Entry> handoffs_;    // By sequence.
  std::deque<std::uint64_t> waiting_;          // For memory, first come first served.
  std::map<SessionId, wire::Renew> renewals_;  // Collected within one tick.
  std::uint64_t next_sequence_ = 1;
  std::uint64_t quarantined_ = 0;
  std::uint32_t early_ = 0;  // Handoffs with `early`.
  Deadlines<std::uint64_t> deadlines_;
  Observer observer_;
  EventObserver event_observer_;
};

}  // namespace isthmus::handoff
