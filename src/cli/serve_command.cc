// SPDX-License-Identifier: Apache-2.0
// Runs one after the other on one loop: those that were asked for, or those that overload asks for.
#include "cli/serve_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "bench/record.h"
#include "cli/options.h"
#include "cli/print.h"
#include "http/json.h"
#include "load/overload.h"
#include "load/run.h"
#include "watch/fetch.h"

namespace isthmus::cli {
namespace {

constexpr Duration kShowInterval = std::chrono::milliseconds(500);

Result<std::string> first_model(const net::Endpoint& server) {
  constexpr Duration kAnswerTime = std::chrono::seconds(10);
  const watch::Answers answers = watch::fetch_all({{server, "/v1/models"}}, kAnswerTime);
  if (!answers[0].ok()) return answers[0].error();
  const auto body = json::parse(answers[0]->body);
  const json::Value* id = body.ok() ? body->find("data.0.id") : nullptr;
  if (answers[0]->status != 200 || id == nullptr || !id->is_string()) {
    return Error{Code::kNotFound,
                 fmt::format("http://{}/v1/models lists no model; name it with --model", server.text())};
  }
  return *id->as_string();
}

// What to run next, and under which name.
struct Next {
  std::string name;
  load::LoadShape shape;
  Duration window{0};
};

class Serving {
 public:
  Serving(net::Loop& loop, const ServeCommand& command, std::string model)
      : loop_(loop), command_(command), model_(std::move(model)) {}

  // Runs all; stops the loop at the end.
  void start() {
    const std::optional<Next> next = is_stopped_ ? std::nullopt : this->next();
    if (!next) return finish();
    auto run =
        load::Run::start(loop_,
                         {.to = command_.to,
                          .model = model_,
                          .lengths = command_.lengths,
                          .draws = {.seed = command_.seed, .point = point_++},
                          .shape = next->shape,
                          .slo = command_.slo,
                          .window = next->window,
                          .timeout = command_.timeout,
                          .connections_max = command_.connections_max},
                         [this, name = next->name](const load::Report& report) { ended(report, name); });
    if (!run.ok()) {
      note_line("isthmus bench serve: " + run.error().text());
      exit_code_ = kExitUsage;
      return loop_.stop();
    }
    run_ = *std::move(run);
    show(next->name);
  }

  // Ends what runs and tells what was measured; a second one ends at once.
  void interrupt() {
    if (std::exchange(is_stopped_, true)) return loop_.stop();
    if (run_) run_->stop();
  }

  int exit_code() const { return exit_code_; }

 private:
  std::optional<Next> next() {
    if (!command_.overload) return next_asked();
    if (const auto concurrency = search_.next(); concurrency && *concurrency <= command_.connections_max)
      return Next{
          fmt::format("capacity: {} at once", *concurrency), {.concurrency = *concurrency}, search_window()};
    if (search_.capacity() == 0 || factor_ == load::kOverloadFactors.size()) return std::nullopt;
    const double factor = load::kOverloadFactors.at(factor_++);
    const load::LoadShape shape{.rate = factor * search_.capacity()};
    return Next{fmt::format("{:g}x: {}", factor, shape.text()), shape, command_.window};
  }

  std::optional<Next> next_asked() {
    const std::size_t runs = command_.concurrency > 0 ? 1 : command_.rates.size();
    if (point_ >= runs) return std::nullopt;
    load::LoadShape shape{.concurrency = command_.concurrency};
    if (command_.concurrency == 0) shape.rate = command_.rates[point_];
    return Next{shape.text(), shape, command_.window};
  }

  // A search has several runs; half of the time each is enough for their rates.
  Duration search_window() const { return command_.window / 2; }

  void ended(const load::Report& report, const std::string& name) {
    clear_line();
    const bool is_search = command_.overload && !report.shape.rate;
    if (is_search && !is_stopped_) search_.tried(report);
    if (!is_search && report.shape.rate) measured_.push_back(report);
    if (!report.invalid.empty()) is_any_invalid_ = true;
    if (command_.json) {
      print_line(load::to_json(report, name));
    } else {
      if (!std::exchange(has_head_, true)) print(load::table_head());
      print(load::table_row(report, name) + load::remarks(report));
    }
    timer_ = loop_.after(Duration{0}, [this] { start(); });  // Not from within the run's own call.
  }

  void finish() {
    clear_line();
    const auto verdict = this->verdict();
    if (verdict) {
      print(command_.json ? bench::to_json(*verdict) + "\n" : verdict_text(*verdict));
    } else if (command_.overload && !is_stopped_) {
      note_line("isthmus bench serve: the server answered nothing whole; see what it said above");
      exit_code_ = kExitCannotStart;
    }
    const bool is_missed = verdict && verdict->ok() == false;
    if (command_.check && (is_any_invalid_ || is_missed)) exit_code_ = kExitBarMissed;
    loop_.stop();
  }

  // Of an overload that was run to its end.
  std::optional<bench::Record> verdict() const {
    if (!command_.overload || measured_.size() != load::kOverloadFactors.size() || is_stopped_)
      return std::nullopt;
    const auto goodput = [&](double factor) {
      const std::size_t at = static_cast<std::size_t>(std::ranges::find(load::kOverloadFactors, factor) -
                                                      load::kOverloadFactors.begin());
      return bench::summarise({measured_[at].goodput});
    };
    bench::Record record{.bench = "serve", .name = "goodput at 5x of the capacity", .unit = "good answers/s"};
    record.value = goodput(5);
    record.reference = "goodput at 1x";
    record.reference_value = goodput(1);
    record.bar = {bench::Bar::Kind::kAtLeast, load::kOverloadBar};
    return record;
  }

  static std::string verdict_text(const bench::Record& record) {
    const std::string ratio = record.ratio() ? fmt::format("{:.2f}", *record.ratio()) : "-";
    return fmt::format("{}: {:.3g}/s, {} of that at 1x (bar {}): {}\n", record.name, record.value->median,
                       ratio, record.bar->text(), record.ok() == true ? "ok" : "MISSED");
  }

  // A line on the terminal that is written over while a run goes on.
  void show(const std::string& name) {
    if (isatty(STDERR_FILENO) == 0) return;
    timer_ = loop_.after(kShowInterval, [this, name] {
      const load::Progress at = run_->progress();
      note_over(fmt::format("{}: {:.0f} s, {} due, {} under way, {} ok, {} refused, {} other", name,
                            std::chrono::duration<double>(at.since_start).count(), at.due, at.in_flight,
                            at.ok, at.refused, at.other));
      show(name);
    });
  }
  static void clear_line() {
    if (isatty(STDERR_FILENO) != 0) note_over("");
  }

  net::Loop& loop_;
  const ServeCommand& command_;
  std::string model_;
  std::unique_ptr<load::Run> run_;
  std::unique_ptr<net::Loop::Timer> timer_;
  std::uint64_t point_ = 0;  // Runs so far.
  load::CapacitySearch search_;
  std::size_t factor_ = 0;
  std::vector<load::Report> measured_;  // Of open loops.
  bool is_stopped_ = false, is_any_invalid_ = false, has_head_ = false;
  int exit_code_ = kExitOk;
};

}  // namespace

int run_serve(const ServeCommand& command) {
  std::string model = command.model;
  if (model.empty()) {
    auto listed = first_model(command.to);
    if (!listed.ok()) {
      note_line("isthmus bench serve: " + listed.error().text());
      return kExitCannotStart;
    }
    model = *std::move(listed);
  }
  net::Loop loop;
  Serving serving(loop, command, std::move(model));
  loop.on_signal([&](int) { serving.interrupt(); });
  serving.start();
  loop.run();
  return serving.exit_code();
}

}  // namespace isthmus::cli
