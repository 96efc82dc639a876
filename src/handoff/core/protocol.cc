// SPDX-License-Identifier: Apache-2.0
// Names and small rules that both cores use.
#include "handoff/core/protocol.h"

namespace isthmus::handoff {

const kv::Descriptor* Peer::find(Digest128 digest) const {
  for (const kv::Descriptor& descriptor : descriptors) {
    if (descriptor.digest() == digest) return &descriptor;
  }
  return nullptr;
}

std::string_view name(TerminalKind kind) {
  constexpr std::string_view kNames[] = {"owned",   "done",      "rejected", "exhausted",
                                         "expired", "cancelled", "finished", "peer_lost",
                                         "corrupt", "timed_out", "failed"};
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

std::string clip(std::string text) {
  if (text.size() > kDetailBytesMax) {
    text.resize(kDetailBytesMax - 3);
    text += "...";
  }
  return text;
}

}  // namespace isthmus::handoff
