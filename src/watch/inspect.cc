// SPDX-License-Identifier: Apache-2.0
// One paragraph a subject.
#include "watch/inspect.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "watch/text.h"

namespace isthmus::watch {
namespace {

constexpr std::size_t kBarCells = 20;

double part_of(std::uint64_t some, std::uint64_t all) {
  return all == 0 ? 0 : static_cast<double>(some) / static_cast<double>(all);
}

std::string tokens_text(const kv::TokenRange& tokens) {
  return fmt::format("[{}, {})", tokens.begin, tokens.end);
}

std::string head(const WorkerState& state, const std::string& url) {
  std::string text = fmt::format("{} at {}: {} worker of {}{}\n", state.name, url, state.role, state.model,
                                 state.draining ? ", draining" : "");
  text +=
      fmt::format("  engine      {} {}, storage {}, {}\n", state.engine, state.engine_version, state.storage,
                  state.block_tokens == 0 ? std::string("rows without blocks")
                                          : fmt::format("blocks of {} tokens", state.block_tokens));
  text += fmt::format("  a token     {}; at most {} tokens a sequence\n",
                      bytes_text(static_cast<double>(state.kv_bytes_per_token)),
                      count_text(state.context_tokens_max));
  text += fmt::format("  agent       {}, incarnation {}, {} session{}\n", fmt::join(state.endpoints, " "),
                      state.incarnation, state.sessions, state.sessions == 1 ? "" : "s");
  return text + fmt::format("  descriptor  {}\n", state.descriptor_digest);
}

std::string pools(const WorkerState& state) {
  std::string text = "\npools\n";
  const auto add = [&](std::string_view name, std::uint64_t used, std::uint64_t total, std::string more) {
    text += fmt::format("  {:<10}  {}  {} of {}{}\n", name, bar(part_of(used, total), kBarCells),
                        bytes_text(static_cast<double>(used)), bytes_text(static_cast<double>(total)), more);
  };
  const std::string blocks =
      state.blocks_total == 0
          ? ""
          : fmt::format(", {} of {} blocks", count_text(state.blocks_used), count_text(state.blocks_total));
  add("engine", state.kv_bytes_used, state.kv_bytes_total,
      fmt::format("{}, {} of {} sequences", blocks, state.sequences_open, state.sequences_max));
  add("ledger", state.capacity_bytes - state.free_bytes, state.capacity_bytes, "");
  add("staging", state.staging_capacity_bytes - state.staging_free_bytes, state.staging_capacity_bytes, "");
  for (const LedgerRow& row : state.ledger) {
    if (row.bytes == 0) continue;
    text += fmt::format("    {:<10}  {}{}\n", row.category, bytes_text(static_cast<double>(row.bytes)),
                        row.blocks == 0 ? "" : fmt::format(", {} blocks", count_text(row.blocks)));
  }
  if (state.quarantined > 0) {
    text += fmt::format("  {} destination{} in quarantine: a placement never reported back\n",
                        state.quarantined, state.quarantined == 1 ? " is" : "s are");
  }
  return text;
}

std::string states(const WorkerState& state) {
  Table table({"  STATE", "WHAT", "TOKENS", ">AGE", ">LEASE", "MORE"});
  for (const SequenceRow& row : state.sequences) {
    table.add({fmt::format("  sequence {}", row.job), row.kind,
               tokens_text({0, row.computed + row.generated}), "", "",
               fmt::format("{} of {} prompt tokens, {} generated{}", row.computed, row.prompt, row.generated,
                           row.is_preempted ? ", preempted" : "")});
  }
  for (const ReservationRow& row : state.reservations) {
    table.add({"  reservation " + row.id, row.state, tokens_text(row.tokens), seconds_text(row.age_s),
               seconds_text(row.lease_left_s), fmt::format("{} computed", row.computed)});
  }
  for (const HandoffRow& row : state.handoffs) {
    const std::string moved =
        fmt::format("{} of {}", bytes_text(static_cast<double>(row.bytes_moved)),
                    row.bytes_total ? bytes_text(static_cast<double>(*row.bytes_total)) : std::string("?"));
    table.add({"  handoff " + row.id,
               fmt::format("{} {} {}", row.state, row.side == "producer" ? "to" : "from",
                           row.peer.empty() ? "?" : row.peer),
               tokens_text(row.tokens), seconds_text(row.age_s),
               row.lease_left_s ? seconds_text(*row.lease_left_s) : "",
               fmt::format("{}{}{}", moved, row.transport.empty() ? "" : " over ", row.transport)});
  }
  std::string text = table.empty() ? "\nstates\n  none\n" : "\nstates\n" + table.text();
  const std::uint64_t left_off = state.handoffs_left_off + state.reservations_left_off;
  if (left_off > 0) text += fmt::format("  and {} more\n", left_off);
  return text;
}

}  // namespace

std::string inspection(const WorkerState& state, const std::string& url) {
  std::string text = head(state, url) + pools(state) + states(state) + "\ndescriptor\n";
  std::size_t width = 0;
  for (const auto& [path, value] : state.descriptor_lines) width = std::max(width, path.size());
  for (const auto& [path, value] : state.descriptor_lines) {
    std::string indented = value;  // Layouts have several lines.
    for (auto at = indented.find('\n'); at != std::string::npos; at = indented.find('\n', at + width + 5))
      indented.insert(at + 1, width + 4, ' ');
    text += fmt::format("  {:<{}}  {}\n", path, width, indented);
  }
  return text;
}

}  // namespace isthmus::watch
