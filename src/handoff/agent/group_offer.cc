// SPDX-License-Identifier: Apache-2.0
// A state on several ranks, offered: a reservation for each pair of ranks that something moves between.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/rng.h"
#include "handoff/agent/group.h"
#include "transform/plan.h"

namespace isthmus::handoff {
namespace {

class Offering final : public OfferedGroup, public std::enable_shared_from_this<Offering> {
 public:
  Offering(RankAgents ranks, std::function<void(const Ending&)> ended)
      : ranks_(std::move(ranks)), ended_(std::move(ended)), holds_(ranks_.size(), 0) {
    ending_.kind = TerminalKind::kDone;
  }

  const std::vector<MemberTicket>& members() const override { return tickets_; }

  Status start(const std::vector<transform::Route>& routes, const GroupOffer& offer) {
    const Id128 group = random_id();
    const auto count = static_cast<std::uint32_t>(routes.size());
    for (const transform::Route& route : routes) {
      if (holds_.at(route.source_rank) == 0) ISTHMUS_TRY(hold(route.source_rank, offer));
      ISTHMUS_TRY(add(route, offer, {group, static_cast<std::uint32_t>(members_.size()), count}));
    }
    return ok_status();
  }

  // After a start that failed: nobody is told.
  void give_up() {
    ended_ = nullptr;
    withdraw("the group could not be offered");
    for (std::uint32_t rank = 0; rank < holds_.size(); ++rank) let_go(rank);
  }

  void publish(kv::TokenRange range,
               const std::vector<std::shared_ptr<const engine::ExportedKv>>& memory) override {
    ISTHMUS_CHECK(memory.size() == ranks_.size());
    for_each_live([&](Agent& agent, std::size_t i) {
      const auto& part = memory[tickets_[i].route.source_rank];
      if (part) agent.publish(members_[i].reservation, range, part);
    });
  }

  void seal(const SealInfo& seal) override {
    for_each_live([&](Agent& agent, std::size_t i) { agent.seal(members_[i].reservation, seal); });
  }

  void withdraw(const std::string& why) override {
    for_each_live([&](Agent& agent, std::size_t i) { agent.withdraw(members_[i].reservation, why); });
  }

  void rank_lost(std::uint32_t rank) override {
    const auto self = shared_from_this();
    holds_.at(rank) = 0;  // Its ledger is gone.
    Ending lost;
    lost.kind = TerminalKind::kPeerLost;
    lost.error = {Code::kUnavailable, fmt::format("rank {} of the producer is gone", rank)};
    for (std::size_t i = 0; i < members_.size(); ++i) {
      if (tickets_[i].route.source_rank == rank) member_ended(i, lost);
    }
  }

 private:
  struct Member {
    Id128 reservation;
    bool is_over = false;
  };

  Result<std::shared_ptr<Agent>> agent_of(std::uint32_t rank) const {
    std::shared_ptr<Agent> agent = ranks_.at(rank).lock();
    if (agent) return agent;
    return Error{Code::kUnavailable, fmt::format("rank {} is gone", rank)};
  }

  Status hold(std::uint32_t rank, const GroupOffer& offer) {
    ISTHMUS_TRY(const auto agent, agent_of(rank));
    ISTHMUS_TRY(holds_[rank], agent->pin_memory(offer.pinned.at(rank), offer.deadline));
    return ok_status();
  }

  Status add(const transform::Route& route, const GroupOffer& offer, const wire::Membership& membership) {
    ISTHMUS_TRY(const auto agent, agent_of(route.source_rank));
    ISTHMUS_TRY(Offered made, agent->offer({offer.prompt_tokens, {}, offer.deadline, membership},
                                           [self = shared_from_this(), i = members_.size()](
                                               const Ending& ending) { self->member_ended(i, ending); }));
    members_.push_back({made.reservation});
    tickets_.push_back({route, std::move(made.ticket), agent->endpoints()});
    return ok_status();
  }

  template <typename Each>
  void for_each_live(Each each) {
    const auto self = shared_from_this();
    for (std::size_t i = 0; i < members_.size(); ++i) {
      const auto agent = ranks_.at(tickets_[i].route.source_rank).lock();
      if (agent && !members_[i].is_over) each(*agent, i);
    }
  }

  void member_ended(std::size_t i, const Ending& ending) {
    if (std::exchange(members_[i].is_over, true)) return;
    ending_.bytes += ending.bytes;
    ending_.stored_bytes += ending.stored_bytes;
    ending_.chunks += ending.chunks;
    if (ending_.wire.empty()) ending_.wire = ending.wire;
    const bool is_bad = ending.kind != TerminalKind::kDone && ending.kind != TerminalKind::kFinished;
    if (is_bad && ending_.kind == TerminalKind::kDone) {
      ending_.kind = ending.kind;
      ending_.error = ending.error;
      // Nobody will own what is left.
      withdraw(fmt::format("another rank's reservation has ended: {}", name(ending.kind)));
    }
    const std::uint32_t rank = tickets_[i].route.source_rank;
    const auto is_open = [&](std::size_t j) {
      return !members_[j].is_over && tickets_[j].route.source_rank == rank;
    };
    bool is_read = false, is_over = true;
    for (std::size_t j = 0; j < members_.size(); ++j) {
      is_read = is_read || is_open(j);
      is_over = is_over && members_[j].is_over;
    }
    if (!is_read) let_go(rank);
    if (!is_over) return;
    if (const auto ended = std::exchange(ended_, nullptr)) ended(ending_);
  }

  void let_go(std::uint32_t rank) {
    const GrantId hold = std::exchange(holds_[rank], 0);
    if (const auto agent = ranks_[rank].lock()) agent->free_memory(hold);
  }

  RankAgents ranks_;
  std::function<void(const Ending&)> ended_;
  std::vector<GrantId> holds_;   // By rank.
  std::vector<Member> members_;  // Parallel to tickets_.
  std::vector<MemberTicket> tickets_;
  Ending ending_;
};

}  // namespace

Result<std::shared_ptr<OfferedGroup>> offer_group(const RankAgents& ranks, const kv::Descriptor& source,
                                                  const kv::Descriptor& target, const kv::Policy& policy,
                                                  const GroupOffer& offer,
                                                  std::function<void(const Ending&)> ended) {
  if (offer.pinned.size() != ranks.size()) {
    return Error{Code::kInvalidArgument,
                 fmt::format("{} amounts are pinned on {} ranks", offer.pinned.size(), ranks.size())};
  }
  ISTHMUS_TRY(const auto routes,
              transform::Plan::members(source, target, kv::negotiate(source, target, policy),
                                       {0, offer.prompt_tokens}));
  if (routes.empty() || routes.size() > kGroupRanksMax) {
    return Error{Code::kInvalidArgument,
                 fmt::format("a group of {} members, 1 to {}", routes.size(), kGroupRanksMax)};
  }
  if (std::ranges::any_of(routes, [&](const auto& route) { return route.source_rank >= ranks.size(); }))
    return Error{Code::kInvalidArgument, fmt::format("the descriptor has more than {} ranks", ranks.size())};
  auto made = std::make_shared<Offering>(ranks, std::move(ended));
  if (Status started = made->start(routes, offer); !started.ok()) {
    made->give_up();
    return started.error();
  }
  return std::shared_ptr<OfferedGroup>(std::move(made));
}

}  // namespace isthmus::handoff
