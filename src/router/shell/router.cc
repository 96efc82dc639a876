// SPDX-License-Identifier: Apache-2.0
// Composes server, core, health checks and relays; carries out the core's actions.
#include "router/shell/router.h"

#include <fmt/format.h>

#include <deque>
#include <map>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "http/client.h"
#include "http/json.h"
#include "http/openai_error.h"
#include "router/shell/bodies.h"
#include "router/shell/health.h"
#include "router/shell/metrics.h"
#include "router/shell/relay.h"
#include "router/shell/trials.h"

namespace isthmus::router::shell {
namespace {

http::Response json_response(const json::Value& value) {
  return {200, {{"Content-Type", "application/json"}}, value.dump() + "\n"};
}

http::Response method_error(std::string_view allowed) {
  http::Response answer = http::error_response({Code::kInvalidArgument, fmt::format("use {} here", allowed)});
  answer.status = 405;
  answer.headers.emplace_back("Allow", allowed);
  return answer;
}

bool is_completion_path(std::string_view path) {
  return path == "/v1/completions" || path == "/v1/chat/completions";
}

class Serving final : public Router {
 public:
  Serving(net::Loop& loop, RouterOptions options, MetricsRegistry& metrics)
      : loop_(loop),
        options_(std::move(options)),
        registry_(metrics),
        metrics_(metrics, options_.fleet),
        core_(options_.core, options_.fleet),
        client_(http::make_client(loop, http::ClientLimits{})),
        health_(loop, options_.fleet.workers, options_.health_interval,
                [this](core::WorkerIndex worker, bool ready, std::string reason) {
                  worker_checked(worker, ready, std::move(reason));
                }),
        trials_(loop, options_.fleet, [this](const core::PairTried& tried) { tell(tried); }) {}
  ~Serving() override {
    is_closing_ = true;
    server_.reset();
  }

  Status listen() {
    auto served =
        http::serve(loop_, options_.listen, options_.server,
                    [this](std::shared_ptr<http::Exchange> exchange) { handle(std::move(exchange)); });
    if (!served.ok()) return served.status().with_context("router");
    server_ = *std::move(served);
    health_.start();
    return ok_status();
  }

  net::Endpoint endpoint() const override { return server_->endpoint(); }
  void stop_accepting() override { server_->stop_accepting(); }
  core::Ledger ledger() const override { return core_.ledger(); }

  bool is_trying() const override { return trials_.is_waiting(); }
  std::vector<PairFinding> pairs() const override {
    std::vector<PairFinding> found;
    for (Trials::Finding& one : trials_.findings()) {
      found.push_back({options_.fleet.workers[one.prefill].name, options_.fleet.workers[one.decode].name,
                       core_.pair_reason(one.prefill, one.decode).empty(), std::move(one.text)});
    }
    return found;
  }

  Status ready() const override {
    Status last = Error{Code::kUnavailable, "the fleet has no models"};
    for (const fleet::Model& model : options_.fleet.models) {
      last = core_.can_serve(model.name, now());
      if (last.ok()) return last;
    }
    return last;
  }

 private:
  // --- The client's side.
  void handle(std::shared_ptr<http::Exchange> exchange) {
    const http::Request& request = exchange->request();
    if (is_completion_path(request.path)) {
      if (request.method != "POST") return exchange->send(method_error("POST"));
      return accept(std::move(exchange));
    }
    for (const auto& [path, answer] : kPages) {
      if (path != request.path) continue;
      return exchange->send(request.method == "GET" ? (this->*answer)() : method_error("GET"));
    }
    exchange->send(http::error_response({Code::kNotFound, fmt::format("no such path: {}", request.path)}));
  }

  void accept(std::shared_ptr<http::Exchange> exchange) {
    auto body = JsonObjectText::scan(exchange->request().body);
    if (!body.ok()) return refuse(*exchange, body.error(), "");
    const auto inbound = read_inbound(*body, options_.fleet);
    if (!inbound.ok()) return refuse(*exchange, inbound.error(), "model");
    const fleet::Model* model = options_.fleet.find_model(inbound->model);
    const core::RequestId id = ++last_id_;
    std::string request_id = request_id_of(exchange->request());
    const std::uint32_t earlier_uses = note_use(request_id);
    Relay::Setup setup{id,
                       std::move(request_id),
                       exchange,
                       *std::move(body),
                       model->on_failure,
                       options_.fleet.dialer,
                       now(),
                       now() + options_.core.queue_timeout,
                       earlier_uses};
    Entry entry{std::make_unique<Relay>(std::move(setup), *client_,
                                        [this](const core::Event& event) { tell(event); }),
                model};
    relays_.emplace(id, std::move(entry));
    exchange->on_disconnect([this, id] {
      if (!is_closing_ && relays_.count(id) != 0) tell(core::Cancelled{id});
    });
    tell(core::Arrived{id, inbound->model, inbound->prompt_tokens, inbound->output_tokens});
  }

  // How many of the latest requests had this id: a client that tries again often keeps it.
  std::uint32_t note_use(const std::string& request_id) {
    constexpr std::size_t kRememberedMax = 4096;
    const std::uint32_t earlier = uses_[request_id]++;
    if (earlier == 0) remembered_.push_back(request_id);
    if (remembered_.size() > kRememberedMax) {
      uses_.erase(remembered_.front());
      remembered_.pop_front();
    }
    return earlier;
  }

  void refuse(http::Exchange& exchange, const Error& error, std::string_view param) {
    metrics_.ended(error.code);
    exchange.send(http::error_response(error, param));
  }

  // --- The core's side.
  void worker_checked(core::WorkerIndex worker, bool is_ready, std::string reason) {
    const core::WorkerView before = core_.view(worker, now());
    if (before.ready != is_ready) {
      ISTHMUS_LOG(kInfo, "worker", "name={} ready={} reason=\"{}\"", options_.fleet.workers[worker].name,
                  is_ready, reason);
    }
    // First: what was known of the pairs of a worker that has started anew holds no longer.
    if (is_ready) {
      trials_.worker_ready(worker, health_.incarnation(worker));
    } else {
      trials_.worker_gone(worker);
    }
    tell(core::WorkerReport{worker, is_ready, std::move(reason)});
  }

  // Actions may bring the next event before they return; events are taken one after another all the same.
  void tell(const core::Event& event) {
    pending_.push_back(event);
    if (is_stepping_ || is_closing_) return;
    is_stepping_ = true;
    while (!pending_.empty()) {
      const core::Event next = std::move(pending_.front());
      pending_.pop_front();
      std::vector<core::Action> actions;
      const core::Ledger before = core_.ledger();
      core_.step(next, now(), actions);
      for (const core::Action& action : actions) std::visit([this](const auto& a) { carry_out(a); }, action);
      const core::Ledger after = core_.ledger();
      note(next, after.finished + after.cancelled != before.finished + before.cancelled);
    }
    is_stepping_ = false;
    arm_tick();
  }

  void carry_out(const core::DispatchPrefill& action) {
    Relay& relay = *relays_.at(action.request).relay;
    const fleet::Worker& worker = options_.fleet.workers[action.worker];
    if (!action.supersedes) return relay.ask_prefill(worker, action.attempt);
    ISTHMUS_LOG(kWarn, "decode worker superseded", "request={} prefill={} decode={}", relay.request_id(),
                worker.name, relay.decode_worker());
    relay.supersede(worker, action.attempt);
  }

  void carry_out(const core::DispatchDecode& action) {
    Relay& relay = *relays_.at(action.request).relay;
    if (!action.why_local.empty()) {
      ISTHMUS_LOG(kWarn, "local prefill", "request={} decode={} why=\"{}\"", relay.request_id(),
                  options_.fleet.workers[action.worker].name, action.why_local);
    }
    const fleet::Worker* prefill = options_.fleet.find_worker(relay.prefill_worker());
    const bool is_pushed = action.with_transfer && options_.fleet.dialer == fleet::Dialer::kPrefill;
    if (is_pushed && prefill != nullptr) {
      post(*prefill, "/isthmus/reach",
           fmt::format(R"({{"endpoints":{}}})", health_.agent_endpoints(action.worker)), relay.leg_id());
    }
    relay.ask_decode(options_.fleet.workers[action.worker], action.attempt, action.with_transfer);
  }

  void carry_out(const core::CancelLeg& action) {
    Relay& relay = *relays_.at(action.request).relay;
    if (action.leg == core::Leg::kDecode) return relay.drop_decode();
    relay.drop_prefill();
    cancel_at(options_.fleet.workers[action.worker], relay.leg_id());
  }

  void carry_out(const core::AnswerError& action) {
    relays_.at(action.request).relay->answer_error(action.error);
    finish(action.request, action.error.code, action.error.detail);
  }

  // What an event means beyond the core: metrics, a prompt health check, the end of a relay.
  void note(const core::Event& event, bool has_ended) {
    if (const auto* failed = std::get_if<core::Failed>(&event)) return check_failed_worker(*failed);
    const auto* cancelled = std::get_if<core::Cancelled>(&event);
    if (cancelled != nullptr && has_ended)
      return finish(cancelled->request, Code::kCancelled, "the client left");
    const auto* finished = std::get_if<core::Finished>(&event);
    if (finished != nullptr && has_ended) return finish(finished->request, Code::kOk, "");
    const auto* token = std::get_if<core::FirstToken>(&event);
    if (token == nullptr) return;
    const auto it = relays_.find(token->request);
    if (it == relays_.end()) return;
    const Relay& relay = *it->second.relay;
    metrics_.first_token(relay.first_token_at().value_or(now()) - relay.arrived(),
                         it->second.model->ttft_slo);
  }

  void check_failed_worker(const core::Failed& failed) {
    if (failed.error.code != Code::kUnavailable) return;
    for (core::WorkerIndex i = 0; i < options_.fleet.workers.size(); ++i) {
      if (failed.error.detail.starts_with("worker " + options_.fleet.workers[i].name + ":"))
        health_.check_soon(i);
    }
  }

  void finish(core::RequestId id, Code code, std::string_view detail) {
    const auto it = relays_.find(id);
    if (it == relays_.end()) return;
    const Relay& relay = *it->second.relay;
    const auto milliseconds = [&](Instant at) {
      return std::chrono::duration_cast<std::chrono::milliseconds>(at - relay.arrived()).count();
    };
    metrics_.ended(code);
    ISTHMUS_LOG(kInfo, "request", "id={} model={} prefill={} decode={} code={} ttft_ms={} total_ms={}{}",
                relay.request_id(), it->second.model->name, relay.prefill_worker(), relay.decode_worker(),
                name(code), relay.first_token_at() ? milliseconds(*relay.first_token_at()) : -1,
                milliseconds(now()), detail.empty() ? "" : fmt::format(" detail=\"{}\"", detail));
    retired_.push_back(std::move(it->second.relay));
    relays_.erase(it);
    sweep_soon();
  }

  // P keeps the state of a prompt for its consumer; without this it would wait for its lease to end.
  void cancel_at(const fleet::Worker& worker, const std::string& leg_id) {
    post(worker, "/isthmus/cancel", json::object({{"request_id", leg_id}}).dump(), leg_id);
  }

  // A word to a worker beside its legs. An answer changes nothing here.
  void post(const fleet::Worker& worker, std::string_view path, std::string body, const std::string& leg_id) {
    constexpr std::size_t kPostsMax = 256;
    if (posts_.size() >= kPostsMax) {
      ISTHMUS_LOG(kWarn, "post dropped", "request={} worker={} path={} pending={}", leg_id, worker.name, path,
                  posts_.size());
      return;
    }
    http::Request request;
    request.method = "POST";
    request.path = path;
    request.headers = {{"Content-Type", "application/json"}};
    request.body = std::move(body);
    const std::uint64_t key = ++last_post_;
    posts_[key] =
        http::fetch(*client_, worker.http, std::move(request),
                    [this, key, leg_id, name = worker.name,
                     path = std::string(path)](const Result<http::Response>& answer) {
                      if (answer.ok() && answer->status != 200) {
                        ISTHMUS_LOG(kWarn, "post refused", "request={} worker={} path={} why=\"{}\"", leg_id,
                                    name, path, http::message_of(answer->body));
                      }
                      answered_posts_.push_back(key);
                      sweep_soon();
                    });
  }

  // A relay or call must outlive its own callback, which may be what is running.
  void sweep_soon() {
    if (sweep_ != nullptr) return;
    sweep_ = loop_.after(Duration(0), [this] {
      retired_.clear();
      for (const std::uint64_t key : answered_posts_) posts_.erase(key);
      answered_posts_.clear();
      sweep_.reset();
    });
  }

  void arm_tick() {
    const Instant next = core_.next_deadline();
    if (next == kFarFuture) {
      tick_.reset();
      tick_at_ = kFarFuture;
      return;
    }
    if (tick_ != nullptr && tick_at_ <= next) return;
    tick_at_ = next;
    tick_ = loop_.after(std::max(next - now(), Duration(0)), [this] {
      tick_at_ = kFarFuture;
      tell(core::Tick{});
    });
  }

  // --- Pages.
  http::Response health_page() { return json_response(json::object({{"status", "ok"}})); }

  http::Response ready_page() {
    const Status status = ready();
    return status.ok() ? json_response(json::object({{"ready", true}}))
                       : http::error_response(status.error());
  }

  http::Response metrics_page() {
    metrics_.refresh(core_, now());
    return {200, {{"Content-Type", "text/plain; version=0.0.4"}}, registry_.render()};
  }

  http::Response models_page() {
    json::Array models;
    for (const fleet::Model& model : options_.fleet.models) {
      models.push_back(json::object(
          {{"id", model.name}, {"object", "model"}, {"created", 0}, {"owned_by", options_.fleet.name}}));
    }
    return json_response(json::object({{"object", "list"}, {"data", std::move(models)}}));
  }

  http::Response workers_page() {
    json::Array workers;
    for (core::WorkerIndex i = 0; i < options_.fleet.workers.size(); ++i) {
      const fleet::Worker& worker = options_.fleet.workers[i];
      const core::WorkerView view = core_.view(i, now());
      workers.push_back(json::object({{"name", worker.name},
                                      {"role", fleet::name(worker.role)},
                                      {"model", worker.model},
                                      {"url", worker.url()},
                                      {"engine", worker.engine},
                                      {"plane", worker.plane},
                                      {"ready", view.ready},
                                      {"breaker_open", view.breaker_open},
                                      {"reason", view.reason},
                                      {"requests", view.requests},
                                      {"tokens", view.tokens},
                                      {"dispatched", view.dispatched}}));
    }
    json::Array tried;
    for (const PairFinding& pair : pairs()) {
      tried.push_back(json::object({{"prefill", pair.prefill},
                                    {"decode", pair.decode},
                                    {"is_sound", pair.is_sound},
                                    {"finding", pair.finding}}));
    }
    return json_response(json::object(
        {{"fleet", options_.fleet.name}, {"workers", std::move(workers)}, {"pairs", std::move(tried)}}));
  }

  struct Entry {
    std::unique_ptr<Relay> relay;
    const fleet::Model* model;
  };
  using Page = http::Response (Serving::*)();
  static constexpr std::pair<std::string_view, Page> kPages[] = {
      {"/health", &Serving::health_page},           {"/ready", &Serving::ready_page},
      {"/metrics", &Serving::metrics_page},         {"/v1/models", &Serving::models_page},
      {"/isthmus/workers", &Serving::workers_page},
  };

  net::Loop& loop_;
  RouterOptions options_;
  MetricsRegistry& registry_;
  RouterMetrics metrics_;
  core::Core core_;
  std::unique_ptr<http::Client> client_;
  Health health_;
  Trials trials_;
  bool is_closing_ = false, is_stepping_ = false;
  std::deque<core::Event> pending_;  // Empty between callbacks.
  std::map<core::RequestId, Entry>
      relays_;  // Those that the core knows: bounded by its queue and live limits.
  std::vector<std::unique_ptr<Relay>> retired_;  // Until the next turn of the loop.
  std::map<std::uint64_t, std::unique_ptr<http::Call>> posts_;
  std::vector<std::uint64_t> answered_posts_;
  std::map<std::string, std::uint32_t> uses_;  // Of request ids, the latest ones.
  std::deque<std::string> remembered_;         // Keys of uses_ in order of their first use.
  core::RequestId last_id_ = 0;
  std::uint64_t last_post_ = 0;
  std::unique_ptr<net::Loop::Timer> tick_, sweep_;
  Instant tick_at_ = kFarFuture;
  std::unique_ptr<http::Server> server_;
};

}  // namespace

Result<std::unique_ptr<Router>> Router::start(net::Loop& loop, RouterOptions options,
                                              MetricsRegistry& metrics) {
  if (options.fleet.workers.empty()) {
    return Error{Code::kInvalidArgument, "the fleet file lists no workers, so there is nothing to route to"};
  }
  auto router = std::make_unique<Serving>(loop, std::move(options), metrics);
  ISTHMUS_TRY(router->listen());
  return std::unique_ptr<Router>(std::move(router));
}

}  // namespace isthmus::router::shell
