// SPDX-License-Identifier: Apache-2.0
// Engines and prompts of the tests that share them.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/openvino/openvino.h"

namespace isthmus::engine::openvino {

// The file that the tests of this program run: the shipped model, or a small random one with a sliding window
// (shipped_model_test.cc, windowed_model_test.cc).
std::string model_path();

// Engines of one file's tests, each made when its KV type is first asked for.
class TestEngines {
 public:
  // `options`: all but the KV type.
  explicit TestEngines(Options options) : options_(std::move(options)) {}

  Engine& of(const std::string& kv_type) {
    auto& slot = engines_[kv_type];
    if (!slot) {
      options_.kv_type = kv_type;
      auto made = make_openvino(options_);
      if (!made.ok()) ADD_FAILURE() << made.error().text();
      slot = *std::move(made);
    }
    return *slot;
  }

 private:
  Options options_;
  std::map<std::string, std::unique_ptr<Engine>> engines_;
};

// Prompts of another kind have no beginning in common.
inline std::vector<TokenId> some_tokens(std::size_t count, std::size_t kind = 0) {
  std::vector<TokenId> tokens;
  for (std::size_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<TokenId>(300 + (i + 1) * (7919 + 104 * kind) % 40000));
  return tokens;
}

}  // namespace isthmus::engine::openvino
