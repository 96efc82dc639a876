// SPDX-License-Identifier: Apache-2.0
// Control frames of the handoff protocol (spec/handoff.md) as plain structs, and their encoding.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/digest.h"
#include "base/id.h"
#include "base/mac.h"
#include "base/status.h"
#include "base/time.h"
#include "kv/descriptor.h"
#include "kv/geometry.h"
#include "kv/negotiate.h"
#include "wire/ticket.h"

namespace isthmus::wire {

inline constexpr std::uint32_t kProtocolMajor = 1;
inline constexpr std::uint32_t kProtocolMinor = 0;

// Bounds that decode() enforces before it builds anything. Their reasons are in spec/handoff.md.
inline constexpr std::size_t kFrameBytesMax =
    std::size_t{1} << 20;                           // Descriptors of the largest known models take < 64 KiB.
inline constexpr std::size_t kTextBytesMax = 4096;  // One error detail, layout or wire text.
inline constexpr std::size_t kNameBytesMax = 255;
inline constexpr std::size_t kDescriptorsMax = 16;
inline constexpr std::size_t kReasonsMax = 64;
inline constexpr std::size_t kChannelsMax = 16;  // Data channels of one session.
inline constexpr std::size_t kFirstTokensMax = 64;
inline constexpr std::size_t kRenewalsMax = 1024;     // Handoffs renewed by one frame.
inline constexpr std::size_t kMissingMax = 256;       // Ranges of missing chunks: some for each staging slot.
inline constexpr std::size_t kCodecsMax = 16;         // That an OPEN offers.
inline constexpr std::uint32_t kAttemptMax = 0xffff;  // Attempts fit the low half of a fence token.

// One transaction. Sequences are never reused within a consumer's incarnation.
struct HandoffId {
  Id128 consumer;              // The consumer's incarnation.
  std::uint64_t sequence = 0;  // From 1; below 2^48 (a fence token holds it).
  friend auto operator<=>(const HandoffId&, const HandoffId&) = default;
  std::string text() const;  // "c0ffee….17"
};

// What every handoff frame says of itself; only the current attempt's and generation's frames count.
struct Address {
  HandoffId handoff;
  std::uint32_t attempt = 0;     // From 1.
  std::uint32_t generation = 0;  // The reservation's; 0 while the consumer hasn't been told.
  friend bool operator==(const Address&, const Address&) = default;
};

// In-band mark on a data channel: nothing of this attempt follows it there.
std::uint64_t fence_token(const HandoffId& handoff, std::uint32_t attempt);

// First frame of each side on a control channel.
struct Hello {
  std::string name;  // The agent's, unique in the fleet.
  Id128 incarnation;
  Id128 challenge;                          // Fresh random value.
  std::vector<kv::Descriptor> descriptors;  // In full; named by digest afterwards.
  bool repeats_states = false;              // Equal tokens: equal bits, in all of this incarnation's states.
  friend bool operator==(const Hello&, const Hello&) = default;
};

// Second frame: HMAC under the fleet key over the sender's role and both hellos' bytes (dialer's first).
struct HelloProof {
  Mac mac{};
  friend bool operator==(const HelloProof&, const HelloProof&) = default;
};

// First frame of each side on a data channel, MAC under the session key: it belongs to that session.
struct DataHello {
  Id128 session;             // Digest of both hellos.
  std::uint32_t number = 0;  // Chosen by the dialer, from 1, each once a session.
  bool from_acceptor = false;
  Mac mac{};
  friend bool operator==(const DataHello&, const DataHello&) = default;
};

// How a chunk's body is stored smaller; spec/wire-form.md §11.
enum class Codec : std::uint32_t {
  kNone = 0,
  kZstdPlanes = 1,
};
inline constexpr std::uint32_t kCodecCount = 2;

// Chunks [begin, end) of a plan.
struct ChunkRange {
  std::uint32_t begin = 0, end = 0;
  friend bool operator==(const ChunkRange&, const ChunkRange&) = default;
};

// Consumer: open a slot of the ticket's reservation.
struct Open {
  Address address;
  std::string ticket;
  Mac proof{};       // MAC of (ticket nonce, handoff, attempt) under the session key.
  Digest128 target;  // The consumer's descriptor, out of its HELLO.
  kv::TokenRange wanted;
  kv::Exactness exactness =
      kv::Exactness::kLossless;  // The consumer's policy, for the producer's message when they differ.
  std::uint32_t roundings_max = 0;
  std::uint64_t deadline_ms = 0;  // What is left of the request's time; caps every lease.
  // A later attempt that has the other chunks of address.generation's plan: only these are missing,
  // ascending.
  bool resumes = false;
  std::vector<ChunkRange> missing = {};
  bool direct = false;  // No chunks: the consumer reads the producer's memory after SEAL, and asks VALID?.
  // A state of at most so many body bytes and chunks may come before CREDIT, on these channels. 0: none may.
  std::uint64_t early_bytes = 0;
  std::uint32_t early_chunks = 0;
  std::vector<std::uint32_t> early_channels = {};
  std::uint32_t target_rank = 0;   // The consumer's, of its descriptor's.
  std::vector<Codec> codecs = {};  // That chunks may have; a later version's, which has no name here, too.
  friend bool operator==(const Open&, const Open&) = default;
};

// Producer: what will cross. The consumer makes the same plan and compares.
struct Plan {
  Address address;  // With the generation.
  Digest128 source;
  kv::TokenRange tokens;
  kv::VerdictKind verdict = kv::VerdictKind::kReject;
  std::string wire_text;  // kv::WireForm::text().
  Digest128 plan;
  std::uint32_t chunk_count = 0;
  std::uint64_t slot_bytes = 0;  // The largest chunk body.
  std::uint64_t total_bytes = 0;
  std::uint64_t lease_ms = 0;  // From the sending of the OPEN that is answered.
  bool resumed = false;        // Only the chunks that OPEN called missing will come; else all.
  bool early = false;          // All will come without CREDIT, as OPEN allows; position is slot.
  Codec codec = Codec::kNone;  // That chunks may have: one that OPEN offers.
  friend bool operator==(const Plan&, const Plan&) = default;
};

// Producer: no. `fault` is kNone unless the ticket was at fault; reasons carry both sides' values.
struct Reject {
  Address address;
  Code code = Code::kIncompatible;
  std::string detail;
  TicketFault fault = TicketFault::kNone;
  std::vector<kv::Reason> reasons;
  friend bool operator==(const Reject&, const Reject&) = default;
};

// Producer: the reservation isn't admitted yet; wait this long for PLAN. No capacity is held.
struct Promised {
  Address address;
  std::uint64_t deadline_ms = 0;
  friend bool operator==(const Promised&, const Promised&) = default;
};

// Producer: the slot is held by another handoff (or an earlier attempt still drains).
struct Busy {
  Address address;
  std::uint64_t retry_after_ms = 0;
  friend bool operator==(const Busy&, const Busy&) = default;
};

// Consumer: chunk i may be sent when i < chunks_granted, into staging slot i % slots, on the named channels
// only. Cumulative: a lost or repeated one does no harm. Sent when capacity is reserved, and as slots come
// free.
struct Credit {
  Address address;
  std::uint32_t slots = 0;
  std::uint32_t chunks_granted = 0;
  std::vector<std::uint32_t>
      channels;  // Channel numbers; the first CREDIT of an attempt and generation fixes them.
  friend bool operator==(const Credit&, const Credit&) = default;
};

enum class FinishState : std::uint8_t {
  kNone = 0,    // Decoding goes on.
  kStop = 1,    // The first token ends the answer: nothing to decode, no chunks needed.
  kLength = 2,  // The token limit is reached with the first token.
};

// Producer: irrevocable attestation that the plan's bytes are that state.
struct Seal {
  Address address;
  Digest128 plan;
  kv::TokenRange tokens;
  Digest128 token_digest;  // kv::TokenChain over ids [0, tokens.end).
  Digest128 tile_root;     // transform::TileRoot over the wire form; zero if finished.
  std::vector<std::int32_t> first_tokens;
  FinishState finish = FinishState::kNone;
  Mac mac{};  // Under the session key, over all fields above (seal_mac).
  friend bool operator==(const Seal&, const Seal&) = default;
};

// Consumer: it owns the state (or needs it no more, after SEAL(finished)). Repeated until RELEASED.
struct Done {
  Address address;
  friend bool operator==(const Done&, const Done&) = default;
};

enum class ReleaseOutcome : std::uint8_t { kDone = 0, kCancelled = 1, kAborted = 2, kLate = 3, kUnknown = 4 };

// Producer: its duties for this attempt are over and its senders quiet (kLate: CANCEL after DONE; kUnknown:
// no such handoff).
struct Released {
  Address address;
  ReleaseOutcome outcome = ReleaseOutcome::kDone;
  friend bool operator==(const Released&, const Released&) = default;
};

// Either side: the request is no longer wanted; the reservation ends.
struct Cancel {
  Address address;
  std::string detail;
  std::vector<std::uint32_t>
      channels;  // From the consumer: those it named in CREDIT; the producer fences them.
  friend bool operator==(const Cancel&, const Cancel&) = default;
};

// Either side: this attempt is over. From the consumer, the slot becomes free for another handoff.
struct Abort {
  Address address;
  Code code = Code::kAborted;
  std::string detail;
  std::vector<std::uint32_t> channels;  // As in Cancel.
  friend bool operator==(const Abort&, const Abort&) = default;
};

// Producer: prefill restarted. address.generation is the new one; earlier chunks are void, new CREDIT is
// needed.
struct Restart {
  Address address;
  friend bool operator==(const Restart&, const Restart&) = default;
};

struct Renewal {
  Address address;
  std::uint64_t number = 0;         // Echoed, so that the lease counts from the sending of this very request.
  std::uint32_t chunks_placed = 0;  // Progress.
  friend bool operator==(const Renewal&, const Renewal&) = default;
};

// Consumer: all leases of one peer that need it, in one frame.
struct Renew {
  std::vector<Renewal> items;
  friend bool operator==(const Renew&, const Renew&) = default;
};

struct Renewed {
  struct Item {
    Address address;
    std::uint64_t number = 0;
    std::uint64_t lease_ms =
        0;  // From the sending of that RENEW; 0: no such lease. Not longer than before without progress.
    friend bool operator==(const Item&, const Item&) = default;
  };
  std::vector<Item> items;
  friend bool operator==(const Renewed&, const Renewed&) = default;
};

// Consumer, after its last direct read: were these pages this attempt's and generation's all the while? Asked
// and answered any number of times.
struct Valid {
  Address address;
  std::uint64_t number = 0;
  Mac mac{};  // Under the session key, over all fields above (valid_mac).
  friend bool operator==(const Valid&, const Valid&) = default;
};

// Producer: the answer, of the moment it was given. It changes nothing there.
struct Validity {
  Address address;
  std::uint64_t number = 0;
  bool is_valid = false;
  Mac mac{};  // Likewise (validity_mac).
  friend bool operator==(const Validity&, const Validity&) = default;
};

// --- Between the processes of a consumer's ranks (spec/handoff.md, "Groups"). They aren't handoff frames: an
// agent that is sent one closes the session.

inline constexpr std::size_t kEndpointsMax = 8;    // Of one member.
inline constexpr std::uint32_t kEndingCount = 12;  // handoff::TerminalKind.

struct GroupMember {
  std::uint32_t source_rank = 0, target_rank = 0;
  std::string ticket = {};  // Of the members of the process that is told; else empty.
  std::vector<std::string> endpoints = {};
  friend bool operator==(const GroupMember&, const GroupMember&) = default;
};

struct RankAmount {
  std::uint32_t rank = 0;
  std::uint64_t bytes = 0, blocks = 0;
  friend bool operator==(const RankAmount&, const RankAmount&) = default;
};

// Lead: fetch your members of this group.
struct GroupBegin {
  std::uint64_t group = 0;
  std::uint64_t tokens = 0;  // Of the prompt.
  Digest128 token_digest;    // kv::TokenChain over them.
  std::uint64_t deadline_ms = 0;
  std::vector<GroupMember> members;     // All of the group; a member's number is its place.
  std::vector<RankAmount> destination;  // Of the told process's ranks.
  friend bool operator==(const GroupBegin&, const GroupBegin&) = default;
};

enum class GroupWordKind : std::uint8_t {
  kTake = 0,     // Take your ranks' memory, or say that there is none.
  kBind = 1,     // All have: members may write.
  kGiveUp = 2,   // Not all have. With a code: no more is waited for.
  kOwn = 3,      // The member: all have verified.
  kAbandon = 4,  // The member: its reservation lives on.
  kCancel = 5,   // All members: their reservations end.
  kEnd = 6,      // The group's end: owned whole, or nothing of it is of use.
};

// What all members' SEALs must have alike.
struct GroupSeal {
  kv::TokenRange tokens;
  Digest128 token_digest;
  std::vector<std::int32_t> first_tokens;
  FinishState finish = FinishState::kNone;
  friend bool operator==(const GroupSeal&, const GroupSeal&) = default;
};

struct GroupWord {
  std::uint64_t group = 0;
  GroupWordKind word = GroupWordKind::kTake;
  std::uint32_t member = 0;
  Code code = Code::kOk;
  std::string detail = {};
  std::uint32_t ending = 0;                      // kEnd: handoff::TerminalKind.
  std::optional<GroupSeal> seal = std::nullopt;  // kEnd of a group that is owned, or finished.
  friend bool operator==(const GroupWord&, const GroupWord&) = default;
};

enum class GroupReportKind : std::uint8_t {
  kAsked = 0,  // The first member's plan is made: memory is wanted.
  kTaken = 1,
  kRefused = 2,   // Answers kTake; kExhausted: later, maybe.
  kVerified = 3,  // The member; repeated until the lead decides.
  kOwned = 4,     // The member.
  kEnded = 5,     // The member, otherwise.
};

struct GroupReport {
  std::uint64_t group = 0;
  GroupReportKind report = GroupReportKind::kAsked;
  std::uint32_t member = 0;
  Code code = Code::kOk;
  std::string detail = {};
  std::uint32_t ending = 0;                      // kEnded: handoff::TerminalKind.
  Digest128 source = {};                         // kVerified: the producer's descriptor.
  std::optional<GroupSeal> seal = std::nullopt;  // kVerified, and kEnded of one that was finished.
  std::uint64_t bytes = 0;                       // kOwned, kEnded: what has moved.
  std::uint32_t chunks = 0;
  friend bool operator==(const GroupReport&, const GroupReport&) = default;
};

using Frame = std::variant<Hello, HelloProof, DataHello, Open, Plan, Reject, Promised, Busy, Credit, Seal,
                           Done, Released, Cancel, Abort, Restart, Renew, Renewed, Valid, Validity,
                           GroupBegin, GroupWord, GroupReport>;

// "OPEN", "PLAN", …; for logs and metrics labels.
std::string_view name(const Frame& frame);

// The address of a handoff frame; null for HELLO, HELLO_PROOF, DATA_HELLO, RENEW, RENEWED and a group's.
const Address* address_of(const Frame& frame);

// True if a frame that arrived at the agent with incarnation `local` is for its consumer core, else the
// producer core. HELLO frames are for the session and must not be asked about.
bool is_for_consumer(const Frame& frame, const Id128& local);

// Errors of encode: invalid_argument naming the field, for exactly the frames that decode would refuse.
Result<std::vector<std::byte>> encode(const Frame& frame);

// Errors of decode: malformed (not this schema, a bound exceeded, an enumerator unknown, an address with
// attempt 0), unsupported (other major, an unknown frame, or an unknown feature marked critical). Never
// allocates by an unchecked length. The descriptors of a HELLO are decoded, not validated.
Result<Frame> decode(std::span<const std::byte> bytes);

// MACs under a session key.
Mac open_proof(const Key& session_key, const Id128& nonce, const HandoffId& handoff, std::uint32_t attempt);
Mac seal_mac(const Key& session_key, const Seal& seal);
Mac valid_mac(const Key& session_key, const Valid& valid);
Mac validity_mac(const Key& session_key, const Validity& validity);

// Durations cross as whole milliseconds: leases are rounded down, so that no one counts on time not granted.
std::uint64_t to_ms(Duration duration);  // Negative: 0.
Duration from_ms(std::uint64_t ms);  // Capped at 2^40 ms (34 years), so that sums of instants can't overflow.

}  // namespace isthmus::wire
