// SPDX-License-Identifier: Apache-2.0
// A worker: an engine, its agent and its HTTP surface in one process.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "base/status.h"
#include "engine/api/engine.h"
#include "engine/api/tokenizer.h"
#include "handoff/agent/agent.h"
#include "http/server.h"
#include "net/loop.h"
#include "net/tls.h"
#include "transport/api/transport.h"
#include "worker/engine_loop.h"
#include "worker/service.h"

namespace isthmus::worker {

// What a worker is made of; tests put in engines of their own.
struct WorkerParts {
  std::unique_ptr<engine::Engine> engine;
  std::shared_ptr<const engine::Tokenizer> tokenizer;
  net::Endpoint listen;
  http::ServerLimits http{};
  ServiceOptions service;
  EngineLoopLimits engine_limits;
  std::vector<std::string> transports = {"shm", "tcp"};  // In order of preference.
  std::shared_ptr<const net::Tls> tls;                   // Of connections over tcp; null: none.
  handoff::AgentOptions agent;  // capacity is filled in from the engine if its bytes are 0.
};

// Loop's thread. The loop must run for it to serve, and outlive it.
class Worker {
 public:
  static Result<std::unique_ptr<Worker>> start(net::Loop& loop, WorkerParts parts);
  ~Worker();

  // Takes nothing new; `done` is called once, by the loop, when all that is under way has ended and been
  // sent, at the latest after `limit`. Call once.
  void drain(Duration limit, std::function<void()> done);

  net::Endpoint endpoint() const { return server_->endpoint(); }
  EngineLoop& engine() { return *engine_; }
  handoff::Agent& agent() { return *agent_; }
  Service& service() { return *service_; }
  MetricsRegistry& metrics() { return metrics_; }

 private:
  Worker() = default;
  void wait_idle(Instant until);

  MetricsRegistry metrics_;
  std::shared_ptr<const engine::Tokenizer> tokenizer_;
  std::vector<std::unique_ptr<transport::Transport>> transports_;
  std::unique_ptr<EngineLoop> engine_;
  std::unique_ptr<handoff::Agent> agent_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<http::Server> server_;
  net::Loop* loop_ = nullptr;
  std::function<void()> on_drained_;
  std::unique_ptr<net::Loop::Timer> drain_timer_;
};

}  // namespace isthmus::worker
