// SPDX-License-Identifier: Apache-2.0
// A whole state in this process's memory, all ranks of it: between files and what is done with them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/status.h"
#include "kv/catalogue.h"
#include "kvs/reader.h"
#include "kvs/writer.h"
#include "transform/ranks.h"
#include "transform/redistribute.h"

namespace isthmus::kvs {

// Chunks done, of how many.
using Progress = std::function<void(std::uint32_t, std::uint32_t)>;

struct State {
  Manifest manifest;
  std::vector<transform::RankMemory> ranks;
  std::vector<std::vector<std::byte>> bytes;  // What the bindings point to.
};

// Zeroed memory for each rank of the manifest's descriptor, blocks in order. exhausted if it would be more
// than `bytes_max`; invalid_argument if a layout can't be laid out.
Result<State> allocate(Manifest manifest, std::uint64_t bytes_max);
// Reads all chunks and the end record; each copy is placed and read back. Memory is at most 16 times the
// file's payload and 64 MiB. Errors: those of Reader, Placer and allocate.
Result<State> load(Reader& reader, const Progress& progress = {});
// Returns the root. Errors: those of Writer and Packer.
Result<Digest128> save(const State& state, WriteAll write, Compression compression = Compression::kNone,
                       const Progress& progress = {});

// The same state as another storage keeps it: transforms of the old storage but rope taken off, the new one's
// put on. Groups of other components than the storage's (a hybrid model's recurrent states) stay as they are
// stored. `block_tokens` 0 is the storage's usual block. Static scales that aren't given are those that the
// state's own codes of the same format have. Errors: those of kv::represent, split_ranks, validate.
Result<kv::Descriptor> stored_as(const kv::Descriptor& descriptor, const kv::Storage& storage,
                                 std::uint32_t block_tokens, transform::Degrees degrees,
                                 const kv::StaticScales& scales = {});
struct Converted {
  State state;
  transform::ConversionCounts counts;
};
// Redistributes and converts to memory of its own, on that many threads. incompatible if the policy's verdict
// is a reject.
Result<Converted> convert(const State& from, const kv::Descriptor& to, const kv::Policy& policy,
                          std::uint32_t threads = 1, const Progress& progress = {});
// A state that isn't any model's, of codes that a seed makes: floats within +-16, scales small.
Result<State> sample(Manifest manifest, std::uint64_t seed);

}  // namespace isthmus::kvs
