// SPDX-License-Identifier: Apache-2.0
// Sealed shared memory: made and carved into slices by its sender, mapped read-only by its receiver.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>

#include "base/status.h"
#include "net/file_descriptor.h"

namespace isthmus::transport {

// A mapping of this process; unmapped when its last holder goes.
class Mapping {
 public:
  Mapping(std::byte* at, std::size_t bytes) : memory_(at, bytes) {}
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  std::span<std::byte> memory() const { return memory_; }

 private:
  std::span<std::byte> memory_;
};

// The sender's side. Sealed against shrinking, growing and further seals before anybody else sees it.
class Segment {
 public:
  // exhausted (no memory or descriptors), unsupported (no sealed memory here).
  static Result<Segment> make(std::size_t bytes);

  // The lowest free range of that length; nothing if there is none.
  std::optional<std::size_t> take(std::size_t bytes);
  void give_back(std::size_t offset, std::size_t bytes);

  net::FileDescriptor& file() { return file_; }  // Empty once passed on: the mapping is enough to send.
  const std::shared_ptr<Mapping>& mapping() const { return mapping_; }

 private:
  Segment(net::FileDescriptor file, std::shared_ptr<Mapping> mapping);

  net::FileDescriptor file_;
  std::shared_ptr<Mapping> mapping_;
  std::map<std::size_t, std::size_t> free_;  // Offset to length; neighbours are joined.
};

// The receiver's side: a read-only mapping of a peer's segment of `bytes`. malformed: not memory, not sealed,
// or smaller than that. exhausted: can't be mapped.
Result<std::shared_ptr<Mapping>> map_peers_segment(const net::FileDescriptor& file, std::uint64_t bytes);

}  // namespace isthmus::transport
