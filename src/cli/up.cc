// SPDX-License-Identifier: Apache-2.0
// From two processes that load to a router that serves, and back.
#include "cli/up.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "cli/child.h"
#include "cli/up_files.h"
#include "router/shell/router.h"

namespace isthmus::cli {
namespace {

// Prompts that are computed together are all as late as their sum on a processor: few at once. A sequence of
// the decode worker is taken while the prompt is still computed for it: with no more of them than the prefill
// worker has, states would be ready that find none.
constexpr const char* kPrefillSequences = "4";
constexpr const char* kDecodeSequences = "16";

// One of the two workers.
struct Side {
  std::string name;
  fleet::Role role = fleet::Role::kBoth;
  EngineChoice engine;
  std::unique_ptr<Child> child;
  std::optional<net::Endpoint> http;  // Once its ready line came.
};

// "ready http://HOST:PORT agent HOST:PORT"
std::optional<net::Endpoint> endpoint_in_ready_line(std::string_view line) {
  constexpr std::string_view kStart = "ready http://";
  if (!line.starts_with(kStart)) return std::nullopt;
  line.remove_prefix(kStart.size());
  const auto endpoint = net::Endpoint::parse(line.substr(0, line.find(' ')));
  return endpoint.ok() ? std::optional(*endpoint) : std::nullopt;
}

class Running final : public Up {
 public:
  Running(net::Loop& loop, UpSetup setup, UpEvents events, UpFolder folder)
      : loop_(loop), setup_(std::move(setup)), events_(std::move(events)), folder_(std::move(folder)) {
    model_.name = setup_.command.served_model;
    model_.exactness = setup_.command.exactness;
    sides_[0] = {"p1", fleet::Role::kPrefill, setup_.command.prefill, nullptr, {}};
    sides_[1] = {"d1", fleet::Role::kDecode, setup_.command.decode, nullptr, {}};
  }

  Status begin() {
    ISTHMUS_TRY(folder_.write_fleet(model_, {}));
    for (Side& side : sides_) {
      ChildEvents events;
      events.on_line = [this, &side](const std::string& line) { line_from(side, line); };
      events.on_end = [this, &side](const Ended& ended) { side_ended(side, ended); };
      ISTHMUS_TRY(side.child, Child::start(loop_, arguments_of(side), std::move(events)));
      note(fmt::format("{} worker {} ({}) is loading, process {}", name(side.role), side.name,
                       side.engine.text(), side.child->pid()));
    }
    timer_ = loop_.after(setup_.ready_timeout, [this] {
      note("the workers aren't ready in time");
      stop_with(kExitCannotStart);
    });
    return ok_status();
  }

  void stop() override { stop_with(kExitOk); }

 private:
  std::vector<std::string> arguments_of(const Side& side) const {
    const UpCommand& command = setup_.command;
    return {setup_.program,
            "worker",
            "--engine",
            side.engine.engine,
            "--kv",
            side.engine.kv_type,
            "--activations",
            side.role == fleet::Role::kDecode ? command.decode_activations : command.prefill_activations,
            "--role",
            std::string(name(side.role)),
            "--model",
            command.model_path,
            "--served-model",
            model_.name,
            "--fleet",
            folder_.fleet_file(),
            "--name",
            side.name,
            "--threads",
            std::to_string(command.threads),
            "--sequences",
            side.role == fleet::Role::kDecode ? kDecodeSequences : kPrefillSequences,
            "--queue-wait",
            fmt::format("{}", command.queue_wait_s),
            "--listen",
            "127.0.0.1:0",
            "--agent-listen",
            "127.0.0.1:0",
            "--die-with-parent",
            std::to_string(getpid())};
  }

  void note(std::string text) { events_.on_note(std::move(text)); }

  void line_from(Side& side, const std::string& line) {
    const auto endpoint = endpoint_in_ready_line(line);
    if (!endpoint.has_value() || side.http.has_value()) return note(fmt::format("{}: {}", side.name, line));
    side.http = endpoint;
    note(fmt::format("{} worker {} serves at http://{}", name(side.role), side.name, endpoint->text()));
    const bool all_ready = std::ranges::all_of(sides_, [](const Side& s) { return s.http.has_value(); });
    if (!all_ready || is_stopping_) return;
    const Status started = start_router();
    if (started.ok()) return await_router();
    note(started.error().text());
    stop_with(kExitCannotStart);
  }

  Status start_router() {
    std::vector<fleet::Worker> workers;
    for (const Side& side : sides_) {
      fleet::Worker worker;
      worker.name = side.name;
      worker.role = side.role;
      worker.model = model_.name;
      worker.http = *side.http;
      worker.engine = side.engine.engine;
      workers.push_back(std::move(worker));
    }
    ISTHMUS_TRY(folder_.write_fleet(model_, workers));
    router::shell::RouterOptions options;
    ISTHMUS_TRY(options.fleet, fleet::load_fleet(folder_.fleet_file()));
    options.listen = setup_.command.listen;
    options.core.queue_timeout =
        std::chrono::duration_cast<Duration>(std::chrono::duration<double>(setup_.command.queue_wait_s));
    ISTHMUS_TRY(router_, router::shell::Router::start(loop_, std::move(options), metrics_));
    return ok_status();
  }

  // The router's first health checks take milliseconds, the pair's canary some seconds; the timer for loading
  // still bounds them.
  void await_router() {
    if (is_stopping_) return;
    if (router_->ready().ok() && !router_->is_trying() && !router_->pairs().empty()) {
      for (const router::shell::PairFinding& pair : router_->pairs()) {
        note(fmt::format("canary {} to {}: {}", pair.prefill, pair.decode, pair.finding));
        if (!pair.is_sound) return stop_with(kExitProbeFailed);
      }
      is_serving_ = true;
      timer_.reset();
      return events_.on_ready(router_->endpoint());
    }
    poll_ = loop_.after(std::chrono::milliseconds(10), [this] { await_router(); });
  }

  void side_ended(Side& side, const Ended& ended) {
    const bool any_left =
        std::ranges::any_of(sides_, [](const Side& s) { return s.child && s.child->is_running(); });
    if (is_stopping_) return any_left ? void() : finish();
    note(fmt::format("{} worker {} ended with {}", name(side.role), side.name, ended.text()));
    if (!is_serving_) {
      return stop_with(ended.exit_code == kExitProbeFailed ? kExitProbeFailed : kExitCannotStart);
    }
    if (any_left) return note("the router goes on with what is left");
    note("no worker is left");
    stop_with(kExitCannotStart);
  }

  void stop_with(int exit_code) {
    if (is_stopping_) return;
    is_stopping_ = true;
    exit_code_ = exit_code;
    poll_.reset();
    if (router_) router_->stop_accepting();
    bool any_left = false;
    for (Side& side : sides_) {
      if (!side.child || !side.child->is_running()) continue;
      side.child->send_signal(SIGINT);  // SIGTERM would let answers end that nobody gets.
      any_left = true;
    }
    if (!any_left) {
      timer_ = loop_.after(Duration(0), [this] { finish(); });
      return;
    }
    timer_ = loop_.after(setup_.stop_timeout, [this] {
      for (Side& side : sides_) {
        if (!side.child || !side.child->is_running()) continue;
        note(fmt::format("worker {} doesn't stop and is killed", side.name));
        side.child->send_signal(SIGKILL);
      }
    });
  }

  void finish() {
    router_.reset();
    events_.on_end(exit_code_);
  }

  net::Loop& loop_;
  UpSetup setup_;
  UpEvents events_;
  UpFolder folder_;
  fleet::Model model_;
  MetricsRegistry metrics_;
  std::array<Side, 2> sides_;
  std::unique_ptr<router::shell::Router> router_;
  std::unique_ptr<net::Loop::Timer> timer_, poll_;
  bool is_serving_ = false, is_stopping_ = false;
  int exit_code_ = kExitOk;
};

}  // namespace

std::string served_model_of(const std::string& model_path) {
  const std::string file = std::filesystem::path(model_path).filename().string();
  std::string name;
  for (const char c : file.substr(0, file.find('.'))) {
    const bool is_upper = c >= 'A' && c <= 'Z';
    const bool is_plain = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
    name += is_upper ? static_cast<char>(c - 'A' + 'a') : is_plain ? c : '-';
  }
  constexpr std::size_t kNameMax = 64;  // As the fleet file has it.
  return name.empty() ? "model" : name.substr(0, kNameMax);
}

Result<std::unique_ptr<Up>> Up::start(net::Loop& loop, UpSetup setup, UpEvents events) {
  UpCommand& command = setup.command;
  std::error_code failed;
  if (!std::filesystem::is_regular_file(command.model_path, failed)) {
    return Error{Code::kNotFound,
                 fmt::format("no model file '{}'; give one with --model, or let tools/bootstrap.sh "
                             "fetch the small test model",
                             command.model_path)};
  }
  command.model_path = std::filesystem::absolute(command.model_path, failed).string();
  // The router listens once the workers have loaded; a port that is taken is said before that.
  if (command.listen.port != 0) ISTHMUS_TRY(net::listen(loop, command.listen, [](const auto&) {}));
  if (command.served_model.empty()) command.served_model = served_model_of(command.model_path);
  if (command.threads == 0) command.threads = std::max(1u, std::thread::hardware_concurrency() / 2);
  ISTHMUS_TRY(UpFolder folder, UpFolder::make());
  auto up = std::make_unique<Running>(loop, std::move(setup), std::move(events), std::move(folder));
  ISTHMUS_TRY(up->begin());
  return std::unique_ptr<Up>(std::move(up));
}

}  // namespace isthmus::cli
