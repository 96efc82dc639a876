// SPDX-License-Identifier: Apache-2.0
// Control frames: decoded and encoded again; then a peer that knows the session key and lies, against both
// cores.
#include <algorithm>
#include <variant>

#include "fuzz/input.h"
#include "fuzz/lying_peer.h"
#include "wire/frames.h"

namespace isthmus::fuzz {
namespace {

void check_codec(std::span<const std::byte> bytes) {
  const auto frame = wire::decode(bytes);
  if (!frame.ok()) return;
  const auto encoded = wire::encode(*frame);
  ISTHMUS_CHECK(encoded.ok());
  const auto again = wire::decode(*encoded);
  // A HELLO's descriptors may hold a NaN, which equals nothing; their bytes are compared below.
  ISTHMUS_CHECK(again.ok() && (std::holds_alternative<wire::Hello>(*frame) || *again == *frame));
  ISTHMUS_CHECK(wire::encode(*again).value() == *encoded);
}

}  // namespace
}  // namespace isthmus::fuzz

// A first byte of 0xff: the rest steers the liar; anything else is one frame.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace isthmus;
  if (size > 0 && data[0] == 0xff) {
    FuzzedDataProvider choices(data + 1, size - 1);
    fuzz::LyingPeer(choices).run();
  } else {
    fuzz::check_codec(fuzz::bytes_of_input(data, size));
  }
  return 0;
}
