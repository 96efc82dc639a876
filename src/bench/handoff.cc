// SPDX-License-Identifier: Apache-2.0
// The handoff's cases: what crosses, and the plain loop, copy or round trips that it is measured against.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "bench/bench.h"
#include "bench/ends.h"

namespace isthmus::bench {
namespace {

struct Case {
  const char* name;
  const char* source;
  const char* target;
  double bar;  // Of the reference's rate; 0: none.
  bool is_shared_memory = false;
};

constexpr std::array kCases = {
    Case{"tcp direct, rows: llamacpp:f16 > llamacpp:f16", "llamacpp:f16", "llamacpp:f16", 0.8},
    Case{"tcp direct, blocks: openvino:f16 > openvino:f16", "openvino:f16", "openvino:f16", 0.8},
    Case{"tcp re-layout: llamacpp:f16 > openvino:f16", "llamacpp:f16", "openvino:f16", 0.6},
    Case{"tcp re-layout, V transposed: llamacpp:f16_v_transposed > openvino:f16", "llamacpp:f16_v_transposed",
         "openvino:f16", 0.6},
    Case{"tcp convert: llamacpp:f16 > openvino:u8", "llamacpp:f16", "openvino:u8", 0.5},
    Case{"tcp convert: llamacpp:f16 > openvino:f32", "llamacpp:f16", "openvino:f32", 0.5},
    Case{"shm direct, rows: llamacpp:f16 > llamacpp:f16", "llamacpp:f16", "llamacpp:f16", 0, true},
    Case{"shm re-layout: llamacpp:f16 > openvino:f16", "llamacpp:f16", "openvino:f16", 0.5, true},
    Case{"shm convert: llamacpp:f16 > openvino:u8", "llamacpp:f16", "openvino:u8", 0, true},
};
constexpr const char* kEmptyName = "tcp empty: one token, one layer";
constexpr double kEmptyBar = 4;
constexpr std::uint32_t kEmptyRounds = 25;  // A value each: the median of so many.
constexpr std::uint32_t kPings = 200;

constexpr std::array<std::uint64_t, 5> kChunkSizes = {64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20};
constexpr int kChunkTries = 3;

double rate(std::uint64_t bytes, double seconds) {
  return static_cast<double>(bytes) / seconds / 1e9;
}

// The chunk size with which the plain loop is fastest on this machine.
Result<std::uint64_t> best_chunk(Ends& ends) {
  std::uint64_t best = kChunkSizes.front();
  double best_seconds = 0;
  for (const std::uint64_t chunk : kChunkSizes) {
    std::vector<double> seconds;
    for (int i = 0; i < kChunkTries; ++i) {
      ISTHMUS_TRY(const double took, ends.plain_loop(static_cast<std::uint64_t>(i), chunk));
      seconds.push_back(took);
    }
    const double median = summarise(std::move(seconds)).value_or(Summary{}).median;
    if (best_seconds != 0 && median >= best_seconds) continue;
    best = chunk;
    best_seconds = median;
  }
  return best;
}

struct Measured {
  std::vector<double> rates, reference_rates;
  std::vector<double> seconds;
  std::map<std::string, std::vector<double>> shares;  // Busy seconds of a stage over the handoff's.
  std::string reference;
};

Result<Measured> measure(const Options& options, const Sink& sink, const Case& one) {
  EndsSpec spec{.source = one.source,
                .target = one.target,
                .geometry = {},
                .tokens = 0,
                .is_shared_memory = one.is_shared_memory};
  ISTHMUS_TRY(const kv::Descriptor source, describe(spec.source, spec.geometry));
  ISTHMUS_TRY(const std::uint64_t token_bytes, bytes_per_token(source));
  spec.tokens = std::max<std::uint64_t>(1, options.size_bytes / token_bytes);
  ISTHMUS_TRY(const auto ends, Ends::start(spec));
  Measured measured;
  ISTHMUS_TRY(ends->handoff(0));  // Connects.
  std::uint64_t chunk = 0;
  if (one.is_shared_memory) {
    measured.reference = "memcpy from a memfd to the target's memory, cold";
  } else {
    ISTHMUS_TRY(chunk, best_chunk(*ends));
    measured.reference = fmt::format("send/recv loop over the same cold memory, {} KiB a call", chunk >> 10);
  }
  for (std::uint32_t run = 1; run <= options.runs; ++run) {
    sink.progress(fmt::format("{}: run {} of {}", one.name, run, options.runs));
    ISTHMUS_TRY(const double bare,
                one.is_shared_memory ? ends->plain_copy(run) : ends->plain_loop(run, chunk));
    measured.reference_rates.push_back(rate(ends->source_bytes(), bare));
    ISTHMUS_TRY(const HandoffTime time, ends->handoff(run));
    measured.rates.push_back(rate(time.bytes, time.seconds));
    for (const auto& [stage, busy] : time.busy) measured.shares[stage].push_back(busy / time.seconds);
  }
  return measured;
}

void bench_case(const Options& options, const Sink& sink, const Case& one) {
  Record record{.bench = "handoff", .name = one.name, .unit = "GB/s"};
  if (one.bar > 0) record.bar = Bar{Bar::Kind::kAtLeast, one.bar};
  Result<Measured> measured = measure(options, sink, one);
  if (!measured.ok()) {
    record.failure = measured.error().text();
    return sink.record(record);
  }
  record.value = summarise(measured->rates);
  record.reference = measured->reference;
  record.reference_value = summarise(measured->reference_rates);
  std::vector<Record> stages;
  double longest = 0;
  for (const auto& [stage, shares] : measured->shares) {
    Record part{.bench = "handoff", .name = fmt::format("{}: {}", one.name, stage), .unit = "busy"};
    part.value = summarise(shares);
    if (part.value && part.value->median > longest) {
      longest = part.value->median;
      record.note = "binds: " + stage;
    }
    stages.push_back(std::move(part));
  }
  sink.record(record);
  for (const Record& stage : stages) sink.record(stage);
}

Status measure_empty(const Options& options, const Sink& sink, Record& record) {
  const EndsSpec spec{.source = "llamacpp:f16",
                      .target = "llamacpp:f16",
                      .geometry = {.layers = 1, .heads = 1, .dim = 64},
                      .tokens = 1,
                      .is_shared_memory = false};
  ISTHMUS_TRY(const auto ends, Ends::start(spec));
  ISTHMUS_TRY(ends->handoff(0));
  std::vector<double> handoffs, trips;
  for (std::uint32_t run = 1; run <= options.runs; ++run) {
    sink.progress(fmt::format("{}: run {} of {}", record.name, run, options.runs));
    ISTHMUS_TRY(const double trip, ends->round_trip(kPings));
    trips.push_back(trip * 1e6);
    std::vector<double> round;
    for (std::uint32_t i = 0; i < kEmptyRounds; ++i) {
      ISTHMUS_TRY(const HandoffTime time, ends->handoff(run));
      round.push_back(time.seconds * 1e6);
    }
    handoffs.push_back(summarise(std::move(round)).value_or(Summary{}).median);
  }
  record.value = summarise(std::move(handoffs));
  record.reference_value = summarise(std::move(trips));
  return ok_status();
}

void bench_empty(const Options& options, const Sink& sink) {
  Record record{.bench = "handoff", .name = kEmptyName, .unit = "us"};
  record.bar = Bar{Bar::Kind::kAtMost, kEmptyBar};
  record.reference = "one byte there and back over loopback";
  const Status done = measure_empty(options, sink, record);
  if (!done.ok()) record.failure = done.error().text();
  sink.record(record);
}

}  // namespace

std::vector<std::string> handoff_cases() {
  std::vector<std::string> names;
  for (const Case& one : kCases) names.emplace_back(one.name);
  names.emplace_back(kEmptyName);
  return names;
}

void bench_handoff(const Options& options, const Sink& sink) {
  for (const Case& one : kCases) {
    if (options.wants(one.name)) bench_case(options, sink, one);
  }
  if (options.wants(kEmptyName)) bench_empty(options, sink);
}

}  // namespace isthmus::bench
