// SPDX-License-Identifier: Apache-2.0
// What a .kvs file begins with: whose state it is, and which tokens of it (spec/kvs.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/digest.h"
#include "base/status.h"
#include "kv/descriptor.h"
#include "transform/plan.h"

namespace isthmus::kvs {

inline constexpr std::uint64_t kMagic = 0x0a01'5356'4b48'5349;  // "ISHKVS", 1, newline, read as bytes.
inline constexpr std::uint32_t kVersion = 1;
inline constexpr std::uint32_t kEndMagic = 0x45485349;  // "ISHE".
inline constexpr std::size_t kHeadBytes = 24;           // Magic, version, manifest length, checksum.
inline constexpr std::size_t kEndBytes = 32;            // Magic, chunk count, root, checksum.
inline constexpr std::uint32_t kManifestBytesMax = 8u << 20;
inline constexpr std::size_t kNoteBytesMax = 255;
inline constexpr std::uint32_t kHasChain = 1, kIsCompressed = 2;  // Flags.

enum class Compression : std::uint8_t { kNone, kZstd };

struct Manifest {
  kv::Descriptor descriptor;
  kv::TokenRange tokens;
  std::optional<Digest128> chain;  // Of the token ids from position 0 to tokens.end; nothing if not known.
  std::string note;                // For people: who made the file. Printable.
};

// The plan of a file: from the descriptor to itself, so that both ends' ranks and numbers are the state's
// own. Errors: those of Descriptor::validate and Plan::make.
Result<std::shared_ptr<const transform::Plan>> plan_of(const Manifest& manifest);

// Bytes of a whole file with `head` bytes before its first chunk and nothing compressed.
std::uint64_t file_bytes(const transform::Plan& plan, std::uint64_t head);

}  // namespace isthmus::kvs
