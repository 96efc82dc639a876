// SPDX-License-Identifier: Apache-2.0
// Names and small rules that both cores use.
#include "handoff/core/protocol.h"

#include <algorithm>
#include <utility>

namespace isthmus::handoff {

namespace {
constexpr std::size_t kPairsMax = 64;
}  // namespace

DescriptorSet::DescriptorSet(std::vector<kv::Descriptor> all) : all_(std::move(all)) {
  for (const kv::Descriptor& descriptor : all_) digests_.push_back(descriptor.digest());
}

const kv::Descriptor* DescriptorSet::find(Digest128 digest) const {
  const auto at = std::ranges::find(digests_, digest);
  return at == digests_.end() ? nullptr : &all_.at(static_cast<std::size_t>(at - digests_.begin()));
}

kv::Verdict Verdicts::of(const DescribedEnd& source, const DescribedEnd& target, const kv::Policy& policy) {
  const auto known = std::ranges::find_if(met_, [&](const Met& met) {
    return met.source == source.digest && met.target == target.digest && met.policy == policy;
  });
  if (known != met_.end()) return known->verdict;
  Met met{source.digest, target.digest, policy, kv::negotiate(source.descriptor, target.descriptor, policy)};
  if (met_.size() < kPairsMax) return met_.emplace_back(std::move(met)).verdict;
  Met& replaced = met_.at(oldest_);
  oldest_ = (oldest_ + 1) % kPairsMax;
  replaced = std::move(met);
  return replaced.verdict;
}

std::string_view name(TerminalKind kind) {
  constexpr std::string_view kNames[] = {"owned",   "done",      "rejected", "exhausted",
                                         "expired", "cancelled", "finished", "peer_lost",
                                         "corrupt", "timed_out", "failed",   "superseded"};
  return kNames[static_cast<std::size_t>(kind)];
}

TerminalKind terminal_kind(Code code) {
  switch (code) {
    case Code::kIncompatible:
    case Code::kUnsupported:
      return TerminalKind::kRejected;
    case Code::kExhausted:
      return TerminalKind::kExhausted;
    case Code::kCancelled:
      return TerminalKind::kCancelled;
    case Code::kCorrupt:
      return TerminalKind::kCorrupt;
    case Code::kUnavailable:
      return TerminalKind::kPeerLost;
    case Code::kDeadlineExceeded:
      return TerminalKind::kTimedOut;
    default:
      return TerminalKind::kFailed;
  }
}

std::uint64_t codec_staging(wire::Codec codec, std::uint64_t slot_bytes) {
  return codec == wire::Codec::kNone ? 0 : 2 * slot_bytes;
}

std::string clip(std::string text) {
  if (text.size() > kDetailBytesMax) {
    text.resize(kDetailBytesMax - 3);
    text += "...";
  }
  return text;
}

}  // namespace isthmus::handoff
