// SPDX-License-Identifier: Apache-2.0
// Offering and fetching, as an engine's shell would.
#include "groups/crossing.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"

namespace isthmus::groups {

using std::chrono::milliseconds;

engine::ReferenceOptions options_of(const std::string& storage, Ranks ranks,
                                    engine::ReferenceAttention attention, std::uint32_t kv_heads) {
  engine::ReferenceOptions options{
      .storage = storage, .tensor_ranks = ranks.tensor, .pipeline_ranks = ranks.pipeline, .kv_tokens = 1024};
  options.shape = {.attention = attention, .layers = 3, .query_heads = 6, .kv_heads = kv_heads, .dim = 32};
  if (attention == engine::ReferenceAttention::kMla) {
    options.shape.kv_heads = 1;
    options.shape.dim = 128;
  }
  return options;
}

handoff::Timings hasty() {
  return {.lease = milliseconds(2400),
          .lease_margin = milliseconds(200),
          .renew_interval = milliseconds(600),
          .resend_interval = milliseconds(100),
          .open_max = milliseconds(2000),
          .promise_max = milliseconds(2000),
          .capacity_max = milliseconds(1000),
          .confirm_max = milliseconds(1000),
          .quiesce_max = milliseconds(500),
          .resume_max = milliseconds(1000),
          .tombstone = std::chrono::seconds(2)};
}

Producing::Producing(net::Loop& loop, const std::string& transport, const engine::ReferenceOptions& options,
                     const handoff::Timings& timings)
    : Crew(loop, transport, "p", options, timings), prompt_(prompt_of(kPrompt)) {
  source_ = *engine().open(kPrompt);
  row_ = run(engine(), source_, prompt_);
}

Status Producing::offer(const kv::Descriptor& target) {
  ISTHMUS_TRY(offered,
              handoff::offer_group(agents(), engine().descriptor(), target, {},
                                   {.prompt_tokens = kPrompt,
                                    .pinned = std::vector<handoff::Amount>(ranks(), {.bytes = kPinned}),
                                    .deadline = now() + kPatience},
                                   [this](const handoff::Ending& end) {
                                     released = end.kind;
                                     ++ends;
                                     engine().close(source_);
                                   }));
  return ok_status();
}

void Producing::publish(std::size_t end) {
  for (; published_ < end; published_ = std::min(end, published_ + kTile)) {
    const kv::TokenRange range{published_, std::min(end, published_ + kTile)};
    std::vector<std::shared_ptr<const engine::ExportedKv>> memory;
    auto exported = *engine().export_ranks(source_, range);
    for (auto& rank : exported) memory.push_back(std::move(rank));
    offered->publish(range, memory);
  }
}

void Producing::seal(wire::FinishState finish) {
  offered->seal({.tokens = {0, kPrompt},
                 .token_digest = chain_of(prompt_),
                 .tile_root = {},
                 .first_tokens = {best(row_)},
                 .finish = finish});
}

Consuming::Consuming(net::Loop& loop, const std::string& transport, const engine::ReferenceOptions& options,
                     const handoff::Timings& timings, std::vector<std::uint32_t> here)
    : Crew(loop, transport, "d", options, timings, std::move(here)),
      loop_(loop),
      prompt_(prompt_of(kPrompt)) {}

void Consuming::take_lead(const handoff::Timings& timings, std::vector<handoff::RemoteSeat> others) {
  lead = std::make_unique<handoff::GroupLead>(loop_, agents(), engine().descriptor(), kv::Policy{}, timings,
                                              std::move(others));
}

void Consuming::over(const handoff::Ending& end) {
  ending = end;
  is_over = true;
  ++ends;
}

handoff::GroupFetchEvents Consuming::events() {
  handoff::GroupFetchEvents events;
  events.reserve = [this](kv::TokenRange range, const auto& done) {
    target = *engine().open(kPrompt + kAnswerTokens);
    std::vector<handoff::RankBindings> bindings;
    auto ranks_memory = *engine().bindings(target, range);
    for (const std::uint32_t rank : here()) bindings.push_back(std::move(ranks_memory[rank].groups));
    done(std::move(bindings));
  };
  events.release = [this] {
    engine().close(target);
    is_given_back = true;
  };
  events.owned = [this](const handoff::SealInfo& seal, const std::vector<handoff::GrantId>& mine,
                        const handoff::Ending& end) {
    sealed = seal;
    grants = mine;
    over(end);
  };
  events.ended = [this](const handoff::SealInfo*, const handoff::Ending& end) { over(end); };
  return events;
}

Status Consuming::fetch(const std::vector<handoff::MemberTicket>& all) {
  members = static_cast<std::size_t>(std::ranges::count_if(all, [&](const handoff::MemberTicket& member) {
    return std::ranges::find(here(), member.route.target_rank) != here().end();
  }));
  ISTHMUS_TRY(group, lead->fetch({.members = all,
                                  .prompt = kv::TokenChain(prompt_),
                                  .destination = std::vector<handoff::Amount>(ranks(), {.bytes = 2000}),
                                  .deadline = now() + kPatience},
                                 events()));
  return ok_status();
}

std::vector<std::byte> Consuming::memory() {
  std::vector<std::byte> all;
  const auto memory = *engine().bindings(target, {0, kPrompt});
  for (const std::uint32_t rank : here()) {
    for (const kv::Binding& binding : memory[rank].groups) {
      for (const kv::RegionMemory& region : binding.memory)
        all.insert(all.end(), region.base, region.base + region.bytes);
    }
  }
  return all;
}

Status Consuming::fetch_one(const handoff::MemberTicket& ticket, bool is_member) {
  handoff::FetchEvents events;
  events.planned = [](const kv::Descriptor&) { return ok_status(); };
  events.verified = [](const handoff::SealInfo&) {};
  return agent(ticket.route.target_rank)
      .fetch({.ticket = ticket.ticket,
              .endpoints = ticket.endpoints,
              .prompt = kv::TokenChain(prompt_),
              .destination = {},
              .deadline = now() + kPatience,
              .is_member = is_member},
             std::move(events))
      .status();
}

bool Consuming::is_moving() const {
  return entered(handoff::ConsumerState::kReceiving) == static_cast<int>(members);
}

bool Consuming::has_of_each_member() const {
  std::size_t with_chunks = 0;
  for (const auto& weak : agents()) {
    const auto rank = weak.lock();
    if (rank == nullptr) continue;
    for (const auto& one : rank->snapshot(members).handoffs) with_chunks += one.bytes_moved > 0 ? 1 : 0;
  }
  return with_chunks == members;
}

void Consuming::give_up_memory() {
  for (std::size_t i = 0; i < here().size(); ++i) agent(here()[i]).free_memory(grants[i]);
  engine().close(target);
}

Logits Consuming::answer() {
  if (!engine().kv_sink()->adopt(target, {0, kPrompt}).ok()) return {};
  return go_on(engine(), target, sealed.first_tokens.at(0));
}

Logits Consuming::answer_alone() {
  const engine::SequenceId own = *engine().open(kPrompt + kAnswerTokens);
  Logits rows = go_on(engine(), own, best(run(engine(), own, prompt_)));
  engine().close(own);
  return rows;
}

}  // namespace isthmus::groups
