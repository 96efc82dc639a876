// SPDX-License-Identifier: Apache-2.0
// GET /state: one JSON object that says what this worker is, holds and moves. spec/state.md lists its
// members.
#include <algorithm>
#include <utility>

#include "worker/service.h"

namespace isthmus::worker {
namespace {

// Of each list. Longer ones say how many were left off.
constexpr std::size_t kEntriesMax = 256;

double seconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

json::Value tokens_of(const kv::TokenRange& range) {
  return json::array({range.begin, range.end});
}

json::Value amount_of(const handoff::Amount& amount) {
  return json::object({{"bytes", amount.bytes}, {"blocks", amount.blocks}});
}

json::Value handoff_of(const handoff::HandoffSnapshot& handoff) {
  json::Value shown = json::object({{"id", handoff.id},
                                    {"side", handoff.is_producer ? "producer" : "consumer"},
                                    {"peer", handoff.peer},
                                    {"state", handoff.state},
                                    {"transport", handoff.transport},
                                    {"wire", handoff.wire},
                                    {"tokens", tokens_of(handoff.tokens)},
                                    {"attempt", handoff.attempt},
                                    {"generation", handoff.generation},
                                    {"age_seconds", seconds(handoff.age)},
                                    {"bytes_moved", handoff.bytes_moved},
                                    {"bytes_total", nullptr},
                                    {"lease_left_seconds", nullptr}});
  if (handoff.bytes_total) shown.set("bytes_total", *handoff.bytes_total);
  if (handoff.lease_left) shown.set("lease_left_seconds", seconds(*handoff.lease_left));
  return shown;
}

json::Value agent_of(const handoff::AgentSnapshot& agent) {
  json::Array handoffs, reservations;
  for (const handoff::HandoffSnapshot& handoff : agent.handoffs) handoffs.push_back(handoff_of(handoff));
  for (const handoff::ReservationSnapshot& kept : agent.reservations) {
    reservations.push_back(json::object({{"id", kept.id},
                                         {"state", kept.state},
                                         {"tokens", tokens_of(kept.tokens)},
                                         {"computed", kept.computed},
                                         {"age_seconds", seconds(kept.age)},
                                         {"lease_left_seconds", seconds(kept.lease_left)}}));
  }
  return json::object({{"sessions", agent.sessions},
                       {"quarantined", agent.quarantined},
                       {"handoffs", std::move(handoffs)},
                       {"handoffs_left_off", agent.handoffs_left_off},
                       {"reservations", std::move(reservations)},
                       {"reservations_left_off", agent.reservations_left_off}});
}

json::Value ledger_of(const handoff::Ledger& ledger) {
  json::Value held = json::Object();
  for (std::size_t i = 0; i < handoff::kCategoryCount; ++i) {
    const auto category = static_cast<handoff::Category>(i);
    held.set(handoff::name(category), amount_of(ledger.held(category)));
  }
  return json::object({{"capacity", amount_of(ledger.capacity().kv)},
                       {"free", amount_of(ledger.free())},
                       {"staging_capacity_bytes", ledger.capacity().staging_bytes},
                       {"staging_free_bytes", ledger.free_staging()},
                       {"held", std::move(held)},
                       {"granted", ledger.granted()},
                       {"released", ledger.released()},
                       {"live", ledger.live()}});
}

json::Value engine_of(const EngineLoop& engine) {
  const engine::EngineInfo& info = engine.info();
  const EngineLoopStats stats = engine.stats();
  json::Array sequences;
  for (const SequenceView& sequence : engine.sequences()) {
    if (sequences.size() == kEntriesMax) break;
    sequences.push_back(json::object({{"job", sequence.job},
                                      {"kind", sequence.kind},
                                      {"prompt_tokens", sequence.prompt},
                                      {"computed_tokens", sequence.computed},
                                      {"generated_tokens", sequence.generated},
                                      {"preempted", sequence.is_preempted}}));
  }
  return json::object({{"name", info.name},
                       {"version", info.version},
                       {"storage", info.storage},
                       {"context_tokens_max", info.context_tokens_max},
                       {"block_tokens", info.block_tokens},
                       {"kv_bytes_per_token", info.kv_bytes_per_token},
                       {"sequences_open", stats.usage.sequences},
                       {"sequences_max", info.sequences_max},
                       {"blocks_used", stats.usage.blocks_used},
                       {"blocks_kept", stats.usage.blocks_kept},
                       {"blocks_total", stats.usage.blocks_total},
                       {"blocks_parked", stats.usage.blocks_parked},
                       {"kv_bytes_used", stats.usage.kv_bytes_used},
                       {"kv_bytes_total", stats.usage.kv_bytes_total},
                       {"jobs_running", stats.jobs_running},
                       {"jobs_waiting", stats.jobs_waiting},
                       {"jobs_preempted", stats.jobs_preempted},
                       {"preemptions", stats.preemptions},
                       {"prompt_tokens_computed", stats.prompt_tokens_computed},
                       {"prompt_tokens_adopted", stats.prompt_tokens_adopted},
                       {"prefix_tokens_queried", stats.prefix_tokens_queried},
                       {"prefix_tokens_known", stats.prefix_tokens_known},
                       {"tokens_generated", stats.tokens_generated},
                       {"draft_tokens", stats.draft_tokens},
                       {"draft_tokens_accepted", stats.draft_tokens_accepted},
                       {"sequences", std::move(sequences)}});
}

json::Value descriptor_of(const kv::Descriptor& descriptor) {
  json::Array lines;
  for (const auto& [path, value] : descriptor.canonical_lines()) lines.push_back(json::array({path, value}));
  return json::object({{"digest", descriptor.digest().hex()}, {"lines", std::move(lines)}});
}

std::string_view name(Role role) {
  return role == Role::kPrefill ? "prefill" : role == Role::kDecode ? "decode" : "both";
}

}  // namespace

http::Response Service::state() const {
  const json::Value state =
      json::object({{"worker", json::object({{"name", options_.name},
                                             {"model", options_.served_model},
                                             {"role", name(options_.role)},
                                             {"endpoints", endpoints()},
                                             {"incarnation", agent_.incarnation().hex()},
                                             {"draining", is_draining_}})},
                    {"engine", engine_of(engine_)},
                    {"agent", agent_of(agent_.snapshot(kEntriesMax))},
                    {"ledger", ledger_of(agent_.ledger())},
                    {"descriptor", descriptor_of(engine_.descriptor())}});
  return {.status = 200, .headers = {{"Content-Type", "application/json"}}, .body = state.dump() + "\n"};
}

}  // namespace isthmus::worker
