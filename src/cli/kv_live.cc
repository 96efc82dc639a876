// SPDX-License-Identifier: Apache-2.0
// See kv_live.h.
#include "cli/kv_live.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "cli/options.h"
#include "cli/print.h"
#include "engine/api/engine.h"
#include "engine/api/run_tokens.h"
#include "engine/api/sampler.h"
#include "engine/api/tokenizer.h"
#include "engine/probe/probe.h"
#include "http/json.h"
#include "kvs/file.h"
#include "kvs/state.h"
#include "transform/plan.h"
#include "transform/redistribute.h"

namespace isthmus::cli {
namespace {

using Tokens = std::vector<engine::TokenId>;

// An engine that passed its probe, and the prompt in its model's tokens.
struct Live {
  std::unique_ptr<engine::Tokenizer> tokenizer;
  std::unique_ptr<engine::Engine> engine;
  Tokens prompt;

  std::uint64_t state_tokens() const { return prompt.size() - 1; }
};

std::string name_of(const LiveCommand& command) {
  return fmt::format("{}:{}", command.engine, command.kv_type);
}

Result<Live> start(const LiveCommand& command, const MakeEngine& make_engine,
                   const MakeTokenizer& make_tokenizer) {
  Live live;
  ISTHMUS_TRY(live.tokenizer, make_tokenizer(command.model_path));
  ISTHMUS_TRY(live.prompt, live.tokenizer->encode(command.prompt, true, false));
  if (live.prompt.size() < 2) {
    return Error{Code::kInvalidArgument,
                 fmt::format("the prompt has {} tokens; a state needs two or more", live.prompt.size())};
  }
  worker::WorkerOptions options;
  options.engine = command.engine;
  options.kv_type = command.kv_type;
  options.model_path = command.model_path;
  options.threads = command.threads;
  options.sequences_max = 2;
  ISTHMUS_TRY(live.engine, make_engine(options));
  ISTHMUS_TRY(engine::probe_meaning(*live.engine, command.model_path, engine::probe_tolerance(*live.engine))
                  .status());
  return live;
}

// Greedily, from the prompt's last token on; `count` tokens, or as many as the model has to say.
Result<Tokens> go_on(Live& live, engine::SequenceId sequence, std::uint32_t count) {
  Tokens said;
  engine::TokenId next = live.prompt.back();
  while (said.size() < count) {
    ISTHMUS_TRY(const std::vector<float> row,
                engine::run_tokens(*live.engine, sequence, std::span(&next, 1)));
    next = engine::likeliest(row);
    if (live.tokenizer->is_end_of_generation(next)) break;
    said.push_back(next);
  }
  return said;
}

Digest128 chain_of(const Live& live) {
  kv::TokenChain chain;
  for (const engine::TokenId token : std::span(live.prompt).first(live.state_tokens())) chain.append(token);
  return chain.digest();
}

void print_answer(const LiveCommand& command, const Live& live, const Tokens& said, const std::string& root) {
  std::string text;
  for (const engine::TokenId token : said) text += live.tokenizer->piece(token);
  if (command.json) {
    json::Array tokens;
    for (const engine::TokenId token : said) tokens.emplace_back(token);
    print_line(json::object({{"file", command.file},
                             {"engine", name_of(command)},
                             {"state_tokens", live.state_tokens()},
                             {"root", root},
                             {"tokens", std::move(tokens)},
                             {"text", text}})
                   .dump());
    return;
  }
  print_line(fmt::format("{}: {} tokens of {}; root {}\n{}\n{}", command.file, live.state_tokens(),
                         name_of(command), root, fmt::join(said, " "), text));
}

// The state goes to the file as the engine has it.
Result<Digest128> write_state(Live& live, const LiveCommand& command, engine::SequenceId sequence) {
  const kv::TokenRange tokens{0, live.state_tokens()};
  engine::KvSource* source = live.engine->kv_source();
  if (source == nullptr)
    return Error{Code::kUnsupported, fmt::format("{} can't hand its state over", name_of(command))};
  ISTHMUS_TRY(const auto exported, source->export_range(sequence, tokens));
  kvs::State state;
  state.manifest = {
      .descriptor = live.engine->descriptor(),
      .tokens = tokens,
      .chain = chain_of(live),
      .note = fmt::format("isthmus kv export, {} {}", name_of(command), live.engine->info().version)};
  state.ranks.push_back({live.engine->descriptor().partition.front().rank,
                         {exported->bindings().begin(), exported->bindings().end()}});
  ISTHMUS_TRY(kvs::OutputFile file, kvs::OutputFile::create(command.file));
  ISTHMUS_TRY(const Digest128 root, kvs::save(state, file.writer()));
  ISTHMUS_TRY(file.close());
  return root;
}

Result<kvs::State> read_state(const Live& live, const LiveCommand& command) {
  ISTHMUS_TRY(const kvs::InputFile file, kvs::open_input(command.file));
  ISTHMUS_TRY(kvs::Reader reader, kvs::Reader::open(file.read, file.size));
  const kvs::Manifest& manifest = reader.manifest();
  if (manifest.tokens != kv::TokenRange{0, live.state_tokens()} || manifest.chain != chain_of(live)) {
    return Error{
        Code::kIncompatible,
        fmt::format("{}: the state is of tokens [{}, {}) with chain {}; the prompt but for its last token "
                    "is [0, {}) with chain {}",
                    command.file, manifest.tokens.begin, manifest.tokens.end,
                    manifest.chain ? manifest.chain->hex() : "not known", live.state_tokens(),
                    chain_of(live).hex())};
  }
  return kvs::load(reader);
}

// Into memory of the engine's own, which it takes as its sequence's state.
Result<Digest128> adopt(Live& live, const LiveCommand& command, const kvs::State& state,
                        engine::SequenceId sequence) {
  engine::KvSink* sink = live.engine->kv_sink();
  if (sink == nullptr)
    return Error{Code::kUnsupported, fmt::format("{} can't take a state over", name_of(command))};
  const kv::Descriptor& source = state.manifest.descriptor;
  const kv::Descriptor& target = live.engine->descriptor();
  kv::Policy policy;
  policy.exactness = command.exactness;
  const kv::Verdict verdict = kv::negotiate(source, target, policy);
  ISTHMUS_TRY(transform::Plan plan, transform::Plan::make(source, target, verdict, state.manifest.tokens));
  ISTHMUS_TRY(const auto bindings, sink->bind(sequence, state.manifest.tokens));
  const std::vector<transform::RankMemory> to{{target.partition.front().rank, bindings}};
  ISTHMUS_TRY(const transform::Moved moved,
              transform::redistribute({.plan = std::make_shared<const transform::Plan>(std::move(plan)),
                                       .source = source,
                                       .target = target,
                                       .from = state.ranks,
                                       .to = to}));
  ISTHMUS_TRY(sink->adopt(sequence, state.manifest.tokens));
  return moved.root;
}

Status export_state(Live& live, const LiveCommand& command) {
  ISTHMUS_TRY(const engine::SequenceId sequence, live.engine->open(live.prompt.size() + command.generate));
  const std::span<const engine::TokenId> state = std::span(live.prompt).first(live.state_tokens());
  ISTHMUS_TRY(engine::run_tokens(*live.engine, sequence, state).status());
  ISTHMUS_TRY(const Digest128 root, write_state(live, command, sequence));
  ISTHMUS_TRY(const Tokens said, go_on(live, sequence, command.generate));
  print_answer(command, live, said, root.hex());
  return ok_status();
}

Status import_state(Live& live, const LiveCommand& command) {
  ISTHMUS_TRY(const kvs::State state, read_state(live, command));
  ISTHMUS_TRY(const engine::SequenceId sequence, live.engine->open(live.prompt.size() + command.generate));
  ISTHMUS_TRY(const Digest128 root, adopt(live, command, state, sequence));
  ISTHMUS_TRY(const Tokens said, go_on(live, sequence, command.generate));
  print_answer(command, live, said, root.hex());
  return ok_status();
}

int exit_of(std::string_view command, const Error& error) {
  note_line(fmt::format("isthmus kv {}: {}", command, error.text()));
  if (error.code == Code::kIncompatible) return kExitRejected;
  return error.code == Code::kCorrupt || error.code == Code::kMalformed ? kExitFindings : kExitCannotStart;
}

}  // namespace

int run_live(const LiveCommand& command, const MakeEngine& make_engine, const MakeTokenizer& make_tokenizer) {
  const bool is_export = command.what == LiveCommand::What::kExport;
  const char* name = is_export ? "export" : "import";
  Result<Live> live = start(command, make_engine, make_tokenizer);
  if (!live.ok()) return exit_of(name, live.error());
  const Status done = is_export ? export_state(*live, command) : import_state(*live, command);
  return done.ok() ? kExitOk : exit_of(name, done.error());
}

}  // namespace isthmus::cli
