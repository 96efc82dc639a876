// SPDX-License-Identifier: Apache-2.0
// Findings of the file, then of its workers, then of each pair.
#include "watch/fleet_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "fleet/text_file.h"
#include "http/json.h"
#include "kv/negotiate.h"
#include "watch/text.h"
#include "wire/descriptor_codec.h"

namespace isthmus::watch {
namespace {

using fleet::Severity;

// What one worker said.
struct Live {
  std::string storage;
  std::optional<kv::Descriptor> descriptor;
};

std::string path_of(const fleet::Fleet& fleet, const fleet::Worker& worker, std::string_view field) {
  return fmt::format("workers[{}].{}", &worker - fleet.workers.data(), field);
}

// The detail of an error of parse_fleet() begins with "origin:line: path: "; taken apart, it is a finding
// like any other.
fleet::Finding finding_of(const Error& error, const std::string& origin) {
  fleet::Finding finding;
  finding.advice = "correct the file";
  std::string_view rest = error.detail;
  if (rest.starts_with(origin + ":")) {
    rest.remove_prefix(origin.size() + 1);
    const std::size_t colon = rest.find(": ");
    if (colon != std::string_view::npos) {
      finding.line = std::atoi(std::string(rest.substr(0, colon)).c_str());
      rest.remove_prefix(colon + 2);
    }
    const std::size_t path_end = rest.find(": ");
    const bool has_path = path_end != std::string_view::npos && rest.find(' ') > path_end;
    if (has_path && finding.line > 0) {
      finding.path = rest.substr(0, path_end);
      rest.remove_prefix(path_end + 2);
    }
  }
  finding.text = rest;
  return finding;
}

// "" if it isn't there or isn't a text.
std::string text_member(const json::Value& value, std::string_view name) {
  const json::Value* member = value.member(name);
  return member != nullptr && member->is_string() ? *member->as_string() : std::string();
}

class LiveJudge {
 public:
  LiveJudge(const fleet::Fleet& fleet, const fleet::Source& source, FleetReport& report)
      : fleet_(fleet), source_(source), report_(report) {}

  Live worker(const fleet::Worker& worker, const Result<http::Response>& ready,
              const Result<http::Response>& bytes) {
    if (!ready.ok()) {
      find(Severity::kError, path_of(fleet_, worker, "url"),
           fmt::format("worker {} can't be reached: {}", worker.name, ready.error().detail),
           "start it, or correct the url");
      return {};
    }
    Live live;
    const auto said = json::parse(ready->body);
    if (ready->status != 200 || !said.ok()) {
      find(Severity::kError, path_of(fleet_, worker, "url"),
           fmt::format("worker {} isn't ready: status {} {}", worker.name, ready->status,
                       clipped(ready->body, 200)),
           "look at its log");
    } else {
      compare(worker, *said);
      live.storage = text_member(*said, "storage");
    }
    live.descriptor = descriptor(worker, bytes);
    return live;
  }

  void pair(const fleet::Worker& p, const Live& source, const fleet::Worker& d, const Live& target) {
    const fleet::Model& model = *fleet_.find_model(p.model);
    const kv::Verdict verdict = kv::negotiate(*source.descriptor, *target.descriptor, fleet_.policy(model));
    PairVerdict& shown = report_.pairs.emplace_back();
    shown.model = p.model;
    shown.prefill = p.name;
    shown.decode = d.name;
    shown.source = source.storage;
    shown.target = target.storage;
    shown.verdict = kv::name(verdict.kind);
    shown.roundings = verdict.roundings;
    shown.warnings = verdict.warnings;
    for (const kv::Reason& reason : verdict.rejects)
      shown.reasons.push_back(reason.path + ": " + reason.text);
    if (verdict.kind != kv::VerdictKind::kReject) return;
    const bool fails = model.on_failure == fleet::OnFailure::kFail;
    find(fails ? Severity::kError : Severity::kWarning, path_of(fleet_, d, "name"),
         fmt::format("{} can't hand over to {}: {}{}", p.name, d.name,
                     shown.reasons.empty() ? std::string("no reason given") : shown.reasons.front(),
                     shown.reasons.size() > 1 ? fmt::format(" (and {} more)", shown.reasons.size() - 1) : ""),
         fails ? "with on_failure: fail such requests end in an error; change the pair, its policy or its "
                 "records"
               : "its prompts are computed twice; change the pair, its policy or its records");
  }

 private:
  void find(Severity severity, std::string path, std::string text, std::string advice) {
    report_.findings.push_back(
        source_.finding(severity, std::move(path), std::move(text), std::move(advice)));
  }

  // What the worker says of itself beside what the file says of it.
  void compare(const fleet::Worker& worker, const json::Value& said) {
    const std::string model = text_member(said, "model"), engine = text_member(said, "engine");
    if (!model.empty() && model != worker.model) {
      find(Severity::kError, path_of(fleet_, worker, "model"),
           fmt::format("worker {} serves '{}'", worker.name, model),
           "start it with --served-model " + worker.model + ", or correct the file");
    }
    if (!engine.empty() && !worker.engine.empty() && engine != worker.engine) {
      find(Severity::kWarning, path_of(fleet_, worker, "engine"),
           fmt::format("worker {} runs {}", worker.name, engine), "correct the file");
    }
  }

  std::optional<kv::Descriptor> descriptor(const fleet::Worker& worker, const Result<http::Response>& bytes) {
    const auto missing = [&](const std::string& why) {
      find(Severity::kWarning, path_of(fleet_, worker, "url"),
           fmt::format("worker {} gives no descriptor: {}", worker.name, why),
           "its pairs can't be judged from here");
      return std::nullopt;
    };
    if (!bytes.ok()) return missing(bytes.error().detail);
    if (bytes->status != 200) return missing(fmt::format("status {}", bytes->status));
    auto decoded = wire::decode_descriptor(bytes_of(bytes->body));
    if (!decoded.ok()) return missing(decoded.error().text());
    const Status valid = decoded->validate();
    if (!valid.ok()) return missing(valid.error().text());
    return *std::move(decoded);
  }

  const fleet::Fleet& fleet_;
  const fleet::Source& source_;
  FleetReport& report_;
};

std::string plural(std::size_t count, std::string_view word) {
  return fmt::format("{} {}{}", count, word, count == 1 ? "" : "s");
}

}  // namespace

std::vector<Ask> live_asks(const fleet::Fleet& fleet) {
  std::vector<Ask> asks;
  for (const fleet::Worker& worker : fleet.workers) {
    asks.push_back({worker.http, "/ready"});
    asks.push_back({worker.http, "/isthmus/descriptor.pb"});
  }
  return asks;
}

void judge_live(const fleet::Fleet& fleet, const fleet::Source& source, const Answers& answers,
                FleetReport& report) {
  report.is_live = true;
  LiveJudge judge(fleet, source, report);
  std::vector<Live> live;
  for (std::size_t i = 0; i < fleet.workers.size(); ++i)
    live.push_back(judge.worker(fleet.workers[i], answers.at(2 * i), answers.at(2 * i + 1)));
  for (std::size_t p = 0; p < fleet.workers.size(); ++p) {
    for (std::size_t d = 0; d < fleet.workers.size(); ++d) {
      const bool is_known = live[p].descriptor && live[d].descriptor;
      if (is_known && fleet::may_pair(fleet.workers[p], fleet.workers[d]))
        judge.pair(fleet.workers[p], live[p], fleet.workers[d], live[d]);
    }
  }
  std::ranges::stable_sort(report.findings, {}, &fleet::Finding::line);
}

Result<FleetReport> check_fleet_file(const std::string& path, bool live, Duration timeout) {
  ISTHMUS_TRY(const std::string text, fleet::read_text_file(path));
  FleetReport report;
  report.file = path;
  const auto fleet = fleet::load_fleet(path);
  if (!fleet.ok()) {
    report.findings.push_back(finding_of(fleet.error(), path));
    return report;
  }
  report.fleet_name = fleet->name;
  report.models = fleet->models.size();
  report.workers = fleet->workers.size();
  const fleet::Source source(text);
  report.findings = fleet::check_fleet(*fleet, source);
  if (live) judge_live(*fleet, source, fetch_all(live_asks(*fleet), timeout), report);
  return report;
}

std::size_t FleetReport::count(Severity severity) const {
  return static_cast<std::size_t>(std::ranges::count(findings, severity, &fleet::Finding::severity));
}

std::string FleetReport::text() const {
  std::string text = fleet_name.empty() ? file + ": can't be used\n"
                                        : fmt::format("{}: fleet {}, {}, {}\n", file, fleet_name,
                                                      plural(models, "model"), plural(workers, "worker"));
  for (const fleet::Finding& finding : findings) {
    const std::string where = finding.line > 0 ? fmt::format("{}:{}", file, finding.line) : file;
    text += fmt::format("{}: {}: {}{}{}\n    {}\n", where, fleet::name(finding.severity), finding.path,
                        finding.path.empty() ? "" : ": ", finding.text, finding.advice);
  }
  if (!pairs.empty()) {
    Table table({"PREFILL", "DECODE", "MODEL", "FROM", "TO", "VERDICT", ">ROUNDINGS"});
    for (const PairVerdict& pair : pairs) {
      table.add({pair.prefill, pair.decode, pair.model, pair.source, pair.target, pair.verdict,
                 pair.verdict == "reject" ? "-" : std::to_string(pair.roundings)});
    }
    text += table.text();
    for (const PairVerdict& pair : pairs) {
      for (const std::string& reason : pair.reasons)
        text += fmt::format("  {} to {}: {}\n", pair.prefill, pair.decode, reason);
      for (const std::string& warning : pair.warnings)
        text += fmt::format("  {} to {}: {}\n", pair.prefill, pair.decode, warning);
    }
  }
  const std::size_t errors = count(Severity::kError), warnings = count(Severity::kWarning);
  if (errors + warnings == 0) return text + (is_live ? "good, and all workers agree\n" : "good\n");
  return text + fmt::format("{}, {}\n", plural(errors, "error"), plural(warnings, "warning"));
}

std::string FleetReport::to_json() const {
  json::Array found, judged;
  for (const fleet::Finding& finding : findings) {
    found.push_back(json::object({{"severity", fleet::name(finding.severity)},
                                  {"line", finding.line},
                                  {"path", finding.path},
                                  {"text", finding.text},
                                  {"advice", finding.advice}}));
  }
  for (const PairVerdict& pair : pairs) {
    judged.push_back(json::object({{"model", pair.model},
                                   {"prefill", pair.prefill},
                                   {"decode", pair.decode},
                                   {"source", pair.source},
                                   {"target", pair.target},
                                   {"verdict", pair.verdict},
                                   {"roundings", pair.roundings},
                                   {"reasons", json::array_of(pair.reasons)},
                                   {"warnings", json::array_of(pair.warnings)}}));
  }
  return json::object({{"file", file},
                       {"fleet", fleet_name},
                       {"live", is_live},
                       {"errors", count(Severity::kError)},
                       {"warnings", count(Severity::kWarning)},
                       {"findings", std::move(found)},
                       {"pairs", std::move(judged)}})
             .dump() +
         "\n";
}

}  // namespace isthmus::watch
