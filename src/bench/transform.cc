// SPDX-License-Identifier: Apache-2.0
// Payload rates of packing, placing and reading back between cold memory and warm staging, beside memcpy
// between the same memories in the same run.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/clock.h"
#include "bench/bench.h"
#include "bench/synthetic.h"
#include "transform/program.h"

namespace isthmus::bench {
namespace {

struct Pair {
  const char* source;
  const char* target;
};
constexpr std::array kPairs = {
    Pair{"llamacpp:f16", "llamacpp:f16"},
    Pair{"openvino:f16", "openvino:f16"},
    Pair{"llamacpp:f16", "openvino:f16"},
    Pair{"llamacpp:f16_v_transposed", "openvino:f16"},
    Pair{"openvino:f16", "llamacpp:f16_v_transposed"},
    Pair{"llamacpp:f16", "openvino:f32"},
    Pair{"llamacpp:f16", "openvino:u8"},
    Pair{"llamacpp:f16", "openvino:u8_channel"},
    Pair{"llamacpp:f16", "llamacpp:q8_0"},
    Pair{"llamacpp:q8_0", "openvino:u8"},
    Pair{"openvino:u8", "llamacpp:f16"},
    Pair{"openvino:u4", "llamacpp:f16"},
};
constexpr std::array kStages = {"pack", "place", "read back"};
// As many bodies as lie between the two threads of an agent.
constexpr std::size_t kSlots = 4;

std::string name_of(const Pair& pair) {
  return fmt::format("{} > {}", pair.source, pair.target);
}

bool is_wanted(const Options& options, const std::string& name) {
  return options.cases.empty() ||
         std::any_of(options.cases.begin(), options.cases.end(),
                     [&](const std::string& part) { return name.find(part) != std::string::npos; });
}

struct Setting {
  std::shared_ptr<const transform::Plan> plan;
  transform::Packer packer;
  transform::Placer placer;
  std::shared_ptr<SyntheticKv> from, to;
  device::HostBuffer staging;
};

Result<Setting> set_up(const Pair& pair, std::uint64_t size_bytes) {
  ISTHMUS_TRY(const kv::Descriptor source, describe(pair.source, {}));
  ISTHMUS_TRY(const kv::Descriptor target, describe(pair.target, {}));
  ISTHMUS_TRY(const std::uint64_t token_bytes, bytes_per_token(source));
  const std::uint64_t tokens = std::max<std::uint64_t>(1, size_bytes / token_bytes);
  kv::Policy policy;
  policy.exactness = kv::Exactness::kUnqualified;
  ISTHMUS_TRY(transform::Plan made,
              transform::Plan::make(source, target, kv::negotiate(source, target, policy), {0, tokens}));
  auto plan = std::make_shared<const transform::Plan>(std::move(made));
  ISTHMUS_TRY(transform::Packer packer, transform::Packer::make(plan, source));
  ISTHMUS_TRY(transform::Placer placer, transform::Placer::make(plan, target));
  ISTHMUS_TRY(auto from, SyntheticKv::make(source, tokens));
  ISTHMUS_TRY(auto to, SyntheticKv::make(target, tokens));
  ISTHMUS_TRY(auto staging, device::HostBuffer::allocate(kSlots * plan->body_bytes_max()));
  return Setting{plan, std::move(packer), std::move(placer), from, to, std::move(staging)};
}

using Times = std::array<Duration, kStages.size()>;

// One crossing, chunk by chunk, so that bodies are as warm as between two agents.
Result<Times> cross(Setting& at) {
  Times times{};
  std::vector<Digest128> tiles, stored;
  const auto timed = [&](std::size_t stage, auto work) {
    const Instant begin = now();
    Status done = work();
    times.at(stage) += now() - begin;
    return done;
  };
  for (const transform::Chunk& chunk : at.plan->chunks()) {
    tiles.resize(chunk.tile_count());
    stored.resize(at.placer.stored_count(chunk));
    const std::span<std::byte> body =
        at.staging.bytes().subspan(chunk.index % kSlots * at.plan->body_bytes_max(), chunk.body_bytes);
    ISTHMUS_TRY(timed(0, [&] { return at.packer.pack(chunk, at.from->binding(), body, tiles); }));
    ISTHMUS_TRY(timed(1, [&] { return at.placer.place(chunk, body, tiles, at.to->binding(), stored); }));
    ISTHMUS_TRY(timed(2, [&] { return at.placer.verify(chunk, at.to->binding(), tiles, stored); }));
  }
  return times;
}

// The source's bytes into the target's memory, which is filled as often as it takes.
Duration copy_plainly(const Setting& at) {
  const auto from = at.from->regions();
  const auto to = at.to->regions();
  const Instant begin = now();
  std::size_t next = 0, used = 0;
  for (std::span<std::byte> left : from) {
    while (!left.empty()) {
      const std::span<std::byte> into = to[next].subspan(used);
      const std::size_t bytes = std::min(left.size(), into.size());
      std::memcpy(into.data(), left.data(), bytes);
      left = left.subspan(bytes);
      used += bytes;
      if (used < to[next].size()) continue;
      next = (next + 1) % to.size();
      used = 0;
    }
  }
  return now() - begin;
}

double rate(std::uint64_t bytes, Duration took) {
  return static_cast<double>(bytes) / std::chrono::duration<double>(took).count() / 1e9;
}

Status measure(const Options& options, const Sink& sink, const Pair& pair, std::array<Record, 3>& records) {
  ISTHMUS_TRY(Setting at, set_up(pair, options.size_bytes));
  std::array<std::vector<double>, kStages.size()> rates;
  std::vector<double> copies;
  for (std::uint32_t run = 0; run <= options.runs; ++run) {  // The first warms up.
    sink.progress(fmt::format("transform {}: run {} of {}", name_of(pair), run, options.runs));
    at.from->fill(run);
    at.to->clear();
    const Duration copy = copy_plainly(at);
    at.to->clear();
    ISTHMUS_TRY(const Times times, cross(at));
    if (run == 0) continue;
    copies.push_back(rate(at.from->bytes(), copy));
    for (std::size_t stage = 0; stage < kStages.size(); ++stage) {
      rates.at(stage).push_back(rate(at.plan->total_bytes(), times.at(stage)));
    }
  }
  for (std::size_t stage = 0; stage < kStages.size(); ++stage) {
    records.at(stage).value = summarise(rates.at(stage));
    records.at(stage).reference_value = summarise(copies);
  }
  return ok_status();
}

}  // namespace

std::vector<std::string> transform_cases() {
  std::vector<std::string> names;
  for (const Pair& pair : kPairs) {
    for (const char* stage : kStages) names.push_back(fmt::format("{}: {}", name_of(pair), stage));
  }
  return names;
}

void bench_transform(const Options& options, const Sink& sink) {
  for (const Pair& pair : kPairs) {
    if (!is_wanted(options, name_of(pair))) continue;
    std::array<Record, kStages.size()> records;
    for (std::size_t stage = 0; stage < kStages.size(); ++stage) {
      Record& record = records.at(stage);
      record.bench = "transform";
      record.name = fmt::format("{}: {}", name_of(pair), kStages.at(stage));
      record.unit = "GB/s";
      record.reference = "memcpy between the same memories";
    }
    const Status done = measure(options, sink, pair, records);
    for (Record& record : records) {
      if (!done.ok()) record.failure = done.error().text();
      sink.record(record);
    }
  }
}

}  // namespace isthmus::bench
