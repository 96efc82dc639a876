// SPDX-License-Identifier: Apache-2.0
// The life of sessions and channels.
#include "handoff/agent/links.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/rng.h"

namespace isthmus::handoff {
namespace {

// A consumer's frames that a live producer answers, at the latest when its senders are quiet.
bool asks_for_answer(const wire::Frame& frame) {
  return std::holds_alternative<wire::Open>(frame) || std::holds_alternative<wire::Renew>(frame) ||
         std::holds_alternative<wire::Done>(frame);
}

}  // namespace

Links::Links(net::Loop& loop, std::vector<transport::Transport*> transports, LinkOptions options,
             LinkEvents events)
    : loop_(loop),
      poster_(loop),
      transports_(std::move(transports)),
      options_(std::move(options)),
      events_(std::move(events)) {}

Links::~Links() {
  for (auto& [id, unbound] : unbound_) unbound.channel->revoke();
  for (auto& [id, link] : links_) {
    for (auto& [number, channel] : link->data) channel->revoke();
    for (auto& [number, channel] : link->binding) channel->revoke();
    for (Early& early : link->early) early.channel->revoke();
    if (link->control) link->control->revoke();
  }
}

Status Links::listen(const std::string& address) {
  Error last{Code::kUnsupported, "an agent needs a transport"};
  for (transport::Transport* transport : transports_) {
    auto made =
        transport->listen(transport->capabilities().same_host_only ? "" : address,
                          [this, name = transport->name()](std::unique_ptr<transport::Channel> channel) {
                            accept(std::move(channel), name);
                          });
    if (made.ok()) {
      endpoints_.push_back(fmt::format("{}://{}", transport->name(), (*made)->endpoint()));
      acceptors_.push_back(*std::move(made));
      continue;
    }
    if (made.code() != Code::kUnsupported) return made.error();
    last = made.error();
    if (on_left_out) on_left_out(transport->name(), last);
  }
  return acceptors_.empty() ? Status(last) : ok_status();
}

std::vector<Links::Way> Links::ways(const std::vector<std::string>& endpoints) const {
  constexpr std::string_view kScheme = "://";
  std::vector<Way> given;
  for (const std::string& endpoint : endpoints) {
    const std::size_t colon = endpoint.find(kScheme);
    const bool has_scheme = colon != std::string::npos;
    const std::string name = has_scheme ? endpoint.substr(0, colon) : "tcp";
    const auto at = std::ranges::find_if(transports_, [&](const auto* one) { return one->name() == name; });
    given.push_back({endpoint, at == transports_.end() ? nullptr : *at,
                     has_scheme ? endpoint.substr(colon + kScheme.size()) : endpoint});
  }
  std::vector<Way> ways;
  const auto take = [&](const transport::Transport* transport) {
    for (const Way& way : given) {
      if (way.transport == transport) ways.push_back(way);
    }
  };
  take(nullptr);
  for (const transport::Transport* transport : transports_) take(transport);
  return ways;
}

// A channel's callbacks may be running: it is silenced at once and destroyed from the loop.
void Links::bury(std::unique_ptr<transport::Channel> channel) {
  if (!channel) return;
  channel->revoke();
  loop_.post([keep = std::shared_ptr<transport::Channel>(std::move(channel))] {});
}

Links::Link* Links::find(SessionId id) {
  const auto at = links_.find(id);
  return at == links_.end() ? nullptr : at->second.get();
}

// --- Accepting.

void Links::accept(std::unique_ptr<transport::Channel> channel, std::string_view transport) {
  if (links_.size() + unbound_.size() >= options_.sessions_max) {
    if (on_refused) on_refused({Code::kExhausted, "too many sessions"});
    return bury(std::move(channel));
  }
  const std::uint64_t id = next_id_++;
  Unbound& unbound = unbound_[id];
  unbound.channel = std::move(channel);
  unbound.transport = transport;
  unbound.deadline = loop_.after(options_.handshake_max, [this, id] {
    bury(std::move(unbound_.at(id).channel));
    unbound_.erase(id);
  });
  transport::ChannelEvents events;
  events.on_control = [this, id](std::vector<std::byte> frame) { first_frame(id, frame); };
  events.on_incoming = [](const transport::Incoming&) -> Result<transport::Pieces> {
    return Error{Code::kUnavailable, "data before DATA_HELLO"};
  };
  events.on_closed = [this, id](const Status&) {
    const auto at = unbound_.find(id);
    if (at == unbound_.end()) return;
    bury(std::move(at->second.channel));
    unbound_.erase(at);
  };
  unbound.channel->set_events(std::move(events));
}

void Links::first_frame(std::uint64_t unbound, const std::vector<std::byte>& bytes) {
  const auto at = unbound_.find(unbound);
  if (at == unbound_.end()) return;
  std::unique_ptr<transport::Channel> channel = std::move(at->second.channel);
  const std::string_view transport = at->second.transport;
  unbound_.erase(at);
  const Result<wire::Frame> frame = wire::decode(bytes);
  if (frame.ok() && std::holds_alternative<wire::Hello>(*frame))
    return accept_session(std::move(channel), transport, bytes);
  if (frame.ok() && std::holds_alternative<wire::DataHello>(*frame)) {
    return accept_data(std::move(channel), std::get<wire::DataHello>(*frame));
  }
  if (on_refused)
    on_refused(frame.ok() ? Error{Code::kUnavailable, "a channel must begin with HELLO or DATA_HELLO"}
                          : frame.error());
  bury(std::move(channel));
}

void Links::accept_session(std::unique_ptr<transport::Channel> channel, std::string_view transport,
                           const std::vector<std::byte>& hello) {
  auto link = std::make_unique<Link>();
  link->id = next_id_++;
  link->transport = transport;
  link->control = std::move(channel);
  Link& kept = *link;
  links_[kept.id] = std::move(link);
  start_session(kept, SessionRole::kAcceptor, "");
  if (find(kept.id) != nullptr) control_frame(kept.id, hello);
}

void Links::accept_data(std::unique_ptr<transport::Channel> channel, const wire::DataHello& hello) {
  const auto at = std::find_if(links_.begin(), links_.end(), [&](const auto& entry) {
    const std::optional<Session>& session = entry.second->session;
    return session && session->has_id() && session->id() == hello.session;
  });
  Error refusal{Code::kUnavailable, "DATA_HELLO names no session"};
  if (at != links_.end() && !at->second->is_up) {
    // It came by a connection of its own: nothing orders it after the dialer's proof. The handshake's
    // deadline bounds the wait.
    if (at->second->early.size() < wire::kChannelsMax)
      return at->second->early.push_back({std::move(channel), hello});
    refusal = {Code::kExhausted, "too many data channels before the session"};
  } else if (at != links_.end()) {
    Result<std::vector<std::byte>> answer = at->second->session->accept_data(hello);
    if (answer.ok()) {
      const Status sent = channel->send_control(*answer);
      const Status adopted = sent.ok() ? adopt_data(*at->second, hello.number, std::move(channel)) : sent;
      if (adopted.ok()) return ready(*at->second);
      refusal = adopted.error();
    } else {
      refusal = answer.error();
    }
  }
  if (on_refused) on_refused(refusal);
  bury(std::move(channel));
}

// --- Sessions.

void Links::connect(const Way& way, const std::string& expected,
                    std::function<void(Result<SessionId>)> done) {
  if (const auto at = dialed_.find(way.endpoint); at != dialed_.end()) {
    Link& link = *links_.at(at->second);
    if (link.is_up && !expected.empty() && link.session->peer().name != expected) {
      return done(Error{Code::kUnavailable, fmt::format("agent at {} is {}, not {}", way.endpoint,
                                                        link.session->peer().name, expected)});
    }
    link.waiting.push_back({expected, link.is_up, std::move(done)});
    if (!link.is_up) return;
    if (!link.data.empty()) return ready(link);
    if (link.binding.empty() && !link.dialing) dial_data(link);
    return;
  }
  auto made = std::make_unique<Link>();
  Link& link = *made;
  link.id = next_id_++;
  link.way = way;
  link.transport = way.transport->name();
  link.waiting.push_back({expected, false, std::move(done)});
  links_[link.id] = std::move(made);
  dialed_[way.endpoint] = link.id;
  link.dialing = way.transport->connect(
      way.address, options_.connect_max,
      [this, id = link.id, expected](Result<std::unique_ptr<transport::Channel>> channel) {
        Link* dialed = find(id);
        if (dialed == nullptr) return;
        dialed->dialing = nullptr;
        if (!channel.ok()) return close(id, channel.error());
        dialed->control = *std::move(channel);
        start_session(*dialed, SessionRole::kDialer, expected);
      });
}

void Links::start_session(Link& link, SessionRole role, const std::string& expected) {
  Result<Session> session = Session::make({.fleet_key = options_.fleet_key,
                                           .role = role,
                                           .name = options_.name,
                                           .incarnation = options_.incarnation,
                                           .challenge = random_id(),
                                           .descriptors = options_.descriptors,
                                           .expected_peer = expected,
                                           .repeats_states = options_.repeats_states});
  if (!session.ok()) return close(link.id, session.error());
  link.session = *std::move(session);
  link.deadline = loop_.after(options_.handshake_max, [this, id = link.id] {
    close(id, Error{Code::kDeadlineExceeded, "the peer did not complete its handshake"});
  });
  transport::ChannelEvents events;
  events.on_control = [this, id = link.id](std::vector<std::byte> frame) { control_frame(id, frame); };
  events.on_incoming = [](const transport::Incoming&) -> Result<transport::Pieces> {
    return Error{Code::kMalformed, "data on a control channel"};
  };
  events.on_closed = [this, id = link.id](const Status& why) { close(id, why); };
  link.control->set_events(std::move(events));
  const Status sent = link.control->send_control(link.session->hello());
  if (!sent.ok()) close(link.id, sent);
}

void Links::control_frame(SessionId id, const std::vector<std::byte>& frame) {
  Link* link = find(id);
  if (link == nullptr) return;
  Result<Session::Input> input = link->session->receive(frame);
  if (!input.ok()) return close(id, input.error());
  if (link->silence) link->silence->set(kFarFuture);
  for (const auto& answer : input->send) {
    const Status sent = link->control->send_control(answer);
    if (!sent.ok()) return close(id, sent);
  }
  if (input->established) established(*link);
  if (!input->frame || find(id) == nullptr) return;
  const Status taken = events_.frame(id, *input->frame);
  if (!taken.ok()) close(id, taken);
}

void Links::established(Link& link) {
  link.deadline = nullptr;
  link.is_up = true;
  const SessionId id = link.id;
  ISTHMUS_LOG(kDebug, "session established", "peer={} incarnation={}", link.session->peer().name,
              link.session->peer().incarnation.hex());
  Peer peer = link.session->peer();
  peer.is_same_host = std::ranges::any_of(transports_, [&](const transport::Transport* each) {
    return each->name() == link.transport && each->capabilities().same_host_only;
  });
  const Status up = events_.session_up(id, peer);
  if (!up.ok()) return close(id, up);
  if (Link* kept = find(id)) {
    if (kept->way.transport != nullptr) dial_data(*kept);
    for (Early& early : std::exchange(kept->early, {})) accept_data(std::move(early.channel), early.hello);
  }
}

std::string_view Links::transport(SessionId session) const {
  const auto found = links_.find(session);
  return found == links_.end() ? std::string_view() : found->second->transport;
}

Status Links::send(SessionId session, const wire::Frame& frame) {
  Link* link = find(session);
  if (link == nullptr || !link->is_up) return Error{Code::kUnavailable, "the session is gone"};
  ISTHMUS_TRY(const auto sealed, link->session->seal(frame));
  ISTHMUS_TRY(link->control->send_control(sealed));
  if (asks_for_answer(frame)) await_answer(*link);
  return ok_status();
}

void Links::await_answer(Link& link) {
  if (!link.silence) {
    link.silence = std::make_unique<net::Deadline>(loop_, [this, id = link.id] {
      const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(options_.silence_max).count();
      close(id,
            Error{Code::kUnavailable, fmt::format("the peer owes an answer and was silent for {} ms", ms)});
    });
  }
  if (!link.silence->is_set()) link.silence->set(now() + options_.silence_max);
}

// --- Data channels.

void Links::dial_data(Link& link) {
  const std::uint32_t number = link.next_number++;
  link.dialing = link.way.transport->connect(
      link.way.address, options_.connect_max,
      [this, id = link.id, number](Result<std::unique_ptr<transport::Channel>> channel) {
        Link* dialed = find(id);
        if (dialed == nullptr) return;
        dialed->dialing = nullptr;
        if (!channel.ok()) return close(id, channel.error());
        Result<std::vector<std::byte>> hello = dialed->session->data_hello(number);
        if (!hello.ok()) return close(id, hello.error());
        dialed->deadline = loop_.after(options_.handshake_max, [this, id] {
          close(id, Error{Code::kDeadlineExceeded, "the peer did not answer DATA_HELLO"});
        });
        transport::ChannelEvents events;
        events.on_control = [this, id, number](std::vector<std::byte> frame) {
          data_answer(id, number, frame);
        };
        events.on_incoming = [](const transport::Incoming&) -> Result<transport::Pieces> {
          return Error{Code::kMalformed, "data before the answer to DATA_HELLO"};
        };
        events.on_closed = [this, id](const Status& why) { close(id, why); };
        std::unique_ptr<transport::Channel>& kept = dialed->binding[number] = *std::move(channel);
        kept->set_events(std::move(events));
        const Status sent = kept->send_control(*hello);
        if (!sent.ok()) close(id, sent);
      });
}

void Links::data_answer(SessionId id, std::uint32_t number, const std::vector<std::byte>& bytes) {
  Link* link = find(id);
  if (link == nullptr) return;
  const auto at = link->binding.find(number);
  if (at == link->binding.end()) return;
  const Result<wire::Frame> frame = wire::decode(bytes);
  if (!frame.ok()) return close(id, frame.error());
  const auto* answer = std::get_if<wire::DataHello>(&*frame);
  if (answer == nullptr)
    return close(id, Error{Code::kMalformed, "the answer to DATA_HELLO is something else"});
  const Status confirmed = link->session->confirm_data(*answer);
  if (!confirmed.ok()) return close(id, confirmed);
  std::unique_ptr<transport::Channel> channel = std::move(at->second);
  link->binding.erase(at);
  link->deadline = nullptr;
  const Status adopted = adopt_data(*link, number, std::move(channel));
  if (!adopted.ok()) return close(id, adopted);
  if (Link* kept = find(id)) ready(*kept);
}

Status Links::adopt_data(Link& link, std::uint32_t number, std::unique_ptr<transport::Channel> channel) {
  const ChannelId id{link.id, number};
  transport::ChannelEvents events;
  events.on_control = [this, id](const std::vector<std::byte>&) {
    close(id.session, Error{Code::kMalformed, "a control frame on a data channel"});
  };
  events.on_incoming = [this, id](const transport::Incoming& incoming) {
    return events_.incoming(id, incoming);
  };
  events.on_data = [this, id](transport::Received body) { events_.data(id, std::move(body)); };
  events.on_fence = [this, id](std::uint64_t token) { events_.fence(id, token); };
  events.on_closed = [this, id](const Status& why) { data_closed(id, why); };
  channel->set_events(std::move(events));
  link.data[number] = std::move(channel);
  return events_.channel_up(id);
}

void Links::data_closed(ChannelId id, const Status& why) {
  Link* link = find(id.session);
  if (link == nullptr) return;
  const auto at = link->data.find(id.number);
  if (at == link->data.end()) return;
  if (!why.ok() && on_refused && why.code() != Code::kUnavailable) on_refused(why.error());
  bury(std::move(at->second));
  link->data.erase(at);
  events_.channel_down(id, why);
}

transport::Channel* Links::data(ChannelId channel) {
  Link* link = find(channel.session);
  if (link == nullptr) return nullptr;
  const auto at = link->data.find(channel.number);
  return at == link->data.end() ? nullptr : at->second.get();
}

void Links::revoke(ChannelId channel) {
  transport::Channel* open = data(channel);
  if (open == nullptr) return;
  open->revoke();
  poster_.post([this, channel] { data_closed(channel, Error{Code::kAborted, "revoked"}); });
}

void Links::ready(Link& link) {
  const SessionId id = link.id;
  std::vector<std::function<void(Result<SessionId>)>> told;
  for (Waiting& waiting : std::exchange(link.waiting, {})) told.push_back(std::move(waiting.done));
  const std::string name = link.session->peer().name;
  for (auto at = awaited_.begin(); at != awaited_.end();) {
    if (at->second.name == name) told.push_back(std::move(at->second.done));
    at = at->second.name == name ? awaited_.erase(at) : std::next(at);
  }
  for (auto& done : told) done(id);
}

void Links::await(const std::string& expected, std::function<void(Result<SessionId>)> done) {
  for (const auto& [id, link] : links_) {
    if (link->is_up && !link->data.empty() && link->session->peer().name == expected) return done(id);
  }
  const std::uint64_t key = next_id_++;
  auto late = loop_.after(options_.connect_max + options_.handshake_max, [this, key] {
    auto node = awaited_.extract(key);
    if (node.empty()) return;
    node.mapped().done(
        Error{Code::kDeadlineExceeded,
              fmt::format("producer {} was to dial this agent and hasn't", node.mapped().name)});
  });
  awaited_.emplace(key, Awaited{expected, std::move(done), std::move(late)});
}

void Links::close(SessionId session, const Status& why) {
  auto node = links_.extract(session);
  if (node.empty()) return;
  std::shared_ptr<Link> link = std::move(node.mapped());
  if (link->way.transport != nullptr) dialed_.erase(link->way.endpoint);
  const Error error = why.ok() ? Error{Code::kUnavailable, "closed"} : why.error();
  if (on_refused && error.code != Code::kUnavailable) on_refused(error);
  ISTHMUS_LOG(kDebug, "session closed", "why=\"{}\"", error.text());
  if (link->control) link->control->revoke();
  for (Early& early : link->early) early.channel->revoke();
  for (auto& [number, channel] : link->binding) channel->revoke();
  for (auto& [number, channel] : link->data) channel->revoke();
  for (const auto& [number, channel] : link->data) events_.channel_down({session, number}, error);
  if (link->is_up) events_.session_down(session);
  for (Waiting& waiting : std::exchange(link->waiting, {})) {
    // One that lost its data channel may have been dying: that says nothing of a new session, dialed once.
    if (waiting.has_joined) {
      connect(link->way, waiting.expected, std::move(waiting.done));
    } else {
      waiting.done(error);
    }
  }
  loop_.post([link] {});  // Its channels' and timers' callbacks may be running.
}

}  // namespace isthmus::handoff
