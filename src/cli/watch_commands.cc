// SPDX-License-Identifier: Apache-2.0
// Asking, printing, and the one loop that refreshes.
#include "cli/watch_commands.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <memory>
#include <utility>

#include "base/clock.h"
#include "cli/kv_commands.h"
#include "cli/print.h"
#include "doctor/pair.h"
#include "fleet/fleet.h"
#include "net/loop.h"
#include "watch/fleet_report.h"
#include "watch/inspect.h"
#include "watch/text.h"
#include "watch/top.h"

namespace isthmus::cli {
namespace {

constexpr Duration kAnswerTime = std::chrono::seconds(3);

int fail(std::string_view command, const Error& error) {
  note_line(fmt::format("isthmus {}: {}", command, error.text()));
  return kExitCannotStart;
}

Result<watch::TopTargets> targets_of(const TopCommand& command) {
  watch::TopTargets targets;
  if (!command.fleet_file.empty()) {
    ISTHMUS_TRY(const fleet::Fleet fleet, fleet::load_fleet(command.fleet_file));
    for (const fleet::Worker& worker : fleet.workers)
      targets.workers.push_back({worker.name, std::string(name(worker.role)), worker.http});
  }
  for (const std::string& url : command.urls) {
    ISTHMUS_TRY(const net::Endpoint endpoint, watch::parse_url(url));
    targets.workers.push_back({endpoint.text(), "", endpoint});
  }
  if (!command.router_url.empty()) {
    ISTHMUS_TRY(targets.router, watch::parse_url(command.router_url));
  }
  return targets;
}

std::size_t columns_of_terminal() {
  constexpr std::size_t kWithoutTerminal = 160;
  winsize size{};
  if (isatty(STDOUT_FILENO) == 0 || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0)
    return kWithoutTerminal;
  return size.ws_col;
}

// Samples, shows, waits, again. A picture needs two samples for its rates, so the first one comes after a
// wait.
class Refreshing {
 public:
  Refreshing(net::Loop& loop, const TopCommand& command, watch::TopTargets targets)
      : loop_(loop), command_(command), targets_(std::move(targets)), asks_(watch::asks_of(targets_)) {}

  void start() { ask(); }

 private:
  bool is_screen() const { return !command_.once && !command_.json && isatty(STDOUT_FILENO) != 0; }

  void ask() {
    gathering_ = std::make_unique<watch::Gathering>(
        loop_, asks_, kAnswerTime, [this](const watch::Answers& answers) { answered(answers); });
  }

  void answered(const watch::Answers& answers) {
    auto sample = std::make_unique<watch::Sample>(watch::sample_of(targets_, answers, now()));
    const bool is_first = before_ == nullptr;
    if (!command_.once || !is_first) show(*sample);
    before_ = std::move(sample);
    if (command_.once && !is_first) return loop_.stop();
    timer_ = loop_.after(std::chrono::milliseconds(command_.interval_ms), [this] { ask(); });
  }

  void show(const watch::Sample& sample) const {
    if (command_.json) return print(watch::page_json(targets_, before_.get(), sample));
    const std::string every =
        command_.once ? ""
                      : fmt::format("every {}, Ctrl-C ends", watch::seconds_text(command_.interval_ms / 1e3));
    const std::string title = command_.fleet_file.empty() ? "workers by url" : command_.fleet_file;
    const std::string text =
        watch::page(targets_, before_.get(), sample, {title, columns_of_terminal(), every});
    // Home, the page with each line cleared to its end, then everything below: no flicker.
    if (!is_screen()) return print(text + (command_.once ? "" : "\n"));
    std::string screen = "\x1b[H";
    for (const char c : text) screen += c == '\n' ? std::string("\x1b[K\n") : std::string(1, c);
    print(screen + "\x1b[J");
  }

  net::Loop& loop_;
  const TopCommand& command_;
  watch::TopTargets targets_;
  std::vector<watch::Ask> asks_;
  std::unique_ptr<watch::Sample> before_;
  std::unique_ptr<watch::Gathering> gathering_;
  std::unique_ptr<net::Loop::Timer> timer_;
};

}  // namespace

int run_fleet_check(const FleetCheckCommand& command) {
  const auto report = watch::check_fleet_file(command.fleet_file, command.live, kAnswerTime);
  if (!report.ok()) return fail("fleet check", report.error());
  print(command.json ? report->to_json() : report->text());
  return report->count(fleet::Severity::kError) == 0 ? kExitOk : kExitFindings;
}

int run_inspect(const InspectCommand& command) {
  if (is_kvs_file(command.target)) return run_inspect_file(command.target, command.json);
  const auto endpoint = watch::parse_url(command.target);
  if (!endpoint.ok()) return fail("kv inspect", endpoint.error());
  const watch::Answers answers = watch::fetch_all({{*endpoint, "/state"}}, kAnswerTime);
  if (!answers[0].ok()) return fail("kv inspect", answers[0].error());
  if (answers[0]->status != 200) {
    return fail("kv inspect",
                {Code::kNotFound, fmt::format("{} answers GET /state with status {}: is it a worker?",
                                              endpoint->text(), answers[0]->status)});
  }
  const auto state = watch::parse_worker_state(answers[0]->body);
  if (!state.ok()) return fail("kv inspect", state.error());
  print(command.json ? answers[0]->body : watch::inspection(*state, "http://" + endpoint->text()));
  return kExitOk;
}

int run_doctor_pair(const DoctorPairCommand& command) {
  const auto prefill = watch::parse_url(command.prefill_url);
  if (!prefill.ok()) return fail("doctor pair", prefill.error());
  const auto decode = watch::parse_url(command.decode_url);
  if (!decode.ok()) return fail("doctor pair", decode.error());
  const doctor::PairCheck check{.prefill = *prefill, .decode = *decode, .prompt = command.prompt};
  const auto report = doctor::check_pair(check);
  if (!report.ok()) return fail("doctor pair", report.error());
  print(command.json ? report->to_json(check).dump() + "\n" : report->text(check));
  return report->passed ? kExitOk : kExitFindings;
}

int run_top(const TopCommand& command) {
  auto targets = targets_of(command);
  if (!targets.ok()) return fail("top", targets.error());
  net::Loop loop;
  loop.on_signal([&loop](int) { loop.stop(); });
  Refreshing refreshing(loop, command, *std::move(targets));
  refreshing.start();
  loop.run();
  return kExitOk;
}

}  // namespace isthmus::cli
