// SPDX-License-Identifier: Apache-2.0
// Price snapshots, as a peer's or an operator's text: one text for each, and the choice made of it holds.
#include <array>

#include "fuzz/input.h"
#include "kv/choose.h"
#include "kv/sample.h"

namespace isthmus::fuzz {
namespace {

struct Ends {
  kv::Descriptor source, target;
  kv::Verdict verdict;
};

Ends ends_of(const char* source, const char* target) {
  Ends made{kv::sample::descriptor(source), kv::sample::descriptor(target), {}};
  made.verdict = kv::negotiate(made.source, made.target,
                               {.exactness = kv::Exactness::kUnqualified, .qualifications = {}});
  return made;
}

// Twice the same, and never of a step that can't run.
void check_choice(const Ends& ends, const kv::Prices& prices) {
  const auto choice = kv::choose(ends.source, ends.target, ends.verdict, prices);
  if (!choice.ok()) return;
  ISTHMUS_CHECK(kv::choose(ends.source, ends.target, ends.verdict, prices)->text(prices) ==
                choice->text(prices));
  ISTHMUS_CHECK(prices.link != 0);
}

}  // namespace
}  // namespace isthmus::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace isthmus;
  static const std::array<fuzz::Ends, 3> kEnds{fuzz::ends_of("llamacpp:f16", "openvino:f16"),
                                               fuzz::ends_of("llamacpp:q8_0", "openvino:u8"),
                                               fuzz::ends_of("vllm:mla_fp8_656", "vllm:mla_bf16")};
  const std::string_view text = fuzz::text_of_input(data, size);
  const auto prices = kv::Prices::parse(text);
  if (!prices.ok()) return 0;
  ISTHMUS_CHECK(prices->text() == text);
  ISTHMUS_CHECK(kv::Prices::parse(prices->text()).value() == *prices);
  for (const fuzz::Ends& ends : kEnds) fuzz::check_choice(ends, *prices);
  return 0;
}
