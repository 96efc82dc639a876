// SPDX-License-Identifier: Apache-2.0
// Engine and KvSource over one llama.cpp context. Flash attention is on, so V lies by token like K.
#include "engine/llamacpp/llamacpp.h"

#include <fmt/format.h>
#include <ggml.h>
#include <llama.h>

#include <algorithm>
#include <array>
#include <exception>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "engine/llamacpp/exported_state.h"
#include "engine/llamacpp/library.h"
#include "engine/llamacpp/sequence_state.h"
#include "engine/probe/model_facts.h"
#include "kv/catalogue.h"

namespace isthmus::engine::llamacpp {
namespace {

constexpr std::uint32_t kSequencesMax = 255;  // LLAMA_MAX_SEQ is 256; one is the scratch sequence of exports.
constexpr std::uint64_t kContextTokensMax = 1u << 24;

// Arrays that a llama_batch points to.
class Batch {
 public:
  void clear() {
    tokens_.clear();
    positions_.clear();
    slots_.clear();
    wants_logits_.clear();
  }

  void add(TokenId token, std::uint64_t position, llama_seq_id slot, bool wants_logits) {
    tokens_.push_back(token);
    positions_.push_back(static_cast<llama_pos>(position));
    slots_.push_back(slot);
    wants_logits_.push_back(wants_logits ? 1 : 0);
  }

  // Valid until the next add() or clear().
  llama_batch view() {
    owners_.assign(tokens_.size(), 1);
    slot_pointers_.clear();
    for (llama_seq_id& slot : slots_) slot_pointers_.push_back(&slot);
    return {.n_tokens = static_cast<std::int32_t>(tokens_.size()),
            .token = tokens_.data(),
            .embd = nullptr,
            .pos = positions_.data(),
            .n_seq_id = owners_.data(),
            .seq_id = slot_pointers_.data(),
            .logits = wants_logits_.data()};
  }

 private:
  std::vector<llama_token> tokens_;
  std::vector<llama_pos> positions_;
  std::vector<llama_seq_id> slots_;
  std::vector<std::int8_t> wants_logits_;
  std::vector<std::int32_t> owners_;
  std::vector<llama_seq_id*> slot_pointers_;
};

struct Sequence {
  llama_seq_id slot = 0;
  std::uint64_t tokens_max = 0;  // Cells reserved.
  std::uint64_t length = 0;
};

Error bad(std::string detail) {
  return {Code::kInvalidArgument, "llamacpp: " + std::move(detail)};
}

class LlamaEngine : public Engine, public KvSource {
 public:
  struct Parts {
    ModelPointer model;
    ContextPointer context;
    EngineInfo info;
    kv::Descriptor descriptor;
    StateShape shape;
  };

  explicit LlamaEngine(Parts parts)
      : model_(std::move(parts.model)),
        context_(std::move(parts.context)),
        info_(std::move(parts.info)),
        descriptor_(std::move(parts.descriptor)),
        shape_(parts.shape),
        cells_(llama_n_ctx(context_.get())),
        logits_max_(llama_logits_max(info_.sequences_max)) {
    for (std::uint32_t slot = info_.sequences_max; slot > 0; --slot) {
      free_slots_.push_back(static_cast<llama_seq_id>(slot - 1));
    }
  }

  static std::uint32_t llama_logits_max(std::uint32_t sequences_max) {
    return std::max(kStepLogitsMax, sequences_max + 1);
  }

  const EngineInfo& info() const override { return info_; }
  const kv::Descriptor& descriptor() const override { return descriptor_; }
  KvSource* kv_source() override { return this; }
  KvSink* kv_sink() override { return nullptr; }

  EngineUsage usage() const override {
    return {.tokens_computed = tokens_computed_,
            .sequences = static_cast<std::uint32_t>(sequences_.size()),
            .kv_bytes_used = cells_reserved_ * info_.kv_bytes_per_token,
            .kv_bytes_total = cells_ * info_.kv_bytes_per_token};
  }

  Result<SequenceId> open(std::uint64_t tokens_max) override {
    if (tokens_max == 0 || tokens_max > info_.context_tokens_max) {
      return bad(fmt::format("a sequence of {} tokens; 1 to {} fit", tokens_max, info_.context_tokens_max));
    }
    if (free_slots_.empty() || tokens_max > cells_ - cells_reserved_) {
      return Error{
          Code::kExhausted,
          fmt::format("llamacpp: a sequence of {} tokens needs as many cells, {} of {} are free; {} of {} "
                      "sequences are free",
                      tokens_max, cells_ - cells_reserved_, cells_, free_slots_.size(), info_.sequences_max)};
    }
    const SequenceId id = next_id_++;
    sequences_.emplace(id, Sequence{.slot = free_slots_.back(), .tokens_max = tokens_max, .length = 0});
    free_slots_.pop_back();
    cells_reserved_ += tokens_max;
    return id;
  }

  void close(SequenceId sequence) override {
    const auto found = sequences_.find(sequence);
    ISTHMUS_CHECK(found != sequences_.end());
    llama_memory_seq_rm(memory(), found->second.slot, -1, -1);
    free_slots_.push_back(found->second.slot);
    cells_reserved_ -= found->second.tokens_max;
    sequences_.erase(found);
  }

  std::uint64_t length(SequenceId sequence) const override {
    const auto found = sequences_.find(sequence);
    ISTHMUS_CHECK(found != sequences_.end());
    return found->second.length;
  }

  Result<StepOutput> step(std::span<const StepItem> items) override {
    ISTHMUS_TRY(const std::uint64_t rows, fill_batch(items));
    const std::int32_t outcome = decode();
    const float* logits = outcome == 0 && rows != 0 ? llama_get_logits(context_.get()) : nullptr;
    if (outcome != 0 || (rows != 0 && logits == nullptr)) {
      for (const StepItem& item : items) {  // A failed step may have left some of its cells.
        const Sequence& sequence = sequences_.at(item.sequence);
        llama_memory_seq_rm(memory(), sequence.slot, static_cast<llama_pos>(sequence.length), -1);
      }
      return Error{outcome == 1 ? Code::kExhausted : Code::kInternal,
                   fmt::format("llamacpp: llama_decode gave {} and {} logits for {} sequences", outcome,
                               logits == nullptr ? "no" : "its", items.size())};
    }
    for (const StepItem& item : items) {
      sequences_.at(item.sequence).length += item.tokens.size();
      tokens_computed_ += item.tokens.size();
    }
    return StepOutput{.logits = {logits, rows * info_.vocabulary}, .rows = rows};
  }

  Result<std::unique_ptr<ExportedKv>> export_range(SequenceId sequence, kv::TokenRange range) override {
    const auto found = sequences_.find(sequence);
    if (found == sequences_.end()) return bad(fmt::format("no sequence {}", sequence));
    if (range.begin >= range.end || range.end > found->second.length) {
      return bad(fmt::format("export of [{}, {}) from a sequence of {} tokens", range.begin, range.end,
                             found->second.length));
    }
    return export_slot(found->second.slot, range);
  }

  // Is a sequence's state what parse_sequence_state() reads, in full?
  Status check_state_format() {
    constexpr std::array<TokenId, 2> kTokens{0, 1};
    ISTHMUS_TRY(const SequenceId sequence, open(kTokens.size()));
    const StepItem item{.sequence = sequence, .tokens = kTokens, .logits = 0};
    Status status = step({&item, 1}).status();
    if (status.ok()) status = export_range(sequence, {0, kTokens.size()}).status();
    close(sequence);
    tokens_computed_ = 0;
    return std::move(status).with_context("start-up check of the state format");
  }

 private:
  llama_memory_t memory() const { return llama_get_memory(context_.get()); }

  // Checks every item and leaves the batch ready; the number of logits rows.
  Result<std::uint64_t> fill_batch(std::span<const StepItem> items) {
    batch_.clear();
    std::uint64_t tokens = 0, rows = 0;
    std::vector<SequenceId> seen;
    for (const StepItem& item : items) {
      const auto found = sequences_.find(item.sequence);
      if (found == sequences_.end()) return bad(fmt::format("no sequence {}", item.sequence));
      if (std::find(seen.begin(), seen.end(), item.sequence) != seen.end()) {
        return bad(fmt::format("sequence {} stands twice in a step", item.sequence));
      }
      seen.push_back(item.sequence);
      ISTHMUS_TRY(check_item(item, found->second));
      tokens += item.tokens.size();
      rows += item.logits;
      if (tokens > info_.step_tokens_max || rows > logits_max_) {
        return bad(fmt::format("a step of {} tokens and {} logits rows; at most {} and {}", tokens, rows,
                               info_.step_tokens_max, logits_max_));
      }
      const std::size_t silent = item.tokens.size() - item.logits;
      for (std::size_t i = 0; i < item.tokens.size(); ++i) {
        batch_.add(item.tokens[i], found->second.length + i, found->second.slot, i >= silent);
      }
    }
    if (tokens == 0) return bad("a step without items");
    return rows;
  }

  Status check_item(const StepItem& item, const Sequence& sequence) const {
    if (item.tokens.empty() || item.logits > item.tokens.size()) {
      return bad(fmt::format("sequence {}: {} tokens and {} logits rows in a step", item.sequence,
                             item.tokens.size(), item.logits));
    }
    if (item.tokens.size() > sequence.tokens_max - sequence.length) {
      return Error{Code::kExhausted,
                   fmt::format("llamacpp: sequence {} holds {} of {} tokens; {} more don't fit",
                               item.sequence, sequence.length, sequence.tokens_max, item.tokens.size())};
    }
    for (const TokenId token : item.tokens) {
      if (token < 0 || static_cast<std::uint32_t>(token) >= info_.vocabulary) {
        return bad(fmt::format("token {} is not in a vocabulary of {}", token, info_.vocabulary));
      }
    }
    return ok_status();
  }

  // llama_decode's value, or its least one for an exception.
  std::int32_t decode() {
    try {
      return llama_decode(context_.get(), batch_.view());
    } catch (const std::exception&) {
      return std::numeric_limits<std::int32_t>::min();
    }
  }

  // llama.cpp gives whole sequences only: the range is shared with a scratch sequence, which is read and let
  // go.
  Result<std::unique_ptr<ExportedKv>> export_slot(llama_seq_id slot, kv::TokenRange range) {
    const auto scratch = static_cast<llama_seq_id>(info_.sequences_max);
    const auto begin = static_cast<llama_pos>(range.begin), end = static_cast<llama_pos>(range.end);
    llama_memory_seq_cp(memory(), slot, scratch, begin, end);
    const std::size_t size = llama_state_seq_get_size(context_.get(), scratch);
    auto buffer = std::make_unique_for_overwrite<std::byte[]>(size);
    const std::size_t written =
        llama_state_seq_get_data(context_.get(), as_uchars(buffer.get()), size, scratch);
    llama_memory_seq_rm(memory(), scratch, -1, -1);
    if (size == 0 || written != size) {
      return Error{Code::kInternal, fmt::format("llamacpp: a state of {} bytes gave {}", size, written)};
    }
    StateShape shape = shape_;
    shape.sequence = scratch;
    shape.position_begin = begin;
    shape.position_end = end;
    return export_state(std::move(buffer), size, shape);
  }

  ModelPointer model_;
  ContextPointer context_;  // Let go before the model.
  EngineInfo info_;
  kv::Descriptor descriptor_;
  StateShape shape_;
  std::uint64_t cells_ = 0, cells_reserved_ = 0;
  std::uint32_t logits_max_ = 0;
  std::map<SequenceId, Sequence> sequences_;
  std::vector<llama_seq_id> free_slots_;
  SequenceId next_id_ = 1;
  std::uint64_t tokens_computed_ = 0;
  Batch batch_;
};

Result<ggml_type> kv_type_of(std::string_view name) {
  if (name == "f32") return GGML_TYPE_F32;
  if (name == "f16") return GGML_TYPE_F16;
  if (name == "bf16") return GGML_TYPE_BF16;
  return Error{
      Code::kUnsupported,
      fmt::format(
          "llamacpp: KV type \"{}\"; f32, f16 and bf16 are known. Block formats such as q8_0 rotate K "
          "and V before they are stored, which the descriptor of this engine doesn't say",
          name)};
}

Status check_options(const Options& options) {
  if (options.threads == 0 || options.threads > 512) {
    return bad(fmt::format("threads is {}; it must be from 1 to 512", options.threads));
  }
  if (options.sequences_max == 0 || options.sequences_max > kSequencesMax) {
    return bad(
        fmt::format("sequences_max is {}; it must be from 1 to {}", options.sequences_max, kSequencesMax));
  }
  if (options.context_tokens == 0 || options.context_tokens > kContextTokensMax) {
    return bad(fmt::format("context_tokens is {}; it must be from 1 to {}", options.context_tokens,
                           kContextTokensMax));
  }
  if (options.step_tokens_max < 2 || options.step_tokens_max > 8192) {
    return bad(fmt::format("step_tokens_max is {}; it must be from 2 to 8192", options.step_tokens_max));
  }
  return ok_status();
}

Result<ContextPointer> make_context(llama_model* model, const Options& options, ggml_type kv_type) {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<std::uint32_t>((options.context_tokens + 255) / 256 * 256);
  params.n_batch = params.n_ubatch = options.step_tokens_max;
  params.n_seq_max = options.sequences_max + 1;  // One more for exports.
  params.n_outputs_max = LlamaEngine::llama_logits_max(options.sequences_max);
  params.n_outputs_max_per_seq = params.n_outputs_max;
  params.n_threads = params.n_threads_batch = static_cast<std::int32_t>(options.threads);
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  params.type_k = params.type_v = kv_type;
  params.kv_unified = true;  // Exports share cells between two sequences, which needs one pool.
  params.no_perf = true;
  try {
    ContextPointer context(llama_init_from_model(model, params));
    if (context != nullptr) return context;
  } catch (const std::exception& error) {
    return Error{Code::kExhausted, fmt::format("llamacpp: no context: {}", error.what())};
  }
  return Error{
      Code::kExhausted,
      fmt::format("llamacpp: no context for {} tokens; llama.cpp's log lines say why", params.n_ctx)};
}

// Facts read by independent code against the engine's own answers.
Status check_model(const llama_model* model, const ModelFacts& facts) {
  const auto same = [](std::string_view what, std::int64_t engine, std::int64_t file) -> Status {
    if (engine == file) return ok_status();
    return Error{Code::kIncompatible,
                 fmt::format("llamacpp: {}: {} in the engine, {} in the file", what, engine, file)};
  };
  ISTHMUS_TRY(same("layers", llama_model_n_layer(model), facts.layers));
  ISTHMUS_TRY(same("width", llama_model_n_embd(model), facts.width));
  ISTHMUS_TRY(same("heads", llama_model_n_head(model), facts.heads));
  ISTHMUS_TRY(same("KV heads", llama_model_n_head_kv(model), facts.kv_heads));
  ISTHMUS_TRY(same("vocabulary", llama_vocab_n_tokens(llama_model_get_vocab(model)), facts.vocabulary));
  ISTHMUS_TRY(same("rope pairing", llama_model_rope_type(model), LLAMA_ROPE_TYPE_NORM));
  return same("sliding window", llama_model_n_swa(model), 0);
}

}  // namespace

Result<std::unique_ptr<Engine>> make_llamacpp(const Options& options) {
  ISTHMUS_TRY(check_options(options));
  ISTHMUS_TRY(const ggml_type kv_type, kv_type_of(options.kv_type));
  ISTHMUS_TRY(const ModelFacts facts, read_model_facts(options.model_path));
  ISTHMUS_TRY(const kv::Storage* storage, kv::find_storage("llamacpp:" + options.kv_type));
  LlamaEngine::Parts parts;
  ISTHMUS_TRY(parts.descriptor, describe(facts, *storage));
  ISTHMUS_TRY(parts.model, load_model(options.model_path, false));
  ISTHMUS_TRY(check_model(parts.model.get(), facts));
  ISTHMUS_TRY(parts.context, make_context(parts.model.get(), options, kv_type));
  const std::uint64_t row_bytes = ggml_row_size(kv_type, std::int64_t{facts.kv_heads} * facts.head_dim);
  parts.shape = {.sequence = 0,
                 .layers = facts.layers,
                 .k_type = kv_type,
                 .v_type = kv_type,
                 .k_row_bytes = row_bytes,
                 .v_row_bytes = row_bytes,
                 .position_begin = 0,
                 .position_end = 0};
  parts.info = {
      .name = "llamacpp",
      .version = llama_version(),
      .storage = storage->name,
      .vocabulary = facts.vocabulary,
      .context_tokens_max = std::min<std::uint64_t>(facts.context_tokens, llama_n_ctx(parts.context.get())),
      .sequences_max = options.sequences_max,
      .step_tokens_max = options.step_tokens_max,
      .block_tokens = 0,
      .kv_bytes_per_token = 2 * row_bytes * facts.layers};
  auto engine = std::make_unique<LlamaEngine>(std::move(parts));
  ISTHMUS_TRY(engine->check_state_format());
  return std::unique_ptr<Engine>(std::move(engine));
}

}  // namespace isthmus::engine::llamacpp
