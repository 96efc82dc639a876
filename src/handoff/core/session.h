// SPDX-License-Identifier: Apache-2.0
// One control channel's authentication: challenge and response under the fleet key, then a MAC on every
// frame.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/id.h"
#include "base/mac.h"
#include "base/status.h"
#include "handoff/core/protocol.h"
#include "kv/descriptor.h"
#include "wire/frames.h"

namespace isthmus::handoff {

enum class SessionRole : std::uint8_t { kDialer, kAcceptor };

struct SessionOptions {
  Key fleet_key{};
  SessionRole role = SessionRole::kDialer;
  std::string name;  // This agent's.
  Id128 incarnation;
  Id128 challenge;  // Fresh random value; never used twice.
  std::vector<kv::Descriptor> descriptors;
  std::string expected_peer;    // Refuse an agent of another name; empty: any of the fleet.
  bool repeats_states = false;  // The engine's: what this incarnation says of its states.
};

// Bytes in, bytes out; the shell owns the channel and a handshake deadline. Thread: the loop's.
//   dialer    HELLO →            ← HELLO     acceptor        (both at once)
//             HELLO_PROOF →      ← HELLO_PROOF
// A session is established when the peer's proof has been verified: a replayed HELLO of a dead life never
// gets there, so it can't end the new life's handoffs. Any error means: close the channel.
class Session {
 public:
  // invalid_argument: a name too long, a descriptor that doesn't validate, or too many.
  static Result<Session> make(SessionOptions options);

  // To be sent first, at once.
  const std::vector<std::byte>& hello() const { return hello_; }

  struct Input {
    std::vector<std::vector<std::byte>> send;  // Frames to send now, in order.
    bool established = false;                  // Just now: tell both cores session_up(id, peer()).
    std::optional<wire::Frame> frame;          // A handoff frame of the peer.
  };
  // Errors: malformed, incompatible (protocol), unavailable (a frame out of turn, wrong name or key: not a
  // peer of ours), corrupt (a frame's MAC), aborted (a frame repeated or out of order).
  Result<Input> receive(std::span<const std::byte> bytes);

  bool is_established() const { return established_; }
  const Peer& peer() const;                             // Established only.
  bool has_id() const { return !peer_hello_.empty(); }  // The peer's HELLO has been received.
  Id128 id() const;  // Same at both ends; DATA_HELLO names it. has_id() only.

  // Encode a handoff frame with counter and MAC. Frames must be sent in the order of these calls.
  Result<std::vector<std::byte>> seal(const wire::Frame& frame);

  // Data channels. The dialer sends data_hello(n) as the first frame of a new channel; the acceptor finds the
  // session by DataHello::session, calls accept_data() and sends its answer; the dialer checks that with
  // confirm_data(). Then the channel belongs to this session at both ends: channel_up().
  Result<std::vector<std::byte>> data_hello(std::uint32_t number);
  // unavailable: wrong MAC; aborted: number used before; exhausted: too many in this session.
  Result<std::vector<std::byte>> accept_data(const wire::DataHello& hello);
  Status confirm_data(const wire::DataHello& answer);

 private:
  explicit Session(SessionOptions options);
  Result<Input> receive_hello(std::span<const std::byte> bytes);
  Result<Input> receive_proof(std::span<const std::byte> bytes);
  Result<Input> receive_sealed(std::span<const std::byte> bytes);
  Mac proof_mac(SessionRole sender) const;
  Mac data_mac(std::uint32_t number, bool from_acceptor) const;
  Status take_number(std::uint32_t number);

  SessionOptions options_;
  std::vector<std::byte> hello_, peer_hello_;
  Peer peer_;
  bool established_ = false;
  Key send_key_{}, receive_key_{};
  std::uint64_t sent_ = 0, received_ = 0;  // Counters of the last frame each way.
  std::set<std::uint32_t> numbers_;        // Data channels ever bound.
};

}  // namespace isthmus::handoff
