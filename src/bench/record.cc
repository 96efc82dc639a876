// SPDX-License-Identifier: Apache-2.0
// Judging and printing.
#include "bench/record.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/rounded.h"
#include "http/json.h"

namespace isthmus::bench {
namespace {

json::Value median_of(const std::optional<Summary>& summary) {
  return summary ? rounded(summary->median) : json::Value();
}

std::string reference_text(const Record& record) {
  if (!record.failure.empty()) return "failed: " + record.failure;
  if (!record.not_run.empty()) return "not run: " + record.not_run;
  return record.reference;
}

std::string figure(const std::optional<double>& value) {
  return value ? fmt::format("{:.4g}", *value) : "-";
}

std::string verdict(const Record& record) {
  if (!record.failure.empty()) return "FAILED";
  if (!record.not_run.empty()) return "not run";
  const auto ok = record.ok();
  return !ok ? "" : *ok ? "ok" : "MISSED";
}

}  // namespace

std::string Bar::text() const {
  return fmt::format("{} {:g}", kind == Kind::kAtLeast ? ">=" : "<=", limit);
}

std::optional<Summary> summarise(std::vector<double> samples) {
  if (samples.empty()) return std::nullopt;
  std::sort(samples.begin(), samples.end());
  const std::size_t middle = samples.size() / 2;
  const double median =
      samples.size() % 2 == 1 ? samples[middle] : (samples[middle - 1] + samples[middle]) / 2;
  return Summary{static_cast<std::uint32_t>(samples.size()), median, samples.front(), samples.back()};
}

std::optional<double> Record::ratio() const {
  if (!value || !reference_value || reference_value->median <= 0) return std::nullopt;
  return value->median / reference_value->median;
}

std::optional<bool> Record::ok() const {
  if (!failure.empty()) return false;
  if (!not_run.empty() || !bar) return std::nullopt;
  const auto measured = ratio();
  if (!measured) return false;
  return bar->kind == Bar::Kind::kAtLeast ? *measured >= bar->limit : *measured <= bar->limit;
}

std::string to_json(const Record& record) {
  const auto ratio = record.ratio();
  const auto ok = record.ok();
  const std::string reference = reference_text(record);
  return json::object({{"bench", record.bench},
                       {"case", record.name},
                       {"value", median_of(record.value)},
                       {"unit", record.unit},
                       {"reference", reference.empty() ? json::Value() : json::Value(reference)},
                       {"reference_value", median_of(record.reference_value)},
                       {"ratio", ratio ? rounded(*ratio) : json::Value()},
                       {"bar", record.bar ? json::Value(record.bar->text()) : json::Value()},
                       {"ok", ok ? json::Value(*ok) : json::Value()},
                       {"runs", record.value ? record.value->runs : 0},
                       {"min", record.value ? rounded(record.value->min) : json::Value()},
                       {"max", record.value ? rounded(record.value->max) : json::Value()}})
      .dump();
}

std::string to_table(const std::vector<Record>& records) {
  std::size_t width = 4;
  for (const Record& record : records) width = std::max(width, record.name.size());
  std::string text = fmt::format("{:<{}}  {:>8} {:>8} {:>8} {:<9} {:>8} {:>6} {:>7}  {:<7} {}\n", "case",
                                 width, "median", "min", "max", "unit", "referred", "ratio", "bar", "", "");
  for (const Record& record : records) {
    const auto of = [&](double Summary::* member) {
      return figure(record.value ? std::optional((*record.value).*member) : std::nullopt);
    };
    const auto reference =
        record.reference_value ? std::optional(record.reference_value->median) : std::nullopt;
    const std::string why = record.failure.empty() && record.not_run.empty() ? "" : reference_text(record);
    text +=
        fmt::format("{:<{}}  {:>8} {:>8} {:>8} {:<9} {:>8} {:>6} {:>7}  {:<7} {}\n", record.name, width,
                    of(&Summary::median), of(&Summary::min), of(&Summary::max), record.unit,
                    figure(reference), record.ratio() ? fmt::format("{:.2f}", *record.ratio()) : "-",
                    record.bar ? record.bar->text() : "-", verdict(record), why.empty() ? record.note : why);
  }
  return text;
}

bool is_any_missed(const std::vector<Record>& records) {
  return std::any_of(records.begin(), records.end(),
                     [](const Record& record) { return record.ok() == false; });
}

}  // namespace isthmus::bench
