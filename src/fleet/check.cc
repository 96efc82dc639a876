// SPDX-License-Identifier: Apache-2.0
// One function a kind of finding.
#include "fleet/check.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <set>

#include "fleet/text_file.h"

namespace isthmus::fleet {
namespace {

constexpr std::size_t kKeyDigits = 64;
constexpr std::string_view kMakeKey = "make one: openssl rand -hex 32 > {0} && chmod 600 {0}";
constexpr std::string_view kMakeCertificate = "make one as docs/tls.md shows";

using Findings = std::vector<Finding>;

bool prefills(const Worker& worker) {
  return worker.role != Role::kDecode;
}
bool decodes(const Worker& worker) {
  return worker.role != Role::kPrefill;
}

std::string worker_path(const Fleet& fleet, const Worker& worker, std::string_view field) {
  return fmt::format("workers[{}].{}", &worker - fleet.workers.data(), field);
}

void check_private(const std::string& file, const struct stat& status, std::string path, const Source& source,
                   Findings& out) {
  if ((status.st_mode & (S_IRWXG | S_IRWXO)) == 0) return;
  out.push_back(source.finding(
      Severity::kWarning, std::move(path),
      fmt::format("{} has mode {:04o}: others than its owner may use it", file, status.st_mode & 07777),
      fmt::format("chmod 600 {}", file)));
}

void check_tls(const Fleet& fleet, const Source& source, Findings& out) {
  if (!fleet.tls.has_value()) return;
  const auto loaded = net::load_tls(*fleet.tls);
  if (!loaded.ok()) {
    out.push_back(
        source.finding(Severity::kError, "tls", loaded.error().detail, std::string(kMakeCertificate)));
  }
  struct stat status{};
  if (stat(fleet.tls->key.c_str(), &status) == 0)
    check_private(fleet.tls->key, status, "tls.key", source, out);
}

void check_key(const Fleet& fleet, const Source& source, Findings& out) {
  const auto add = [&](Severity severity, std::string text, std::string advice) {
    out.push_back(source.finding(severity, "key", std::move(text), std::move(advice)));
  };
  const std::string make = fmt::format(fmt::runtime(kMakeKey), fleet.key_file);
  struct stat status{};
  if (stat(fleet.key_file.c_str(), &status) != 0)
    return add(Severity::kError, fmt::format("{}: {}", fleet.key_file, std::strerror(errno)), make);
  if (!S_ISREG(status.st_mode))
    return add(Severity::kError, fmt::format("{} isn't a regular file", fleet.key_file), make);
  check_private(fleet.key_file, status, "key", source, out);
  const auto text = read_text_file(fleet.key_file);
  if (!text.ok()) return add(Severity::kError, text.error().detail, "let this user read it");
  std::string_view digits = *text;
  while (!digits.empty() && (digits.back() == '\n' || digits.back() == '\r' || digits.back() == ' '))
    digits.remove_suffix(1);
  const bool is_hex = std::ranges::all_of(digits, [](unsigned char c) { return std::isxdigit(c) != 0; });
  if (digits.size() != kKeyDigits || !is_hex) {
    add(Severity::kError,
        fmt::format("{} must hold {} hex digits, it holds {} characters{}", fleet.key_file, kKeyDigits,
                    digits.size(), is_hex ? "" : " and not only hex digits"),
        make);
  }
}

void check_roles(const Fleet& fleet, const Model& model, const Source& source, Findings& out) {
  const std::string path = "models." + model.name;
  std::vector<const Worker*> workers;
  for (const Worker& worker : fleet.workers) {
    if (worker.model == model.name) workers.push_back(&worker);
  }
  const auto any = [&](auto test) { return std::ranges::any_of(workers, [&](auto* w) { return test(*w); }); };
  if (workers.empty()) {
    out.push_back(source.finding(Severity::kWarning, path, "no worker serves this model",
                                 "add workers for it, or take the model out"));
  } else if (!any(decodes)) {
    out.push_back(source.finding(Severity::kError, path,
                                 "no worker decodes this model: nothing can be answered",
                                 "give one of its workers role decode or both"));
  } else if (!any(prefills)) {
    out.push_back(source.finding(Severity::kWarning, path,
                                 "no worker prefills this model: its decode workers compute each prompt",
                                 "add a worker with role prefill or both"));
  }
}

void check_planes(const Fleet& fleet, const Source& source, Findings& out) {
  for (const Worker& p : fleet.workers) {
    if (p.role != Role::kPrefill) continue;
    const bool has_decoder =
        std::ranges::any_of(fleet.workers, [&](const Worker& d) { return decodes(d) && d.model == p.model; });
    const bool has_pair = std::ranges::any_of(fleet.workers, [&](const Worker& d) { return may_pair(p, d); });
    if (!has_decoder || has_pair) continue;
    out.push_back(source.finding(
        Severity::kWarning, worker_path(fleet, p, "plane"),
        fmt::format("no decode worker of {} is in plane '{}': {} will get no work", p.model, p.plane, p.name),
        "put a decode worker into its plane, or correct the plane"));
  }
}

void check_prices(const Fleet& fleet, const Source& source, Findings& out) {
  for (const auto& [plane, prices] : fleet.prices) {
    if (std::ranges::find(fleet.workers, plane, &Worker::plane) != fleet.workers.end()) continue;
    out.push_back(source.finding(Severity::kWarning, "prices." + plane,
                                 fmt::format("no worker is in plane '{}': nobody uses these prices", plane),
                                 "give its workers this plane, or correct its name"));
  }
}

bool is_recipe_of(std::string_view recipe, const std::string& engine) {
  return recipe.starts_with(engine + "/");
}

// Which records a pair needs is known for sure only from its workers; engines tell when there can be none.
void check_records(const Fleet& fleet, const Source& source, Findings& out) {
  std::set<std::pair<std::string, std::string>> told;
  for (const Worker& p : fleet.workers) {
    for (const Worker& d : fleet.workers) {
      const Model* model = fleet.find_model(p.model);
      if (!may_pair(p, d) || model->exactness != kv::Exactness::kBounded) continue;
      if (p.engine.empty() || d.engine.empty() || p.engine == d.engine) continue;
      const bool has_record = std::ranges::any_of(fleet.qualifications, [&](const kv::Qualification& record) {
        return is_recipe_of(record.prefill_recipe, p.engine) && is_recipe_of(record.decode_recipe, d.engine);
      });
      if (has_record || !told.emplace(p.engine, d.engine).second) continue;
      out.push_back(source.finding(
          Severity::kWarning, "qualifications",
          fmt::format("no record from {} to {}, which policy bounded asks for: {} can't hand over to {}",
                      p.engine, d.engine, p.name, d.name),
          "measure the pair and add its record (spec/qualification.md), or set policy: unqualified"));
    }
  }
}

void check_policy(const Model& model, const Source& source, Findings& out) {
  const std::string path = fmt::format("models.{}.", model.name);
  if (model.exactness == kv::Exactness::kUnqualified) {
    out.push_back(source.finding(Severity::kWarning, path + "policy",
                                 "unqualified: nobody has measured what this pair's answers are worth",
                                 "measure the pair, add its record and set policy: bounded"));
  }
  if (model.exactness != kv::Exactness::kLossless && model.roundings_max == 0) {
    out.push_back(source.finding(Severity::kWarning, path + "roundings_max",
                                 "0 roundings allow only what policy lossless allows",
                                 "set policy: lossless, or roundings_max: 1"));
  }
  if (!model.ttft_slo) return;
  constexpr Duration kFast = std::chrono::milliseconds(10), kSlow = std::chrono::minutes(10);
  if (*model.ttft_slo < kFast || *model.ttft_slo > kSlow) {
    out.push_back(source.finding(
        Severity::kWarning, path + "slo.ttft_p90",
        fmt::format("{} ms to the first token is {}",
                    std::chrono::duration_cast<std::chrono::milliseconds>(*model.ttft_slo).count(),
                    *model.ttft_slo < kFast ? "less than a network and a prefill take"
                                            : "longer than a router lets a request live"),
        "times are written as 500ms, 2s or 5m"));
  }
}

bool is_local(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

void check_urls(const Fleet& fleet, const Source& source, Findings& out) {
  constexpr std::uint16_t kRouterPort = 8000;  // cli's default of `isthmus router --listen`.
  for (const Worker& worker : fleet.workers) {
    const std::string path = worker_path(fleet, worker, "url");
    if (worker.http.host == "0.0.0.0" || worker.http.host == "::") {
      out.push_back(source.finding(Severity::kError, path,
                                   fmt::format("{} is where to listen, not an address to call", worker.url()),
                                   "name the machine's own address"));
    }
    for (const Worker& other : fleet.workers) {
      if (&other >= &worker || other.http.port != worker.http.port) continue;
      if (!is_local(other.http.host) || !is_local(worker.http.host)) continue;
      out.push_back(source.finding(
          Severity::kError, path,
          fmt::format("{} and {} of worker '{}' are the same place", worker.url(), other.url(), other.name),
          "give each worker a port of its own"));
    }
    if (is_local(worker.http.host) && worker.http.port == kRouterPort) {
      out.push_back(source.finding(Severity::kWarning, path,
                                   "port 8000 is where `isthmus router` listens unless told otherwise",
                                   "take another port, or start the router with --listen"));
    }
  }
}

}  // namespace

std::string_view name(Severity severity) {
  return severity == Severity::kError ? "error" : "warning";
}

bool may_pair(const Worker& p, const Worker& d) {
  return &p != &d && prefills(p) && decodes(d) && p.model == d.model && p.plane == d.plane;
}

int Source::line_of(std::string_view path) const {
  while (true) {
    const auto found = std::ranges::find(lines_, path, &std::pair<std::string, int>::first);
    if (found != lines_.end()) return found->second;
    const std::size_t cut = path.find_last_of(".[");
    if (cut == std::string_view::npos || cut == 0) return 0;
    path = path.substr(0, cut);
  }
}

Finding Source::finding(Severity severity, std::string path, std::string text, std::string advice) const {
  const int line = line_of(path);
  return {severity, line, std::move(path), std::move(text), std::move(advice)};
}

std::vector<Finding> check_fleet(const Fleet& fleet, const Source& source) {
  Findings out;
  check_key(fleet, source, out);
  check_tls(fleet, source, out);
  for (const Model& model : fleet.models) {
    check_roles(fleet, model, source, out);
    check_policy(model, source, out);
  }
  check_planes(fleet, source, out);
  check_prices(fleet, source, out);
  check_records(fleet, source, out);
  check_urls(fleet, source, out);
  std::ranges::stable_sort(out, {}, &Finding::line);
  return out;
}

}  // namespace isthmus::fleet
