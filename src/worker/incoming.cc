// SPDX-License-Identifier: Apache-2.0
// Room in the engine for what the agent fetches.
#include "worker/incoming.h"

#include <fmt/format.h>

#include <utility>

namespace isthmus::worker {

Service::Incoming::Incoming(Service& service, const Room& room, Events events)
    : service_(service), room_(room), events_(std::move(events)) {}

Result<std::shared_ptr<Service::Incoming>> Service::Incoming::start(
    Service& service, const TransferField& transfer, const std::vector<engine::TokenId>& prompt,
    const Room& room, std::optional<Sharing> sharing, Events events) {
  const std::shared_ptr<Incoming> incoming =
      std::unique_ptr<Incoming>(new Incoming(service, room, std::move(events)));
  handoff::FetchEvents fetch_events = incoming->fetch_events();
  if (sharing && service.arrivals_) {
    fetch_events.known = [incoming, prompt, salt = std::move(sharing->salt)](
                             engine::StateOrigin origin, std::uint64_t repeated,
                             std::function<void(handoff::KnownState)> done) {
      incoming->look_up({prompt, std::move(origin), repeated, salt}, std::move(done));
    };
  }
  ISTHMUS_TRY(incoming->fetch_, service.agent_.fetch({.ticket = transfer.ticket,
                                                      .endpoints = transfer.endpoints,
                                                      .is_pushed = transfer.is_pushed,
                                                      .prompt = kv::TokenChain(prompt),
                                                      .destination = service.amount_of(room.tokens),
                                                      .deadline = room.deadline},
                                                     std::move(fetch_events)));
  return incoming;
}

void Service::Incoming::cancel() {
  events_ = {};
  if (const auto fetch = std::exchange(fetch_, std::nullopt)) service_.agent_.cancel(*fetch);
}

handoff::FetchEvents Service::Incoming::fetch_events() {
  const auto self = shared_from_this();
  handoff::FetchEvents events;
  events.reserve = [self](kv::TokenRange range, std::function<void(Result<std::vector<kv::Binding>>)> done) {
    self->reserve(range, std::move(done));
  };
  events.planned = [self](const kv::Descriptor& source) {
    if (self->events_.planned) self->events_.planned(source);
    return ok_status();
  };
  events.release = [self] {
    self->service_.engine_.release(self->destination_.value());
    self->destination_.reset();
  };
  events.owned = [self](const handoff::SealInfo& seal, handoff::GrantId grant,
                        const handoff::Ending& ending) { self->owned(seal, grant, ending); };
  events.ended = [self](const handoff::SealInfo* seal, const handoff::Ending& ending) {
    self->fetch_.reset();
    if (const auto ended = std::exchange(self->events_, {}).ended) ended(seal, ending);
  };
  return events;
}

void Service::Incoming::look_up(engine::ArrivingState state, std::function<void(handoff::KnownState)> done) {
  state_ = std::make_shared<const engine::ArrivingState>(std::move(state));
  if (!service_.arrivals_->may_know(*state_)) return done({});
  const std::uint64_t unit = service_.engine_.info().block_tokens;
  service_.engine_.hold_arrived(
      state_, [unit, amount = service_.amount_of(unit), done = std::move(done)](
                  std::unique_ptr<engine::HeldPrefix> held) { done({std::move(held), unit, amount}); });
}

void Service::Incoming::reserve(kv::TokenRange range,
                                std::function<void(Result<std::vector<kv::Binding>>)> done) {
  known_ = range.begin;
  service_.engine_.reserve(
      room_.tokens, range, room_.by, state_,
      [self = shared_from_this(), done = std::move(done)](Result<Destination> destination) {
        if (!destination.ok()) return done(destination.error());
        self->destination_ = destination->sequence;
        done(std::move(destination->bindings));
      });
}

// A first token that can't be one ends it as a failed handoff does: the state is in doubt.
void Service::Incoming::owned(const handoff::SealInfo& seal, handoff::GrantId grant,
                              const handoff::Ending& ending) {
  fetch_.reset();
  const Events events = std::exchange(events_, {});
  const engine::SequenceId sequence = std::exchange(destination_, std::nullopt).value();
  const auto give_up = [&](std::string why) {
    service_.engine_.release(sequence);
    service_.agent_.free_memory(grant);
    if (!events.ended) return;
    handoff::Ending failed = ending;
    failed.kind = handoff::TerminalKind::kFailed;
    failed.error = {Code::kMalformed, std::move(why)};
    events.ended(nullptr, failed);
  };
  if (!events.arrived) return give_up("cancelled");  // The receiver left while the state became ours.
  if (seal.first_tokens.size() != 1) return give_up("the seal doesn't carry one first token");
  const engine::TokenId first = seal.first_tokens.front();
  if (first < 0 || static_cast<std::uint32_t>(first) >= service_.engine_.info().vocabulary)
    return give_up(fmt::format("first token {} isn't in the vocabulary", first));
  if (state_) service_.arrivals_->add(*state_, known_);
  events.arrived({sequence, first, grant, known_, ending});
}

}  // namespace isthmus::worker
