// SPDX-License-Identifier: Apache-2.0
// Composes a worker's parts.
#include "worker/worker.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "base/clock.h"
#include "transport/shm/shm.h"
#include "transport/tcp/tcp.h"

namespace isthmus::worker {
namespace {

// Staging of all handoffs under way: eight handoffs of eight 1 MiB slots.
constexpr std::uint64_t kStagingBytes = std::uint64_t{64} << 20;

// What may be promised: the pool, and where blocks of those that wait can be parked.
handoff::Capacity capacity_of(engine::Engine& engine) {
  const engine::EngineUsage usage = engine.usage();
  const engine::EngineInfo& info = engine.info();
  const std::uint64_t parked = engine.parking() == nullptr ? 0 : engine.parking()->blocks();
  return {.kv = {.bytes = usage.kv_bytes_total + parked * info.block_tokens * info.kv_bytes_per_token,
                 .blocks = usage.blocks_total + parked},
          .staging_bytes = kStagingBytes};
}

Result<std::unique_ptr<transport::Transport>> make_transport(net::Loop& loop, const std::string& name,
                                                             const std::shared_ptr<const net::Tls>& tls) {
  if (name == "shm") return transport::make_shm(loop);
  if (name == "tcp") return transport::make_tcp(loop, tls);
  return Error{Code::kInvalidArgument, fmt::format("transport '{}' isn't one of shm, tcp", name)};
}

}  // namespace

Result<std::unique_ptr<Worker>> Worker::start(net::Loop& loop, WorkerParts parts) {
  std::unique_ptr<Worker> worker(new Worker());
  worker->loop_ = &loop;
  worker->tokenizer_ = parts.tokenizer;
  std::vector<transport::Transport*> transports;
  for (const std::string& name : parts.transports) {
    ISTHMUS_TRY(auto transport, make_transport(loop, name, parts.tls));
    transports.push_back(transport.get());
    worker->transports_.push_back(std::move(transport));
  }
  parts.service.name = parts.agent.name;
  if (parts.agent.capacity.kv.bytes == 0) parts.agent.capacity = capacity_of(*parts.engine);
  parts.agent.repeats_states = parts.engine->info().repeats_states;
  ISTHMUS_TRY(worker->agent_, handoff::make_agent(loop, std::move(transports), parts.engine->descriptor(),
                                                  std::move(parts.agent), worker->metrics_));
  const engine::Tokenizer& tokenizer = *parts.tokenizer;
  worker->engine_ = std::make_unique<EngineLoop>(
      std::move(parts.engine), loop,
      [&tokenizer](engine::TokenId token) { return tokenizer.is_end_of_generation(token); },
      parts.engine_limits);
  worker->service_ = std::make_unique<Service>(*worker->engine_, *worker->agent_, tokenizer, worker->metrics_,
                                               std::move(parts.service));
  ISTHMUS_TRY(worker->server_,
              http::serve(loop, parts.listen, parts.http,
                          [service = worker->service_.get()](std::shared_ptr<http::Exchange> exchange) {
                            service->handle(exchange);
                          }));
  return worker;
}

void Worker::drain(Duration limit, std::function<void()> done) {
  service_->drain();
  on_drained_ = std::move(done);
  wait_idle(now() + limit);
}

// /ready and routers' words are served until nothing is under way; then the last bytes go out.
void Worker::wait_idle(Instant until) {
  constexpr Duration kLook = std::chrono::milliseconds(10);
  if (service_->is_idle()) server_->stop_accepting();
  const bool is_over = (service_->is_idle() && server_->connections() == 0) || now() >= until;
  drain_timer_ = loop_->after(kLook, [this, is_over, until] {
    if (is_over) return std::exchange(on_drained_, nullptr)();
    wait_idle(until);
  });
}

// The server first: no request may reach what is gone.
Worker::~Worker() {
  server_.reset();
  agent_.reset();
  service_.reset();
}

}  // namespace isthmus::worker
