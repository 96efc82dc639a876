// SPDX-License-Identifier: Apache-2.0
// Handoffs between groups of ranks, and reads of the producer's memory that nobody there serves.
#include <algorithm>

#include "sim/world_parts.h"

namespace isthmus::handoff::sim {

// Requests that are ranks of one group begin together, each at some consumer; one of the consumers leads.
void World::join_group(std::size_t index) {
  pending_ranks_.push_back(index);
  if (pending_ranks_.size() < group_ranks_) return;
  auto run = std::make_shared<GroupRun>();
  run->requests = std::exchange(pending_ranks_, {});
  group_ranks_ = static_cast<std::size_t>(between(2, 3));
  world_at(ms(1, 300), [this, run] {
    run->lead = static_cast<std::size_t>(between(kProducers, kAgents - 1));
    Agent& lead = *agents_[run->lead];
    if (!lead.alive) return;
    Duration deadline = requests_[run->requests[0]]->deadline;
    for (const std::size_t index : run->requests) deadline = std::min(deadline, requests_[index]->deadline);
    const auto begun = lead.group->begin(static_cast<std::uint32_t>(run->requests.size()),
                                         Instant{deadline} - lead.clock_lost, clock(run->lead));
    if (!begun.ok()) return;
    run->id = *begun;
    lead.groups[run->id] = run;
    run->members.resize(run->requests.size());
    for (std::uint32_t rank = 0; rank < run->requests.size(); ++rank) {
      const auto consumer = static_cast<std::size_t>(between(kProducers, kAgents - 1));
      run->members[rank].consumer = consumer;
      if (!agents_[consumer]->alive) {
        rank_failed(run, rank);
        continue;
      }
      at(consumer, ms(0, 20), [this, run, rank, consumer] {
        begin_at(consumer, run->requests[rank], 0, run, rank);
        if (run->members[rank].handoff.sequence == 0) rank_failed(run, rank);
      });
    }
    after_event(run->lead);
  });
}

// A lead's next life numbers its groups anew: a word about one of its past life is of none.
bool World::leads(std::size_t lead, const std::shared_ptr<GroupRun>& run) const {
  const auto found = agents_[lead]->groups.find(run->id);
  return found != agents_[lead]->groups.end() && found->second == run;
}

// A message to the lead: late, lost or repeated as control frames are.
void World::tell_lead(const std::shared_ptr<GroupRun>& run,
                      std::function<void(GroupCore&, GroupActions&)> event) {
  const std::size_t lead = run->lead;
  if (!agents_[lead]->alive || !leads(lead, run)) return;
  const int copies = (chance(faults_.control_lost) ? 0 : 1) + (chance(faults_.control_repeated) ? 1 : 0);
  for (int i = 0; i < copies; ++i) {
    at(lead, ms(1, 5), [this, lead, event] {
      GroupActions out;
      event(*agents_[lead]->group, out);
      act(lead, std::move(out));
    });
  }
}

// Repeated by whoever sees that the rank is gone, so that it isn't lost.
void World::rank_failed(const std::shared_ptr<GroupRun>& run, std::uint32_t rank) {
  const std::size_t lead = run->lead;
  if (!agents_[lead]->alive || !leads(lead, run)) return;
  at(lead, ms(1, 200), [this, lead, run, rank] {
    GroupActions out;
    agents_[lead]->group->failed(run->id, rank, TerminalKind::kPeerLost,
                                 Error{Code::kUnavailable, "its handoff has ended"}, out);
    act(lead, std::move(out));
  });
}

void World::act(std::size_t lead, GroupActions actions) {
  for (const GroupAction& action : actions) {
    const auto id = std::visit([](const auto& each) { return each.group; }, action);
    const auto found = agents_[lead]->groups.find(id);
    if (found == agents_[lead]->groups.end()) continue;
    const std::shared_ptr<GroupRun> run = found->second;
    const auto tell = [&](std::uint32_t rank, auto event) {
      const auto& member = run->members.at(rank);
      if (!agents_[member.consumer]->alive || chance(faults_.control_lost) || member.handoff.sequence == 0)
        return;
      at(member.consumer, ms(1, 5), [this, consumer = member.consumer, handoff = member.handoff, event] {
        ConsumerActions out;
        event(*agents_[consumer]->consumer, handoff, clock(consumer), out);
        act(consumer, std::move(out));
      });
    };
    if (const auto* own = std::get_if<TellOwn>(&action)) {
      tell(own->rank, [](ConsumerCore& core, const wire::HandoffId& handoff, Instant now,
                         ConsumerActions& out) { core.decide(handoff, now, out); });
    } else if (const auto* abandon = std::get_if<TellAbandon>(&action)) {
      tell(abandon->rank,
           [why = abandon->why](ConsumerCore& core, const wire::HandoffId& handoff, Instant now,
                                ConsumerActions& out) { core.abandon(handoff, why, now, out); });
    } else if (const auto* ended = std::get_if<GroupEnded>(&action)) {
      if (std::exchange(run->ended, true)) violation("a group ends twice");
      ++outcome_.group_ends[std::string(name(ended->kind))];
      if (ended->kind == TerminalKind::kOwned && run->owned.size() < run->members.size())
        violation("a group is owned on some of its ranks");
    }
  }
}

// One-sided: it works whatever the producer's process does, and reads whatever is there.
void World::read_directly(std::size_t index, const Verify& check, std::uint32_t chunk) {
  const std::size_t producer =
      requests_[agents_[index]->memory.at(check.handoff.sequence)->request]->producer;
  const std::uint64_t life = agents_[producer]->life;
  at(index, chance(faults_.sticks) ? ms(3000, 12000) : ms(1, 20),
     [this, index, check, chunk, producer, life] {
       Memory& memory = *agents_[index]->memory.at(check.handoff.sequence);
       if (memory.destination_released) violation("released memory is written by a direct read");
       const Agent& other = *agents_[producer];
       const auto pages = other.pages.find(requests_[memory.request]->reservation);
       Status status;
       if (!other.alive || other.life != life || pages == other.pages.end()) {
         status = Error{Code::kUnavailable, "its memory is gone"};
       } else {
         memory.destination[chunk] = pages->second->values[chunk];
         if (chunk + 1 < memory.destination.size()) return read_directly(index, check, chunk + 1);
       }
       ConsumerActions out;
       agents_[index]->consumer->verified(check.handoff, check.attempt, status, clock(index), out);
       act(index, std::move(out));
     });
}

}  // namespace isthmus::handoff::sim
