// SPDX-License-Identifier: Apache-2.0
// Dispatch between loop, links, cores and mover.
#include "handoff/agent/shell.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/rng.h"

namespace isthmus::handoff {
namespace {

ProducerOptions producer_options(const AgentOptions& options, const kv::Descriptor& descriptor,
                                 const Id128& incarnation, Instant started) {
  return {.name = options.name,
          .incarnation = incarnation,
          .started = started,
          .fleet_key = options.fleet_key,
          .descriptors = {descriptor},
          .timings = options.timings,
          .limits = options.limits};
}

ConsumerOptions consumer_options(const AgentOptions& options, const kv::Descriptor& descriptor,
                                 const Id128& incarnation) {
  return {.name = options.name,
          .incarnation = incarnation,
          .fleet_key = options.fleet_key,
          .descriptors = {descriptor},
          .slots = options.staging_slots,
          .timings = options.timings,
          .limits = options.limits,
          .rank = options.rank};
}

}  // namespace

Shell::Shell(net::Loop& loop, std::vector<transport::Transport*> transports, const kv::Descriptor& descriptor,
             AgentOptions options, MetricsRegistry& metrics)
    : loop_(loop),
      poster_(loop),
      descriptor_(descriptor),
      descriptor_digest_(descriptor.digest()),
      options_(std::move(options)),
      meters_(metrics),
      busy_{meters_.busy("pack"), meters_.busy("encode"), meters_.busy("decode"), meters_.busy("place"),
            meters_.busy("verify")},
      incarnation_(random_id()),
      started_(now()),
      ledger_(options_.capacity),
      producer_(producer_options(options_, descriptor_, incarnation_, started_), &ledger_),
      consumer_(consumer_options(options_, descriptor_, incarnation_), &ledger_),
      next_tick_(loop, [this] {
        produce([&](ProducerActions& out) { producer_.tick(now(), out); });
        consume([&](ConsumerActions& out) { consumer_.tick(now(), out); });
      }) {
  links_ = std::make_unique<Links>(loop, std::move(transports),
                                   LinkOptions{.name = options_.name,
                                               .fleet_key = options_.fleet_key,
                                               .incarnation = incarnation_,
                                               .descriptors = {descriptor_},
                                               .sessions_max = options_.limits.sessions_max,
                                               .connect_max = options_.timings.connect_max,
                                               .handshake_max = options_.timings.handshake_max,
                                               .silence_max = options_.timings.open_max,
                                               .repeats_states = options_.repeats_states},
                                   link_events());
  links_->on_refused = [this](const Error& why) {
    meters_.peer_refused(why.code);
    ISTHMUS_LOG(kWarn, "peer refused", "why=\"{}\"", why.text());
  };
  links_->on_left_out = [this](std::string_view transport, const Error& why) {
    meters_.transport_refused(transport, why.code);
    ISTHMUS_LOG(kWarn, "transport left out", "transport={} why=\"{}\"", transport, why.text());
  };
  mover_ = std::make_unique<Mover>(loop, options_.has_mover_thread);
  if (!options_.on_state) return;
  producer_.observe([this](ProducerState, ProducerState to, std::string_view) { options_.on_state(to); });
  consumer_.observe([this](ConsumerState, ConsumerState to, std::string_view) { options_.on_state(to); });
}

Shell::~Shell() {
  is_closing_ = true;
  mover_.reset();
  links_.reset();  // Revokes every channel.
}

Status Shell::start() {
  return links_->listen(options_.listen);
}

LinkEvents Shell::link_events() {
  LinkEvents events;
  events.session_up = [this](SessionId session, const Peer& peer) {
    Status status;
    peers_[session] = peer;
    produce([&](ProducerActions& out) { status = producer_.session_up(session, peer, now(), out); });
    if (!status.ok()) return status;
    consume([&](ConsumerActions& out) { status = consumer_.session_up(session, peer, now(), out); });
    return status;
  };
  events.session_down = [this](SessionId session) {
    produce([&](ProducerActions& out) { producer_.session_down(session, now(), out); });
    consume([&](ConsumerActions& out) { consumer_.session_down(session, now(), out); });
    peers_.erase(session);
    reach_again(session);
  };
  events.channel_up = [this](ChannelId channel) {
    outboxes_[channel];
    producer_.channel_up(channel);
    return consumer_.channel_up(channel);
  };
  events.channel_down = [this](ChannelId channel, const Status& why) {
    close_outbox(channel);
    produce([&](ProducerActions& out) { producer_.channel_down(channel, now(), out); });
    consume([&](ConsumerActions& out) { consumer_.channel_down(channel, why, now(), out); });
    discarded_.erase(channel);
    landing_.erase(channel);
    reach_again(channel.session);
  };
  events.frame = [this](SessionId session, const wire::Frame& frame) {
    Status status;
    if (wire::is_for_consumer(frame, incarnation_)) {
      consume([&](ConsumerActions& out) { status = consumer_.frame_in(session, frame, now(), out); });
    } else {
      produce([&](ProducerActions& out) { status = producer_.frame_in(session, frame, now(), out); });
    }
    return status;
  };
  events.incoming = [this](ChannelId channel, const transport::Incoming& incoming) {
    return judge(channel, incoming);
  };
  events.data = [this](ChannelId channel, transport::Received body) { arrived(channel, std::move(body)); };
  events.fence = [this](ChannelId channel, std::uint64_t token) {
    consume([&](ConsumerActions& out) { consumer_.fence_seen(channel, token, now(), out); });
  };
  return events;
}

void Shell::pump() {
  if (is_pumping_) return;
  is_pumping_ = true;
  while (!actions_.empty()) {
    auto action = std::move(actions_.front());
    actions_.pop_front();
    std::visit([this](auto& core_action) { carry_out(core_action); }, action);
  }
  is_pumping_ = false;
  next_tick_.set(std::min(producer_.next_deadline(), consumer_.next_deadline()));
}

void Shell::act(SendFrame& action) {
  const Status sent = links_->send(action.session, action.frame);
  if (!sent.ok() && sent.code() != Code::kUnavailable) links_->close(action.session, sent);
}

void Shell::act(RevokeChannel& action) {
  links_->revoke(action.channel);
}

void Shell::make_plan(const MakePlan& action, bool is_producer) {
  const auto answer = [&](Result<std::shared_ptr<const transform::Plan>> plan) {
    if (is_producer) {
      produce([&](ProducerActions& out) {
        if (!plan.ok())
          return producer_.plan_failed(action.handoff, action.attempt, plan.error(), now(), out);
        PlanFacts facts = facts_of(*plan);
        facts.codec = codec_of(**plan, action);
        producer_.plan_ready(action.handoff, action.attempt, std::move(facts), now(), out);
      });
    } else {
      consume([&](ConsumerActions& out) {
        if (!plan.ok())
          return consumer_.plan_failed(action.handoff, action.attempt, plan.error(), now(), out);
        consumer_.plan_ready(action.handoff, action.attempt, facts_of(*plan), now(), out);
      });
    }
  };
  answer(is_producer ? outgoing_plan(action) : incoming_plan(action));
}

Result<const kv::Descriptor*> Shell::descriptor_of_peer(Digest128 digest) const {
  for (const auto& [session, peer] : peers_) {
    if (const kv::Descriptor* found = peer.descriptors.find(digest)) return found;
  }
  return Error{Code::kNotFound, "the peer's descriptor is gone with its session"};
}

Result<std::shared_ptr<const transform::Plan>> Shell::made_plan(const MakePlan& action,
                                                                const kv::Descriptor& source,
                                                                const kv::Descriptor& target,
                                                                const transform::Route& route) {
  ISTHMUS_TRY(transform::Plan made,
              transform::Plan::make_member(source, target, action.verdict, action.tokens, route,
                                           transform::EndDigests{action.source, action.target}));
  if (made.chunk_count() == 0) {
    return Error{Code::kIncompatible, fmt::format("nothing of the state goes from rank {} to rank {}",
                                                  route.source_rank, route.target_rank)};
  }
  return std::make_shared<const transform::Plan>(std::move(made));
}

Result<bool> Shell::InPlace::show(const std::shared_ptr<const transform::Plan>& plan,
                                  const kv::Descriptor& descriptor, std::uint32_t rank,
                                  const transform::Chunk& chunk, const kv::Binding& binding,
                                  transform::BodyRuns& runs) {
  constexpr std::uint64_t kCopiedMax = std::uint64_t{16} << 10;
  if (chunk.body_bytes <= kCopiedMax) return false;
  if (!shown) {
    ISTHMUS_TRY(shown, transform::InPlace::make(plan, descriptor, rank));
  }
  Result<bool> is_shown = shown->runs(chunk, binding, pads, runs);
  if (!is_shown.ok() || !*is_shown) {
    runs.clear();
    return is_shown;
  }
  if (!read) {
    ISTHMUS_TRY(read, transform::InPlace::make(plan, descriptor, rank));
  }
  return true;
}

PlanFacts Shell::facts_of(const std::shared_ptr<const transform::Plan>& plan) {
  return {.digest = plan->digest(),
          .chunk_count = plan->chunk_count(),
          .slot_bytes = plan->body_bytes_max(),
          .total_bytes = plan->total_bytes(),
          .chunks_below = [plan](std::uint64_t watermark) { return plan->chunks_below(watermark); },
          .geometry =
              [plan](std::uint32_t index) {
                const transform::Chunk chunk = plan->chunk(index);
                return wire::ChunkGeometry{chunk.group, chunk.box, chunk.body_bytes, chunk.tile_count()};
              }};
}

std::string one_line(const kv::WireForm& wire) {
  std::string text = wire.text();
  while (!text.empty() && text.back() == '\n') text.pop_back();
  std::replace(text.begin(), text.end(), '\n', '|');
  return text;
}

Result<std::unique_ptr<Agent>> make_agent(net::Loop& loop, std::vector<transport::Transport*> transports,
                                          const kv::Descriptor& descriptor, AgentOptions options,
                                          MetricsRegistry& metrics) {
  ISTHMUS_TRY(descriptor.validate());
  if (!transform::has_rank(descriptor, options.rank))
    return Error{Code::kInvalidArgument, fmt::format("the descriptor has no rank {}", options.rank)};
  auto shell = std::make_unique<Shell>(loop, std::move(transports), descriptor, std::move(options), metrics);
  ISTHMUS_TRY(shell->start());
  return std::unique_ptr<Agent>(std::move(shell));
}

}  // namespace isthmus::handoff
