// SPDX-License-Identifier: Apache-2.0
// A worker's answer to GET /state as plain values (spec/state.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "kv/geometry.h"

namespace isthmus::watch {

struct HandoffRow {
  std::string id, side, peer, state, transport, wire;
  kv::TokenRange tokens;
  double age_s = 0;
  std::uint64_t bytes_moved = 0;
  std::optional<std::uint64_t> bytes_total;
  std::optional<double> lease_left_s;
};

struct ReservationRow {
  std::string id, state;
  kv::TokenRange tokens;
  std::uint64_t computed = 0;
  double age_s = 0, lease_left_s = 0;
};

struct SequenceRow {
  std::uint64_t job = 0;
  std::string kind;
  std::uint64_t prompt = 0, computed = 0, generated = 0;
  bool is_preempted = false;
};

struct LedgerRow {
  std::string category;
  std::uint64_t bytes = 0, blocks = 0;
};

struct WorkerState {
  std::string name, model, role, incarnation;
  std::vector<std::string> endpoints;  // Of its agent.
  bool draining = false;
  std::string engine, engine_version, storage;
  std::uint64_t context_tokens_max = 0, block_tokens = 0, kv_bytes_per_token = 0;
  std::uint64_t sequences_open = 0, sequences_max = 0, blocks_used = 0, blocks_total = 0;
  std::uint64_t kv_bytes_used = 0, kv_bytes_total = 0, jobs_running = 0, jobs_waiting = 0;
  std::uint64_t jobs_preempted = 0;
  std::uint64_t prompt_tokens_computed = 0, prompt_tokens_adopted = 0, tokens_generated = 0;
  std::vector<SequenceRow> sequences;
  std::uint64_t sessions = 0, quarantined = 0;
  std::vector<HandoffRow> handoffs;
  std::vector<ReservationRow> reservations;
  std::uint64_t handoffs_left_off = 0, reservations_left_off = 0;
  std::vector<LedgerRow> ledger;
  std::uint64_t capacity_bytes = 0, free_bytes = 0, staging_capacity_bytes = 0, staging_free_bytes = 0;
  std::string descriptor_digest;
  std::vector<std::pair<std::string, std::string>> descriptor_lines;
};

// malformed if it isn't JSON or isn't a worker's state: the first member that is missing or of another kind.
Result<WorkerState> parse_worker_state(std::string_view body);

}  // namespace isthmus::watch
