// SPDX-License-Identifier: Apache-2.0
// The specification's tables and golden vectors against this implementation.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kv/negotiate.h"
#include "kv/published.h"
#include "kv/sample.h"

namespace isthmus::kv {
namespace {

const std::string kSpec = ISTHMUS_SPEC_DIR;

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The file must hold `text`. ISTHMUS_UPDATE_VECTORS=1 writes it instead: for a deliberate change of the
// format.
void expect_vector(const std::string& name, const std::string& text) {
  const std::string path = fmt::format("{}/vectors/kv/{}", kSpec, name);
  if (std::getenv("ISTHMUS_UPDATE_VECTORS") != nullptr) {
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path, std::ios::binary) << text;
    return;
  }
  EXPECT_EQ(read(path), text) << path;
}

std::vector<std::string> cells(const std::string& line) {
  std::vector<std::string> out;
  std::istringstream stream(line);
  std::string cell;
  while (std::getline(stream, cell, '|')) {
    const auto begin = cell.find_first_not_of(' ');
    const auto end = cell.find_last_not_of(' ');
    out.push_back(begin == std::string::npos ? "" : cell.substr(begin, end - begin + 1));
  }
  return out;
}

TEST(Specification, ErrorTableIsThatOfTheCode) {
  std::istringstream lines(read(kSpec + "/errors.md"));
  std::string line;
  unsigned next = 0;
  while (std::getline(lines, line)) {
    const std::vector<std::string> row = cells(line);  // "", number, name, meaning, caller, HTTP
    if (row.size() < 6 || row[1].find_first_not_of("0123456789") != std::string::npos) continue;
    ASSERT_EQ(row[1], std::to_string(next));
    const auto code = static_cast<Code>(next);
    EXPECT_EQ(row[2], name(code));
    EXPECT_EQ(row[5], std::to_string(http_status(code))) << row[2];
    ++next;
  }
  EXPECT_EQ(next, kCodeCount);
}

TEST(Vectors, LayoutsHaveTheirCanonicalText) {
  std::string text;
  for (const Storage& storage : catalogue()) {
    const Descriptor descriptor = sample::descriptor(storage.name);
    const auto layout = descriptor.layout(0, 0);
    ASSERT_TRUE(layout.ok()) << layout.error().text();
    text += fmt::format("storage {}\nextents layers={} block_tokens={}", storage.name, sample::kLayers,
                        storage.block_tokens);
    for (const auto& [component, extent] : layout->extents().components) {
      text += fmt::format(" {}={}x{}", component, extent.heads, extent.dim);
    }
    text += fmt::format("\n{}\n{}", storage.layout_text, layout->canonical_text());
    for (const RegionLayout& region : layout->regions()) {
      text += fmt::format("bytes {} open=5 {}\n", region.name, layout->region_bytes(region.name, 5));
    }
    text += "\n";
  }
  expect_vector("layouts.txt", text);
}

Descriptor two_ranks() {
  Descriptor descriptor = sample::descriptor("vllm:flash_nhd");
  descriptor.weights_recipe = "bf16";
  descriptor.identity.adapters = {{"style", "0123"}, {"tone \\ of\tvoice", "4567"}};
  descriptor.partition = {{0, 0, 0, 4, 0, 1, 0}, {1, 0, 0, 4, 1, 3, 0}, {2, 0, 0, 4, 0, 3, 1}};
  descriptor.schema_minor = 1;
  return descriptor;
}

std::string file_name(std::string name) {
  std::replace(name.begin(), name.end(), ':', '-');
  return name;
}

TEST(Vectors, DescriptorsHaveTheirTextAndDigest) {
  std::string digests;
  std::vector<std::pair<std::string, Descriptor>> all{{"two-ranks", two_ranks()}};
  for (const Storage& storage : catalogue())
    all.emplace_back(file_name(storage.name), sample::descriptor(storage.name));
  for (const auto& [name, descriptor] : all) {
    expect_vector(fmt::format("descriptors/{}.txt", name), descriptor.canonical_text());
    digests += fmt::format("{}  {}.txt\n", descriptor.digest().hex(), name);
  }
  expect_vector("descriptors/digests.txt", digests);
}

TEST(Vectors, TokenChainsHaveTheirDigests) {
  TokenChain chain;
  std::string text = fmt::format("{} (no tokens)\n", chain.digest().hex());
  for (const int token : {1, 0, -1, 49151, 2147483647, 7, 7}) {
    chain.append(token);
    text += fmt::format("{} {}\n", chain.digest().hex(), token);
  }
  expect_vector("token_chain.txt", text);
}

constexpr std::array kPolicies{std::pair{"lossless", Exactness::kLossless},
                               std::pair{"bounded", Exactness::kBounded},
                               std::pair{"unqualified", Exactness::kUnqualified}};

std::string paths_text(std::string_view label, const std::vector<Reason>& reasons) {
  std::string out;
  for (const Reason& reason : reasons)
    out += fmt::format("{}{}", out.empty() ? fmt::format(" {}=", label) : ",", reason.path);
  return out;
}

// "reject exact=no roundings=0 forbid=PATH,… move=PATH,… convert=PATH,…"
std::string verdict_text(const Verdict& verdict) {
  return fmt::format("{} exact={} roundings={}{}{}{}", name(verdict.kind), verdict.exact ? "yes" : "no",
                     verdict.roundings, paths_text("forbid", verdict.rejects),
                     paths_text("move", verdict.redistributions), paths_text("convert", verdict.conversions));
}

TEST(Vectors, PairsHaveTheirVerdicts) {
  std::string text;
  const std::vector<std::string> names{"llamacpp:f16",
                                       "llamacpp:f32",
                                       "llamacpp:f16_v_transposed",
                                       "llamacpp:q8_0",
                                       "llamacpp:q8_0_unrotated",
                                       "llamacpp:q8_0_v_q4_0",
                                       "openvino:f32",
                                       "openvino:f16",
                                       "openvino:u8",
                                       "openvino:u8_channel",
                                       "openvino:u4",
                                       "vllm:flash_nhd"};
  for (const auto& [policy, exactness] : {kPolicies[0], kPolicies[1]}) {
    for (const std::string& source : names) {
      for (const std::string& target : names) {
        const Verdict verdict = negotiate(sample::descriptor(source), sample::descriptor(target),
                                          {.exactness = exactness, .qualifications = {}});
        text +=
            fmt::format("{} {} {} {}\n", policy, file_name(source), file_name(target), verdict_text(verdict));
      }
    }
  }
  expect_vector("verdicts.txt", text);
}

// '=' direct, 'm' redistribute, 'c' convert, 'b' both; capitals where numbers are rounded; '.' reject.
char letter_of(const Verdict& verdict) {
  const char letter = std::string_view(".=mcb").at(static_cast<std::size_t>(verdict.kind));
  return verdict.roundings == 0 ? letter : static_cast<char>(std::toupper(letter));
}

// Every storage with every storage, one letter a pair, targets in the order of the sources.
TEST(Vectors, EveryPairOfTheCatalogueHasItsVerdict) {
  std::string text;
  for (const auto& [policy, exactness] : {kPolicies[0], kPolicies[1]}) {
    for (const Storage& source : catalogue()) {
      text += fmt::format("{} {} ", policy, file_name(source.name));
      for (const Storage& target : catalogue()) {
        text += letter_of(negotiate(sample::descriptor(source.name), sample::descriptor(target.name),
                                    {.exactness = exactness, .qualifications = {}}));
      }
      text += "\n";
    }
  }
  expect_vector("catalogue_verdicts.txt", text);
}

TEST(Vectors, PublishedPairsHaveTheirVerdicts) {
  std::string text;
  for (const published::Pair& pair : published::pairs()) {
    for (const auto& [end, descriptor] : {std::pair{"prefill", &pair.prefill}, {"decode", &pair.decode}}) {
      ASSERT_TRUE(descriptor->validate().ok()) << pair.name << ": " << descriptor->validate().error().text();
      expect_vector(fmt::format("published/{}-{}.txt", pair.name, end), descriptor->canonical_text());
    }
    for (const auto& [policy, exactness] : kPolicies) {
      const Policy allowed{.exactness = exactness, .qualifications = {}};
      text += fmt::format("{} {} {}\n", policy, pair.name,
                          verdict_text(negotiate(pair.prefill, pair.decode, allowed)));
    }
  }
  expect_vector("published/verdicts.txt", text);
}

}  // namespace
}  // namespace isthmus::kv
