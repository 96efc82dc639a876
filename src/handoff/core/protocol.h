// SPDX-License-Identifier: Apache-2.0
// What both cores share: identities, timings, bounds, plan facts, terminal events, and the actions common to
// both.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.h"
#include "base/id.h"
#include "base/mac.h"
#include "base/status.h"
#include "base/time.h"
#include "kv/descriptor.h"
#include "kv/negotiate.h"
#include "wire/chunk_header.h"
#include "wire/frames.h"

namespace isthmus::handoff {

// A control channel of this agent, numbered by the shell from 1; never reused in an incarnation.
using SessionId = std::uint64_t;

// A data channel: its session, and its number within it (DATA_HELLO).
struct ChannelId {
  SessionId session = 0;
  std::uint32_t number = 0;
  friend auto operator<=>(const ChannelId&, const ChannelId&) = default;
};

// Descriptors of one end. Their digests are computed once: that of one costs as much as a message over
// loopback.
class DescriptorSet {
 public:
  DescriptorSet() = default;
  DescriptorSet(std::vector<kv::Descriptor> all);  // NOLINT(google-explicit-constructor): it is them.
  DescriptorSet(std::initializer_list<kv::Descriptor> all) : DescriptorSet(std::vector(all)) {}
  const kv::Descriptor* find(Digest128 digest) const;  // Null if it isn't among them.

 private:
  std::vector<kv::Descriptor> all_;
  std::vector<Digest128> digests_;  // Parallel to all_.
};

// One end's descriptor under its digest.
struct DescribedEnd {
  const kv::Descriptor& descriptor;
  Digest128 digest;
};

// Verdicts of the pairs met last: a pair of workers negotiates the same for every handoff.
class Verdicts {
 public:
  // kv::negotiate().
  kv::Verdict of(const DescribedEnd& source, const DescribedEnd& target, const kv::Policy& policy);

 private:
  struct Met {
    Digest128 source, target;
    kv::Policy policy;
    kv::Verdict verdict;
  };
  std::vector<Met> met_;
  std::size_t oldest_ = 0;  // The next to be replaced once there are many.
};

// The other end of an established session.
struct Peer {
  std::string name;
  Id128 incarnation;
  Key session_key{};
  DescriptorSet descriptors;  // Validated; those that the peer told of.
  // There is no link between the ends. A codec would save nothing, and what is shown to the receiver where it
  // lies could be changed while it is decoded.
  bool is_same_host = false;
  bool repeats_states = false;  // As it says: spec/prefix.md.
};

// Defaults fit a local network; spec/handoff.md gives the reasons and the relations that must hold
// (lease > margin + 2 · renew_interval; quiesce_max covers a chunk's longest send).
struct Timings {
  Duration lease = std::chrono::seconds(10);               // Granted by PLAN and RENEWED.
  Duration lease_margin = std::chrono::milliseconds(500);  // Taken off by the consumer.
  Duration renew_interval = std::chrono::seconds(3);
  Duration resend_interval = std::chrono::seconds(1);  // OPEN without an answer, DONE without RELEASED.
  Duration open_max = std::chrono::seconds(10);        // OPEN sent → PLAN, BUSY included.
  Duration promise_max = std::chrono::seconds(30);     // PROMISED → PLAN.
  Duration plan_max = std::chrono::seconds(5);         // The shell's plan.
  Duration capacity_max = std::chrono::seconds(5);     // Bounded wait for memory.
  Duration verify_max = std::chrono::seconds(30);
  Duration confirm_max = std::chrono::seconds(10);  // VALID? and a group's word; then a lease is over anyway.
  Duration quiesce_max =
      std::chrono::seconds(2);  // Then channels are revoked; again, then blocks are quarantined.
  // Severed, resuming: a connection and a handshake, and as much again for a gateway's place.
  Duration resume_max = std::chrono::seconds(5);
  Duration busy_retry = std::chrono::milliseconds(50);
  Duration tombstone = std::chrono::seconds(60);
  std::uint32_t done_resends_max = 10;
  // The shell's: a connection, then a handshake on it. A producer that is silent costs both before recompute.
  Duration connect_max = std::chrono::milliseconds(1500);
  Duration handshake_max = std::chrono::milliseconds(1500);
};

// At each bound there is a typed `exhausted`.
struct Limits {
  std::uint32_t sessions_max = 1024;
  std::uint32_t reservations_max = 4096;
  std::uint32_t handoffs_max = 4096;
  std::uint32_t tombstones_max = 4096;        // The oldest goes first; its duty ends with it.
  std::uint32_t admission_queue_max = 256;    // Handoffs that wait for memory.
  std::uint32_t quarantined_max = 64;         // Destinations lost to a placement that never reported back.
  std::uint32_t slots_max = 64;               // Staging slots of one handoff.
  std::uint32_t resumes_max = 8;              // Of one handoff; then the connection is to blame.
  std::uint32_t early_handoffs_max = 64;      // At once, whose chunks may come before CREDIT:
  std::uint64_t early_bytes_max = 64u << 10;  // at most so much of each, kept beside staging. 0: none may.
  std::uint32_t chunks_max = 1u << 20;
  std::uint64_t discard_bytes_max = std::uint64_t{64}
                                    << 20;  // A stale chunk's payload that is read and dropped.
};

// What the cores need to know of a transform plan. The callbacks are pure views of an immutable plan that
// they keep alive.
struct PlanFacts {
  Digest128 digest;
  std::uint32_t chunk_count = 0;
  std::uint64_t slot_bytes = 0;  // Largest chunk body.
  std::uint64_t total_bytes = 0;
  // Producer: what chunks are to have, by price. kNone where MakePlan doesn't allow one.
  wire::Codec codec = wire::Codec::kNone;
  std::function<std::uint32_t(std::uint64_t watermark)> chunks_below;  // A prefix of the chunks.
  std::function<wire::ChunkGeometry(std::uint32_t index)> geometry;    // index < chunk_count.
};

// Staging beside the slots that a codec takes at each end: for a body, and for the bytes of its planes.
std::uint64_t codec_staging(wire::Codec codec, std::uint64_t slot_bytes);

enum class TerminalKind : std::uint8_t {
  kOwned,      // Consumer: the state is its own.
  kDone,       // Producer: the consumer said DONE.
  kRejected,   // Verdict, ticket, policy, or slot taken.
  kExhausted,  // No memory within the bounded wait.
  kExpired,    // The lease or the reservation ran out.
  kCancelled,
  kFinished,  // The first token ended the answer: nothing to decode.
  kPeerLost,
  kCorrupt,
  kTimedOut,    // A state's deadline; the detail names the state.
  kFailed,      // Any other code.
  kSuperseded,  // Producer: the slot was given to another opener.
};
std::string_view name(TerminalKind kind);  // "owned", "peer_lost", …
// How a failure with this code ends a handoff.
TerminalKind terminal_kind(Code code);

// Details go into frames; longer ones are cut so that no error text can make a frame refused.
inline constexpr std::size_t kDetailBytesMax = 1024;
std::string clip(std::string text);

struct SealInfo {
  kv::TokenRange tokens;
  Digest128 token_digest;
  Digest128 tile_root;
  std::vector<std::int32_t> first_tokens;
  wire::FinishState finish = wire::FinishState::kNone;
};

// --- Actions of both cores. A shell carries actions out in their order.

struct SendFrame {
  SessionId session = 0;
  wire::Frame frame;
};

// Make the transform plan of these inputs, then call plan_ready() or plan_failed().
struct MakePlan {
  wire::HandoffId handoff;
  std::uint32_t attempt = 0;
  Digest128 source, target;
  kv::Verdict verdict;
  kv::TokenRange tokens;
  std::uint32_t target_rank = 0;  // The consumer's.
  bool may_compress = false;      // Producer: OPEN offers the codec, and there is a link between the ends.
};

// Channel::revoke() at once, before the next action; for a channel that is gone already this is nothing.
// Other handoffs lose it too: the shell reports channel_down() to both cores.
struct RevokeChannel {
  ChannelId channel;
};

}  // namespace isthmus::handoff
