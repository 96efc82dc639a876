// SPDX-License-Identifier: Apache-2.0
// Counting and summing.
#include "load/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

namespace isthmus::load {
namespace {

double seconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

// "1.5s", "50ms"; above 0.
std::optional<Duration> duration_of(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  constexpr double kSecondsMax = 86'400;
  const double in_seconds = unit == "ms" ? value / 1e3 : value;
  if (error != std::errc() || (unit != "ms" && unit != "s") || !(in_seconds > 0) || in_seconds > kSecondsMax)
    return std::nullopt;
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(in_seconds));
}

std::vector<std::string> faults_of(const Measured& measured, const Report& report) {
  std::vector<std::string> faults;
  if (measured.is_cut) faults.emplace_back("stopped before its end");
  if (report.lag.count > 0 && report.lag.p99 > seconds(kLagMax)) {
    faults.push_back(fmt::format(
        "the generator was late by {:.0f} ms at the 99th percentile, over {:.0f}: ask for less, or give it "
        "a processor",
        report.lag.p99 * 1e3, seconds(kLagMax) * 1e3));
  }
  if (const std::uint64_t unsent = count_of(report.counts, Outcome::kUnsent); unsent > 0)
    faults.push_back(fmt::format("{} requests found no free connection: raise --connections", unsent));
  return faults;
}

void add(Report& report, const Measured& measured) {
  std::vector<double> ttft, tpot, e2e, refusal, lag;
  std::uint64_t prompt_tokens = 0, output_tokens = 0;
  Duration last{measured.window};
  for (const Sample& sample : measured.samples) {
    ++count_of(report.counts, sample.outcome);
    if (measured.shape.rate && sample.outcome != Outcome::kUnsent) lag.push_back(seconds(sample.lag));
    const bool is_refused = sample.outcome >= Outcome::kRefused429 && sample.outcome <= Outcome::kUntyped;
    if (is_refused) refusal.push_back(seconds(sample.e2e));
    if (sample.outcome != Outcome::kOk) continue;
    if (sample.keeps(measured.slo)) ++report.good;
    if (sample.is_early) ++report.early;
    prompt_tokens += sample.asked.prompt;
    output_tokens += sample.tokens;
    if (sample.ttft) ttft.push_back(seconds(*sample.ttft));
    if (const auto each = sample.tpot()) tpot.push_back(seconds(*each));
    e2e.push_back(seconds(sample.e2e));
    last = std::max(last, sample.due + sample.e2e);
  }
  report.elapsed_s = seconds(last);
  if (const auto whole = static_cast<double>(count_of(report.counts, Outcome::kOk)); whole > 0) {
    report.goodput = static_cast<double>(report.good) / report.elapsed_s;
    report.ok_rate = whole / report.elapsed_s;
    report.output_tokens_per_s = static_cast<double>(output_tokens) / report.elapsed_s;
    report.prompt_tokens_mean = static_cast<double>(prompt_tokens) / whole;
    report.output_tokens_mean = static_cast<double>(output_tokens) / whole;
  }
  constexpr std::uint32_t kSteps = 100;
  report.ttft_quantiles = quantiles(ttft, kSteps);
  report.ttft = spread_of(std::move(ttft));
  report.tpot = spread_of(std::move(tpot));
  report.e2e = spread_of(std::move(e2e));
  report.refusal = spread_of(std::move(refusal));
  report.lag = spread_of(std::move(lag));
}

}  // namespace

Result<Slo> Slo::parse(std::string_view text) {
  Slo slo;
  while (!text.empty()) {
    const std::string_view one = text.substr(0, text.find(','));
    text.remove_prefix(std::min(one.size() + 1, text.size()));
    const std::size_t equals = one.find('=');
    const std::string_view what = one.substr(0, equals);
    std::optional<Duration>* limit = what == "ttft"   ? &slo.ttft
                                     : what == "tpot" ? &slo.tpot
                                     : what == "e2e"  ? &slo.e2e
                                                      : nullptr;
    const auto value = equals == std::string_view::npos ? std::nullopt : duration_of(one.substr(equals + 1));
    if (limit == nullptr || *limit || !value) {
      return Error{Code::kInvalidArgument,
                   fmt::format("'{}' isn't ttft=, tpot= or e2e=, each once, and a time as 1.5s or 50ms",
                               one.substr(0, 64))};
    }
    *limit = *value;
  }
  return slo;
}

std::string Slo::text() const {
  std::string all;
  for (const auto& [what, limit] : {std::pair("ttft", ttft), {"tpot", tpot}, {"e2e", e2e}}) {
    if (limit) all += fmt::format("{}{} {:g} ms", all.empty() ? "" : ", ", what, seconds(*limit) * 1e3);
  }
  return all;
}

std::optional<Duration> Sample::tpot() const {
  if (!ttft || tokens < 2) return std::nullopt;
  return (last_token - *ttft) / static_cast<std::int64_t>(tokens - 1);
}

bool Sample::keeps(const Slo& slo) const {
  if (outcome != Outcome::kOk) return false;
  if (slo.ttft && (!ttft || *ttft > *slo.ttft)) return false;
  if (slo.tpot && tpot().value_or(Duration{0}) > *slo.tpot) return false;
  return !slo.e2e || e2e <= *slo.e2e;
}

std::string LoadShape::text() const {
  return rate ? fmt::format("{:.3g} requests/s", *rate) : fmt::format("{} at once", concurrency);
}

Report report_of(const Measured& measured) {
  Report report;
  report.shape = measured.shape;
  report.slo = measured.slo;
  report.window_s = seconds(measured.window);
  report.requests = measured.samples.size();
  report.connections_peak = measured.connections_peak;
  report.first_of = measured.first_of;
  add(report, measured);
  report.itl = spread_of(measured.gaps);
  report.invalid = faults_of(measured, report);
  return report;
}

}  // namespace isthmus::load
