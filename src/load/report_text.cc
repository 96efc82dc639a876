// SPDX-License-Identifier: Apache-2.0
// A report as JSON and as a table.
#include <fmt/format.h>

#include "base/rounded.h"
#include "http/json.h"
#include "load/report.h"

namespace isthmus::load {
namespace {

json::Value to_value(const Spread& spread) {
  if (spread.count == 0) return nullptr;
  return json::object({{"count", spread.count},
                       {"mean", rounded(spread.mean)},
                       {"p50", rounded(spread.p50)},
                       {"p90", rounded(spread.p90)},
                       {"p99", rounded(spread.p99)},
                       {"max", rounded(spread.max)}});
}

json::Value limit(const std::optional<Duration>& limit) {
  return limit ? rounded(std::chrono::duration<double>(*limit).count()) : json::Value();
}

json::Value counts_of(const Report& report) {
  json::Object counts;
  for (std::size_t i = 0; i < kOutcomeCount; ++i)
    counts.emplace_back(name(static_cast<Outcome>(i)), report.counts[i]);
  return counts;
}

json::Value examples_of(const Report& report) {
  json::Object examples;
  for (const auto& [outcome, detail] : report.first_of) examples.emplace_back(name(outcome), detail);
  return examples;
}

std::string ms(const Spread& spread, double Spread::* which) {
  return spread.count == 0 ? "-" : fmt::format("{:.4g}", spread.*which * 1e3);
}

constexpr std::size_t kNameWidth = 26;
constexpr const char* kRow =
    "{:<{}} {:>6} {:>6} {:>6} {:>6} {:>6} {:>8} {:>8} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7} {:>6}\n";

}  // namespace

std::string to_json(const Report& report, const std::string& name) {
  json::Array quantiles, invalid(report.invalid.begin(), report.invalid.end());
  for (const double value : report.ttft_quantiles) quantiles.push_back(rounded(value));
  const json::Value rate = report.shape.rate ? rounded(*report.shape.rate) : json::Value();
  const json::Value ratio = report.shape.rate ? rounded(report.goodput / *report.shape.rate) : json::Value();
  return json::object(
             {{"bench", "serve"},
              {"case", name},
              {"value", rounded(report.goodput)},
              {"unit", "good answers/s"},
              {"reference", report.shape.rate ? json::Value("offered, requests/s") : json::Value()},
              {"reference_value", rate},
              {"ratio", ratio},
              {"bar", nullptr},
              {"ok", report.invalid.empty() ? json::Value() : json::Value(false)},
              {"runs", 1},
              {"min", nullptr},
              {"max", nullptr},
              {"rate", rate},
              {"concurrency", report.shape.rate ? json::Value() : json::Value(report.shape.concurrency)},
              {"slo_s", json::object({{"ttft", limit(report.slo.ttft)},
                                      {"tpot", limit(report.slo.tpot)},
                                      {"e2e", limit(report.slo.e2e)}})},
              {"window_s", rounded(report.window_s)},
              {"elapsed_s", rounded(report.elapsed_s)},
              {"requests", report.requests},
              {"counts", counts_of(report)},
              {"first_of", examples_of(report)},
              {"good", report.good},
              {"ended_early", report.early},
              {"goodput", rounded(report.goodput)},
              {"ok_per_s", rounded(report.ok_rate)},
              {"output_tokens_per_s", rounded(report.output_tokens_per_s)},
              {"prompt_tokens_mean", rounded(report.prompt_tokens_mean)},
              {"output_tokens_mean", rounded(report.output_tokens_mean)},
              {"ttft_s", to_value(report.ttft)},
              {"tpot_s", to_value(report.tpot)},
              {"itl_s", to_value(report.itl)},
              {"e2e_s", to_value(report.e2e)},
              {"refusal_s", to_value(report.refusal)},
              {"lag_s", to_value(report.lag)},
              {"ttft_quantiles_s", std::move(quantiles)},
              {"connections_peak", report.connections_peak},
              {"valid", report.invalid.empty()},
              {"invalid", std::move(invalid)}})
      .dump();
}

std::string table_head() {
  const std::string above = fmt::format(kRow, "", kNameWidth, "", "", "", "", "", "good", "tokens", "ttft",
                                        "", "", "tpot", "", "itl", "e2e", "lag");
  return above + fmt::format(kRow, "load", kNameWidth, "sent", "ok", "429", "503", "other", "/s", "/s",
                             "p50 ms", "p90", "p99", "p50", "p99", "p99", "p99", "p99");
}

std::string table_row(const Report& report, const std::string& name) {
  const auto count = [&](Outcome outcome) { return count_of(report.counts, outcome); };
  const std::uint64_t other = report.requests - count(Outcome::kOk) - report.refused_rightly();
  return fmt::format(kRow, name, kNameWidth, report.requests, count(Outcome::kOk),
                     count(Outcome::kRefused429), count(Outcome::kRefused503), other,
                     fmt::format("{:.3g}", report.goodput), fmt::format("{:.4g}", report.output_tokens_per_s),
                     ms(report.ttft, &Spread::p50), ms(report.ttft, &Spread::p90),
                     ms(report.ttft, &Spread::p99), ms(report.tpot, &Spread::p50),
                     ms(report.tpot, &Spread::p99), ms(report.itl, &Spread::p99),
                     ms(report.e2e, &Spread::p99), ms(report.lag, &Spread::p99));
}

std::string remarks(const Report& report) {
  std::string text;
  for (const std::string& why : report.invalid) text += fmt::format("  INVALID: {}\n", why);
  for (const auto& [outcome, detail] : report.first_of)
    text +=
        fmt::format("  {} x {}, the first: {}\n", count_of(report.counts, outcome), name(outcome), detail);
  if (report.early > 0) text += fmt::format("  {} answers ended before the length asked for\n", report.early);
  return text;
}

}  // namespace isthmus::load
