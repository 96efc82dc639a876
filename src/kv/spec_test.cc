// SPDX-License-Identifier: Apache-2.0
// The specification's tables and golden vectors against this implementation.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "kv/negotiate.h"
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
  return descriptor;
}

TEST(Vectors, DescriptorsHaveTheirTextAndDigest) {
  std::string digests;
  const std::vector<std::pair<std::string, Descriptor>> all{
      {"llamacpp-f16", sample::descriptor("llamacpp:f16")},
      {"llamacpp-q8_0", sample::descriptor("llamacpp:q8_0")},
      {"llamacpp-q8_0_v_q4_0", sample::descriptor("llamacpp:q8_0_v_q4_0")},
      {"openvino-f32", sample::descriptor("openvino:f32")},
      {"openvino-u8", sample::descriptor("openvino:u8")},
      {"openvino-u8_channel", sample::descriptor("openvino:u8_channel")},
      {"openvino-u4", sample::descriptor("openvino:u4")},
      {"vllm-mla_fp8_656", sample::descriptor("vllm:mla_fp8_656")},
      {"two-ranks", two_ranks()},
  };
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
  for (const Exactness exactness : {Exactness::kLossless, Exactness::kBounded}) {
    for (const std::string& source : names) {
      for (const std::string& target : names) {
        const Verdict verdict = negotiate(sample::descriptor(source), sample::descriptor(target),
                                          {.exactness = exactness, .qualifications = {}});
        text += fmt::format("{:<8} {:<25} {:<25} {:<20} exact={} roundings={}",
                            exactness == Exactness::kLossless ? "lossless" : "bounded", source, target,
                            name(verdict.kind), verdict.exact ? "yes" : "no", verdict.roundings);
        for (const Reason& reason : verdict.rejects) text += " " + reason.path;
        text += "\n";
      }
    }
  }
  expect_vector("verdicts.txt", text);
}

}  // namespace
}  // namespace isthmus::kv
