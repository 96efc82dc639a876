// SPDX-License-Identifier: Apache-2.0
#include "handoff/agent/placement.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "transform/test_state.h"

namespace isthmus::handoff {
namespace {

using transform::TestMemory;

constexpr kv::TokenRange kTokens{0, 256};

// A body in memory that a peer can write, too: two mappings of one file.
class SharedBody {
 public:
  explicit SharedBody(std::size_t bytes) : bytes_(bytes) {
    const int file = ::memfd_create("body", MFD_CLOEXEC);
    EXPECT_EQ(::ftruncate(file, static_cast<off_t>(bytes)), 0);
    peers_ = static_cast<std::byte*>(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
    ours_ = static_cast<std::byte*>(::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file, 0));
    ::close(file);
  }
  ~SharedBody() {
    ::munmap(peers_, bytes_);
    ::munmap(ours_, bytes_);
  }
  std::span<std::byte> peers() { return {peers_, bytes_}; }
  transport::Received received() const { return {{ours_, bytes_}, std::make_shared<int>(0)}; }

 private:
  std::size_t bytes_;
  std::byte* peers_ = nullptr;
  std::byte* ours_ = nullptr;
};

// A peer that changes one byte of a body once it has been checked: at the first write to the destination,
// whose pages are protected until then.
class LatePeer {
 public:
  LatePeer(std::byte& at, std::vector<std::vector<std::byte>>& destination) {
    flips = &at;
    pages.clear();
    const auto page = static_cast<std::uintptr_t>(::getpagesize());
    for (std::vector<std::byte>& memory : destination) {
      const auto begin = (reinterpret_cast<std::uintptr_t>(memory.data()) + page - 1) / page * page;
      const auto end = reinterpret_cast<std::uintptr_t>(memory.data() + memory.size()) / page * page;
      if (begin < end) pages.emplace_back(reinterpret_cast<void*>(begin), end - begin);
    }
    struct sigaction action{};
    action.sa_handler = [](int) { intervene(); };
    EXPECT_EQ(::sigaction(SIGSEGV, &action, &before_), 0);
    for (const auto& [at_page, bytes] : pages) EXPECT_EQ(::mprotect(at_page, bytes, PROT_READ), 0);
  }
  ~LatePeer() {
    unprotect();
    ::sigaction(SIGSEGV, &before_, nullptr);
  }
  static bool has_intervened() { return flips == nullptr; }

 private:
  static void unprotect() {
    for (const auto& [at_page, bytes] : pages) ::mprotect(at_page, bytes, PROT_READ | PROT_WRITE);
  }
  static void intervene() {
    if (flips == nullptr) std::abort();  // A fault of another kind.
    *std::exchange(flips, nullptr) ^= std::byte{0x11};
    unprotect();
  }
  inline static std::byte* flips = nullptr;
  inline static std::vector<std::pair<void*, std::size_t>> pages;
  struct sigaction before_{};
};

struct Forms {
  const char* source;
  const char* target;
  bool exact;
};

class Placement : public ::testing::TestWithParam<Forms> {};

TEST_P(Placement, WhatIsAcceptedIsWhatWasSealedThoughThePeerWritesAfterTheCheck) {
  const kv::Descriptor source = transform::test_descriptor(GetParam().source, {});
  const kv::Descriptor target = transform::test_descriptor(GetParam().target, {});
  const auto plan = std::make_shared<const transform::Plan>(
      *transform::Plan::make(source, target, transform::test_verdict(source, target), kTokens));
  transform::Packer packer = *transform::Packer::make(plan, source);
  transform::Placer placer = *transform::Placer::make(plan, target);
  ASSERT_EQ(placer.exact(), GetParam().exact);
  TestMemory from(source, 0, 0, kTokens);
  from.fill(kTokens);
  const transform::Chunk chunk = plan->chunk(0);
  SharedBody body(chunk.body_bytes);
  std::vector<Digest128> tiles(chunk.tile_count());
  std::vector<Digest128> stored(placer.stored_count(chunk));
  ASSERT_TRUE(packer.pack(chunk, from.binding(), body.peers(), tiles).ok());
  device::HostBuffer copy;
  const auto place = [&](TestMemory& into) {
    const transport::Received received = body.received();
    Status status = place_body(placer, {chunk, received, tiles}, into.binding(), stored, copy);
    if (!status.ok()) return status;
    return placer.verify(chunk, into.binding(), tiles, stored);
  };
  TestMemory honest(target, 0, 0, kTokens);
  ASSERT_TRUE(place(honest).ok());

  TestMemory into(target, 0, 0, kTokens);
  Status placed;
  Status verified;
  {
    // The last value of the last section is converted last.
    const transform::Section& last = chunk.sections.back();
    const LatePeer peer(body.peers()[last.offset + last.bytes - 1], into.bytes());
    const transport::Received received = body.received();
    placed = place_body(placer, {chunk, received, tiles}, into.binding(), stored, copy);
    verified = placer.verify(chunk, into.binding(), tiles, stored);
    ASSERT_TRUE(LatePeer::has_intervened());
  }
  ASSERT_TRUE(placed.ok()) << placed.error().text();
  if (GetParam().exact) {
    ASSERT_FALSE(verified.ok());
    EXPECT_EQ(verified.code(), Code::kCorrupt);
  } else {
    EXPECT_TRUE(verified.ok()) << verified.error().text();
    EXPECT_EQ(into.bytes(), honest.bytes());
  }
  TestMemory again(target, 0, 0, kTokens);
  EXPECT_EQ(place(again).code(), Code::kCorrupt) << "now the check sees it";
}

INSTANTIATE_TEST_SUITE_P(Forms, Placement,
                         ::testing::Values(Forms{"llamacpp:f16", "openvino:f32", true},
                                           Forms{"openvino:f32", "llamacpp:f16", false}),
                         [](const auto& each) { return std::string(each.param.exact ? "exact" : "lossy"); });

}  // namespace
}  // namespace isthmus::handoff
