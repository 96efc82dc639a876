// SPDX-License-Identifier: Apache-2.0
// A worker's HTTP surface: OpenAI's routes in front of the engine loop and the agent.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "base/status.h"
#include "base/time.h"
#include "engine/api/tokenizer.h"
#include "handoff/agent/agent.h"
#include "http/server.h"
#include "worker/arrivals.h"
#include "worker/engine_loop.h"
#include "worker/openai.h"

namespace isthmus::worker {

enum class Role : std::uint8_t { kPrefill, kDecode, kBoth };

struct ServiceOptions {
  std::string name{};  // The agent's; Worker::start() fills it in.
  std::string served_model;
  Role role = Role::kBoth;
  Duration request_timeout = std::chrono::seconds(120);
  Duration queue_wait = std::chrono::seconds(30);  // For a place in the engine; then 429.
  std::uint64_t tokens_max_default =
      1024;  // max_tokens of a chat that names none; completions: 16, as OpenAI's.
};

// Loop's thread. Everything given must outlive it.
class Service {
 public:
  Service(EngineLoop& engine, handoff::Agent& agent, const engine::Tokenizer& tokenizer,
          MetricsRegistry& metrics, ServiceOptions options);
  ~Service();

  void handle(const std::shared_ptr<http::Exchange>& exchange);
  // /ready says 503 from now on; requests under way go on.
  void drain() { is_draining_ = true; }
  // No answer is under way, and nobody may still fetch a state from here.
  bool is_idle() const { return answers_.empty() && prefills_.empty() && !canary_; }

 private:
  class Answer;      // One request that is answered with tokens here.
  class Generation;  // One of its choices.
  class Incoming;    // A state that comes from another worker.
  class Canary;      // One comparison of such a state with this engine's own.
  struct Prefill;    // One request whose state is handed over.

  struct Prepared {
    CompletionRequest request;
    std::vector<std::vector<engine::TokenId>> prompts;  // As the request's.
    std::uint64_t tokens_max = 0;                       // Of each choice.
    Instant deadline;
    Instant start_by;  // It has a place in the engine by then, or is refused.
    std::string request_id;
  };

  void handle_completion(const std::shared_ptr<http::Exchange>& exchange, Api api);
  Result<Prepared> prepare(const http::Request& request, Api api, std::string& bad_field) const;
  Result<Instant> start_by(const http::Request& request, std::string& bad_field) const;
  Result<std::vector<engine::TokenId>> tokenize(const Prompt& prompt) const;
  Status check_role(const CompletionRequest& request, std::string& bad_field) const;
  Status fit_context(Prepared& prepared, std::string& bad_field) const;
  void start_prefill(const std::shared_ptr<http::Exchange>& exchange, Prepared prepared);
  void wire_prefill(const std::shared_ptr<Prefill>& prefill, Job job);
  void start_answer(const std::shared_ptr<http::Exchange>& exchange, Prepared prepared);
  // "request_id" of a router's word about a prefill.
  static Result<std::string> named_request(const http::Request& request);
  void handle_cancel(http::Exchange& exchange);
  void handle_supersede(http::Exchange& exchange);
  json::Value transfer_of(const std::string& ticket, std::uint64_t prompt_tokens) const;
  void handle_canary(const std::shared_ptr<http::Exchange>& exchange);
  void handle_tokenize(http::Exchange& exchange);
  void handle_detokenize(http::Exchange& exchange);
  void handle_drain(http::Exchange& exchange);
  http::Response models() const;
  json::Value endpoints() const;
  void handle_reach(http::Exchange& exchange);
  http::Response ready() const;
  http::Response state() const;
  http::Response descriptor_bytes() const;
  http::Response metrics();
  handoff::Amount amount_of(std::uint64_t tokens) const;
  AnswerWriter writer_of(const Prepared& prepared) const;
  void refuse(http::Exchange& exchange, const Error& error, const std::string& field = {},
              Duration retry_after = Duration{0});
  Duration memory_hint() const;  // When there may be KV memory again.
  void count_request(const char* outcome);

  EngineLoop& engine_;
  handoff::Agent& agent_;
  const engine::Tokenizer& tokenizer_;
  MetricsRegistry& metrics_;
  ServiceOptions options_;
  bool is_draining_ = false;
  std::map<std::string, std::shared_ptr<Prefill>> prefills_;  // By request id, for cancels.
  std::map<std::uint64_t, std::shared_ptr<Answer>> answers_;
  std::uint64_t next_answer_ = 1;
  std::optional<Arrivals> arrivals_;  // Of an engine that keeps states.
  std::shared_ptr<Canary> canary_;    // One at a time: it keeps the engine from others.
  // Counters at the last /metrics.
  struct Shown : EngineLoopStats {
    std::uint64_t arriving_queried = 0, arriving_known = 0;
  };
  Shown shown_;
};

}  // namespace isthmus::worker
