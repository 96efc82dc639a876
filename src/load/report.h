// SPDX-License-Identifier: Apache-2.0
// From what became of each request to what a run says. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/time.h"
#include "load/answer.h"
#include "load/statistics.h"

namespace isthmus::load {

// What one answer must keep to count as good; nothing set: any whole answer is.
struct Slo {
  std::optional<Duration> ttft, tpot, e2e;
  // "ttft=2s,tpot=50ms,e2e=10s", any of them. invalid_argument saying what may stand there.
  static Result<Slo> parse(std::string_view text);
  std::string text() const;  // "" for none.
};

// One request. Times count from when it was due, not from when it was sent.
struct Sample {
  Duration due{0};  // From the start of the run.
  Duration lag{0};  // How late the generator sent it.
  Length asked{};
  Outcome outcome = Outcome::kCut;
  bool is_early = false;
  std::uint64_t tokens = 0;
  std::optional<Duration> ttft{};  // To the first token.
  Duration last_token{0};          // To the last one, if there is a first.
  Duration e2e{0};                 // To the end of the answer.

  // Per token after the first; nothing for less than two.
  std::optional<Duration> tpot() const;
  bool keeps(const Slo& slo) const;
};

// How a run made its load.
struct LoadShape {
  std::optional<double> rate{};   // Requests a second, open loop; else closed:
  std::uint32_t concurrency = 0;  // so many requests at all times.
  std::string text() const;       // "2.5 requests/s", "8 at once"
};

struct Measured {
  LoadShape shape;
  Duration window{0};   // In which requests were due.
  bool is_cut = false;  // Stopped before its end.
  Slo slo;
  std::vector<Sample> samples;
  std::vector<double> gaps;                 // Seconds between two tokens of whole answers.
  std::map<Outcome, std::string> first_of;  // The first detail of each outcome but ok.
  std::uint64_t connections_peak = 0;
};

struct Report {
  LoadShape shape;
  Slo slo;
  double window_s = 0;
  double elapsed_s = 0;  // From the start to the end of the last whole answer, at least the window.
  std::uint64_t requests = 0;
  Counts counts{};
  std::uint64_t good = 0;   // Whole, right and within the objectives.
  std::uint64_t early = 0;  // Whole answers that ended before the length asked for.
  double goodput = 0, ok_rate = 0, output_tokens_per_s = 0;  // Per second of elapsed_s.
  double prompt_tokens_mean = 0, output_tokens_mean = 0;     // Of whole answers.
  Spread ttft, tpot, itl, e2e;         // Seconds, of whole answers; time between tokens as they came.
  Spread refusal;                      // Seconds until a refusal came.
  Spread lag;                          // Seconds, of all requests sent in the open loop.
  std::vector<double> ttft_quantiles;  // 101 of them.
  std::uint64_t connections_peak = 0;
  std::vector<std::string> invalid;  // Why the figures aren't what they seem; empty: valid.
  std::map<Outcome, std::string> first_of;

  std::uint64_t refused_rightly() const {
    return count_of(counts, Outcome::kRefused429) + count_of(counts, Outcome::kRefused503);
  }
};

// A generator this late at its 99th percentile has not made the load that it was to make.
inline constexpr Duration kLagMax = std::chrono::milliseconds(20);

Report report_of(const Measured& measured);

// One JSON object without newline: what all benches have (bench/record.h), `name` as its case, and all of the
// report.
std::string to_json(const Report& report, const std::string& name);
// For people; each ends with a newline.
std::string table_head();
std::string table_row(const Report& report, const std::string& name);
std::string remarks(const Report& report);  // Outcomes with examples, and why it isn't valid.

}  // namespace isthmus::load
