// SPDX-License-Identifier: Apache-2.0
// The pair, its client and its bookkeeping.
#include "faults/duo.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "net/run_until.h"

namespace isthmus::faults {
namespace {

// Engine threads change what tests look at without an event on the loop.
constexpr Duration kLookAgain = std::chrono::milliseconds(2);
constexpr std::string_view kTcp = "tcp://";

json::Value parse_or_null(std::string_view text) {
  Result<json::Value> value = json::parse(text);
  return value.ok() ? *std::move(value) : json::Value();
}

std::string string_at(const json::Value& value, std::string_view path) {
  const json::Value* found = value.find(path);
  return found != nullptr && found->as_string() != nullptr ? *found->as_string() : "";
}

// Calls `f` with each event's data, or once with the body if it isn't a stream.
void each_piece(const Answer& answer, const std::function<void(std::string_view)>& f) {
  constexpr std::string_view kData = "data: ";
  if (http::header(answer.headers, "Content-Type") != "text/event-stream") return f(answer.body);
  std::string_view rest = answer.body;
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find("\n\n"), rest.size());
    const std::string_view event = rest.substr(0, end);
    if (event.starts_with(kData)) f(event.substr(kData.size()));
    rest.remove_prefix(std::min(rest.size(), end + 2));
  }
}

}  // namespace

std::string Answer::text() const {
  std::string text;
  each_piece(*this,
             [&](std::string_view piece) { text += string_at(parse_or_null(piece), "choices.0.text"); });
  return text;
}

std::string Answer::error() const {
  std::string error;
  each_piece(*this, [&](std::string_view piece) {
    const json::Value value = parse_or_null(piece);
    if (value.member("error") == nullptr) return;
    error = string_at(value, "error.code") + ": " + string_at(value, "error.message");
  });
  return error;
}

bool Answer::is_whole() const {
  if (status != 200 || !is_over || !ended.ok()) return false;
  return http::header(headers, "Content-Type") != "text/event-stream" || body.ends_with("data: [DONE]\n\n");
}

handoff::Timings hasty() {
  return {.lease = std::chrono::milliseconds(600),
          .lease_margin = std::chrono::milliseconds(50),
          .renew_interval = std::chrono::milliseconds(150),
          .resend_interval = std::chrono::milliseconds(100),
          .open_max = std::chrono::milliseconds(800),
          .promise_max = std::chrono::milliseconds(800),
          .capacity_max = std::chrono::milliseconds(300),
          .quiesce_max = std::chrono::milliseconds(200),
          .tombstone = std::chrono::seconds(2)};
}

Duo::Duo(const std::string& p_storage, const std::string& d_storage,
         const std::function<void(Node& p, Node& d)>& prepare)
    : client_(http::make_client(loop_, {})) {
  p_.name = "p";
  d_.name = "d";
  p_.engine.storage = p_storage;
  d_.engine.storage = d_storage;
  if (prepare) prepare(p_, d_);
  start(p_);
  start(d_);
}

Duo::~Duo() {
  stop(d_);
  stop(p_);
}

void Duo::start(Node& node) {
  support::EngineTap tap = node.tap;
  tap.before_step = [&node, inner = node.tap.before_step](std::span<const engine::StepItem> items) -> Status {
    node.gate.pass();
    return inner ? inner(items) : ok_status();
  };
  kv::Policy policy;
  policy.exactness = kv::Exactness::kUnqualified;
  handoff::AgentOptions agent;
  agent.name = node.name;
  agent.fleet_key = node.fleet_key;
  agent.listen = node.agent;
  agent.policy = policy;
  agent.timings = node.timings;
  agent.prices = node.prices;
  agent.has_mover_thread = true;  // As on most machines; without, processes of two processors are tested.
  worker::WorkerParts parts{.engine = support::tap(support::make_fake_engine(node.engine), std::move(tap)),
                            .tokenizer = node.tokenizer,
                            .listen = node.http,
                            .http = node.http_limits,
                            .service = {.served_model = kModel,
                                        .request_timeout = node.request_timeout,
                                        .queue_wait = node.queue_wait},
                            .engine_limits = node.limits,
                            .transports = node.transports,
                            .agent = std::move(agent)};
  Result<std::unique_ptr<worker::Worker>> started = worker::Worker::start(loop_, std::move(parts));
  ASSERT_TRUE(started.ok()) << started.error().text();
  node.worker = *std::move(started);
  node.http = node.worker->endpoint();
  for (const std::string& endpoint : node.worker->agent().endpoints()) {
    if (endpoint.starts_with(kTcp)) node.agent = endpoint.substr(kTcp.size());
  }
}

void Duo::stop(Node& node) {
  node.gate.open();
  node.worker = nullptr;
}

std::unique_ptr<Asking> Duo::send(const net::Endpoint& to, http::Request request) {
  auto asking = std::make_unique<Asking>();
  Answer& answer = asking->answer;
  http::ClientEvents events;
  events.on_head = [&answer](int status, const http::Headers& headers) {
    answer.status = status;
    answer.headers = headers;
  };
  events.on_piece = [&answer](std::string_view piece) { answer.body += piece; };
  events.on_done = [&answer](Status status) {
    answer.ended = std::move(status);
    answer.is_over = true;
  };
  asking->call = client_->call(to, std::move(request), std::move(events));
  return asking;
}

std::unique_ptr<Asking> Duo::post(const net::Endpoint& to, const std::string& path, const std::string& body,
                                  const std::string& request_id) {
  http::Request request{.method = "POST",
                        .path = path,
                        .query = {},
                        .headers = {{"Content-Type", "application/json"}},
                        .body = body};
  if (!request_id.empty()) request.headers.emplace_back("X-Request-Id", request_id);
  return send(to, std::move(request));
}

std::unique_ptr<Asking> Duo::ask_prefill(const std::string& prompt, const std::string& request_id) {
  json::Value body = completion_body(prompt, 1);
  body.set("kv_transfer_params", json::object({{"do_remote_decode", true}, {"do_remote_prefill", false}}));
  return post(p_.http, "/v1/completions", body.dump(), request_id);
}

json::Value Duo::prefill(const std::string& prompt, const std::string& request_id) {
  const auto asking = ask_prefill(prompt, request_id);
  const Answer& answer = finish(*asking);
  EXPECT_EQ(answer.status, 200) << answer.body;
  const json::Value body = parse_or_null(answer.body);
  const json::Value* transfer = body.member("kv_transfer_params");
  if (transfer == nullptr || !transfer->is_object()) {
    ADD_FAILURE() << "no transfer object in " << answer.body;
    return {};
  }
  return *transfer;
}

std::unique_ptr<Asking> Duo::ask_decode(const std::string& prompt, const json::Value& transfer,
                                        std::size_t tokens, Ask ask) {
  json::Value body = completion_body(prompt, tokens, ask.stream);
  json::Value params = transfer;
  if (ask.fail) params.set("isthmus_on_failure", "fail");
  body.set("kv_transfer_params", std::move(params));
  return post(d_.http, "/v1/completions", body.dump(), ask.request_id);
}

Answer Duo::hand_over(const std::string& prompt, std::size_t tokens, const Ask& ask) {
  const json::Value transfer = prefill(prompt, ask.request_id);
  const auto asking = ask_decode(prompt, transfer, tokens, ask);
  return finish(*asking);
}

Answer& Duo::finish(Asking& asking) {
  EXPECT_TRUE(until([&] { return asking.answer.is_over; })) << holdings(p_) << holdings(d_);
  return asking.answer;
}

void Duo::cancel(const std::string& request_id) {
  const auto asking = post(p_.http, "/isthmus/cancel", json::object({{"request_id", request_id}}).dump());
  EXPECT_EQ(finish(*asking).status, 200);
}

Answer Duo::alone(Node& node, const std::string& prompt, std::size_t tokens) {
  const auto asking = post(node.http, "/v1/completions", completion_body(prompt, tokens).dump());
  return finish(*asking);
}

bool Duo::until(const std::function<bool()>& holds) {
  std::unique_ptr<net::Loop::Timer> timer;
  std::function<void()> again = [&] { timer = loop_.after(kLookAgain, again); };
  again();
  return net::run_until(loop_, holds, kPatience);
}

bool Duo::is_bare(const Node& node) {
  if (node.worker == nullptr) return true;
  const worker::EngineLoopStats stats = node.worker->engine().stats();
  const handoff::Ledger& ledger = node.worker->agent().ledger();
  return ledger.live() == 0 && ledger.check().ok() && stats.usage.sequences == 0 &&
         stats.usage.kv_bytes_used == 0 && stats.usage.blocks_used == 0 && stats.usage.blocks_parked == 0 &&
         stats.jobs_running == 0 && stats.jobs_waiting == 0;
}

bool Duo::settled() {
  return until([this] { return is_bare(p_) && is_bare(d_); });
}

std::string Duo::holdings(const Node& node) {
  if (node.worker == nullptr) return fmt::format("[{} is gone]", node.name);
  const worker::EngineLoopStats stats = node.worker->engine().stats();
  const handoff::Ledger& ledger = node.worker->agent().ledger();
  return fmt::format("[{}: grants={} sequences={} kv_bytes={} running={} waiting={} check={}]", node.name,
                     ledger.live(), stats.usage.sequences, stats.usage.kv_bytes_used, stats.jobs_running,
                     stats.jobs_waiting, ledger.check().ok() ? "ok" : ledger.check().error().text());
}

double Duo::count(const Node& node, std::string_view metric, std::initializer_list<std::string_view> labels) {
  const std::string text = node.worker->metrics().render();
  double sum = 0;
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(rest.size(), end + 1));
    const std::string_view name = line.substr(0, line.find_first_of("{ "));
    if (name != metric) continue;
    bool is_meant = true;
    for (const std::string_view label : labels)
      is_meant = is_meant && line.find(label) != std::string_view::npos;
    if (is_meant) sum += std::stod(std::string(line.substr(line.rfind(' ') + 1)));
  }
  return sum;
}

std::string prompt_of(std::size_t tokens, unsigned seed) {
  std::string text;
  std::uint32_t state = 2166136261U ^ (seed * 16777619U);
  while (text.size() < tokens) {
    state = state * 1664525U + 1013904223U;
    text += static_cast<char>(' ' + (state >> 24) % 95);
  }
  return text;
}

json::Value completion_body(const std::string& prompt, std::size_t tokens, bool stream) {
  return json::object({{"model", kModel},
                       {"prompt", prompt},
                       {"max_tokens", tokens},
                       {"temperature", 0},
                       {"stream", stream}});
}

}  // namespace isthmus::faults
