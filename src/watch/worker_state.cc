// SPDX-License-Identifier: Apache-2.0
// Member by member; the first one at fault is told.
#include "watch/worker_state.h"

#include <fmt/format.h>

#include "http/json.h"

namespace isthmus::watch {
namespace {

// Remembers the first fault, so that each member is one line.
class Reader {
 public:
  explicit Reader(const json::Value& value) : value_(value) {}

  template <typename T>
  void read(std::string_view path, T& out) {
    auto found = value_.require<T>(path);
    if (found.ok()) {
      out = *std::move(found);
    } else if (fault_.ok()) {
      fault_ = Error{Code::kMalformed, "GET /state: " + found.error().detail};
    }
  }
  template <typename T>
  void read_optional(std::string_view path, std::optional<T>& out) {
    const auto found = value_.get<T>(path);
    if (found.ok()) out = *found;
  }
  void read_range(const std::string& path, kv::TokenRange& out) {
    read(path + ".0", out.begin);
    read(path + ".1", out.end);
  }
  const json::Array& list(std::string_view path) {
    static const json::Array kNone;
    const json::Value* found = value_.find(path);
    if (found != nullptr && found->is_array()) return *found->as_array();
    if (fault_.ok()) fault_ = Error{Code::kMalformed, fmt::format("GET /state: '{}' must be a list", path)};
    return kNone;
  }
  void take_fault(const Reader& other) {
    if (fault_.ok()) fault_ = other.fault_;
  }
  const Status& fault() const { return fault_; }
  const json::Value& value() const { return value_; }

 private:
  const json::Value& value_;
  Status fault_;
};

HandoffRow handoff_of(Reader& row) {
  HandoffRow handoff;
  row.read("id", handoff.id);
  row.read("side", handoff.side);
  row.read("peer", handoff.peer);
  row.read("state", handoff.state);
  row.read("transport", handoff.transport);
  row.read("wire", handoff.wire);
  row.read_range("tokens", handoff.tokens);
  row.read("age_seconds", handoff.age_s);
  row.read("bytes_moved", handoff.bytes_moved);
  row.read_optional("bytes_total", handoff.bytes_total);
  row.read_optional("lease_left_seconds", handoff.lease_left_s);
  return handoff;
}

ReservationRow reservation_of(Reader& row) {
  ReservationRow reservation;
  row.read("id", reservation.id);
  row.read("state", reservation.state);
  row.read_range("tokens", reservation.tokens);
  row.read("computed", reservation.computed);
  row.read("age_seconds", reservation.age_s);
  row.read("lease_left_seconds", reservation.lease_left_s);
  return reservation;
}

SequenceRow sequence_of(Reader& row) {
  SequenceRow sequence;
  row.read("job", sequence.job);
  row.read("kind", sequence.kind);
  row.read("prompt_tokens", sequence.prompt);
  row.read("computed_tokens", sequence.computed);
  row.read("generated_tokens", sequence.generated);
  row.read("preempted", sequence.is_preempted);
  return sequence;
}

std::pair<std::string, std::string> line_of(Reader& row) {
  std::pair<std::string, std::string> line;
  row.read("0", line.first);
  row.read("1", line.second);
  return line;
}

template <typename Row>
void read_list(Reader& reader, std::string_view path, std::vector<Row>& out, Row (*row_of)(Reader&)) {
  for (const json::Value& item : reader.list(path)) {
    Reader row(item);
    out.push_back(row_of(row));
    reader.take_fault(row);
  }
}

void read_engine(Reader& reader, WorkerState& state) {
  reader.read("engine.name", state.engine);
  reader.read("engine.version", state.engine_version);
  reader.read("engine.storage", state.storage);
  for (const auto& [path, out] : {std::pair{"engine.context_tokens_max", &state.context_tokens_max},
                                  {"engine.block_tokens", &state.block_tokens},
                                  {"engine.kv_bytes_per_token", &state.kv_bytes_per_token},
                                  {"engine.sequences_open", &state.sequences_open},
                                  {"engine.sequences_max", &state.sequences_max},
                                  {"engine.blocks_used", &state.blocks_used},
                                  {"engine.blocks_total", &state.blocks_total},
                                  {"engine.kv_bytes_used", &state.kv_bytes_used},
                                  {"engine.kv_bytes_total", &state.kv_bytes_total},
                                  {"engine.jobs_running", &state.jobs_running},
                                  {"engine.jobs_waiting", &state.jobs_waiting},
                                  {"engine.jobs_preempted", &state.jobs_preempted},
                                  {"engine.prompt_tokens_computed", &state.prompt_tokens_computed},
                                  {"engine.prompt_tokens_adopted", &state.prompt_tokens_adopted},
                                  {"engine.tokens_generated", &state.tokens_generated},
                                  {"agent.sessions", &state.sessions},
                                  {"agent.quarantined", &state.quarantined},
                                  {"agent.handoffs_left_off", &state.handoffs_left_off},
                                  {"agent.reservations_left_off", &state.reservations_left_off},
                                  {"ledger.capacity.bytes", &state.capacity_bytes},
                                  {"ledger.free.bytes", &state.free_bytes},
                                  {"ledger.staging_capacity_bytes", &state.staging_capacity_bytes},
                                  {"ledger.staging_free_bytes", &state.staging_free_bytes}})
    reader.read(path, *out);
}

}  // namespace

Result<WorkerState> parse_worker_state(std::string_view body) {
  ISTHMUS_TRY(const json::Value value, json::parse(body));
  WorkerState state;
  Reader reader(value);
  reader.read("worker.name", state.name);
  reader.read("worker.model", state.model);
  reader.read("worker.role", state.role);
  for (const json::Value& endpoint : reader.list("worker.endpoints")) {
    if (const std::string* text = endpoint.as_string()) state.endpoints.push_back(*text);
  }
  reader.read("worker.incarnation", state.incarnation);
  reader.read("worker.draining", state.draining);
  read_engine(reader, state);
  read_list(reader, "engine.sequences", state.sequences, sequence_of);
  read_list(reader, "agent.handoffs", state.handoffs, handoff_of);
  read_list(reader, "agent.reservations", state.reservations, reservation_of);
  reader.read("descriptor.digest", state.descriptor_digest);
  read_list(reader, "descriptor.lines", state.descriptor_lines, line_of);
  const json::Value* held = value.find("ledger.held");
  if (held != nullptr && held->is_object()) {
    for (const auto& [category, amount] : *held->as_object()) {
      LedgerRow row{category, 0, 0};
      Reader part(amount);
      part.read("bytes", row.bytes);
      part.read("blocks", row.blocks);
      reader.take_fault(part);
      state.ledger.push_back(std::move(row));
    }
  }
  ISTHMUS_TRY(reader.fault());
  return state;
}

}  // namespace isthmus::watch
