// SPDX-License-Identifier: Apache-2.0
// One timer that looks for pairs that are due, and a trial for each whose workers are free.
#include "router/shell/trials.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/log.h"

namespace isthmus::router::shell {
namespace {

constexpr Duration kAgainAfter = std::chrono::seconds(5);
constexpr Duration kAnswerMax = std::chrono::seconds(60);

}  // namespace

Trials::Trials(net::Loop& loop, const fleet::Fleet& fleet, Report report)
    : loop_(loop), fleet_(fleet), report_(std::move(report)), workers_(fleet.workers.size()) {
  const auto may = [&](const fleet::Worker& p, const fleet::Worker& d) {
    const fleet::Model* model = fleet.find_model(p.model);
    return model != nullptr && model->canary == fleet::Canary::kFirstContact && p.model == d.model &&
           p.plane == d.plane && p.role != fleet::Role::kDecode && d.role != fleet::Role::kPrefill;
  };
  for (core::WorkerIndex p = 0; p < workers_.size(); ++p) {
    for (core::WorkerIndex d = 0; d < workers_.size(); ++d) {
      if (p == d || !may(fleet.workers[p], fleet.workers[d])) continue;
      Pair pair;
      pair.prefill = p;
      pair.decode = d;
      pairs_.push_back(std::move(pair));
    }
  }
}

Trials::~Trials() = default;

void Trials::worker_ready(core::WorkerIndex worker, const std::string& incarnation) {
  Worker& known = workers_[worker];
  if (known.is_ready && known.incarnation == incarnation) return;
  const bool is_another = known.incarnation != incarnation;
  known.is_ready = true;
  known.incarnation = incarnation;
  for (Pair& pair : pairs_) {
    if (!is_another || (pair.prefill != worker && pair.decode != worker)) continue;
    pair.is_tried = false;
    pair.is_stale = pair.trial != nullptr;
    pair.finding.clear();
    report_({pair.prefill, pair.decode, false, ""});
  }
  look_soon(Duration(0));
}

void Trials::worker_gone(core::WorkerIndex worker) {
  workers_[worker].is_ready = false;
}

bool Trials::is_there(const Pair& pair) const {
  return workers_[pair.prefill].is_ready && workers_[pair.decode].is_ready;
}

bool Trials::is_waiting() const {
  return std::ranges::any_of(pairs_, [this](const Pair& pair) { return !pair.is_tried && is_there(pair); });
}

std::vector<Trials::Finding> Trials::findings() const {
  std::vector<Finding> found;
  for (const Pair& pair : pairs_) {
    if (!pair.finding.empty()) found.push_back({pair.prefill, pair.decode, pair.finding});
  }
  return found;
}

void Trials::look_soon(Duration after) {
  timer_ = loop_.after(after, [this] { look(); });
}

void Trials::look() {
  over_.clear();
  Instant next = kFarFuture;
  for (Pair& pair : pairs_) {
    if (pair.is_tried || pair.trial || !is_there(pair)) continue;
    if (workers_[pair.prefill].is_busy || workers_[pair.decode].is_busy) continue;  // Their end looks again.
    if (pair.due > now()) {
      next = std::min(next, pair.due);
    } else {
      start(pair);
    }
  }
  if (next != kFarFuture) look_soon(next - now());
}

void Trials::start(Pair& pair) {
  workers_[pair.prefill].is_busy = workers_[pair.decode].is_busy = true;
  pair.trial = std::make_unique<doctor::PairTrial>(
      loop_,
      doctor::PairCheck{.prefill = fleet_.workers[pair.prefill].http,
                        .decode = fleet_.workers[pair.decode].http,
                        .is_pushed = fleet_.dialer == fleet::Dialer::kPrefill,
                        .timeout = kAnswerMax},
      [this, &pair](Result<doctor::PairReport> report) { ended(pair, std::move(report)); });
}

void Trials::ended(Pair& pair, Result<doctor::PairReport> report) {
  over_.push_back(std::move(pair.trial));
  workers_[pair.prefill].is_busy = workers_[pair.decode].is_busy = false;
  const std::string& prefill = fleet_.workers[pair.prefill].name;
  const std::string& decode = fleet_.workers[pair.decode].name;
  look_soon(Duration(0));
  if (std::exchange(pair.is_stale, false)) return;
  if (!report.ok()) {
    pair.due = now() + kAgainAfter;
    pair.finding = report.error().text();
    ISTHMUS_LOG(kWarn, "pair not tried", "prefill={} decode={} why=\"{}\"", prefill, decode, pair.finding);
    return report_(
        {pair.prefill, pair.decode, false, fmt::format("not tried yet: {}", report.error().detail)});
  }
  pair.is_tried = true;
  pair.finding = report->passed ? report->summary() : fmt::format("{}", fmt::join(report->faults, "; "));
  if (report->passed) {
    ISTHMUS_LOG(kInfo, "pair is sound", "prefill={} decode={} found=\"{}\"", prefill, decode, pair.finding);
  } else {
    ISTHMUS_LOG(kError, "pair isn't used", "prefill={} decode={} why=\"{}\"", prefill, decode, pair.finding);
  }
  report_({pair.prefill, pair.decode, report->passed, pair.finding});
}

}  // namespace isthmus::router::shell
