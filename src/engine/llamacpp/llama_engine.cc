// SPDX-License-Identifier: Apache-2.0
// Sequences, steps, and state out and in.
#include "engine/llamacpp/llama_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <limits>
#include <utility>

#include "base/bytes.h"
#include "engine/llamacpp/exported_state.h"
#include "engine/llamacpp/llamacpp.h"

namespace isthmus::engine::llamacpp {
namespace {

Error bad(std::string detail) {
  return {Code::kInvalidArgument, "llamacpp: " + std::move(detail)};
}

}  // namespace

LlamaEngine::LlamaEngine(Parts parts)
    : model_(std::move(parts.model)),
      context_(std::move(parts.context)),
      info_(std::move(parts.info)),
      descriptor_(std::move(parts.descriptor)),
      shape_(parts.shape),
      cells_(llama_n_ctx(context_.get())),
      logits_max_(logits_max(info_.sequences_max)) {
  for (std::uint32_t slot = info_.sequences_max; slot > 0; --slot) {
    free_slots_.push_back(static_cast<llama_seq_id>(slot - 1));
  }
}

std::uint32_t LlamaEngine::slots(std::uint32_t sequences_max, const Window& window) {
  return (window.tokens == 0 ? 1 : 2) * sequences_max + 1;
}

void LlamaEngine::hold(llama_seq_id slot, std::uint64_t begin, std::uint64_t end) {
  if (shape_.window.tokens == 0) return;
  const auto second = slot + static_cast<llama_seq_id>(info_.sequences_max) + 1;
  llama_memory_seq_cp(memory(), slot, second, static_cast<llama_pos>(begin), static_cast<llama_pos>(end));
}

void LlamaEngine::remove(llama_seq_id slot) {
  llama_memory_seq_rm(memory(), slot, -1, -1);
  if (shape_.window.tokens == 0) return;
  llama_memory_seq_rm(memory(), slot + static_cast<llama_seq_id>(info_.sequences_max) + 1, -1, -1);
}

std::uint32_t LlamaEngine::logits_max(std::uint32_t sequences_max) {
  return std::max(kStepLogitsMax, sequences_max + 1);
}

Status LlamaEngine::check_state_format() {
  constexpr std::array<TokenId, 2> kTokens{0, 1};
  ISTHMUS_TRY(const SequenceId sequence, open(kTokens.size()));
  const StepItem item{.sequence = sequence, .tokens = kTokens, .logits = 0};
  Status status = step({&item, 1}).status();
  if (status.ok()) status = export_range(sequence, {0, kTokens.size()}).status();
  close(sequence);
  tokens_computed_ = 0;
  return std::move(status).with_context("start-up check of the state format");
}

EngineUsage LlamaEngine::usage() const {
  EngineUsage usage{.tokens_computed = tokens_computed_,
                    .sequences = static_cast<std::uint32_t>(sequences_.size()),
                    .kv_bytes_used = cells_reserved_ * info_.kv_bytes_per_token,
                    .kv_bytes_total = cells_ * info_.kv_bytes_per_token};
  for (const auto& [id, sequence] : sequences_) {
    if (sequence.incoming) usage.kv_bytes_staged += sequence.incoming->bytes();
  }
  return usage;
}

Result<SequenceId> LlamaEngine::open(std::uint64_t tokens_max) {
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
  sequences_.emplace(
      id, Sequence{.slot = free_slots_.back(), .tokens_max = tokens_max, .length = 0, .incoming = {}});
  free_slots_.pop_back();
  cells_reserved_ += tokens_max;
  return id;
}

void LlamaEngine::close(SequenceId sequence) {
  const auto found = sequences_.find(sequence);
  ISTHMUS_CHECK(found != sequences_.end());
  remove(found->second.slot);
  free_slots_.push_back(found->second.slot);
  cells_reserved_ -= found->second.tokens_max;
  sequences_.erase(found);
}

std::uint64_t LlamaEngine::length(SequenceId sequence) const {
  const auto found = sequences_.find(sequence);
  ISTHMUS_CHECK(found != sequences_.end());
  return found->second.length;
}

Result<StepOutput> LlamaEngine::step(std::span<const StepItem> items) {
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
    Sequence& sequence = sequences_.at(item.sequence);
    hold(sequence.slot, sequence.length, sequence.length + item.tokens.size());
    sequence.length += item.tokens.size();
    tokens_computed_ += item.tokens.size();
  }
  return StepOutput{.logits = {logits, rows * info_.vocabulary}, .rows = rows};
}

Result<LlamaEngine::Sequence*> LlamaEngine::find(SequenceId sequence) {
  const auto found = sequences_.find(sequence);
  if (found == sequences_.end()) return bad(fmt::format("no sequence {}", sequence));
  return &found->second;
}

Result<std::uint64_t> LlamaEngine::fill_batch(std::span<const StepItem> items) {
  batch_.clear();
  std::uint64_t tokens = 0, rows = 0;
  std::vector<SequenceId> seen;
  for (const StepItem& item : items) {
    ISTHMUS_TRY(const Sequence* sequence, find(item.sequence));
    if (std::find(seen.begin(), seen.end(), item.sequence) != seen.end()) {
      return bad(fmt::format("sequence {} stands twice in a step", item.sequence));
    }
    seen.push_back(item.sequence);
    ISTHMUS_TRY(check_item(item, *sequence));
    tokens += item.tokens.size();
    rows += item.logits;
    if (tokens > info_.step_tokens_max || rows > logits_max_) {
      return bad(fmt::format("a step of {} tokens and {} logits rows; at most {} and {}", tokens, rows,
                             info_.step_tokens_max, logits_max_));
    }
    const std::size_t silent = item.tokens.size() - item.logits;
    for (std::size_t i = 0; i < item.tokens.size(); ++i) {
      batch_.add(item.tokens[i], sequence->length + i, sequence->slot, i >= silent);
    }
  }
  if (tokens == 0) return bad("a step without items");
  return rows;
}

Status LlamaEngine::check_item(const StepItem& item, const Sequence& sequence) const {
  if (sequence.incoming) {
    return bad(fmt::format("sequence {} is bound and not adopted yet; it cannot step", item.sequence));
  }
  if (item.tokens.empty() || item.logits > item.tokens.size()) {
    return bad(fmt::format("sequence {}: {} tokens and {} logits rows in a step", item.sequence,
                           item.tokens.size(), item.logits));
  }
  if (item.tokens.size() > sequence.tokens_max - sequence.length) {
    return Error{Code::kExhausted,
                 fmt::format("llamacpp: sequence {} holds {} of {} tokens; {} more don't fit", item.sequence,
                             sequence.length, sequence.tokens_max, item.tokens.size())};
  }
  for (const TokenId token : item.tokens) {
    if (token < 0 || static_cast<std::uint32_t>(token) >= info_.vocabulary) {
      return bad(fmt::format("token {} is not in a vocabulary of {}", token, info_.vocabulary));
    }
  }
  return ok_status();
}

std::int32_t LlamaEngine::decode() {
  try {
    return llama_decode(context_.get(), batch_.view());
  } catch (const std::exception&) {
    return std::numeric_limits<std::int32_t>::min();
  }
}

// llama.cpp gives of a local layer only what is in the window of the last position: parts as long as that are
// whole.
Result<std::unique_ptr<ExportedKv>> LlamaEngine::export_range(SequenceId sequence, kv::TokenRange range) {
  ISTHMUS_TRY(const Sequence* source, find(sequence));
  if (range.begin >= range.end || range.end > source->length) {
    return bad(fmt::format("export of [{}, {}) from a sequence of {} tokens", range.begin, range.end,
                           source->length));
  }
  StateShape shape = shape_;
  shape.sequence = static_cast<llama_seq_id>(info_.sequences_max);
  shape.position_begin = static_cast<llama_pos>(range.begin);
  shape.position_end = static_cast<llama_pos>(range.end);
  const std::uint64_t longest = shape.window.tokens == 0 ? range.size() : shape.window.tokens;
  if (range.size() <= longest) {
    ISTHMUS_TRY(StateBuffer buffer, read_state(source->slot, shape));
    return export_state(*state_memory_, std::move(buffer), shape);
  }
  ISTHMUS_TRY(OrderedPlanes planes, OrderedPlanes::make(*state_memory_, shape));
  for (std::uint64_t begin = range.begin; begin < range.end; begin += longest) {
    StateShape part = shape;
    part.position_begin = static_cast<llama_pos>(begin);
    part.position_end = static_cast<llama_pos>(std::min(range.end, begin + longest));
    ISTHMUS_TRY(const StateBuffer buffer, read_state(source->slot, part));
    ISTHMUS_TRY(const SequenceState state, parse_sequence_state(buffer.bytes(), part));
    planes.add(state, part);
  }
  return std::move(planes).finish();
}

// llama.cpp gives whole sequences only: the range is shared with a scratch sequence, which is read and let
// go.
Result<StateBuffer> LlamaEngine::read_state(llama_seq_id slot, const StateShape& shape) {
  ISTHMUS_TRY(StateBuffer buffer, state_memory_->allocate(sequence_state_bytes(shape)));
  llama_memory_seq_cp(memory(), slot, shape.sequence, shape.position_begin, shape.position_end);
  const std::size_t size = llama_state_seq_get_size(context_.get(), shape.sequence);
  std::size_t written = 0;
  if (size == buffer.bytes().size()) {
    written =
        llama_state_seq_get_data(context_.get(), as_uchars(buffer.bytes().data()), size, shape.sequence);
  }
  llama_memory_seq_rm(memory(), shape.sequence, -1, -1);
  if (written != buffer.bytes().size()) {
    return Error{Code::kIncompatible,
                 fmt::format("llamacpp: a state of {} cells should have {} bytes; llama.cpp has {}, gave {}",
                             shape.cells(), buffer.bytes().size(), size, written)};
  }
  return buffer;
}

Result<std::vector<kv::Binding>> LlamaEngine::bind(SequenceId sequence, kv::TokenRange range) {
  ISTHMUS_TRY(Sequence * target, find(sequence));
  if (target->length != 0 || target->incoming) {
    return bad(fmt::format("bind of sequence {}, which {}", sequence,
                           target->incoming ? "is bound already" : "isn't empty"));
  }
  if (range.begin >= range.end || range.end > target->tokens_max) {
    return bad(fmt::format("bind of [{}, {}); sequence {} takes up to {} tokens", range.begin, range.end,
                           sequence, target->tokens_max));
  }
  if (range.begin != 0) {
    return Error{Code::kUnsupported,
                 fmt::format("llamacpp: bind of [{}, {}); a state must begin at position 0, as it becomes a "
                             "whole sequence",
                             range.begin, range.end)};
  }
  StateShape shape = shape_;
  shape.sequence = target->slot;
  shape.position_begin = 0;
  shape.position_end = static_cast<llama_pos>(range.end);
  ISTHMUS_TRY(target->incoming, IncomingState::make(*state_memory_, shape));
  return std::vector{target->incoming->binding()};
}

Status LlamaEngine::adopt(SequenceId sequence, kv::TokenRange range) {
  ISTHMUS_TRY(Sequence * target, find(sequence));
  if (!target->incoming) return bad(fmt::format("adopt of sequence {}, which isn't bound", sequence));
  const kv::TokenRange bound = target->incoming->binding().valid;
  if (range.begin != bound.begin || range.end <= range.begin || range.end > bound.end) {
    return bad(fmt::format("adopt of [{}, {}); sequence {} is bound to [{}, {})", range.begin, range.end,
                           sequence, bound.begin, bound.end));
  }
  const Status restored = restore(target->slot, *target->incoming, range.end);
  target->incoming.reset();
  if (restored.ok()) target->length = range.end;
  return restored;
}

Status LlamaEngine::restore(llama_seq_id slot, IncomingState& incoming, std::uint64_t end) {
  ISTHMUS_TRY(const std::span<const std::byte> state, incoming.finish(end));
  const std::size_t taken =
      llama_state_seq_set_data(context_.get(), as_uchars(state.data()), state.size(), slot);
  if (taken == state.size()) llama_memory_seq_rm(memory(), slot, static_cast<llama_pos>(end), -1);
  const llama_pos first = llama_memory_seq_pos_min(memory(), slot);
  const llama_pos last = llama_memory_seq_pos_max(memory(), slot);
  if (taken == state.size() && first == 0 && last == static_cast<llama_pos>(end) - 1) {
    hold(slot, 0, end);
    return ok_status();
  }
  remove(slot);
  return Error{
      Code::kIncompatible,
      fmt::format("llamacpp: llama.cpp took {} of {} bytes of a state and has positions {} to {}; its "
                  "log lines say why",
                  taken, state.size(), first, last)};
}

}  // namespace isthmus::engine::llamacpp
