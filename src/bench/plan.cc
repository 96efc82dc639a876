// SPDX-License-Identifier: Apache-2.0
// Time to plan: cut lists, proof, digest, and what the tables add: unique blocks, runs of tokens.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "base/clock.h"
#include "bench/bench.h"
#include "kv/catalogue.h"
#include "transform/plan.h"
#include "transform/ranks.h"
#include "transform/token_runs.h"

namespace isthmus::bench {
namespace {

struct Case {
  const char* name;
  kv::PlainShape shape;
  std::uint64_t tokens;
  std::uint32_t block_tokens;
  std::uint32_t repeats;  // In one run; the figure is for one.
  const char* unit;
  double scale;  // Units a second.
  double limit;
  std::uint32_t context = 1;  // Ranks of the source that positions are dealt out to, one at a time.
};

constexpr std::array kCases = {
    Case{"131,072 tokens x 128 layers, blocks of 16", {128, 8, 128}, 131'072, 16, 4, "ms", 1e3, 1},
    Case{"131,072 tokens x 128 layers, pages of 1", {128, 8, 128}, 131'072, 1, 4, "ms", 1e3, 3},
    Case{"131,072 tokens x 128 layers, 16 to 128", {128, 8, 128}, 131'072, 128, 4, "ms", 1e3, 1},
    Case{"131,072 tokens x 128 layers, stripes of 1 on 4 ranks",
         {128, 8, 128},
         131'072,
         16,
         4,
         "ms",
         1e3,
         3,
         4},
    Case{"1 token x 1 layer", {1, 1, 64}, 1, 16, 1000, "us", 1e6, 5},
};
constexpr std::uint32_t kOtherBlock = 16;

Result<kv::Descriptor> descriptor_of(const char* storage, const kv::PlainShape& shape, std::uint32_t block) {
  ISTHMUS_TRY(const kv::Storage* found, kv::find_storage(storage));
  ISTHMUS_TRY(kv::Descriptor descriptor, kv::plain_descriptor(*found, shape));
  descriptor.representation[0].block_tokens = block;
  return descriptor;
}

// Blocks of a pool twice as large as needed, none beside the one before.
std::vector<std::uint32_t> scattered(std::uint64_t entries, std::uint32_t seed) {
  std::vector<std::uint32_t> blocks(entries);
  std::iota(blocks.begin(), blocks.end(), 0U);
  std::uint32_t state = seed;
  for (std::size_t i = entries; i > 1; --i) {
    state = state * 1664525U + 1013904223U;
    std::swap(blocks[i - 1], blocks[state % i]);
  }
  for (std::uint32_t& block : blocks) block *= 2;
  return blocks;
}

// What one handoff plans.
struct Planning {
  kv::Descriptor source, target;
  kv::Verdict verdict;
  transform::EndDigests digests;
  kv::TokenRange tokens;
  std::vector<std::uint32_t> from, to;
  std::uint32_t from_block = 0, to_block = 0;
  std::vector<transform::TokenRun> runs;

  Status once() {
    ISTHMUS_TRY(const transform::Plan plan, transform::Plan::make(source, target, verdict, tokens, digests));
    const transform::TokenTable ours{from, from_block, 0, 0, tokens}, theirs{to, to_block, 0, 0, tokens};
    ISTHMUS_TRY(transform::check_distinct(theirs, 2 * to.size()));
    if (source.partition.size() > 1) return ok_status();  // Each chunk's runs are found when it moves.
    return transform::find_runs(ours, theirs, tokens, runs);
  }
};

Result<Planning> planning_of(const Case& one) {
  Planning made;
  made.from_block = std::min(one.block_tokens, kOtherBlock);
  made.to_block = one.block_tokens;
  ISTHMUS_TRY(made.source, descriptor_of("vllm:flash_nhd", one.shape, made.from_block));
  ISTHMUS_TRY(transform::split_ranks(made.source, {.context = one.context, .run = 1}));
  ISTHMUS_TRY(made.target, descriptor_of("vllm:flash_hnd", one.shape, made.to_block));
  made.verdict = kv::negotiate(made.source, made.target, {});
  made.digests = {made.source.digest(), made.target.digest()};
  made.tokens = {0, one.tokens};
  made.from = scattered((one.tokens + made.from_block - 1) / made.from_block, 1);
  made.to = scattered((one.tokens + made.to_block - 1) / made.to_block, 2);
  return made;
}

Status measure(const Options& options, const Case& one, Record& record) {
  ISTHMUS_TRY(Planning planning, planning_of(one));
  std::vector<double> times;
  for (std::uint32_t run = 0; run <= options.runs; ++run) {  // The first warms up.
    const Instant begin = now();
    for (std::uint32_t i = 0; i < one.repeats; ++i) ISTHMUS_TRY(planning.once());
    const double took = std::chrono::duration<double>(now() - begin).count();
    if (run > 0) times.push_back(took / one.repeats * one.scale);
  }
  record.value = summarise(std::move(times));
  if (!planning.runs.empty()) record.note = fmt::format("{} runs of tokens", planning.runs.size());
  return ok_status();
}

}  // namespace

std::vector<std::string> plan_cases() {
  std::vector<std::string> names;
  for (const Case& one : kCases) names.emplace_back(one.name);
  return names;
}

void bench_plan(const Options& options, const Sink& sink) {
  for (const Case& one : kCases) {
    const std::string name = one.name;
    if (!options.wants(name)) continue;
    sink.progress("plan: " + name);
    Record record{.bench = "plan", .name = name, .unit = one.unit, .reference = "the limit"};
    record.bar = Bar{Bar::Kind::kAtMost, 1};
    record.reference_value = Summary{1, one.limit, one.limit, one.limit};
    const Status done = measure(options, one, record);
    if (!done.ok()) record.failure = done.error().text();
    sink.record(record);
  }
}

}  // namespace isthmus::bench
