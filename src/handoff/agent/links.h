// SPDX-License-Identifier: Apache-2.0
// Sessions with other agents and their channels: dialing, accepting, handshakes, framing of control frames.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "handoff/core/protocol.h"
#include "handoff/core/session.h"
#include "net/deadline.h"
#include "net/loop.h"
#include "net/poster.h"
#include "transport/api/transport.h"

namespace isthmus::handoff {

// What happens on links; loop's thread. None of these may destroy the Links.
struct LinkEvents {
  std::function<Status(SessionId, const Peer&)> session_up;  // An error closes the session.
  std::function<void(SessionId)> session_down;               // After channel_down of each of its channels.
  std::function<Status(ChannelId)> channel_up;
  std::function<void(ChannelId, const Status& why)> channel_down;
  std::function<Status(SessionId, const wire::Frame&)> frame;  // An error closes the session.
  std::function<Result<transport::Pieces>(ChannelId, const transport::Incoming&)> incoming;
  std::function<void(ChannelId, transport::Received)> data;
  std::function<void(ChannelId, std::uint64_t token)> fence;
};

struct LinkOptions {
  std::string name;
  Key fleet_key{};
  Id128 incarnation;
  std::vector<kv::Descriptor> descriptors;
  std::uint32_t sessions_max = 1024;
  Duration connect_max = std::chrono::seconds(1);
  Duration handshake_max = std::chrono::seconds(1);  // A half-open connection holds a place no longer.
  // No frame for so long after one that asks for an answer: the session is given up, and dialled again by who
  // needs it. A wire that swallows everything tells nobody.
  Duration silence_max = std::chrono::seconds(10);
  bool repeats_states = false;  // AgentOptions'.
};

class Links {
 public:
  Links(net::Loop& loop, std::vector<transport::Transport*> transports, LinkOptions options,
        LinkEvents events);
  ~Links();

  // `address` is for transports that reach other hosts. unsupported if this machine has none of the
  // transports.
  Status listen(const std::string& address);
  const std::vector<std::string>& endpoints() const { return endpoints_; }

  // One of a peer's endpoints, as this side can use it.
  struct Way {
    std::string endpoint;
    transport::Transport* transport = nullptr;  // Null: none of ours.
    std::string address;                        // Without the scheme.
  };
  // In order of preference; what can't be used comes first.
  std::vector<Way> ways(const std::vector<std::string>& endpoints) const;

  // A session with the agent `expected` at the end of a usable way that has a data channel: an existing one,
  // or dialed. `done` is called once. Errors: unavailable, deadline_exceeded, exhausted, the transport's or
  // the handshake's.
  void connect(const Way& way, const std::string& expected, std::function<void(Result<SessionId>)> done);
  // A session with the agent `expected` that has a data channel and that it dials: an existing one, or the
  // next within connect_max and handshake_max. `done` is called once. Errors: deadline_exceeded.
  void await(const std::string& expected, std::function<void(Result<SessionId>)> done);
  std::string_view transport(SessionId session) const;  // Its name; "" if the session is gone.
  Status send(SessionId session, const wire::Frame& frame);
  // Null if it is gone.
  transport::Channel* data(ChannelId channel);
  // Channel::revoke() at once; channel_down() is reported from the loop afterwards.
  void revoke(ChannelId channel);
  void close(SessionId session, const Status& why);
  // A transport that this machine doesn't support.
  std::function<void(std::string_view transport, const Error&)> on_left_out;
  // Refused handshakes and broken protocols, for metrics: called with the error's code.
  std::function<void(const Error&)> on_refused;

 private:
  struct Early {
    std::unique_ptr<transport::Channel> channel;
    wire::DataHello hello;
  };
  // Who wants a session with a data channel.
  struct Waiting {
    std::string expected;
    bool has_joined = false;  // A session that was up before.
    std::function<void(Result<SessionId>)> done;
  };
  struct Link {
    SessionId id = 0;
    Way way;  // Dialed; no transport if accepted.
    std::string_view transport;
    std::unique_ptr<transport::Pending> dialing;
    std::unique_ptr<transport::Channel> control;
    std::optional<Session> session;
    std::unique_ptr<net::Loop::Timer> deadline;
    std::unique_ptr<net::Deadline> silence;                                // Set while an answer is due.
    std::map<std::uint32_t, std::unique_ptr<transport::Channel>> data;     // Bound.
    std::map<std::uint32_t, std::unique_ptr<transport::Channel>> binding;  // DATA_HELLO sent, no answer yet.
    std::vector<Early> early;  // Their DATA_HELLO overtook the dialer's proof.
    std::uint32_t next_number = 1;
    bool is_up = false;  // session_up() has been told.
    std::vector<Waiting> waiting;
  };
  // An accepted channel whose first frame hasn't come.
  struct Unbound {
    std::unique_ptr<transport::Channel> channel;
    std::unique_ptr<net::Loop::Timer> deadline;
    std::string_view transport;
  };

  struct Awaited {
    std::string name;
    std::function<void(Result<SessionId>)> done;
    std::unique_ptr<net::Loop::Timer> deadline;
  };

  void accept(std::unique_ptr<transport::Channel> channel, std::string_view transport);
  void first_frame(std::uint64_t unbound, const std::vector<std::byte>& frame);
  void accept_session(std::unique_ptr<transport::Channel> channel, std::string_view transport,
                      const std::vector<std::byte>& hello);
  void accept_data(std::unique_ptr<transport::Channel> channel, const wire::DataHello& hello);
  void start_session(Link& link, SessionRole role, const std::string& expected);
  void control_frame(SessionId id, const std::vector<std::byte>& frame);
  void established(Link& link);
  void await_answer(Link& link);
  void dial_data(Link& link);
  void data_answer(SessionId id, std::uint32_t number, const std::vector<std::byte>& frame);
  Status adopt_data(Link& link, std::uint32_t number, std::unique_ptr<transport::Channel> channel);
  void data_closed(ChannelId id, const Status& why);
  void ready(Link& link);
  Link* find(SessionId id);
  void bury(std::unique_ptr<transport::Channel> channel);

  net::Loop& loop_;
  net::Poster poster_;
  std::vector<transport::Transport*> transports_;
  LinkOptions options_;
  LinkEvents events_;
  std::vector<std::unique_ptr<transport::Acceptor>> acceptors_;
  std::vector<std::string> endpoints_;  // Of the acceptors.
  std::map<SessionId, std::unique_ptr<Link>> links_;
  std::map<std::string, SessionId> dialed_;
  std::map<std::uint64_t, Unbound> unbound_;
  std::map<std::uint64_t, Awaited> awaited_;
  std::uint64_t next_id_ = 1;
};

}  // namespace isthmus::handoff
