// SPDX-License-Identifier: Apache-2.0
// memfd segments and their seals.
#include "transport/shm/segment.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace isthmus::transport {
namespace {

// Without these a peer could make our reads fault by cutting the file, or change its mind later.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
// Slices begin on pages of their own.
constexpr std::size_t kPage = 4096;

constexpr std::size_t round_up(std::size_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

Result<std::shared_ptr<Mapping>> map(const net::FileDescriptor& file, std::size_t bytes, int protection) {
  // Its pages are entered at once: to fault them in one by one costs more than to copy them.
  void* at = ::mmap(nullptr, bytes, protection, MAP_SHARED | MAP_POPULATE, file.number(), 0);
  if (at == MAP_FAILED)
    return Error{Code::kExhausted,
                 fmt::format("map {} bytes of shared memory: {}", bytes, std::strerror(errno))};
  return std::make_shared<Mapping>(static_cast<std::byte*>(at), bytes);
}

}  // namespace

Mapping::~Mapping() {
  ::munmap(memory_.data(), memory_.size());
}

Segment::Segment(net::FileDescriptor file, std::shared_ptr<Mapping> mapping)
    : file_(std::move(file)), mapping_(std::move(mapping)), free_{{0, mapping_->memory().size()}} {}

Result<Segment> Segment::make(std::size_t bytes) {
  const std::size_t size = round_up(bytes);
  net::FileDescriptor file(::memfd_create("isthmus-payload", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.is_open()) {
    const Code code =
        errno == EMFILE || errno == ENFILE || errno == ENOMEM ? Code::kExhausted : Code::kUnsupported;
    return Error{code, fmt::format("shared memory: {}", std::strerror(errno))};
  }
  if (::ftruncate(file.number(), static_cast<off_t>(size)) != 0 ||
      ::fcntl(file.number(), F_ADD_SEALS, kSeals) != 0) {
    return Error{Code::kExhausted, fmt::format("{} bytes of shared memory: {}", size, std::strerror(errno))};
  }
  ISTHMUS_TRY(auto mapping, map(file, size, PROT_READ | PROT_WRITE));
  return Segment(std::move(file), std::move(mapping));
}

std::optional<std::size_t> Segment::take(std::size_t bytes) {
  const std::size_t wanted = round_up(bytes);
  for (auto at = free_.begin(); at != free_.end(); ++at) {
    if (at->second < wanted) continue;
    const auto [offset, length] = *at;
    free_.erase(at);
    if (length > wanted) free_[offset + wanted] = length - wanted;
    return offset;
  }
  return std::nullopt;
}

void Segment::give_back(std::size_t offset, std::size_t bytes) {
  auto at = free_.emplace(offset, round_up(bytes)).first;
  const auto next = std::next(at);
  if (next != free_.end() && at->first + at->second == next->first) {
    at->second += next->second;
    free_.erase(next);
  }
  if (at == free_.begin()) return;
  const auto before = std::prev(at);
  if (before->first + before->second != at->first) return;
  before->second += at->second;
  free_.erase(at);
}

Result<std::shared_ptr<Mapping>> map_peers_segment(const net::FileDescriptor& file, std::uint64_t bytes) {
  const int seals = ::fcntl(file.number(), F_GET_SEALS);
  struct stat status{};
  if (seals < 0 || ::fstat(file.number(), &status) != 0)
    return Error{Code::kMalformed, "what the peer passed isn't shared memory"};
  if ((seals & kSeals) != kSeals)
    return Error{Code::kMalformed, fmt::format("the peer's segment has seals {:x}, not {:x}", seals, kSeals)};
  if (bytes == 0 || static_cast<std::uint64_t>(status.st_size) < bytes) {
    return Error{Code::kMalformed,
                 fmt::format("the peer's segment has {} bytes, not {}", status.st_size, bytes)};
  }
  return map(file, bytes, PROT_READ);
}

}  // namespace isthmus::transport
