// SPDX-License-Identifier: Apache-2.0
// Moves what a plan says from the ranks of one end to the ranks of the other, all in this process's memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/digest.h"
#include "base/status.h"
#include "kv/binding.h"
#include "kv/descriptor.h"
#include "transform/convert.h"
#include "transform/members.h"
#include "transform/plan.h"

namespace isthmus::transform {

// Which of several copies is read.
struct Reading {
  // The n-th of the ranks that hold a piece, by rank; nothing: the copies are read in turn, but the first one
  // of a state without heads (MLA, index keys).
  std::optional<std::uint32_t> copy = {};
  // Which data-parallel ranks have the sequence, at each end: others are neither read nor written.
  std::uint32_t source_data = 0, target_data = 0;
};

// One route to each target rank that holds the chunk, so that each copy is written once; by target rank.
// Errors: invalid_argument (no rank holds it at one end, or `reading` names a copy that isn't there).
Result<std::vector<Route>> routes_of(const Chunk& chunk, const kv::Descriptor& source,
                                     const kv::Descriptor& target, const Reading& reading = {});

// One rank's memory: a binding for each of the descriptor's groups, empty for one that it doesn't hold.
struct RankMemory {
  std::uint32_t rank = 0;
  std::vector<kv::Binding> groups;
};

// What moved.
struct Moved {
  Digest128 root;                // Over the tiles of the wire form, as an agent seals them.
  std::uint64_t chunks = 0;      // Of the plan.
  std::uint64_t packed = 0;      // Bodies made: more than chunks where copies are read.
  std::uint64_t placed = 0;      // Bodies placed and read back.
  std::uint64_t wire_bytes = 0;  // Of all bodies placed.
  ConversionCounts conversions;  // On all target ranks.
};

struct Redistribution {
  std::shared_ptr<const Plan> plan;
  const kv::Descriptor& source;  // Those that the plan was made from.
  const kv::Descriptor& target;
  std::span<const RankMemory> from, to;
  Reading reading = {};
  std::function<void()> done = {};  // After each chunk, one call at a time; for progress.
  // That move chunks, the caller's among them. Bytes and digests are the same for any number; one is used
  // where chunks may share a byte (4-bit elements of two heads or tokens in one).
  std::uint32_t threads = 1;
};

// Tables are checked before a byte moves; each chunk is packed once for each source rank that is read, placed
// on each target rank that holds it, and read back there. Allocates nothing between the first chunk and the
// last, but for threads. Errors, of the first chunk that fails, in the plan's order: invalid_argument (a
// rank's memory is missing, too small or names a block twice), corrupt (naming the tile: copies of the source
// differ, a value can't be converted, memory doesn't keep what was placed); those of Packer and Placer.
Result<Moved> redistribute(const Redistribution& request);

}  // namespace isthmus::transform
