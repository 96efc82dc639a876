// SPDX-License-Identifier: Apache-2.0
// See zstd_planes.h.
#include "codec/zstd_planes.h"

#include <fmt/format.h>
#include <zstd.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kv/format.h"

namespace isthmus::codec {
namespace {

// Level 1: planes of signs and exponents are a quarter to a half smaller at any level, and planes of
// mantissas at none.
constexpr int kLevel = 1;

struct ContextOut {
  void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
  void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
};

// The bytes between the arrays too; each(array) for the arrays, in order.
template <typename Plain, typename Array>
void walk(std::span<const PlaneArray> arrays, std::uint64_t body_bytes, Plain plain, Array each) {
  std::uint64_t at = 0;
  for (const PlaneArray& array : arrays) {
    ISTHMUS_CHECK(array.offset >= at && array.width != 0 && array.bytes % array.width == 0 &&
                  array.offset <= body_bytes && array.bytes <= body_bytes - array.offset);
    plain(at, array.offset - at);
    each(array);
    at = array.offset + array.bytes;
  }
  plain(at, body_bytes - at);
}

template <std::uint32_t kWidth>
void split(const std::byte* from, std::uint64_t count, std::byte* to) {
  for (std::uint64_t i = 0; i < count; ++i) {
    for (std::uint32_t byte = 0; byte < kWidth; ++byte) to[byte * count + i] = from[i * kWidth + byte];
  }
}

template <std::uint32_t kWidth>
void join(const std::byte* from, std::uint64_t count, std::byte* to) {
  for (std::uint64_t i = 0; i < count; ++i) {
    for (std::uint32_t byte = 0; byte < kWidth; ++byte) to[i * kWidth + byte] = from[byte * count + i];
  }
}

}  // namespace

void plane_arrays(const transform::Chunk& chunk, std::vector<PlaneArray>& arrays) {
  arrays.clear();
  for (const transform::Section& section : chunk.sections)
    arrays.push_back({section.offset, section.bytes, std::max(1u, kv::bits(section.format) / 8)});
}

struct ZstdPlanesEncoder::State {
  std::unique_ptr<ZSTD_CCtx, ContextOut> context;
  std::vector<std::byte> planes, stored;
};

ZstdPlanesEncoder::ZstdPlanesEncoder() : state_(std::make_unique<State>()) {
  state_->context.reset(ZSTD_createCCtx());
  ISTHMUS_CHECK(state_->context != nullptr);
}
ZstdPlanesEncoder::~ZstdPlanesEncoder() = default;
ZstdPlanesEncoder::ZstdPlanesEncoder(ZstdPlanesEncoder&&) noexcept = default;
ZstdPlanesEncoder& ZstdPlanesEncoder::operator=(ZstdPlanesEncoder&&) noexcept = default;

std::optional<std::span<const std::byte>> ZstdPlanesEncoder::encode(std::span<const std::byte> body,
                                                                    std::span<const PlaneArray> arrays) {
  State& state = *state_;
  if (state.planes.size() < body.size()) {
    state.planes.resize(body.size());
    state.stored.resize(body.size());  // What is larger isn't wanted.
  }
  std::byte* planes = state.planes.data();
  walk(
      arrays, body.size(),
      [&](std::uint64_t at, std::uint64_t bytes) {
        std::copy_n(body.begin() + static_cast<std::ptrdiff_t>(at), bytes, planes + at);
      },
      [&](const PlaneArray& array) {
        const std::byte* from = body.data() + array.offset;
        std::byte* to = planes + array.offset;
        const std::uint64_t count = array.bytes / array.width;
        if (array.width == 2) return split<2>(from, count, to);
        if (array.width == 4) return split<4>(from, count, to);
        ISTHMUS_CHECK(array.width == 1);
        std::copy_n(from, count, to);
      });
  const std::size_t room = body.empty() ? 0 : body.size() - 1;
  const std::size_t stored = ZSTD_compressCCtx(state.context.get(), state.stored.data(), room,
                                               state.planes.data(), body.size(), kLevel);
  if (ZSTD_isError(stored) != 0) return std::nullopt;  // It has no room.
  return std::span<const std::byte>(state.stored).first(stored);
}

struct ZstdPlanesDecoder::State {
  std::unique_ptr<ZSTD_DCtx, ContextOut> context;
  std::vector<std::byte> planes;
};

ZstdPlanesDecoder::ZstdPlanesDecoder() : state_(std::make_unique<State>()) {
  state_->context.reset(ZSTD_createDCtx());
  ISTHMUS_CHECK(state_->context != nullptr);
}
ZstdPlanesDecoder::~ZstdPlanesDecoder() = default;
ZstdPlanesDecoder::ZstdPlanesDecoder(ZstdPlanesDecoder&&) noexcept = default;
ZstdPlanesDecoder& ZstdPlanesDecoder::operator=(ZstdPlanesDecoder&&) noexcept = default;

Status ZstdPlanesDecoder::decode(std::span<const std::byte> stored, std::span<const PlaneArray> arrays,
                                 std::span<std::byte> body) {
  State& state = *state_;
  if (state.planes.size() < body.size()) state.planes.resize(body.size());
  // Several frames, or one and something behind it, would be other bytes for the same body.
  const std::size_t frame = ZSTD_findFrameCompressedSize(stored.data(), stored.size());
  const std::size_t got = ZSTD_isError(frame) != 0 || frame != stored.size()
                              ? 0
                              : ZSTD_decompressDCtx(state.context.get(), state.planes.data(), body.size(),
                                                    stored.data(), stored.size());
  if (ZSTD_isError(got) != 0 || got != body.size()) {
    return Error{Code::kMalformed,
                 fmt::format("{} stored bytes aren't one zstd frame of {}", stored.size(), body.size())};
  }
  const std::byte* planes = state.planes.data();
  walk(
      arrays, body.size(),
      [&](std::uint64_t at, std::uint64_t bytes) {
        std::copy_n(planes + at, bytes, body.begin() + static_cast<std::ptrdiff_t>(at));
      },
      [&](const PlaneArray& array) {
        const std::byte* from = planes + array.offset;
        std::byte* to = body.data() + array.offset;
        const std::uint64_t count = array.bytes / array.width;
        if (array.width == 2) return join<2>(from, count, to);
        if (array.width == 4) return join<4>(from, count, to);
        ISTHMUS_CHECK(array.width == 1);
        std::copy_n(from, count, to);
      });
  return ok_status();
}

}  // namespace isthmus::codec
