// SPDX-License-Identifier: Apache-2.0
// See token_cuts.h.
#include "transform/token_cuts.h"

#include <fmt/format.h>

#include <algorithm>

namespace isthmus::transform {
namespace {

// Looks at one stripe for one run: a second or so.
constexpr std::uint64_t kStepsMax = std::uint64_t{1} << 28;

}  // namespace

std::vector<kv::RankBox> stripes_of(const kv::Descriptor& source, const kv::Descriptor& target,
                                    std::uint32_t group) {
  std::vector<kv::RankBox> stripes;
  for (const kv::Descriptor* end : {&source, &target}) {
    for (const kv::RankBox& box : end->partition) {
      if (box.group != group || box.has_all_tokens()) continue;
      const kv::RankBox stripe{
          .token_begin = box.token_begin, .token_end = box.token_end, .token_period = box.token_period};
      if (std::find(stripes.begin(), stripes.end(), stripe) == stripes.end()) stripes.push_back(stripe);
    }
  }
  return stripes;
}

Result<TokenPattern> TokenCutter::cut(kv::TokenRange tokens) {
  TokenPattern pattern;
  std::vector<std::vector<bool>> members;  // By cut.
  for (std::uint64_t at = tokens.begin; at < tokens.end;) {
    steps_ += stripes_.size() + 1;
    if (steps_ > kStepsMax)
      return Error{Code::kExhausted,
                   fmt::format("ranks cut {} kinds of positions too finely", stripes_.size())};
    std::uint64_t end = tokens.end;
    std::vector<bool> has;
    has.reserve(stripes_.size());
    for (const kv::RankBox& stripe : stripes_) {
      end = std::min(end, stripe.token_bound_after(at));
      has.push_back(stripe.has_token(at));
    }
    const auto known = std::find(members.begin(), members.end(), has);
    const auto index = static_cast<std::size_t>(known - members.begin());
    if (known == members.end()) {
      members.push_back(std::move(has));
      pattern.emplace_back();
    }
    std::vector<kv::TokenRange>& runs = pattern[index].runs;
    if (!runs.empty() && runs.back().end == at - tokens.begin) {
      runs.back().end = end - tokens.begin;
    } else {
      runs.push_back({at - tokens.begin, end - tokens.begin});
    }
    at = end;
  }
  return pattern;
}

}  // namespace isthmus::transform
