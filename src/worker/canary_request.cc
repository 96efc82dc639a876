// SPDX-License-Identifier: Apache-2.0
// Room for two sequences, a handoff, a comparison on the engine's thread, one answer.
#include "worker/canary_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "http/openai_error.h"

namespace isthmus::worker {
namespace {

constexpr std::uint64_t kForced = 1;  // Tokens behind the prompt: the producer's first.

json::Value numbers_json(const kvs::NumberDifference& one) {
  json::Array layers;
  for (std::size_t i = 0; i < one.layer_rms.size(); ++i)
    layers.push_back(json::object({{"layer", one.layers[i]}, {"rms", one.layer_rms[i]}}));
  const std::size_t worst = one.worst_layer();
  return json::object({{"group", one.group},
                       {"component", one.component},
                       {"rms", one.rms},
                       {"max", one.max},
                       {"where", one.where},
                       {"worst", layers.empty() ? json::Value() : layers[worst]},
                       {"layers", std::move(layers)}});
}

}  // namespace

Service::Canary::Canary(Service& service, std::shared_ptr<http::Exchange> exchange, Prepared prepared)
    : service_(service), exchange_(std::move(exchange)), prepared_(std::move(prepared)) {}

void Service::Canary::start() {
  exchange_->on_disconnect([weak = weak_from_this()] {
    if (const auto self = weak.lock(); self && self->exchange_) self->end("disconnected");
  });
  const std::vector<engine::TokenId>& prompt = prepared_.prompts.front();
  const std::uint64_t room = prompt.size() + kForced;
  const auto own = service_.agent_.take_memory(service_.amount_of(room), prepared_.deadline);
  if (!own.ok()) return fail(own.error(), service_.memory_hint());
  own_ = *own;
  const auto self = shared_from_this();
  auto incoming = Incoming::start(
      service_, prepared_.request.transfer, prompt, {room, prepared_.deadline, prepared_.deadline},
      std::nullopt,
      {.planned =
           [self](const kv::Descriptor& source) {
             self->limits_ = limits_for(source, self->service_.engine_.descriptor());
           },
       .arrived = [self](const Arrived& state) { self->arrived(state); },
       .ended =
           [self](const handoff::SealInfo* seal, const handoff::Ending& ending) {
             self->incoming_.reset();
             if (seal == nullptr) return self->fail(ending.error, ending.retry_after);
             self->fail({Code::kUnsupported,
                         "the producer's first token ends the answer, so no state came: use another prompt"},
                        Duration(0));
           }});
  if (!incoming.ok()) return fail(incoming.error(), Duration(0));
  incoming_ = *std::move(incoming);
}

void Service::Canary::arrived(const Arrived& state) {
  incoming_.reset();
  ending_ = state.ending;
  came_ = state.grant;
  is_comparing_ = true;
  auto found = std::make_shared<Result<CanaryFindings>>(Error{Code::kInternal, "not compared"});
  service_.engine_.borrow(
      prepared_.prompts.front().size() + kForced, prepared_.deadline,
      [prompt = prepared_.prompts.front(), state, found](engine::Engine& engine) {
        *found = compare_with_own(engine, prompt, state.sequence, state.first);
      },
      [self = shared_from_this(), found, sequence = state.sequence](const Status& begun) {
        self->service_.engine_.release(sequence);
        if (!begun.ok()) *found = begun.error();
        self->compared(*found);
      });
}

void Service::Canary::compared(const Result<CanaryFindings>& findings) {
  is_comparing_ = false;
  if (!exchange_) return end("disconnected");
  if (!findings.ok()) return fail(findings.error(), Duration(0));
  const std::vector<std::string> wrong = faults(*findings, limits_);
  for (const std::string& one : wrong)
    ISTHMUS_LOG(kError, "canary failed", "request={} why=\"{}\"", prepared_.request_id, one);
  std::exchange(exchange_, nullptr)
      ->send({.headers = {{"Content-Type", "application/json"}, {"X-Request-Id", prepared_.request_id}},
              .body = report(*findings, wrong).dump()});
  end(wrong.empty() ? "passed" : "failed");
}

json::Value Service::Canary::report(const CanaryFindings& findings,
                                    const std::vector<std::string>& wrong) const {
  json::Array faults, numbers;
  for (const std::string& one : wrong) faults.emplace_back(one);
  for (const kvs::NumberDifference& one : findings.numbers) numbers.push_back(numbers_json(one));
  const auto both = [](engine::TokenId own, engine::TokenId handed) {
    return json::object({{"own", own}, {"handed_over", handed}});
  };
  return json::object(
      {{"passed", wrong.empty()},
       {"faults", std::move(faults)},
       {"tokens", prepared_.prompts.front().size()},
       {"storage", service_.engine_.info().storage},
       {"handoff",
        json::object({{"bytes", ending_.bytes}, {"transport", ending_.transport}, {"wire", ending_.wire}})},
       {"limits", json::object({{"layer_rms", limits_.layer_rms_max}, {"kl", limits_.kl_max}})},
       {"first_token", both(findings.first_own, findings.first_handed)},
       {"next_token", both(findings.top_own, findings.top_handed)},
       {"kl", findings.kl},
       {"numbers", std::move(numbers)}});
}

void Service::Canary::fail(const Error& why, Duration retry_after) {
  if (const auto exchange = std::exchange(exchange_, nullptr))
    exchange->send(http::error_response(why, {}, retry_after));
  end("error");
}

// Memory goes when nothing writes or reads it: a handoff that is given up frees its own, a comparison ends
// first.
void Service::Canary::end(const char* outcome) {
  const auto keep = shared_from_this();
  exchange_.reset();
  if (const auto incoming = incoming_.lock()) incoming->cancel();
  if (is_comparing_) return;
  service_.agent_.free_memory(own_);
  service_.agent_.free_memory(came_);
  service_.metrics_
      .counter("isthmus_canaries_total",
               "Comparisons of a producer's state with this engine's own, by outcome", {{"outcome", outcome}})
      .add();
  service_.canary_.reset();
}

}  // namespace isthmus::worker
