// SPDX-License-Identifier: Apache-2.0
// A plan compiled for this host: packs a source's chunks into wire bodies, places bodies into a target's
// memory. Knows layouts and decode forms only; no engine is named here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/digest.h"
#include "base/status.h"
#include "kv/binding.h"
#include "kv/descriptor.h"
#include "transform/convert.h"
#include "transform/plan.h"

namespace isthmus::transform {

// Producer's side: source memory -> wire body (and tile digests of the wire form, in the same pass).
// Thread: one packer may be used by one thread at a time; scratch is its own.
class Packer {
 public:
  static Result<Packer> make(std::shared_ptr<const Plan> plan, const kv::Descriptor& source,
                             std::uint32_t rank = 0);
  ~Packer();
  Packer(Packer&&) noexcept;
  Packer& operator=(Packer&&) noexcept;

  // `body` has exactly chunk.body_bytes; `tiles` exactly chunk.tile_count(). Pads are zeroed.
  // Errors: invalid_argument (binding doesn't hold the chunk's tokens, memory too small), corrupt (non-finite
  // value where a conversion was asked for). Allocates nothing.
  Status pack(const Chunk& chunk, const kv::Binding& source, std::span<std::byte> body,
              std::span<Digest128> tiles);
  // Of all packs so far.
  const ConversionCounts& counts() const;

 private:
  struct State;
  explicit Packer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Consumer's side: wire body -> target memory, and back for verification.
class Placer {
 public:
  static Result<Placer> make(std::shared_ptr<const Plan> plan, const kv::Descriptor& target,
                             std::uint32_t rank = 0);
  ~Placer();
  Placer(Placer&&) noexcept;
  Placer& operator=(Placer&&) noexcept;

  // True if the target's bits restore the wire's: both are plain and one's values are among the other's.
  // Codes with scales can mean the same number in several ways, so they are never led back.
  bool exact() const;

  // Convert and place. When not exact(), `body` is checked against `tiles` before (corrupt, naming the tile);
  // else verify() finds whatever is wrong with it.
  // `stored`: digests of the target's form, one a (target section, head), filled in the converting pass;
  // stored_count() of them, none when exact(). A value that can't be converted (corrupt) may leave earlier
  // tiles of the chunk placed.
  Status place(const Chunk& chunk, std::span<const std::byte> body, std::span<const Digest128> tiles,
               const kv::Binding& target, std::span<Digest128> stored);
  std::uint64_t stored_count(const Chunk& chunk) const;

  // Read the chunk back from the target's memory through the target's descriptor and compare: against `tiles`
  // by the exact inverse when exact(), else against `stored`. corrupt, naming the first tile that differs,
  // and saying so if that is `body`'s fault (which may be empty).
  Status verify(const Chunk& chunk, const kv::Binding& target, std::span<const Digest128> tiles,
                std::span<const Digest128> stored, std::span<const std::byte> body = {});
  // Of all places so far; reading back counts nothing.
  const ConversionCounts& counts() const;

 private:
  struct State;
  explicit Placer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// invalid_argument if the table names a block twice or one beyond the pool: a chunk would overwrite another
// that was read back before.
Status check_blocks(const kv::Binding& binding);

}  // namespace isthmus::transform
