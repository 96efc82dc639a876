// SPDX-License-Identifier: Apache-2.0
// Every storage of the catalogue to every one that keeps the same state, over ranks, heads, block sizes and
// token counts. The unit tests run a cover of all pairs of two parameters; `make pairs` far more.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bitset>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "transform/ranks.h"
#include "transform/test_ranks.h"
#include "transform/test_state.h"

namespace isthmus::transform {
namespace {

constexpr std::array<std::uint32_t, 4> kHeads{1, 2, 8, 10};
constexpr std::array<std::uint32_t, 5> kBlocks{1, 16, 32, 64, 128};
constexpr std::array<std::uint64_t, 5> kTokens{1, 15, 16, 17, 1000};
// First positions: as after a prefix that the target has, within blocks, at their bounds, and inside the
// tokens of a scale.
constexpr std::array<std::uint64_t, 4> kFirsts{0, 5, 64, 300};
struct Ends {
  Degrees from, to;
};
// The same six for tensor and for pipeline ranks; then positions dealt out to context ranks, in stripes and
// in runs.
constexpr std::array<Ends, 15> kDegrees{{{{1, 1}, {1, 1}},
                                         {{1, 1}, {2, 1}},
                                         {{2, 1}, {1, 1}},
                                         {{3, 1}, {2, 1}},
                                         {{4, 1}, {8, 1}},
                                         {{8, 1}, {3, 1}},
                                         {{1, 1}, {1, 2}},
                                         {{1, 2}, {1, 1}},
                                         {{1, 3}, {1, 2}},
                                         {{1, 4}, {1, 8}},
                                         {{1, 8}, {1, 3}},
                                         {{1, 1, 4, 64}, {1, 1}},
                                         {{1, 1}, {1, 1, 2, 1}},
                                         {{2, 1, 2, 16}, {1, 2, 3, 64}},
                                         {{1, 2, 2, 320, false}, {2, 1, 4, 32}}}};

// Indices into the values above; the storages' into catalogue().
enum Parameter : std::size_t {
  kSource,
  kTarget,
  kRanks,
  kHeadCount,
  kSourceBlock,
  kTargetBlock,
  kTokenCount,
  kFirst
};
constexpr std::size_t kParameters = 8;
using Case = std::array<std::size_t, kParameters>;

std::size_t values_of(std::size_t parameter) {
  const std::array<std::size_t, kParameters> counts{
      kv::catalogue().size(), kv::catalogue().size(), kDegrees.size(), kHeads.size(),
      kBlocks.size(),         kBlocks.size(),         kTokens.size(),  kFirsts.size()};
  return counts.at(parameter);
}

// What a storage keeps; only storages of one kind share a state.
std::string kind_of(const kv::Storage& storage) {
  std::set<std::string> names;
  for (const kv::DecodeForm& form : storage.forms) names.insert(form.component);
  return fmt::format("{}", fmt::join(names, ","));
}

std::string text(const Case& one) {
  const Ends& degrees = kDegrees[one[kRanks]];
  const auto block = [&](std::size_t storage, std::size_t index) {
    return kv::catalogue()[storage].block_tokens == 0 ? std::string("rows")
                                                      : fmt::format("{}", kBlocks[index]);
  };
  const auto ranks = [](const Degrees& end) {
    return fmt::format("{}x{}x{}/{}", end.tensor, end.pipeline, end.context, end.run);
  };
  return fmt::format("{} > {}, ranks {} > {}, {} heads, blocks {} > {}, {} tokens from {}",
                     kv::catalogue()[one[kSource]].name, kv::catalogue()[one[kTarget]].name,
                     ranks(degrees.from), ranks(degrees.to), kHeads[one[kHeadCount]],
                     block(one[kSource], one[kSourceBlock]), block(one[kTarget], one[kTargetBlock]),
                     kTokens[one[kTokenCount]], kFirsts[one[kFirst]]);
}

kv::TokenRange tokens_of(const Case& one) {
  const std::uint64_t first = kFirsts[one[kFirst]];
  return {first, first + kTokens[one[kTokenCount]]};
}

Result<kv::Descriptor> end_of(const kv::Storage& storage, const TestShape& shape, Degrees degrees,
                              std::uint32_t block) {
  kv::Descriptor made = test_identity();
  ISTHMUS_TRY(add_group(made, storage, shape, block));
  ISTHMUS_TRY(split_ranks(made, degrees));
  ISTHMUS_TRY(made.validate());
  return made;
}

struct Built {
  kv::Descriptor source, target;
  kv::Verdict verdict;
};

// Why a case can't be: one line, the same for cases of one kind.
Error invalid(std::string why) {
  return Error{Code::kInvalidArgument, std::move(why)};
}

// Of two storages, whatever the case: nothing has to be built to know it.
Status can_cross(const kv::Storage& from, const kv::Storage& to) {
  if (kind_of(from) != kind_of(to))
    return invalid(fmt::format("{} and {} are unlike states", kind_of(from), kind_of(to)));
  for (std::size_t c = 0; c < from.forms.size(); ++c) {
    const kv::DecodeForm &a = from.forms[c], &b = to.forms[c];
    if (!a.same_form(b) && (!has_formula(a) || !has_formula(b)))
      return invalid(fmt::format("no formula written out for {} > {}", a.text(), b.text()));
  }
  return ok_status();
}

Result<Built> build(const Case& one) {
  const kv::Storage& from = kv::catalogue()[one[kSource]];
  const kv::Storage& to = kv::catalogue()[one[kTarget]];
  ISTHMUS_TRY(can_cross(from, to));
  const bool has_heads = kind_of(from) == "k,v";
  TestShape shape{.layers = 2, .heads = kHeads[one[kHeadCount]], .dim = 64};
  if (!has_heads) {
    if (shape.heads != 1) return invalid("a latent state has one head");
    shape.attention =
        kind_of(from) == "index_k" ? kv::AttentionKind::kSparseIndexed : kv::AttentionKind::kMla;
    const auto is_584 = [](const kv::Storage& storage) { return storage.name == "vllm:mla_fp8_584"; };
    shape.latent_dim = is_584(from) || is_584(to) ? 448 : 512;
  }
  const Ends& degrees = kDegrees[one[kRanks]];
  shape.layers = std::max({shape.layers, degrees.from.pipeline, degrees.to.pipeline});
  auto source = end_of(from, shape, degrees.from, kBlocks[one[kSourceBlock]]);
  if (!source.ok()) return invalid(fmt::format("source {}: {}", from.name, source.error().text()));
  auto target = end_of(to, shape, degrees.to, kBlocks[one[kTargetBlock]]);
  if (!target.ok()) return invalid(fmt::format("target {}: {}", to.name, target.error().text()));
  kv::Verdict verdict = test_verdict(*source, *target);
  if (verdict.kind == kv::VerdictKind::kReject) {
    return invalid(
        fmt::format("the verdict on {} > {}: {}", from.name, to.name, verdict.rejects.front().text));
  }
  for (std::size_t c = 0; c < source->groups[0].components.size(); ++c) {
    const kv::WireComponent a = numbers_of(*source, 0, c), b = numbers_of(*target, 0, c);
    if (a.form.same_form(b.form) && a.value_transforms == b.value_transforms) continue;
    if (!has_formula(a.form) || !has_formula(b.form))
      return invalid(fmt::format("no formula written out for {} > {}", a.form.text(), b.form.text()));
  }
  const kv::TokenRange tokens = tokens_of(one);
  if (const std::uint64_t whole = whole_groups_from(*source, *target, tokens.begin); whole != tokens.begin) {
    EXPECT_EQ(Plan::make(*source, *target, verdict, tokens).code(), Code::kInvalidArgument);
    return invalid(
        fmt::format("tokens from {} on begin inside a group that shares scales, those from {} on don't",
                    tokens.begin, whole));
  }
  return Built{*std::move(source), *std::move(target), std::move(verdict)};
}

// Empty if every byte of every target rank is what the plain loop makes it.
std::string wrong_with(const Case& one, const Built& built, TestRows* known) {
  const kv::TokenRange tokens = tokens_of(one);
  auto plan = Plan::make(built.source, built.target, built.verdict, tokens);
  if (!plan.ok()) return plan.error().text();
  const auto shared = std::make_shared<const Plan>(*std::move(plan));
  // A source has what lies before, too; a target may have begun its table with what it asks for.
  const std::uint64_t first = one[kFirst] % 2 == 0 ? 0 : tokens.begin;
  TestRanks from(built.source, 0, {0, tokens.end}, 1), to(built.target, first, tokens, 2),
      expected(built.target, first, tokens, 2);
  write_state(built.source, built.target, shared->product(), {one[kSource], known}, &from, &expected);
  const Result<Moved> moved = redistribute({.plan = shared,
                                            .source = built.source,
                                            .target = built.target,
                                            .from = from.memory(),
                                            .to = to.memory()});
  if (!moved.ok()) return moved.error().text();
  for (std::size_t m = 0; m < to.bytes().size(); ++m) {
    const auto [seen, wanted] =
        std::mismatch(to.bytes()[m].begin(), to.bytes()[m].end(), expected.bytes()[m].begin());
    if (seen != to.bytes()[m].end())
      return fmt::format("memory {} of the target differs from byte {} on", m, seen - to.bytes()[m].begin());
  }
  return "";
}

// What ran and what couldn't, for the summary.
struct Tally {
  std::uint64_t crossed = 0;
  std::map<std::string, std::uint64_t> invalid;
  std::set<std::pair<std::size_t, std::size_t>> storages;

  void run(const Case& one) { take(one, build(one), nullptr); }
  // `known`: rows of earlier cases with the same storages and tokens.
  void take(const Case& one, const Result<Built>& built, TestRows* known) {
    if (!built.ok()) {
      ++invalid[built.error().detail];
      return;
    }
    const std::string wrong = wrong_with(one, *built, known);
    EXPECT_EQ(wrong, "") << text(one);
    ++crossed;
    storages.emplace(one[kSource], one[kTarget]);
  }

  void print(const char* name) const {
    std::uint64_t refused = 0;
    for (const auto& [why, count] : invalid) refused += count;
    fmt::print("{}: {} cases crossed between {} pairs of storages; {} couldn't be:\n", name, crossed,
               storages.size(), refused);
    for (const auto& [why, count] : invalid) fmt::print("  {:8} {}\n", count, why);
  }
};

// --- A cover: each valid combination of two parameters' values occurs in some case.

// Has scales that some tokens share.
bool spans_tokens(std::size_t storage) {
  return std::ranges::any_of(kv::catalogue()[storage].forms,
                             [](const kv::DecodeForm& form) { return form.granule_tokens > 1; });
}

class Cover {
 public:
  Cover() {
    for (std::size_t a = 0; a < kParameters; ++a) {
      for (std::size_t b = a + 1; b < kParameters; ++b) {
        for (std::size_t x = 0; x < values_of(a); ++x) {
          for (std::size_t y = 0; y < values_of(b); ++y) open_.insert({a, x, b, y});
        }
      }
    }
  }

  std::vector<Case> cases() {
    std::vector<Case> made;
    while (!open_.empty()) {
      const Pair wanted = *open_.begin();
      Case best{};
      std::size_t gain = 0;
      for (int attempt = 0; attempt < kAttempts && (gain == 0 || attempt < kEnough); ++attempt) {
        Case one = some_case();
        one[wanted[0]] = wanted[1];
        one[wanted[2]] = wanted[3];
        if (!is_valid(one)) continue;
        const std::size_t found = gain_of(one);
        if (found > gain) {
          gain = found;
          best = one;
        }
      }
      if (gain == 0) {
        open_.erase(wanted);
        impossible_.push_back(wanted);
        continue;
      }
      close(best);
      made.push_back(best);
    }
    return made;
  }
  const std::vector<std::array<std::size_t, 4>>& impossible() const { return impossible_; }

 private:
  using Pair = std::array<std::size_t, 4>;  // Parameter, value, parameter, value.
  static constexpr int kAttempts = 300, kEnough = 24;

  std::uint64_t next() {
    state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
    return state_ >> 33;
  }
  Case some_case() {
    Case one{};
    for (std::size_t p = 0; p < kParameters; ++p) one.at(p) = next() % values_of(p);
    // Long states are dear: they come where they are asked for, and now and then.
    if (one[kTokenCount] + 1 == kTokens.size() && next() % 4 != 0)
      one[kTokenCount] = next() % (kTokens.size() - 1);
    return one;
  }
  // Building is dear, so the plain reasons come first.
  bool is_valid(const Case& one) {
    const std::string kind = kind_of(kv::catalogue()[one[kSource]]);
    if (kind != kind_of(kv::catalogue()[one[kTarget]])) return false;
    if (kind != "k,v" && kHeads[one[kHeadCount]] != 1) return false;
    auto key = one;
    key[kTokenCount] = 0;
    if (!spans_tokens(one[kSource]) && !spans_tokens(one[kTarget])) key[kFirst] = 0;
    const auto [at, is_new] = valid_.try_emplace(key, false);
    if (is_new) at->second = build(one).ok();
    return at->second;
  }
  template <typename Each>
  void for_pairs(const Case& one, Each each) {
    for (std::size_t a = 0; a < kParameters; ++a) {
      for (std::size_t b = a + 1; b < kParameters; ++b) each(Pair{a, one.at(a), b, one.at(b)});
    }
  }
  std::size_t gain_of(const Case& one) {
    std::size_t gain = 0;
    for_pairs(one, [&](const Pair& pair) { gain += open_.count(pair); });
    return gain;
  }
  void close(const Case& one) {
    for_pairs(one, [&](const Pair& pair) { open_.erase(pair); });
  }

  std::set<Pair> open_;
  std::map<Case, bool> valid_;
  std::vector<Pair> impossible_;
  std::uint64_t state_ = 7;
};

// Sanitizers take five times as long: every so many of the cases there (cmake/isthmus.cmake).
std::size_t stride() {
  const char* wanted = std::getenv("ISTHMUS_TEST_STRIDE");
  return wanted == nullptr ? 1 : std::stoul(wanted);
}

TEST(Pairs, ACoverOfAllPairsOfValuesCrosses) {
  Cover cover;
  std::vector<Case> cases = cover.cases();
  EXPECT_LE(cases.size(), 3000u);
  const std::size_t each = stride();
  std::size_t kept = 0;
  for (std::size_t i = 0; i < cases.size(); i += each) cases[kept++] = cases[i];
  cases.resize(kept);
  Tally tally;
  for (const Case& one : cases) tally.run(one);
  EXPECT_EQ(tally.crossed, cases.size());
  tally.print("cover");
  std::map<std::string, int> impossible;
  for (const auto& [a, x, b, y] : cover.impossible()) {
    Case one{};  // The plainest case of these two says why.
    one[kSourceBlock] = one[kTargetBlock] = 2;
    one[a] = x;
    one[b] = y;
    if (a != kSource || b != kTarget) one[kTarget] = one[kSource];
    const Result<Built> built = build(one);
    ++impossible[built.ok() ? "never valid together" : built.error().detail];
  }
  fmt::print("  no case at all for {} pairs of values:\n", cover.impossible().size());
  for (const auto& [why, count] : impossible) fmt::print("  {:8} {}\n", count, why);
}

// Every pair of storages, ranks, heads and token counts (of 1,000 tokens a quarter); block sizes in turn, so
// that each two of them occur for each two storages; the first position is 0 or one of the others, in turn.
// In parts, for several processors: `make pairs`.
constexpr std::size_t kShards = 40;
class EveryPair : public testing::TestWithParam<std::size_t> {};

TEST_P(EveryPair, DISABLED_Crosses) {
  Tally tally;
  const std::size_t storages = kv::catalogue().size();
  for (std::size_t source = GetParam(); source < storages; source += kShards) {
    for (std::size_t target = 0; target < storages; ++target) {
      const Status possible = can_cross(kv::catalogue()[source], kv::catalogue()[target]);
      if (!possible.ok()) {
        tally.invalid[possible.error().detail] += kTokens.size() * kDegrees.size() * kHeads.size();
        continue;
      }
      // Two first positions for each two storages, so that rows serve many cases.
      std::array<std::array<TestRows, kTokens.size()>, 2> known;
      for (std::size_t rest = 0; rest < kDegrees.size() * kHeads.size(); ++rest) {
        const std::size_t ranks = rest / kHeads.size(), heads = rest % kHeads.size();
        const std::size_t is_later = (ranks + heads) % 2;
        // 25 values of `rest` in a row give each two block sizes.
        Case one{source,
                 target,
                 ranks,
                 heads,
                 rest % kBlocks.size(),
                 (rest / kBlocks.size() + rest) % kBlocks.size(),
                 0,
                 is_later * (1 + (source + target) % (kFirsts.size() - 1))};
        const Result<Built> built = build(one);  // Dear, and the same for all numbers of tokens.
        for (std::size_t tokens = 0; tokens < kTokens.size(); ++tokens) {
          // Long states are dear: a quarter of the ranks and heads of each two storages, all in four
          // neighbours.
          if (tokens + 1 == kTokens.size() && (ranks + heads + source + target) % 4 != 0) continue;
          one[kTokenCount] = tokens;
          tally.take(one, built, &known.at(is_later).at(tokens));
        }
      }
    }
    fmt::print(stderr, "pairs: {} to every storage\n", kv::catalogue()[source].name);
  }
  tally.print("pairs");
}

INSTANTIATE_TEST_SUITE_P(Shards, EveryPair, testing::Range(std::size_t{0}, kShards));

}  // namespace
}  // namespace isthmus::transform
