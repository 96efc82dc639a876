// SPDX-License-Identifier: Apache-2.0
// From answers to numbers.
#include <charconv>

#include "watch/top.h"

namespace isthmus::watch {
namespace {

const std::map<std::string, std::string> kLabels{{"isthmus_handoff_bytes_total", "side"},
                                                 {"isthmus_handoffs_total", "outcome"},
                                                 {"isthmus_handoff_seconds_sum", "stage"},
                                                 {"isthmus_handoff_seconds_count", "stage"},
                                                 {"isthmus_router_requests_total", "code"}};

// The value of `label` inside {a="x",b="y"}; "" if it isn't there.
std::string_view label_value(std::string_view labels, const std::string& label) {
  const std::string start = label + "=\"";
  for (auto at = labels.find(start); at != std::string_view::npos; at = labels.find(start, at + 1)) {
    if (at == 0 || (labels[at - 1] != '{' && labels[at - 1] != ',')) continue;
    labels.remove_prefix(at + start.size());
    return labels.substr(0, labels.find('"'));
  }
  return "";
}

void read_line(std::string_view line, const std::map<std::string, std::string>& labels_of, Numbers& out) {
  if (line.empty() || line.front() == '#') return;
  const std::size_t name_end = line.find_first_of("{ ");
  const std::size_t labels_end = line.rfind('}');
  const std::size_t value_at = line.find(' ', labels_end == std::string_view::npos ? 0 : labels_end);
  if (name_end == std::string_view::npos || value_at == std::string_view::npos) return;
  double value = 0;
  const std::string_view number = line.substr(value_at + 1);
  const auto [end, failed] = std::from_chars(number.data(), number.data() + number.size(), value);
  if (failed != std::errc() || end == number.data()) return;
  std::string name(line.substr(0, name_end));
  if (const auto label = labels_of.find(name); label != labels_of.end()) {
    name += "|";
    name += label_value(line.substr(name_end, value_at - name_end), label->second);
  }
  out[name] += value;
}

// What a worker or router gave, or why that isn't what was asked for.
Result<std::string> body_of(const Result<http::Response>& answer) {
  if (!answer.ok()) return answer.error();
  if (answer->status == 200) return answer->body;
  return Error{Code::kUnavailable, "answers with status " + std::to_string(answer->status)};
}

}  // namespace

Numbers read_metrics(std::string_view text, const std::map<std::string, std::string>& label_by_metric) {
  Numbers numbers;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    read_line(text.substr(0, end), label_by_metric, numbers);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return numbers;
}

std::vector<Ask> asks_of(const TopTargets& targets) {
  std::vector<Ask> asks;
  for (const TopTargets::Worker& worker : targets.workers) {
    asks.push_back({worker.http, "/state"});
    asks.push_back({worker.http, "/metrics"});
  }
  if (targets.router) asks.push_back({*targets.router, "/metrics"});
  return asks;
}

Sample sample_of(const TopTargets& targets, const Answers& answers, Instant at) {
  Sample sample;
  sample.at = at;
  for (std::size_t i = 0; i < targets.workers.size(); ++i) {
    WorkerSample& worker = sample.workers.emplace_back();
    const auto state = body_of(answers.at(2 * i));
    worker.state = state.ok() ? parse_worker_state(*state) : Result<WorkerState>(state.error());
    const auto metrics = body_of(answers.at(2 * i + 1));
    if (metrics.ok()) worker.metrics = read_metrics(*metrics, kLabels);
  }
  if (targets.router) {
    const auto metrics = body_of(answers.back());
    sample.router =
        metrics.ok() ? Result<Numbers>(read_metrics(*metrics, kLabels)) : Result<Numbers>(metrics.error());
  }
  return sample;
}

}  // namespace isthmus::watch
