// SPDX-License-Identifier: Apache-2.0
// See token_cuts.h.
#include "transform/token_cuts.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

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

std::uint64_t period_of(const std::vector<kv::RankBox>& stripes) {
  constexpr std::uint64_t kPeriodMax = std::uint64_t{1} << 20;
  std::uint64_t period = 1;
  for (const kv::RankBox& stripe : stripes) {
    if (stripe.token_period == 0 || stripe.token_period > kPeriodMax) return 0;
    period = std::lcm(period, stripe.token_period);
    if (period > kPeriodMax) return 0;
  }
  return period;
}

Result<TokenPattern> TokenCutter::cut(kv::TokenRange tokens) {
  if (period_ == 0) return cut_anew(tokens);
  const std::pair key(tokens.begin % period_, tokens.size());
  const auto known = known_.find(key);
  if (known != known_.end()) return known->second;
  ISTHMUS_TRY(TokenPattern pattern, cut_anew(tokens));
  return known_.emplace(key, std::move(pattern)).first->second;
}

Result<TokenPattern> TokenCutter::cut_anew(kv::TokenRange tokens) {
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
