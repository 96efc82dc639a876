// SPDX-License-Identifier: Apache-2.0
// Timers, calls, and the samples they leave.
#include "load/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "http/client.h"
#include "http/json.h"

namespace isthmus::load {
namespace {

constexpr std::size_t kGapsMax = std::size_t{1} << 24;  // The first so many are told.
constexpr Duration kRest = std::chrono::seconds(1);     // Of the closed loop after a failure.

// A request under way.
struct Asking {
  explicit Asking(const Length& length) : asked(length), reader(length) {}
  Length asked;
  AnswerReader reader;
  Duration due{0}, lag{0};
  std::unique_ptr<http::Call> call;
  std::unique_ptr<net::Loop::Timer> timeout;
};

class Running final : public Run {
 public:
  Running(net::Loop& loop, RunOptions options, std::vector<Duration> arrivals,
          std::function<void(Report)> done)
      : loop_(loop),
        options_(std::move(options)),
        arrivals_(std::move(arrivals)),
        done_(std::move(done)),
        client_(http::make_client(loop, {.connect_timeout = options_.timeout,
                                         .head_timeout = options_.timeout,
                                         .piece_timeout = options_.timeout,
                                         .idle_connections_max = options_.connections_max})),
        start_(now()) {
    measured_.shape = options_.shape;
    measured_.slo = options_.slo;
    measured_.window = options_.window;
    if (is_open_loop()) {
      arrive();
      return;
    }
    resting_.resize(options_.shape.concurrency);
    for (std::uint32_t slot = 0; slot < options_.shape.concurrency; ++slot) send_from(slot);
    window_end_ = loop_.after(options_.window, [this] { end_if_over(); });
  }

  void stop() override {
    if (!done_) return;
    measured_.is_cut = true;
    measured_.window = std::min(options_.window, elapsed());
    arrivals_.resize(next_);
    while (!asking_.empty())
      record(asking_.begin()->first, {Outcome::kCut, "the run was stopped while it was under way"});
    end_if_over();
  }

  Progress progress() const override {
    Progress progress{.since_start = elapsed(), .due = next_, .in_flight = asking_.size()};
    progress.ok = count_of(counts_, Outcome::kOk);
    progress.refused = count_of(counts_, Outcome::kRefused429) + count_of(counts_, Outcome::kRefused503);
    progress.other = measured_.samples.size() - progress.ok - progress.refused;
    return progress;
  }

 private:
  bool is_open_loop() const { return options_.shape.rate.has_value(); }
  Duration elapsed() const { return now() - start_; }
  bool is_over() const {
    const bool may_send = is_open_loop() ? next_ < arrivals_.size() : elapsed() < measured_.window;
    return !may_send && asking_.empty();
  }

  // Open loop: all that is due by now, and a timer for what comes next.
  void arrive() {
    for (; next_ < arrivals_.size() && arrivals_[next_] <= elapsed(); ++next_)
      send(next_, arrivals_[next_], std::nullopt);
    if (next_ == arrivals_.size()) return end_if_over();
    arrival_ = loop_.after(arrivals_[next_] - elapsed(), [this] { arrive(); });
  }

  // Closed loop: what is due is due now.
  void send_from(std::uint32_t slot) {
    if (elapsed() < measured_.window) send(next_++, elapsed(), slot);
  }

  void send(std::uint64_t request, Duration due, std::optional<std::uint32_t> slot) {
    const Length asked = options_.lengths.at(options_.draws, request);
    if (asking_.size() >= options_.connections_max) {
      add({.due = due, .asked = asked, .outcome = Outcome::kUnsent}, "all connections are busy");
      return;
    }
    auto& asking = *asking_.emplace(request, std::make_unique<Asking>(asked)).first->second;
    asking.due = due;
    measured_.connections_peak = std::max<std::uint64_t>(measured_.connections_peak, asking_.size());
    http::ClientEvents events{
        .on_head = [&asking](int status,
                             const http::Headers& headers) { asking.reader.head(status, headers); },
        .on_piece = [&asking](std::string_view piece) { asking.reader.piece(piece, now()); },
        .on_done = [this, request, slot](const Status& status) { answered(request, slot, status); }};
    http::Request message{.method = "POST",
                          .path = "/v1/completions",
                          .query = "",
                          .headers = {{"Content-Type", "application/json"}},
                          .body = body(request, asked)};
    asking.lag = elapsed() - due;
    asking.call = client_->call(options_.to, std::move(message), std::move(events));
    asking.timeout = loop_.after(due + options_.timeout - elapsed(), [this, request, slot] {
      const auto limit = std::chrono::duration_cast<std::chrono::milliseconds>(options_.timeout).count();
      answered(request, slot, Error{Code::kDeadlineExceeded, fmt::format("not whole within {} ms", limit)});
    });
  }

  std::string body(std::uint64_t request, const Length& asked) const {
    return fmt::format(
        R"({{"model":{},"prompt":{},"max_tokens":{},"temperature":0,"ignore_eos":true,"stream":true,)"
        R"("stream_options":{{"include_usage":true}}}})",
        json::Value(options_.model).dump(), prompt_json(options_.draws, request, asked.prompt), asked.output);
  }

  void answered(std::uint64_t request, std::optional<std::uint32_t> slot, const Status& status) {
    const auto found = asking_.find(request);
    if (found == asking_.end()) return;  // Its end and its timer came in one turn.
    AnswerReader& reader = found->second->reader;
    const Ending ending = reader.end(status);
    const Duration wait = ending.outcome == Outcome::kOk     ? Duration{0}
                          : reader.retry_after > Duration{0} ? reader.retry_after
                                                             : kRest;
    record(request, ending);
    if (slot) resting_[*slot] = loop_.after(wait, [this, at = *slot] { send_from(at); });
    end_if_over();
  }

  void record(std::uint64_t request, const Ending& ending) {
    auto node = asking_.extract(request);
    const Asking& asking = *node.mapped();
    const AnswerReader& reader = asking.reader;
    Sample sample{.due = asking.due,
                  .lag = asking.lag,
                  .asked = asking.asked,
                  .outcome = ending.outcome,
                  .is_early = reader.is_early,
                  .tokens = reader.tokens,
                  .e2e = elapsed() - asking.due};
    if (reader.first_token) {
      sample.ttft = *reader.first_token - start_ - asking.due;
      sample.last_token = *reader.last_token - start_ - asking.due;
    }
    if (ending.outcome == Outcome::kOk) {
      for (const Duration gap : reader.gaps) {
        if (measured_.gaps.size() < kGapsMax)
          measured_.gaps.push_back(std::chrono::duration<double>(gap).count());
      }
    }
    add(sample, ending.detail);
    // Its call or its timer may be what is running.
    ended_.push_back(std::move(node.mapped()));
    if (sweep_ == nullptr) {
      sweep_ = loop_.after(Duration{0}, [this] {
        ended_.clear();
        sweep_.reset();
      });
    }
  }

  void add(const Sample& sample, const std::string& detail) {
    ++count_of(counts_, sample.outcome);
    if (sample.outcome != Outcome::kOk) measured_.first_of.emplace(sample.outcome, detail);
    measured_.samples.push_back(sample);
  }

  void end_if_over() {
    if (!is_over() || end_ != nullptr) return;
    arrival_.reset();
    end_ = loop_.after(Duration{0}, [this] {
      const auto done = std::exchange(done_, nullptr);
      if (done) done(report_of(measured_));  // May destroy this.
    });
  }

  net::Loop& loop_;
  RunOptions options_;
  std::vector<Duration> arrivals_;
  std::function<void(Report)> done_;
  std::unique_ptr<http::Client> client_;
  Instant start_;
  std::uint64_t next_ = 0;  // The next request's number: so many were due.
  std::map<std::uint64_t, std::unique_ptr<Asking>> asking_;
  std::vector<std::unique_ptr<Asking>> ended_;
  std::vector<std::unique_ptr<net::Loop::Timer>> resting_;  // Of the closed loop, by slot.
  Counts counts_{};
  Measured measured_;
  std::unique_ptr<net::Loop::Timer> arrival_, window_end_, sweep_, end_;
};

}  // namespace

Result<std::unique_ptr<Run>> Run::start(net::Loop& loop, RunOptions options,
                                        std::function<void(Report)> done) {
  std::vector<Duration> arrivals;
  if (options.shape.rate) {
    ISTHMUS_TRY(arrivals, poisson_arrivals(*options.shape.rate, options.window, options.draws));
  } else if (options.shape.concurrency == 0 || options.shape.concurrency > options.connections_max) {
    return Error{Code::kInvalidArgument,
                 fmt::format("a concurrency must be 1 to {} connections", options.connections_max)};
  }
  return std::unique_ptr<Run>(
      std::make_unique<Running>(loop, std::move(options), std::move(arrivals), std::move(done)));
}

}  // namespace isthmus::load
