// SPDX-License-Identifier: Apache-2.0
// The page: workers, handoffs in flight, stages, ledgers, router.
#include "watch/top.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "http/json.h"
#include "watch/text.h"

namespace isthmus::watch {
namespace {

constexpr std::size_t kBarCells = 8;
constexpr std::size_t kHandoffsShownMax = 20;
constexpr std::array<std::string_view, 5> kStages{"open", "reserve", "receive", "verify", "total"};

double number(const Numbers& numbers, const std::string& name) {
  const auto found = numbers.find(name);
  return found == numbers.end() ? 0 : found->second;
}

double seconds_between(const Sample& before, const Sample& now) {
  return std::max(1e-3, std::chrono::duration<double>(now.at - before.at).count());
}

double sum_of(const Numbers& numbers, std::string_view metric) {
  double sum = 0;
  for (const auto& [name, value] : numbers) {
    if (name == metric || (name.starts_with(metric) && name[metric.size()] == '|')) sum += value;
  }
  return sum;
}

// What moved between two samples of one worker, per second. Nothing if either is missing; a worker that was
// restarted counts from nothing.
struct Rates {
  double prompt_tokens = 0, answer_tokens = 0, bytes_out = 0, bytes_in = 0;
};
std::optional<Rates> rates_of(const Sample* before, const Sample& now, std::size_t worker) {
  if (before == nullptr || !before->workers[worker].state.ok() || !now.workers[worker].state.ok())
    return std::nullopt;
  const WorkerSample& was = before->workers[worker];
  const WorkerSample& is = now.workers[worker];
  const bool same_life = was.state->incarnation == is.state->incarnation;
  const double time = seconds_between(*before, now);
  const auto rate = [&](double old_value, double new_value) {
    return std::max(0.0, new_value - (same_life ? old_value : 0)) / time;
  };
  const std::string bytes = "isthmus_handoff_bytes_total|";
  return Rates{
      rate(static_cast<double>(was.state->prompt_tokens_computed),
           static_cast<double>(is.state->prompt_tokens_computed)),
      rate(static_cast<double>(was.state->tokens_generated), static_cast<double>(is.state->tokens_generated)),
      rate(number(was.metrics, bytes + "producer"), number(is.metrics, bytes + "producer")),
      rate(number(was.metrics, bytes + "consumer"), number(is.metrics, bytes + "consumer"))};
}

std::string rate_text(const std::optional<Rates>& rates, double Rates::* member) {
  return rates ? fmt::format("{:.0f}", (*rates).*member) : "-";
}
std::string bytes_rate_text(const std::optional<Rates>& rates, double Rates::* member) {
  return rates ? bytes_text((*rates).*member) + "/s" : "-";
}

std::string used_text(std::uint64_t used, std::uint64_t total) {
  const double part = total == 0 ? 0 : static_cast<double>(used) / static_cast<double>(total);
  return fmt::format("{} {:3.0f} %", bar(part, kBarCells), part * 100);
}

// "5/8", and how many of them wait for others' memory.
std::string sequences_text(const WorkerState& state) {
  std::string text = fmt::format("{}/{}", state.sequences_open, state.sequences_max);
  if (state.jobs_preempted > 0) text += fmt::format(" ({} preempted)", state.jobs_preempted);
  return text;
}

std::string workers_text(const TopTargets& targets, const Sample* before, const Sample& now) {
  Table table(
      {"WORKER", "ROLE", "STORAGE", "KV HELD", ">SEQ", ">PROMPT TOK/S", ">ANSWER TOK/S", ">OUT", ">IN"});
  for (std::size_t i = 0; i < targets.workers.size(); ++i) {
    const Result<WorkerState>& state = now.workers[i].state;
    if (!state.ok()) {
      table.add_note(targets.workers[i].name, "DOWN  " + state.error().detail);
      continue;
    }
    const std::optional<Rates> rates = rates_of(before, now, i);
    table.add({state->name, state->role + (state->draining ? " (drains)" : ""), state->storage,
               used_text(state->capacity_bytes - state->free_bytes, state->capacity_bytes),
               sequences_text(*state), rate_text(rates, &Rates::prompt_tokens),
               rate_text(rates, &Rates::answer_tokens), bytes_rate_text(rates, &Rates::bytes_out),
               bytes_rate_text(rates, &Rates::bytes_in)});
  }
  return table.text();
}

// One handoff as both of its ends tell it; either may be missing.
struct Flight {
  const HandoffRow* producer = nullptr;
  const HandoffRow* consumer = nullptr;
  std::string from = "?", to = "?";
  const HandoffRow& better() const { return consumer != nullptr ? *consumer : *producer; }
};

std::vector<std::pair<std::string, Flight>> flights_of(const Sample& now) {
  std::vector<std::pair<std::string, Flight>> flights;
  const auto flight_of = [&](const HandoffRow& row) -> Flight& {
    const auto found = std::ranges::find(flights, row.id, &std::pair<std::string, Flight>::first);
    // Before OPEN a handoff has no name that could be found at the other end.
    if (found != flights.end() && !row.id.empty()) return found->second;
    return flights.emplace_back(row.id, Flight{}).second;
  };
  for (const WorkerSample& worker : now.workers) {
    if (!worker.state.ok()) continue;
    for (const HandoffRow& row : worker.state->handoffs) {
      Flight& flight = flight_of(row);
      const bool is_producer = row.side == "producer";
      (is_producer ? flight.producer : flight.consumer) = &row;
      (is_producer ? flight.from : flight.to) = worker.state->name;
      std::string& other = is_producer ? flight.to : flight.from;
      if (other == "?" && !row.peer.empty()) other = row.peer;
    }
  }
  return flights;
}

std::string handoffs_text(const Sample& now) {
  const auto flights = flights_of(now);
  if (flights.empty()) return "HANDOFFS  none in flight\n";
  Table table({"HANDOFF", "FROM", "TO", "STATE P / D", ">TOKENS", ">AGE", "MOVED", ">LEASE", "OVER"});
  for (const auto& [id, flight] : flights) {
    if (&flight - &flights.front().second >= static_cast<std::ptrdiff_t>(kHandoffsShownMax)) break;
    const HandoffRow& row = flight.better();
    const double total = row.bytes_total ? static_cast<double>(*row.bytes_total) : 0;
    const auto moved = static_cast<double>(row.bytes_moved);
    table.add({id.empty() ? "-" : id, flight.from, flight.to,
               fmt::format("{} / {}", flight.producer ? flight.producer->state : "?",
                           flight.consumer ? flight.consumer->state : "?"),
               count_text(row.tokens.size()), seconds_text(row.age_s),
               total == 0 ? std::string("-")
                          : fmt::format("{} {} of {}", bar(moved / total, kBarCells), bytes_text(moved),
                                        bytes_text(total)),
               row.lease_left_s ? seconds_text(*row.lease_left_s) : "-", row.transport});
  }
  std::string text = table.text();
  std::uint64_t left_off = flights.size() - std::min(flights.size(), kHandoffsShownMax);
  for (const WorkerSample& worker : now.workers)
    left_off += worker.state.ok() ? worker.state->handoffs_left_off : 0;
  if (left_off > 0) text += fmt::format("and {} more\n", left_off);
  return text;
}

// Means over what ended since the earlier sample, or since each worker's start if nothing did.
std::string stages_text(const Sample* before, const Sample& now) {
  std::string text;
  for (const bool is_recent : {true, false}) {
    if (is_recent && before == nullptr) continue;
    for (const std::string_view stage : kStages) {
      double sum = 0, count = 0;
      for (std::size_t i = 0; i < now.workers.size(); ++i) {
        for (const auto& [metric, out] :
             {std::pair{"isthmus_handoff_seconds_sum|", &sum}, {"isthmus_handoff_seconds_count|", &count}}) {
          const std::string name = metric + std::string(stage);
          *out += number(now.workers[i].metrics, name);
          if (is_recent) *out -= number(before->workers[i].metrics, name);
        }
      }
      if (count <= 0) continue;
      text +=
          fmt::format("{}{} {}", text.empty() ? "" : " · ", stage, seconds_text(std::max(0.0, sum) / count));
      if (stage == "total") text += fmt::format(" ({:.0f})", count);
    }
    if (!text.empty()) return fmt::format("STAGES    {}{}\n", text, is_recent ? "" : ", since the start");
  }
  return "STAGES    no handoff has ended yet\n";
}

std::string ledgers_text(const Sample& now) {
  std::vector<std::string> names{"LEDGER"};
  for (const WorkerSample& worker : now.workers) {
    if (!worker.state.ok()) continue;
    for (const LedgerRow& row : worker.state->ledger) names.push_back(">" + row.category);
    names.insert(names.end(), {">free", ">reserved"});
    break;
  }
  if (names.size() == 1) return "";
  Table table(names);
  for (const WorkerSample& worker : now.workers) {
    if (!worker.state.ok()) continue;
    std::vector<std::string> cells{worker.state->name};
    for (const LedgerRow& row : worker.state->ledger)
      cells.push_back(row.bytes == 0 ? "·" : bytes_text(static_cast<double>(row.bytes)));
    cells.push_back(bytes_text(static_cast<double>(worker.state->free_bytes)));
    cells.push_back(std::to_string(worker.state->reservations.size() + worker.state->reservations_left_off));
    table.add(std::move(cells));
  }
  return table.text();
}

std::string outcomes_text(const Sample& now) {
  Numbers sums;
  const std::string metric = "isthmus_handoffs_total|";
  for (const WorkerSample& worker : now.workers) {
    for (const auto& [name, value] : worker.metrics) {
      if (name.starts_with(metric) && value > 0) sums[name.substr(metric.size())] += value;
    }
  }
  std::string text;
  for (const auto& [outcome, count] : sums)
    text += fmt::format("{}{} {:.0f}", text.empty() ? "" : " · ", outcome, count);
  return text.empty() ? "" : fmt::format("ENDED     {} (each side counts its own)\n", text);
}

std::string router_text(const TopTargets& targets, const Sample& now) {
  if (!targets.router || !now.router) return "";
  const std::string where = fmt::format("ROUTER    http://{}  ", targets.router->text());
  if (!now.router->ok()) return where + "DOWN  " + now.router->error().detail + "\n";
  const Numbers& numbers = **now.router;
  const double all = sum_of(numbers, "isthmus_router_requests_total");
  const double good = number(numbers, "isthmus_router_requests_total|ok");
  const double firsts = number(numbers, "isthmus_ttft_seconds_count");
  return where + fmt::format(
                     "queued {:.0f} · under way {:.0f} · answered {:.0f} · not {:.0f} · local prefills {:.0f}"
                     " · retries {:.0f}{}\n",
                     number(numbers, "isthmus_router_queued"), number(numbers, "isthmus_router_inflight"),
                     good, all - good, number(numbers, "isthmus_router_local_prefills_total"),
                     number(numbers, "isthmus_router_retries_total"),
                     firsts == 0
                         ? std::string()
                         : fmt::format(" · mean TTFT {}",
                                       seconds_text(number(numbers, "isthmus_ttft_seconds_sum") / firsts)));
}

}  // namespace

std::string page(const TopTargets& targets, const Sample* before, const Sample& now,
                 const PageOptions& options) {
  const auto up = std::ranges::count_if(now.workers, [](const WorkerSample& w) { return w.state.ok(); });
  std::string text = fmt::format("isthmus top · {} · {} of {} workers up{}\n\n", options.title, up,
                                 targets.workers.size(), options.every.empty() ? "" : " · " + options.every);
  text += workers_text(targets, before, now) + "\n" + handoffs_text(now) + "\n" + ledgers_text(now) + "\n" +
          stages_text(before, now) + outcomes_text(now) + router_text(targets, now);
  std::string cut;
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::size_t end = rest.find('\n');
    cut += clipped(rest.substr(0, end), options.columns) + "\n";
    rest.remove_prefix(end + 1);
  }
  return cut;
}

std::string page_json(const TopTargets& targets, const Sample* before, const Sample& now) {
  json::Array workers, handoffs;
  for (std::size_t i = 0; i < targets.workers.size(); ++i) {
    const Result<WorkerState>& state = now.workers[i].state;
    json::Value shown = json::object({{"name", targets.workers[i].name},
                                      {"url", "http://" + targets.workers[i].http.text()},
                                      {"up", state.ok()}});
    if (!state.ok()) {
      shown.set("reason", state.error().text());
    } else {
      shown.set("name", state->name);
      shown.set("role", state->role);
      shown.set("storage", state->storage);
      shown.set("capacity_bytes", state->capacity_bytes);
      shown.set("free_bytes", state->free_bytes);
      for (const LedgerRow& row : state->ledger) shown.set(row.category + "_bytes", row.bytes);
      shown.set("sequences_open", state->sequences_open);
      shown.set("reservations", state->reservations.size() + state->reservations_left_off);
      if (const auto rates = rates_of(before, now, i)) {
        shown.set("prompt_tokens_per_second", rates->prompt_tokens);
        shown.set("answer_tokens_per_second", rates->answer_tokens);
        shown.set("bytes_out_per_second", rates->bytes_out);
        shown.set("bytes_in_per_second", rates->bytes_in);
      }
    }
    workers.push_back(std::move(shown));
  }
  for (const auto& [id, flight] : flights_of(now)) {
    const HandoffRow& row = flight.better();
    handoffs.push_back(
        json::object({{"id", id},
                      {"from", flight.from},
                      {"to", flight.to},
                      {"producer_state", flight.producer ? flight.producer->state : ""},
                      {"consumer_state", flight.consumer ? flight.consumer->state : ""},
                      {"age_seconds", row.age_s},
                      {"bytes_moved", row.bytes_moved},
                      {"bytes_total", row.bytes_total ? json::Value(*row.bytes_total) : json::Value()},
                      {"transport", row.transport},
                      {"wire", row.wire}}));
  }
  json::Value all = json::object({{"workers", std::move(workers)}, {"handoffs", std::move(handoffs)}});
  if (now.router) {
    json::Value router =
        json::object({{"url", "http://" + targets.router->text()}, {"up", now.router->ok()}});
    if (now.router->ok()) {
      router.set("queued", number(**now.router, "isthmus_router_queued"));
      router.set("inflight", number(**now.router, "isthmus_router_inflight"));
      router.set("requests", sum_of(**now.router, "isthmus_router_requests_total"));
    } else {
      router.set("reason", now.router->error().text());
    }
    all.set("router", std::move(router));
  }
  return all.dump() + "\n";
}

}  // namespace isthmus::watch
