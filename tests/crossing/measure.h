// SPDX-License-Identifier: Apache-2.0
// Engines and prompts of what is measured of pairs (spec/qualification.md).
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/api/engine.h"
#include "kv/negotiate.h"
#include "qualify/measure.h"
#include "qualify/pair.h"
#include "qualify/prompts.h"

namespace isthmus::crossing {

using qualify::kForced;
using qualify::Logits;
using qualify::Tokens;

// The record that the bounded policy would need is what these tests write.
extern const kv::Policy kUnqualified;

std::string model_path();

// An engine with one way to store KV: "llamacpp:f16".
struct Form {
  std::string engine, kv_type;
  std::string text() const { return engine + ":" + kv_type; }
  // Four bits hold too little to be judged by the bar; such forms report their figure.
  bool is_four_bit() const {
    return kv_type.find("u4") != std::string::npos || kv_type.find("q4") != std::string::npos;
  }
};

struct ModelFile {
  std::string path = model_path();
  std::string lineage{};  // "": the file's own.
};

// Room for three sequences of the longest prompt; `threads` as engines' options have it.
Result<std::unique_ptr<engine::Engine>> make_engine(const Form& form, std::uint32_t threads,
                                                    const ModelFile& model = {});

// Number `index` of qualify::prompt_lengths().
Tokens prompt(std::size_t index);

// The decoder's own greedy tokens: the slow part, one forward a token, so kept between runs in the build
// folder.
Tokens own_tokens(engine::Engine& engine, const Tokens& prompt);
// The decoder alone along them.
qualify::Reference reference(engine::Engine& engine, const Tokens& prompt, const Tokens& forced);

}  // namespace isthmus::crossing
