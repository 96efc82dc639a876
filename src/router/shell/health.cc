// SPDX-License-Identifier: Apache-2.0
// One call and one timer a worker, never both at once.
#include "router/shell/health.h"

#include <fmt/format.h>

#include <utility>

#include "http/openai_error.h"
#include "router/shell/bodies.h"

namespace isthmus::router::shell {
namespace {

http::ClientLimits health_limits() {
  http::ClientLimits limits;
  limits.connect_timeout = std::chrono::seconds(1);
  limits.head_timeout = std::chrono::seconds(2);
  limits.piece_timeout = std::chrono::seconds(2);
  limits.body_bytes_max = 64 << 10;
  limits.idle_connections_max = 1;
  return limits;
}

}  // namespace

Health::Health(net::Loop& loop, const std::vector<fleet::Worker>& workers, Duration interval, Report report)
    : loop_(loop),
      workers_(workers),
      interval_(interval),
      report_(std::move(report)),
      client_(http::make_client(loop, health_limits())),
      checks_(workers.size()) {}

Health::~Health() = default;

void Health::start() {
  for (core::WorkerIndex i = 0; i < checks_.size(); ++i) check_soon(i);
}

void Health::check_soon(core::WorkerIndex worker) {
  Check& state = checks_[worker];
  if (state.in_flight) return;
  state.next = loop_.after(Duration(0), [this, worker] { check(worker); });
}

void Health::check(core::WorkerIndex worker) {
  http::Request request;
  request.method = "GET";
  request.path = "/ready";
  Check& state = checks_[worker];
  state.in_flight = true;
  state.call =
      http::fetch(*client_, workers_[worker].http, std::move(request),
                  [this, worker](const Result<http::Response>& answer) { answered(worker, answer); });
}

void Health::answered(core::WorkerIndex worker, const Result<http::Response>& answer) {
  Check& state = checks_[worker];
  state.in_flight = false;
  state.next = loop_.after(interval_, [this, worker] { check(worker); });
  if (!answer.ok()) return report_(worker, false, answer.error().detail);
  if (answer->status == 200) {
    const auto told = JsonObjectText::scan(answer->body);
    const std::string_view agent = told.ok() ? told->raw("agent") : std::string_view();
    state.agent = agent.starts_with('[') ? agent : std::string_view();
    state.incarnation = told.ok() ? told->raw("incarnation") : std::string_view();
    return report_(worker, true, "");
  }
  std::string reason = http::message_of(answer->body);
  report_(worker, false, reason.empty() ? fmt::format("status {}", answer->status) : std::move(reason));
}

}  // namespace isthmus::router::shell
