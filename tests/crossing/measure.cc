// SPDX-License-Identifier: Apache-2.0
// See measure.h.
#include "crossing/measure.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/digest.h"
#include "worker/embedded/engines.h"

namespace isthmus::crossing {
namespace {

constexpr std::uint64_t kEngineTokens = 3 * (2048 + 128);

}  // namespace

const kv::Policy kUnqualified{
    .exactness = kv::Exactness::kUnqualified, .roundings_max = 1, .qualifications = {}};

std::string model_path() {
  const char* path = std::getenv("ISTHMUS_TEST_MODEL");
  return path == nullptr ? "(ISTHMUS_TEST_MODEL is unset: name the GGUF file in it)" : path;
}

Result<std::unique_ptr<engine::Engine>> make_engine(const Form& form, std::uint32_t threads,
                                                    const ModelFile& model) {
  worker::WorkerOptions options;
  options.engine = form.engine;
  options.kv_type = form.kv_type;
  options.model_path = model.path;
  options.lineage = model.lineage;
  options.threads = threads;
  options.kv_tokens = kEngineTokens;
  options.sequences_max = 4;
  return worker::make_engine(options);
}

Tokens prompt(std::size_t index) {
  static const Tokens kCorpus =
      *(*worker::make_tokenizer(model_path()))->encode(qualify::corpus(), false, false);
  return qualify::prompt_of(kCorpus, index);
}

Tokens own_tokens(engine::Engine& engine, const Tokens& prompt) {
  std::string key = engine.info().version + engine.descriptor().digest().hex();
  for (const engine::TokenId token : prompt) key += fmt::format(" {}", token);
  const std::filesystem::path path = std::filesystem::path("crossing_baselines") / digest128(key).hex();
  Tokens tokens;
  if (std::ifstream file(path); file) {
    for (engine::TokenId token = 0; file >> token;) tokens.push_back(token);
    if (tokens.size() == kForced) return tokens;
  }
  tokens = *qualify::own_answer(engine, prompt);
  std::filesystem::create_directories(path.parent_path());
  std::ofstream file(path);
  for (const engine::TokenId token : tokens) file << token << ' ';
  return tokens;
}

qualify::Reference reference(engine::Engine& engine, const Tokens& prompt, const Tokens& forced) {
  return {*qualify::rows_alone(engine, prompt, forced), forced, engine.info().vocabulary};
}

}  // namespace isthmus::crossing
