// SPDX-License-Identifier: Apache-2.0
// A chunk's body made smaller: the bytes of its elements apart by significance, then one zstd frame
// (spec/wire-form.md §11).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "transform/plan.h"

namespace isthmus::codec {

// An array of little-endian elements of `width` bytes within a body: byte i of each of them, in order, is
// plane i. `bytes` is a multiple of `width`; arrays don't overlap. What no array covers stays where it is.
struct PlaneArray {
  std::uint64_t offset = 0, bytes = 0;
  std::uint32_t width = 1;
};

// A chunk's body: one array a section.
void plane_arrays(const transform::Chunk& chunk, std::vector<PlaneArray>& arrays);

// Memory grows to the largest body met, once; so does the decoder's.
class ZstdPlanesEncoder {
 public:
  ZstdPlanesEncoder();
  ~ZstdPlanesEncoder();
  ZstdPlanesEncoder(ZstdPlanesEncoder&&) noexcept;
  ZstdPlanesEncoder& operator=(ZstdPlanesEncoder&&) noexcept;

  // What is stored instead of `body`, until the next call; nothing where that wouldn't be smaller.
  std::optional<std::span<const std::byte>> encode(std::span<const std::byte> body,
                                                   std::span<const PlaneArray> arrays);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

class ZstdPlanesDecoder {
 public:
  ZstdPlanesDecoder();
  ~ZstdPlanesDecoder();
  ZstdPlanesDecoder(ZstdPlanesDecoder&&) noexcept;
  ZstdPlanesDecoder& operator=(ZstdPlanesDecoder&&) noexcept;

  // Fills `body` from what an encoder made of one of that size. Nothing is sized by what `stored` says, and
  // nothing beyond `body` is written. Errors: malformed (it isn't one frame of exactly the body's bytes).
  Status decode(std::span<const std::byte> stored, std::span<const PlaneArray> arrays,
                std::span<std::byte> body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace isthmus::codec
