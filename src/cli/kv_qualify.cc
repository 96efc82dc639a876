// SPDX-License-Identifier: Apache-2.0
// See kv_qualify.h.
#include "cli/kv_qualify.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "base/log.h"
#include "cli/options.h"
#include "cli/print.h"
#include "engine/probe/probe.h"
#include "http/json.h"
#include "qualify/prompts.h"
#include "qualify/summary.h"

namespace isthmus::cli {
namespace {

using qualify::Estimate;
using qualify::Measured;
using qualify::Tokens;

struct Ends {
  std::unique_ptr<engine::Engine> prefill, decode;
};

Result<std::vector<Tokens>> all_prompts(const QualifyCommand& command, const engine::Tokenizer& tokenizer) {
  if (!command.prompts_file.empty()) {
    std::ifstream file(command.prompts_file, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    if (!file) return Error{Code::kNotFound, fmt::format("{} can't be read", command.prompts_file)};
    auto prompts = qualify::parse_prompts(tokenizer, text);
    if (!prompts.ok()) return prompts.status().with_context(command.prompts_file).error();
    return prompts;
  }
  ISTHMUS_TRY(const Tokens corpus, tokenizer.encode(qualify::corpus(), false, false));
  std::vector<Tokens> prompts;
  for (std::size_t i = 0; i < qualify::prompt_lengths().size(); ++i)
    prompts.push_back(qualify::prompt_of(corpus, i));
  return prompts;
}

std::vector<Tokens> spread(std::vector<Tokens> all, std::size_t count) {
  if (count == 0 || count >= all.size()) return all;
  std::vector<Tokens> some;
  for (std::size_t i = 0; i < count; ++i) some.push_back(std::move(all[i * all.size() / count]));
  return some;
}

Result<std::unique_ptr<engine::Engine>> probed_engine(worker::WorkerOptions options, const std::string& name,
                                                      const std::string& kv, const std::string& model,
                                                      const MakeEngine& make_engine) {
  options.engine = name;
  options.kv_type = kv;
  if (name != "openvino") options.activations = "f32";
  options.model_path = model;
  ISTHMUS_TRY(auto engine, make_engine(options));
  ISTHMUS_TRY(engine::probe_meaning(*engine, model, engine::probe_tolerance(*engine)).status());
  return engine;
}

Result<Ends> start(const QualifyCommand& command, const std::vector<Tokens>& prompts,
                   const MakeEngine& make_engine) {
  const auto longest = std::ranges::max(prompts, {}, [](const Tokens& prompt) { return prompt.size(); });
  worker::WorkerOptions options;
  options.threads = command.threads;
  options.lineage = command.lineage;
  options.activations = command.activations;
  options.sequences_max = 4;
  options.kv_tokens = 3 * (longest.size() + 2 * qualify::kForced);
  const std::string& decode_model =
      command.decode_model_path.empty() ? command.model_path : command.decode_model_path;
  Ends ends;
  ISTHMUS_TRY(ends.prefill, probed_engine(options, command.prefill_engine, command.prefill_kv,
                                          command.model_path, make_engine));
  ISTHMUS_TRY(ends.decode,
              probed_engine(options, command.decode_engine, command.decode_kv, decode_model, make_engine));
  kv::Policy policy;
  policy.exactness = kv::Exactness::kUnqualified;
  const kv::Verdict verdict = kv::negotiate(ends.prefill->descriptor(), ends.decode->descriptor(), policy);
  if (verdict.kind != kv::VerdictKind::kReject) return ends;
  std::string why = "no state may be handed over between the two, whatever is measured:";
  for (const kv::Reason& reason : verdict.rejects) {
    why += fmt::format("\n  {}: {}", reason.path, reason.text);
    if (reason.path == "identity.lineage")
      why += fmt::format("; if both files were made of one checkpoint, say --lineage {}", reason.source);
  }
  return Error{Code::kIncompatible, std::move(why)};
}

Result<std::vector<Measured>> measure_all(const Ends& ends, const std::vector<Tokens>& prompts) {
  const kv::Policy policy{.exactness = kv::Exactness::kUnqualified, .roundings_max = 1, .qualifications = {}};
  qualify::Pair pair(*ends.prefill, *ends.decode, policy);
  const bool is_watched = isatty(STDERR_FILENO) != 0;
  std::vector<Measured> measured;
  for (const Tokens& prompt : prompts) {
    if (is_watched) {
      note_over(
          fmt::format("prompt {} of {}: {} tokens", measured.size() + 1, prompts.size(), prompt.size()));
    }
    auto one = qualify::measure(pair, *ends.prefill, *ends.decode, prompt);
    if (is_watched) note_over("");
    if (!one.ok()) {
      return one.status()
          .with_context(fmt::format("prompt {}, {} tokens", measured.size() + 1, prompt.size()))
          .error();
    }
    measured.push_back(*std::move(one));
  }
  return measured;
}

std::string text_of(const Estimate& estimate, const char* format) {
  return fmt::format("{} [{}, {}]", fmt::format(fmt::runtime(format), estimate.mean),
                     fmt::format(fmt::runtime(format), estimate.low),
                     fmt::format(fmt::runtime(format), estimate.high));
}

std::string table(const qualify::Summary& summary) {
  std::string text =
      fmt::format("{:<34}{:<34}{}\n", "against the decoder alone", "the pair", "prefill engine alone");
  const auto row = [&](const char* what, const Estimate& pair, const Estimate& engines, const char* format) {
    text += fmt::format("  {:<32}{:<34}{}\n", what, text_of(pair, format), text_of(engines, format));
  };
  const qualify::Side &pair = summary.pair, &engines = summary.engines;
  row("KL, nats", pair.kl, engines.kl, "{:.3g}");
  row("KL of the first token", pair.first_kl, engines.first_kl, "{:.3g}");
  row("same token likeliest", pair.agreement, engines.agreement, "{:.4f}");
  row("perplexity of its answer, times", pair.perplexity_ratio, engines.perplexity_ratio, "{:.4f}");
  text += fmt::format("KL of the pair is {} times the engines' own (at most {}): {}\n",
                      text_of(summary.ratio, "{:.2f}"), kv::kKlRatioMax,
                      summary.is_within_bar ? "it may be used" : "its record covers nothing");
  return text;
}

json::Value value_of(const Estimate& estimate) {
  return json::object({{"mean", estimate.mean}, {"low", estimate.low}, {"high", estimate.high}});
}

json::Value value_of(const qualify::Side& side) {
  return json::object({{"kl", value_of(side.kl)},
                       {"first_kl", value_of(side.first_kl)},
                       {"agreement", value_of(side.agreement)},
                       {"perplexity_ratio", value_of(side.perplexity_ratio)}});
}

json::Value value_of(const std::vector<Measured>& measured) {
  json::Array prompts;
  for (const Measured& one : measured) {
    prompts.push_back(json::object({{"tokens", one.tokens},
                                    {"kl_pair", one.pair.kl},
                                    {"kl_engines", one.engines.kl},
                                    {"agreement_pair", one.pair.agreement},
                                    {"agreement_engines", one.engines.agreement}}));
  }
  return prompts;
}

Status write_record(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) return Error{Code::kUnavailable, fmt::format("{} can't be written", path)};
  return ok_status();
}

// Before minutes of work.
Status check_output(const std::string& path) {
  if (path.empty() || std::ofstream(path, std::ios::binary | std::ios::app)) return ok_status();
  return Error{Code::kUnavailable, fmt::format("{} can't be written", path)};
}

Result<bool> qualify_pair(const QualifyCommand& command, const MakeEngine& make_engine,
                          const MakeTokenizer& make_tokenizer) {
  ISTHMUS_TRY(check_output(command.output));
  ISTHMUS_TRY(const auto tokenizer, make_tokenizer(command.model_path));
  ISTHMUS_TRY(auto all, all_prompts(command, *tokenizer));
  const std::vector<Tokens> prompts = spread(std::move(all), command.prompts_max);
  ISTHMUS_TRY(const Ends ends, start(command, prompts, make_engine));
  ISTHMUS_TRY(const std::vector<Measured> measured, measure_all(ends, prompts));
  const qualify::Summary summary = qualify::summarise(measured);
  const std::string pair = fmt::format("{}:{} -> {}:{}", command.prefill_engine, command.prefill_kv,
                                       command.decode_engine, command.decode_kv);
  const kv::Qualification record =
      qualify::record_of(ends.prefill->descriptor(), ends.decode->descriptor(), summary.pair.kl.mean,
                         summary.engines.kl.mean, summary.prompts);
  const std::string record_text = fmt::format("# {}\n{}", pair, qualify::record_text(record));
  if (!command.output.empty()) ISTHMUS_TRY(write_record(command.output, record_text));
  if (command.json) {
    print_line(json::object({{"pair", pair},
                             {"prompts", value_of(measured)},
                             {"perplexity_alone", summary.perplexity_alone},
                             {"pair_differs", value_of(summary.pair)},
                             {"engines_differ", value_of(summary.engines)},
                             {"ratio", value_of(summary.ratio)},
                             {"ratio_max", kv::kKlRatioMax},
                             {"covers", summary.is_within_bar},
                             {"record", record_text}})
                   .dump());
    return summary.is_within_bar;
  }
  print(fmt::format(
      "{}, {} prompts of {} to {} tokens; means with 95 % confidence\n\n{}\n{}", pair, summary.prompts,
      std::ranges::min(measured, {}, &Measured::tokens).tokens,
      std::ranges::max(measured, {}, &Measured::tokens).tokens, table(summary),
      command.output.empty() ? record_text : fmt::format("the record is in {}\n", command.output)));
  return summary.is_within_bar;
}

}  // namespace

int run_qualify(const QualifyCommand& command, const MakeEngine& make_engine,
                const MakeTokenizer& make_tokenizer) {
  log::configure(log::Level::kWarn, "qualify");
  const Result<bool> covers = qualify_pair(command, make_engine, make_tokenizer);
  if (covers.ok()) return *covers ? kExitOk : kExitBarMissed;
  note_line(fmt::format("isthmus kv qualify: {}", covers.error().text()));
  return covers.error().code == Code::kIncompatible ? kExitRejected : kExitCannotStart;
}

}  // namespace isthmus::cli
