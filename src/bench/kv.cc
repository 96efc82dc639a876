// SPDX-License-Identifier: Apache-2.0
// Payload rates of packing, placing and reading back between cold memory and warm staging, beside memcpy
// between the same memories in the same run. The payload of packing is what crosses; that of placing and
// reading back is the numbers in the wider of both ends' forms, as it is what has to be written or read.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string_view>

#include "base/clock.h"
#include "bench/bench.h"
#include "bench/synthetic.h"
#include "transform/program.h"

namespace isthmus::bench {
namespace {

enum Stage : std::uint8_t { kPack, kPlace, kReadBack };
constexpr std::array kStages = {"pack", "place", "read back"};

// A pair of storages, what kind of rewriting it is, and the bars of the stages that have one.
struct Pair {
  const char* kind;
  const char* source;
  const char* target;
  std::optional<double> pack = {}, place = {};
};
constexpr std::array kPairs = {
    Pair{"equal", "llamacpp:f16", "llamacpp:f16", 0.7, 0.7},
    Pair{"equal", "openvino:f16", "openvino:f16", 0.7, 0.7},
    Pair{"re-layout", "llamacpp:f16", "openvino:f16", 0.7, 0.7},
    Pair{"re-layout", "vllm:flash_nhd", "flashinfer:hnd", 0.7, 0.7},
    Pair{"re-layout", "llamacpp:f16_v_transposed", "openvino:f16", 0.7, 0.7},
    Pair{"re-layout", "openvino:f16", "llamacpp:f16_v_transposed", 0.7, 0.7},
    Pair{"AMX packing", "vllm:flash_nhd", "vllm:cpu_amx", {}, 0.4},
    Pair{"AMX packing", "vllm:cpu_amx", "vllm:flash_nhd", 0.4, {}},
    Pair{"widen", "llamacpp:f16", "openvino:f32"},
    Pair{"bf16 to fp8", "vllm:flash_nhd", kFp8TokenHead, {}, 0.5},
    Pair{"bf16 to fp8", "vllm:flash_nhd", "vllm:flash_nhd_fp8"},
    Pair{"dequantise", kFp8TokenHead, "vllm:flash_nhd", {}, 0.5},
    Pair{"dequantise", "llamacpp:q8_0_unrotated", "openvino:f16", {}, 0.5},
    Pair{"dequantise", "openvino:u8", "llamacpp:f16", {}, 0.5},
    Pair{"dequantise", "openvino:u4", "llamacpp:f16", {}, 0.5},
    Pair{"f16 to u8", "llamacpp:f16", "openvino:u8", {}, 0.3},
    Pair{"f16 to u8", "llamacpp:f16", "openvino:u8_channel", {}, 0.3},
    Pair{"hadamard", "llamacpp:f16", "llamacpp:q8_0", {}, 0.25},
    Pair{"hadamard", "llamacpp:q8_0", "openvino:u8", {}, 0.25},
};
constexpr double kDigestShareMax = 0.15;
// As many bodies as lie between the two threads of an agent.
constexpr std::size_t kSlots = 4;

std::string name_of(const Pair& pair) {
  return fmt::format("{}: {} > {}", pair.kind, pair.source, pair.target);
}

struct Setting {
  std::shared_ptr<const transform::Plan> plan;
  transform::Packer packer;
  transform::Placer placer;
  std::shared_ptr<SyntheticKv> from, to;
  device::HostBuffer staging;
  std::uint64_t wide_bytes = 0;  // Of the numbers in the wider of both ends' forms.
};

Result<Setting> set_up(const Pair& pair, std::uint64_t size_bytes) {
  ISTHMUS_TRY(const kv::Descriptor source, describe(pair.source, {}));
  ISTHMUS_TRY(const kv::Descriptor target, describe(pair.target, {}));
  ISTHMUS_TRY(const std::uint64_t token_bytes, bytes_per_token(source));
  ISTHMUS_TRY(const std::uint64_t target_bytes, bytes_per_token(target));
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
  return Setting{plan,
                 std::move(packer),
                 std::move(placer),
                 from,
                 to,
                 std::move(staging),
                 tokens * std::max(token_bytes, target_bytes)};
}

struct Times {
  std::array<Duration, kStages.size()> stages{};
  Duration digests{};  // Of packing, taken again while the bodies are as warm.
};

bool are_digests(const transform::Chunk& chunk, std::span<const std::byte> body,
                 std::span<const Digest128> tiles) {
  std::size_t tile = 0;
  for (const transform::Section& section : chunk.sections) {
    for (std::uint64_t at = 0; at < section.bytes; at += section.head_bytes) {
      if (digest128(body.subspan(section.offset + at, section.head_bytes)) != tiles[tile++]) return false;
    }
  }
  return true;
}

// One crossing, chunk by chunk, so that bodies are as warm as between two agents.
Result<Times> cross(Setting& at) {
  Times times{};
  std::vector<Digest128> tiles, stored;
  const auto timed = [&](std::size_t stage, auto work) {
    const Instant begin = now();
    Status done = work();
    times.stages.at(stage) += now() - begin;
    return done;
  };
  for (const transform::Chunk& chunk : at.plan->chunks()) {
    tiles.resize(chunk.tile_count());
    stored.resize(at.placer.stored_count(chunk));
    const std::span<std::byte> body =
        at.staging.bytes().subspan(chunk.index % kSlots * at.plan->body_bytes_max(), chunk.body_bytes);
    ISTHMUS_TRY(timed(kPack, [&] { return at.packer.pack(chunk, at.from->binding(), body, tiles); }));
    const Instant begin = now();
    if (!are_digests(chunk, body, tiles)) return Error{Code::kInternal, "a body's digests differ"};
    times.digests += now() - begin;
    ISTHMUS_TRY(timed(kPlace, [&] { return at.placer.place(chunk, body, tiles, at.to->binding(), stored); }));
    ISTHMUS_TRY(timed(kReadBack, [&] { return at.placer.verify(chunk, at.to->binding(), tiles, stored); }));
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

struct Records {
  std::array<Record, kStages.size()> stages;
  Record digests;
};

Status measure(const Options& options, const Sink& sink, const Pair& pair, Records& records) {
  ISTHMUS_TRY(Setting at, set_up(pair, options.size_bytes));
  std::array<std::vector<double>, kStages.size()> rates;
  std::vector<double> copies, digesting, packing;
  for (std::uint32_t run = 0; run <= options.runs; ++run) {  // The first warms up.
    sink.progress(fmt::format("kv {}: run {} of {}", name_of(pair), run, options.runs));
    at.from->fill(run);
    at.to->clear();
    const Duration copy = copy_plainly(at);
    at.to->clear();
    ISTHMUS_TRY(const Times times, cross(at));
    if (run == 0) continue;
    copies.push_back(rate(at.from->bytes(), copy));
    for (std::size_t stage = 0; stage < kStages.size(); ++stage) {
      const std::uint64_t bytes = stage == kPack ? at.plan->total_bytes() : at.wide_bytes;
      rates.at(stage).push_back(rate(bytes, times.stages.at(stage)));
    }
    const std::chrono::duration<double> pack = times.stages[kPack], digests = times.digests;
    packing.push_back(pack.count());
    digesting.push_back((pack - digests).count());
  }
  for (std::size_t stage = 0; stage < kStages.size(); ++stage) {
    records.stages.at(stage).value = summarise(rates.at(stage));
    records.stages.at(stage).reference_value = summarise(copies);
  }
  records.digests.value = summarise(packing);
  records.digests.reference_value = summarise(digesting);
  return ok_status();
}

Records records_of(const Pair& pair) {
  Records records;
  for (std::size_t stage = 0; stage < kStages.size(); ++stage) {
    Record& record = records.stages.at(stage);
    record.bench = "kv";
    record.name = fmt::format("{}: {}", name_of(pair), kStages.at(stage));
    record.unit = "GB/s";
    record.reference = "memcpy between the same memories";
    const std::optional<double> bar = stage == kPack ? pair.pack : pair.place;
    if (stage != kReadBack && bar) record.bar = Bar{Bar::Kind::kAtLeast, *bar};
  }
  records.digests.bench = "kv";
  records.digests.name = fmt::format("{}: pack with digests", name_of(pair));
  records.digests.unit = "s";
  records.digests.reference = "the same less the digests' time";
  records.digests.bar = Bar{Bar::Kind::kAtMost, 1 + kDigestShareMax};
  return records;
}

// Where digests are the largest share.
bool shows_digests(const Pair& pair) {
  return std::string_view(pair.kind) == "re-layout";
}

}  // namespace

std::vector<std::string> kv_cases() {
  std::vector<std::string> names;
  for (const Pair& pair : kPairs) {
    const Records records = records_of(pair);
    for (const Record& record : records.stages) names.push_back(record.name);
    if (shows_digests(pair)) names.push_back(records.digests.name);
  }
  return names;
}

void bench_kv(const Options& options, const Sink& sink) {
  for (const Pair& pair : kPairs) {
    if (!options.wants(name_of(pair))) continue;
    Records records = records_of(pair);
    const Status done = measure(options, sink, pair, records);
    std::vector<Record> all(records.stages.begin(), records.stages.end());
    if (shows_digests(pair)) all.push_back(std::move(records.digests));
    for (Record& record : all) {
      if (!done.ok()) record.failure = done.error().text();
      sink.record(record);
    }
  }
}

}  // namespace isthmus::bench
