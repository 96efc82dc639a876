// SPDX-License-Identifier: Apache-2.0
// See kv_options.h.
#include "cli/kv_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <string_view>
#include <thread>

#include "cli/options.h"

namespace isthmus::cli {
namespace {

const std::map<std::string, kv::Exactness> kExactness = {{"lossless", kv::Exactness::kLossless},
                                                         {"bounded", kv::Exactness::kBounded},
                                                         {"unqualified", kv::Exactness::kUnqualified}};

const std::map<std::string, kv::NonFinite> kNonFinite = {{"refuse", kv::NonFinite::kRefuse},
                                                         {"replace", kv::NonFinite::kReplace}};

const std::map<std::string, kvs::Compression> kCompression = {{"none", kvs::Compression::kNone},
                                                              {"zstd", kvs::Compression::kZstd}};

constexpr const char* kSampleExamples =
    "The same seed gives the same numbers whatever layout, blocks and ranks.\n"
    "\n"
    "Examples:\n"
    "  isthmus kv sample llamacpp:f16 a.kvs\n"
    "  isthmus kv sample vllm:flash_nhd b.kvs --layers 8 --heads 8 --dim 128 --tokens 100..1300 --ranks 4x2";

constexpr const char* kConvertExamples =
    "Redistributes and converts as a handoff would, reads back what was placed, writes a new file, and says\n"
    "how many values were clamped to the new format's largest. Exit code 5 if the policy forbids it.\n"
    "\n"
    "Examples:\n"
    "  isthmus kv convert a.kvs openvino:u8 b.kvs\n"
    "  isthmus kv convert a.kvs sglang:page b.kvs --block 16 --ranks 3x1 --policy lossless --compress zstd\n"
    "  isthmus kv convert a.kvs vllm:flash_nhd_fp8 b.kvs --static-scale k=0.02,v=0.03\n"
    "  isthmus kv convert a.kvs vllm:flash_nhd b.kvs --ranks 2x1 --context 4 --run 64";

constexpr const char* kLiveExamples =
    "The engine's probe runs first. Import refuses a file of another prompt (exit code 5).\n"
    "\n"
    "Examples:\n"
    "  isthmus kv export a.kvs --model m.gguf --engine llamacpp:f16 --prompt \"Once upon a time\"\n"
    "  isthmus kv convert a.kvs vllm:flash_hnd b.kvs --policy lossless\n"
    "  isthmus kv import b.kvs --model m.gguf --engine llamacpp:f16 --prompt \"Once upon a time\"";

constexpr const char* kQualifyExamples =
    "Each prompt runs through both engines and the real handoff in this process: the decoder alone answers "
    "with\n"
    "64 tokens, which are then forced on the pair and on the prefill engine alone, and the distributions of\n"
    "each next token are compared. The policy bounded lets an unlike pair through with the record this "
    "writes:\n"
    "name its file under 'qualifications' in the fleet file. Exit code 6 if the pair is too far away for "
    "its\n"
    "record to cover it, 5 if no state may cross at all.\n"
    "\n"
    "Examples:\n"
    "  isthmus kv qualify llamacpp:f16 openvino:u8 --model m.gguf --out qualification.yaml\n"
    "  isthmus kv qualify openvino:u8 llamacpp:f16 --model m.gguf --prompts mine.txt --limit 20 --json";

constexpr const char* kVerifyExamples =
    "Manifest, every header, every tile digest, the root. Exit code 7 if the file is damaged.\n"
    "\n"
    "Examples:\n"
    "  isthmus kv verify a.kvs\n"
    "  isthmus kv verify a.kvs --json";

constexpr const char* kDiffExamples =
    "Descriptors line by line, tiles by their digests whatever layout they had, values as f32. Exit code 7\n"
    "unless both hold the same state.\n"
    "\n"
    "Examples:\n"
    "  isthmus kv diff a.kvs b.kvs\n"
    "  isthmus kv diff a.kvs b.kvs --json";

constexpr const char* kCatalogueExamples =
    "Examples:\n"
    "  isthmus kv catalogue\n"
    "  isthmus kv catalogue openvino:u8 --json";

// "4x2" or "4".
bool parse_ranks(const std::string& text, transform::Degrees& degrees) {
  const char* end = text.data() + text.size();
  const auto tensor = std::from_chars(text.data(), end, degrees.tensor);
  if (tensor.ec != std::errc()) return false;
  if (tensor.ptr == end) return true;
  if (*tensor.ptr != 'x') return false;
  const auto pipeline = std::from_chars(tensor.ptr + 1, end, degrees.pipeline);
  return pipeline.ec == std::errc() && pipeline.ptr == end;
}

// "300" or "100..400".
bool parse_tokens(const std::string& text, kv::TokenRange& tokens) {
  const char* end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, tokens.end);
  if (first.ec != std::errc()) return false;
  if (first.ptr == end) {
    tokens.begin = 0;
    return tokens.end > 0;
  }
  if (end - first.ptr < 3 || first.ptr[0] != '.' || first.ptr[1] != '.') return false;
  tokens.begin = tokens.end;
  const auto last = std::from_chars(first.ptr + 2, end, tokens.end);
  return last.ec == std::errc() && last.ptr == end && tokens.begin < tokens.end;
}

bool parse_scales(std::string_view text, std::vector<float>& scales) {
  for (;;) {
    const std::size_t end = std::min(text.find(':'), text.size());
    float scale = 0;
    const auto [at, error] = std::from_chars(text.data(), text.data() + end, scale);
    if (error != std::errc() || at != text.data() + end || !std::isfinite(scale) || scale <= 0) return false;
    scales.push_back(scale);
    if (end == text.size()) return true;
    text.remove_prefix(end + 1);
  }
}

// "k=0.02,v=0.03:0.04", or nothing.
bool parse_static_scales(std::string_view text, kv::StaticScales& scales) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(','), text.size()), equal = text.find('=');
    if (equal == 0 || equal >= end || (end < text.size() && end + 1 == text.size())) return false;
    std::vector<float>& own = scales[std::string(text.substr(0, equal))];
    if (!own.empty() || !parse_scales(text.substr(equal + 1, end - equal - 1), own)) return false;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return true;
}

}  // namespace

KvOptions::KvOptions(CLI::App& kv) {
  add_live(kv, "export", "Write the state of a prompt that an engine computes here",
           LiveCommand::What::kExport);
  add_live(kv, "import", "Go on from a file's state with an engine here", LiveCommand::What::kImport);
  add_qualify(kv);
  add_convert(kv);
  add_others(kv);
  add_sample(kv);
}

void KvOptions::add_shape(CLI::App& app, const char* target) {
  app.add_option("STORAGE", command_.storage, fmt::format("{}: one of isthmus kv catalogue", target))
      ->required();
  app.add_option("OUT", command_.output, "The file to write")->required();
  app.add_option("--ranks", ranks_, "Tensor ranks x pipeline ranks")->type_name("TxP")->capture_default_str();
  app.add_option("--context", command_.degrees.context, "Context ranks: each has some positions")
      ->check(CLI::Range(1, 1024))
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--run", command_.degrees.run, "Tokens in a row on a context rank, in turn")
      ->check(CLI::Range(1, 65536))
      ->type_name("TOKENS");
  app.add_option("--block", command_.block_tokens, "Tokens a block; the storage's usual ones if not given")
      ->check(CLI::Range(1, 65536))
      ->type_name("TOKENS");
  app.add_option("--compress", compression_, "Chunks that get smaller by it; others are stored as they are")
      ->check(CLI::IsMember(kCompression))
      ->type_name("none|zstd")
      ->capture_default_str();
  app.add_flag("--json", command_.json, "One JSON object");
}

void KvOptions::add_convert(CLI::App& kv) {
  CLI::App* app = kv.add_subcommand("convert", "Write a file's state as another storage keeps it");
  app->add_option("FILE", command_.input, "A .kvs file")->required();
  add_shape(*app, "What it becomes");
  app->add_option("--policy", policy_, "What may change: lossless, bounded, unqualified")
      ->check(CLI::IsMember(kExactness))
      ->type_name("POLICY")
      ->capture_default_str();
  app->add_option("--non-finite", non_finite_, "Infinities and NaNs: refuse the file, or replace and count")
      ->check(CLI::IsMember(kNonFinite))
      ->type_name("refuse|replace")
      ->capture_default_str();
  app->add_option("--static-scale", static_scales_,
                  "The checkpoint's, of a storage whose codes have static scales: one a component, or one a "
                  "layer as k=0.02:0.03; without it those of the file's own codes of that format")
      ->type_name("k=N,v=N");
  command_.threads = std::max(1u, std::thread::hardware_concurrency());
  app->add_option("--threads", command_.threads, "That convert; the file is the same for any number")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app->footer(kConvertExamples);
  apps_.emplace_back(app, KvCommand::What::kConvert);
}

void KvOptions::add_live(CLI::App& kv, const char* name, const char* about, LiveCommand::What what) {
  CLI::App* app = kv.add_subcommand(name, about);
  app->add_option("FILE", live_.file, "A .kvs file")->required();
  app->add_option("--model", live_.model_path, "GGUF file")->required()->type_name("FILE");
  app->add_option("--engine", live_engine_, "Engine and how it keeps KV, as llamacpp:f16, openvino:u8")
      ->required();
  app->add_option("--prompt", live_.prompt, "Text; its last token is the first step behind the state")
      ->required();
  app->add_option("--generate", live_.generate, "Tokens to go on with, the likeliest each")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  app->add_option("--threads", live_.threads, "Of the engine")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  if (what == LiveCommand::What::kImport) {
    app->add_option("--policy", live_policy_, "What may change: lossless, bounded, unqualified")
        ->check(CLI::IsMember(kExactness))
        ->type_name("POLICY")
        ->capture_default_str();
  }
  app->add_flag("--json", live_.json, "One JSON object");
  app->footer(kLiveExamples);
  live_apps_.emplace_back(app, what);
}

void KvOptions::add_qualify(CLI::App& kv) {
  CLI::App* app =
      kv.add_subcommand("qualify", "Measure whether a pair of engines answers like its decoder alone");
  app->add_option("PREFILL", prefill_choice_, "Engine and how it keeps KV, as llamacpp:f16")->required();
  app->add_option("DECODE", decode_choice_, "Likewise, as openvino:u8")->required();
  app->add_option("--model", qualify_.model_path, "GGUF file")->required()->type_name("FILE");
  app->add_option("--decode-model", qualify_.decode_model_path, "The decode engine's, if it has another")
      ->type_name("FILE");
  app->add_option("--activations", qualify_.activations, "Of OpenVINO, as its worker has them: f32 or int8")
      ->check(CLI::IsMember({"f32", "int8"}))
      ->type_name("TYPE")
      ->capture_default_str();
  app->add_option("--lineage", qualify_.lineage,
                  "Of both files, as the fleet file's first of its model has it")
      ->type_name("SHA256");
  app->add_option("--prompts", qualify_.prompts_file,
                  "Prompts of your own: one a line, or a JSON string a line; else 26 of 3 to 2000 tokens")
      ->type_name("FILE");
  app->add_option("--limit", qualify_.prompts_max, "So many of the prompts, spread over them")
      ->check(CLI::Range(1, 4096))
      ->type_name("N");
  app->add_option("--out", qualify_.output, "Write the record there")->type_name("FILE");
  app->add_option("--threads", qualify_.threads, "Of each engine")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app->add_flag("--json", qualify_.json, "One JSON object");
  app->footer(kQualifyExamples);
  qualify_app_ = app;
}

std::optional<QualifyCommand> KvOptions::parsed_qualify(std::string& error) {
  if (!qualify_app_->parsed()) return std::nullopt;
  const Result<EngineChoice> prefill = parse_engine_choice(prefill_choice_);
  const Result<EngineChoice> decode = parse_engine_choice(decode_choice_);
  for (const auto* choice : {&prefill, &decode}) {
    if (!choice->ok()) error = fmt::format("kv qualify: {}", choice->error().detail);
  }
  QualifyCommand command = qualify_;
  if (!error.empty()) return command;
  command.prefill_engine = prefill->engine;
  command.prefill_kv = prefill->kv_type;
  command.decode_engine = decode->engine;
  command.decode_kv = decode->kv_type;
  return command;
}

std::optional<LiveCommand> KvOptions::parsed_live(std::string& error) {
  for (const auto& [app, what] : live_apps_) {
    if (!app->parsed()) continue;
    LiveCommand command = live_;
    command.what = what;
    command.exactness = kExactness.at(live_policy_);
    const Result<EngineChoice> engine = parse_engine_choice(live_engine_);
    if (engine.ok()) {
      command.engine = engine->engine;
      command.kv_type = engine->kv_type;
    } else {
      error = fmt::format("kv {}: {}", app->get_name(), engine.error().detail);
    }
    return command;
  }
  return std::nullopt;
}

void KvOptions::add_sample(CLI::App& kv) {
  CLI::App* app = kv.add_subcommand("sample", "Write a file with a state that isn't any model's");
  add_shape(*app, "How it is kept");
  app->add_option("--layers", command_.layers)->check(CLI::Range(1, 1000))->capture_default_str();
  app->add_option("--heads", command_.heads, "KV heads")->check(CLI::Range(1, 1024))->capture_default_str();
  app->add_option("--dim", command_.dim, "Elements of one head's row")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app->add_option("--tokens", tokens_, "How many, or which positions")
      ->type_name("N|B..E")
      ->capture_default_str();
  app->add_option("--seed", command_.seed, "Of the numbers")->capture_default_str();
  app->footer(kSampleExamples);
  apps_.emplace_back(app, KvCommand::What::kSample);
}

void KvOptions::add_others(CLI::App& kv) {
  CLI::App* verify = kv.add_subcommand("verify", "Is a file whole and right?");
  verify->add_option("FILE", command_.input, "A .kvs file")->required();
  verify->add_flag("--json", command_.json, "One JSON object");
  verify->footer(kVerifyExamples);
  apps_.emplace_back(verify, KvCommand::What::kVerify);

  CLI::App* diff = kv.add_subcommand("diff", "Do two files hold the same state, and where do they differ?");
  diff->add_option("A", command_.input, "A .kvs file")->required();
  diff->add_option("B", command_.other, "Another one")->required();
  diff->add_flag("--json", command_.json, "One JSON object");
  diff->footer(kDiffExamples);
  apps_.emplace_back(diff, KvCommand::What::kDiff);

  CLI::App* catalogue = kv.add_subcommand("catalogue", "The storages that are known, with source and layout");
  catalogue->add_option("STORAGE", command_.storage, "This one only");
  catalogue->add_flag("--json", command_.json, "A JSON array");
  catalogue->footer(kCatalogueExamples);
  apps_.emplace_back(catalogue, KvCommand::What::kCatalogue);
}

const KvCommand* KvOptions::parsed(std::string& error) {
  for (const auto& [app, what] : apps_) {
    if (!app->parsed()) continue;
    command_.what = what;
    command_.exactness = kExactness.at(policy_);
    command_.non_finite = kNonFinite.at(non_finite_);
    command_.compression = kCompression.at(compression_);
    if (!parse_ranks(ranks_, command_.degrees))
      error = fmt::format("kv {}: --ranks \"{}\" isn't TENSORxPIPELINE, as 4x2", app->get_name(), ranks_);
    if (!parse_static_scales(static_scales_, command_.static_scales))
      error =
          fmt::format("kv {}: --static-scale \"{}\" isn't positive numbers by component, as k=0.02,v=0.03",
                      app->get_name(), static_scales_);
    if (!parse_tokens(tokens_, command_.tokens))
      error = fmt::format("kv {}: --tokens \"{}\" isn't a number or a range, as 300 or 100..400",
                          app->get_name(), tokens_);
    return &command_;
  }
  return nullptr;
}

}  // namespace isthmus::cli
