// SPDX-License-Identifier: Apache-2.0
// Payload rates of packing, placing and verifying, beside memcpy over memory of the same size in the same
// run. The payload of every row is the source's bytes, so that the rates compare.
#include <benchmark/benchmark.h>

#include <cstring>

#include "transform/program.h"
#include "transform/test_state.h"

namespace isthmus::transform {
namespace {

// 32 layers x 8 heads x 128 x (K, V) x f16 = 128 KiB a token: 2,048 tokens are 256 MiB.
constexpr TestGeometry kGeometry{.layers = 32, .heads = 8, .dim = 128};
constexpr kv::TokenRange kTokens{0, 2048};

struct Ends {
  Ends(const char* source_storage, const char* target_storage)
      : source(test_descriptor(source_storage, kGeometry)),
        target(test_descriptor(target_storage, kGeometry)),
        plan(
            std::make_shared<const Plan>(*Plan::make(source, target, test_verdict(source, target), kTokens))),
        packer(*Packer::make(plan, source)),
        placer(*Placer::make(plan, target)),
        from(source, 0, 0, kTokens),
        to(target, 0, 0, kTokens) {
    // The filler is a finite number in every 16- and 32-bit format; its content has no influence on speed.
    for (const Chunk& chunk : plan->chunks()) {
      bodies.emplace_back(chunk.body_bytes);
      tiles.emplace_back(chunk.tile_count());
      stored.emplace_back(placer.stored_count(chunk));
    }
    for (std::size_t i = 0; i < bodies.size(); ++i) {
      const Chunk& chunk = plan->chunks()[i];
      if (!packer.pack(chunk, from.binding(), bodies[i], tiles[i]).ok()) std::abort();
      if (!placer.place(chunk, bodies[i], tiles[i], to.binding(), stored[i]).ok()) std::abort();
    }
  }

  kv::Descriptor source, target;
  std::shared_ptr<const Plan> plan;
  Packer packer;
  Placer placer;
  TestMemory from, to;
  std::vector<std::vector<std::byte>> bodies;
  std::vector<std::vector<Digest128>> tiles, stored;
};

void count_payload(benchmark::State& state, const Ends& ends) {
  state.SetBytesProcessed(static_cast<std::int64_t>(ends.plan->total_bytes()) * state.iterations());
}

void pack(benchmark::State& state, const char* source, const char* target) {
  Ends ends(source, target);
  for (auto _ : state) {
    for (const Chunk& chunk : ends.plan->chunks()) {
      const std::size_t i = chunk.index;
      if (!ends.packer.pack(chunk, ends.from.binding(), ends.bodies[i], ends.tiles[i]).ok())
        state.SkipWithError("pack");
    }
  }
  count_payload(state, ends);
}

void place(benchmark::State& state, const char* source, const char* target) {
  Ends ends(source, target);
  for (auto _ : state) {
    for (const Chunk& chunk : ends.plan->chunks()) {
      const std::size_t i = chunk.index;
      const Status done =
          ends.placer.place(chunk, ends.bodies[i], ends.tiles[i], ends.to.binding(), ends.stored[i]);
      if (!done.ok()) state.SkipWithError("place");
    }
  }
  count_payload(state, ends);
}

void verify(benchmark::State& state, const char* source, const char* target) {
  Ends ends(source, target);
  for (auto _ : state) {
    for (const Chunk& chunk : ends.plan->chunks()) {
      const std::size_t i = chunk.index;
      if (!ends.placer.verify(chunk, ends.to.binding(), ends.tiles[i], ends.stored[i]).ok()) {
        state.SkipWithError("verify");
      }
    }
  }
  count_payload(state, ends);
}

void copy_memory(benchmark::State& state) {
  std::vector<std::byte> from(std::size_t{256} << 20, std::byte{1}), to(from.size());
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), from.size());
    benchmark::DoNotOptimize(to.data());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(from.size()) * state.iterations());
}

void digest_memory(benchmark::State& state) {
  std::vector<std::byte> from(std::size_t{256} << 20, std::byte{1});
  constexpr std::size_t kTile = 64 << 10;
  for (auto _ : state) {
    for (std::size_t at = 0; at < from.size(); at += kTile) {
      benchmark::DoNotOptimize(digest128(std::span<const std::byte>(from).subspan(at, kTile)));
    }
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(from.size()) * state.iterations());
}

BENCHMARK(copy_memory)->Unit(benchmark::kMillisecond);
BENCHMARK(digest_memory)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(pack, f16_rows, "llamacpp:f16", "openvino:f16")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(pack, f16_v_transposed, "llamacpp:f16_v_transposed", "openvino:f16")
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(place, f16, "llamacpp:f16", "openvino:f16")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(place, f32, "llamacpp:f16", "openvino:f32")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(place, u8, "llamacpp:f16", "openvino:u8")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(verify, f32, "llamacpp:f16", "openvino:f32")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(verify, u8, "llamacpp:f16", "openvino:u8")->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace isthmus::transform

BENCHMARK_MAIN();
