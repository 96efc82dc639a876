// SPDX-License-Identifier: Apache-2.0
// The layout notation: text as a peer's descriptor may hold it, under any extents.
#include "fuzz/input.h"
#include "fuzz/layout_check.h"

namespace isthmus::fuzz {
namespace {

kv::LayoutExtents extents_of(FuzzedDataProvider& choices) {
  kv::LayoutExtents extents;
  extents.layers = choices.ConsumeIntegralInRange<std::uint32_t>(0, 64);
  extents.block_tokens = choices.ConsumeIntegralInRange<std::uint32_t>(0, 1 << 16);
  for (const char* component : {"k", "v"}) {
    extents.components[component] = {choices.ConsumeIntegralInRange<std::uint32_t>(0, 1 << 16),
                                     choices.ConsumeIntegralInRange<std::uint32_t>(0, 1 << 16)};
  }
  extents.parameters["D"] = extents.components["k"].dim;
  extents.parameters["B"] = extents.block_tokens;
  return extents;
}

}  // namespace
}  // namespace isthmus::fuzz

// The numbers are taken from the input's end, so that the text stands readable at its front.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace isthmus;
  FuzzedDataProvider choices(data, size);
  const kv::LayoutExtents extents = fuzz::extents_of(choices);
  const std::string text = choices.ConsumeRemainingBytesAsString();
  const Result<kv::Layout> layout = kv::Layout::parse(text, extents);
  if (layout.ok()) fuzz::check_layout(*layout);
  return 0;
}
