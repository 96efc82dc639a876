// SPDX-License-Identifier: Apache-2.0
// Descriptors as a peer sends them, inside a HELLO: decoded, validated, laid out, encoded again.
#include <utility>
#include <variant>

#include "fuzz/input.h"
#include "fuzz/layout_check.h"
#include "kv/descriptor.h"
#include "wire/frames.h"

namespace isthmus::fuzz {
namespace {

void check_descriptor(const kv::Descriptor& descriptor) {
  const std::string text = descriptor.canonical_text();
  ISTHMUS_CHECK(kv::diff(descriptor, descriptor).empty());
  for (const kv::RankBox& box : descriptor.partition) {
    const Result<kv::Layout> layout = descriptor.layout(box.group, box.rank);
    ISTHMUS_CHECK(layout.ok());
    check_layout(*layout);
  }
  wire::Hello hello{.name = "a", .incarnation = {1, 2}, .challenge = {3, 4}, .descriptors = {descriptor}};
  const auto encoded = wire::encode(std::move(hello));
  // The wire's bounds are the tighter ones in places; what they let pass must come back the same.
  if (!encoded.ok()) return;
  const auto decoded = wire::decode(*encoded);
  ISTHMUS_CHECK(decoded.ok());
  ISTHMUS_CHECK(std::get<wire::Hello>(*decoded).descriptors.front().canonical_text() == text);
}

}  // namespace
}  // namespace isthmus::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace isthmus;
  const auto frame = wire::decode(fuzz::bytes_of_input(data, size));
  if (!frame.ok()) return 0;
  const auto* hello = std::get_if<wire::Hello>(&*frame);
  if (hello == nullptr) return 0;
  for (const kv::Descriptor& descriptor : hello->descriptors) {
    if (descriptor.validate().ok()) fuzz::check_descriptor(descriptor);
  }
  return 0;
}
