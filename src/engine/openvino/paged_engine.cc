// SPDX-License-Identifier: Apache-2.0
// Every check comes before the forward, so that a refused step has changed nothing.
#include "engine/openvino/paged_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace isthmus::engine::openvino {
namespace {

class PoolExport : public ExportedKv {
 public:
  PoolExport(std::shared_ptr<SequenceBlocks> blocks, kv::Binding binding, std::uint64_t bytes,
             bool is_unsettled)
      : blocks_(std::move(blocks)), binding_(std::move(binding)), bytes_(bytes), is_unsettled_(is_unsettled) {
    blocks_->exports.fetch_add(1, std::memory_order_relaxed);
    if (is_unsettled_) blocks_->unsettled_exports.fetch_add(1, std::memory_order_relaxed);
  }
  // Release: this thread's reads come before the engine's next use of the blocks.
  ~PoolExport() override {
    if (is_unsettled_) blocks_->unsettled_exports.fetch_sub(1, std::memory_order_release);
    blocks_->exports.fetch_sub(1, std::memory_order_release);
  }

  std::span<const kv::Binding> bindings() const override { return {&binding_, 1}; }
  std::uint64_t bytes() const override { return bytes_; }

 private:
  std::shared_ptr<SequenceBlocks> blocks_;
  kv::Binding binding_;
  std::uint64_t bytes_;
  bool is_unsettled_;
};

// Held like the blocks of a closed sequence that is exported.
class HeldBlocks : public HeldPrefix {
 public:
  explicit HeldBlocks(std::shared_ptr<SequenceBlocks> blocks) : blocks_(std::move(blocks)) {
    blocks_->exports.fetch_add(1, std::memory_order_relaxed);
  }
  ~HeldBlocks() override { blocks_->exports.fetch_sub(1, std::memory_order_release); }

  std::uint64_t tokens() const override { return blocks_->blocks.size() * kBlockTokens; }

 private:
  std::shared_ptr<SequenceBlocks> blocks_;
};

// A chunk of one token would run by other kernels than a prompt's does; and a prompt has logits of its own.
constexpr std::uint64_t kNewMin = 2;

// How many blocks of a prompt may be known.
std::uint64_t known_blocks_max(std::uint64_t prompt) {
  return (prompt - std::min(prompt, kNewMin)) / kBlockTokens;
}

// Of the blocks that are kept once they are here.
std::vector<BlockKey> keys_of(const ArrivingState& state, const Digest128& descriptor) {
  return block_keys(BlockChain(descriptor, state.origin, state.salt), state.prompt, kBlockTokens,
                    state.repeated / kBlockTokens);
}

bool is_exported(const SequenceBlocks& blocks) {
  return blocks.exports.load(std::memory_order_acquire) > 0;
}

std::uint32_t take_padding_block(BlockPool& pool) {
  auto acquired = pool.acquire(1);
  ISTHMUS_CHECK(acquired.ok());
  return acquired->blocks.front();
}

}  // namespace

OpenvinoEngine::OpenvinoEngine(EngineParts parts)
    : parts_(std::move(parts)),
      pool_(parts_.memory->shape().blocks),
      padding_block_(take_padding_block(pool_)) {}

EngineUsage OpenvinoEngine::usage() const {
  std::map<std::uint32_t, std::uint32_t> returned;  // By closed sequences whose exports are gone.
  std::uint64_t lingering = 0;
  for (const auto& blocks : closing_) {
    if (is_exported(*blocks)) {
      lingering += blocks->blocks.size();
      continue;
    }
    for (const std::uint32_t block : blocks->blocks) ++returned[block];
  }
  std::uint64_t used = pool_.held() - 1;
  for (const auto& [block, times] : returned) used -= pool_.holders(block) == times ? 1 : 0;
  const std::uint64_t total = pool_.total() - 1;
  const std::uint64_t block_bytes = parts_.memory->shape().bytes_per_block();
  return {.tokens_computed = tokens_computed_,
          .sequences = static_cast<std::uint32_t>(sequences_.size()),
          .kv_bytes_used = used * block_bytes,
          .kv_bytes_total = total * block_bytes,
          .blocks_used = used,
          .blocks_total = total,
          .blocks_kept = pool_.kept(),
          .blocks_lingering = lingering,
          .blocks_parked = parts_.parking->total() - parts_.parking->free()};
}

void OpenvinoEngine::reclaim() {
  std::erase_if(closing_, [this](const std::shared_ptr<SequenceBlocks>& blocks) {
    if (is_exported(*blocks)) return false;
    pool_.release(blocks->blocks);
    return true;
  });
}

Result<SequenceId> OpenvinoEngine::open(std::uint64_t tokens_max) {
  return open_over(tokens_max, tokens_max, {}, {});
}

Result<SequenceId> OpenvinoEngine::open_growing(std::uint64_t tokens_max) {
  return open_over(tokens_max, 0, {}, {});
}

Result<SequenceId> OpenvinoEngine::open_known(std::uint64_t tokens_max, std::span<const TokenId> prompt,
                                              const std::optional<std::string>& salt) {
  if (prompt.size() > tokens_max) {
    return Error{Code::kInvalidArgument,
                 fmt::format("a prompt of {} tokens in a sequence of {}", prompt.size(), tokens_max)};
  }
  const BlockChain chain(parts_.descriptor.digest(), salt);
  const auto keys = block_keys(chain, prompt, kBlockTokens, known_blocks_max(prompt.size()));
  return open_over(tokens_max, prompt.size(), keys, chain);
}

std::unique_ptr<HeldPrefix> OpenvinoEngine::hold_arrived(const ArrivingState& state) {
  std::vector<BlockKey> keys = keys_of(state, parts_.descriptor.digest());
  keys.resize(std::min<std::uint64_t>(keys.size(), known_blocks_max(state.prompt.size())));
  reclaim();
  auto blocks = std::make_shared<SequenceBlocks>();
  blocks->blocks = pool_.hold(keys);
  if (blocks->blocks.empty()) return nullptr;
  blocks->memory = parts_.memory;
  closing_.push_back(blocks);
  return std::make_unique<HeldBlocks>(std::move(blocks));
}

Result<SequenceId> OpenvinoEngine::open_arriving(std::uint64_t tokens_max, const ArrivingState& state,
                                                 std::uint64_t known) {
  const std::vector<BlockKey> keys = keys_of(state, parts_.descriptor.digest());
  const std::uint64_t blocks = known / kBlockTokens;
  const auto refuse = [&](std::uint64_t found) {
    return Error{Code::kInvalidArgument,
                 fmt::format("{} tokens of a state that arrives aren't known in whole blocks, {} are", known,
                             found * kBlockTokens)};
  };
  if (state.prompt.size() > tokens_max || known % kBlockTokens != 0 || blocks > keys.size()) return refuse(0);
  ISTHMUS_TRY(const SequenceId id, open_over(tokens_max, known, std::span(keys).first(blocks), {}));
  Sequence& sequence = sequences_.at(id);
  if (sequence.length != known) {
    const std::uint64_t found = sequence.length / kBlockTokens;
    close(id);
    return refuse(found);
  }
  sequence.arrived = known;
  sequence.arriving.assign(keys.begin() + static_cast<std::ptrdiff_t>(blocks), keys.end());
  return id;
}

Result<SequenceId> OpenvinoEngine::open_over(std::uint64_t tokens_max, std::uint64_t tokens,
                                             std::span<const BlockKey> keys,
                                             std::optional<BlockChain> chain) {
  if (tokens_max == 0 || tokens_max > parts_.info.context_tokens_max) {
    return Error{Code::kInvalidArgument, fmt::format("a sequence of {} tokens; this engine takes 1 to {}",
                                                     tokens_max, parts_.info.context_tokens_max)};
  }
  if (sequences_.size() >= parts_.options.sequences_max) {
    return Error{Code::kExhausted, fmt::format("all {} sequences are open", parts_.options.sequences_max)};
  }
  reclaim();
  ISTHMUS_TRY(BlockPool::Acquired acquired, pool_.acquire(blocks_of(tokens), keys));
  const std::uint64_t known = acquired.known * kBlockTokens;
  if (chain && known > 0) chain = BlockChain(keys[acquired.known - 1]);
  Sequence sequence{.blocks = std::make_shared<SequenceBlocks>(),
                    .tokens_max = tokens_max,
                    .length = known,
                    .bound = {},
                    .chain = chain,
                    .shared = known};
  sequence.blocks->blocks = std::move(acquired.blocks);
  sequence.blocks->memory = parts_.memory;
  // An id comes back after 2^32 sequences; those still open then are passed over.
  while (next_sequence_ == 0 || sequences_.contains(next_sequence_)) ++next_sequence_;
  const SequenceId id = next_sequence_++;
  sequences_.emplace(id, std::move(sequence));
  return id;
}

void OpenvinoEngine::close(SequenceId sequence) {
  const auto found = sequences_.find(sequence);
  ISTHMUS_CHECK(found != sequences_.end());
  for (const std::uint32_t place : found->second.parked) parts_.parking->drop(place);
  closing_.push_back(std::move(found->second.blocks));
  sequences_.erase(found);
  reclaim();
}

std::uint64_t OpenvinoEngine::length(SequenceId sequence) const {
  const auto found = sequences_.find(sequence);
  ISTHMUS_CHECK(found != sequences_.end());
  return found->second.length;
}

Result<Sequence*> OpenvinoEngine::find(SequenceId sequence) {
  const auto found = sequences_.find(sequence);
  if (found == sequences_.end()) {
    return Error{Code::kInvalidArgument, fmt::format("sequence {} isn't open", sequence)};
  }
  return &found->second;
}

Result<Sequence*> OpenvinoEngine::find_unparked(SequenceId sequence) {
  ISTHMUS_TRY(Sequence * found, find(sequence));
  if (!found->parked.empty()) {
    return Error{Code::kInvalidArgument, fmt::format("sequence {} is parked", sequence)};
  }
  return found;
}

std::uint64_t OpenvinoEngine::lacking(const Sequence& sequence, std::uint64_t tokens) {
  const std::uint64_t has = sequence.blocks->blocks.size();
  return std::max(has, blocks_of(tokens)) - has;
}

Status OpenvinoEngine::park(SequenceId sequence, std::uint64_t blocks_left) {
  ISTHMUS_TRY(Sequence * found, find(sequence));
  if (found->bound || is_exported(*found->blocks)) {
    return Error{Code::kInvalidArgument,
                 fmt::format("park: sequence {} is {}", sequence, found->bound ? "bound" : "exported")};
  }
  std::vector<std::uint32_t>& blocks = found->blocks->blocks;
  const std::uint64_t left = std::min<std::uint64_t>(blocks_left, blocks.size());
  // Those behind its length have no state yet.
  const std::uint64_t end = std::clamp<std::uint64_t>(blocks_of(found->length), left, blocks.size());
  if (end - left > parts_.parking->free()) {
    return Error{Code::kExhausted, fmt::format("park: {} blocks, and room for {} of {}", end - left,
                                               parts_.parking->free(), parts_.parking->total())};
  }
  std::vector<std::uint32_t> places;
  for (std::uint64_t i = left; i < end; ++i) places.push_back(parts_.parking->put(*parts_.memory, blocks[i]));
  found->parked.insert(found->parked.begin(), places.begin(), places.end());
  pool_.release(std::span(blocks).subspan(left));
  blocks.resize(left);
  found->chain.reset();  // What comes back isn't the block that others know.
  return ok_status();
}

Status OpenvinoEngine::unpark(SequenceId sequence) {
  ISTHMUS_TRY(Sequence * found, find(sequence));
  reclaim();
  ISTHMUS_TRY(const BlockPool::Acquired acquired, pool_.acquire(found->parked.size()));
  for (std::size_t i = 0; i < found->parked.size(); ++i)
    parts_.parking->take(found->parked[i], *parts_.memory, acquired.blocks[i]);
  std::vector<std::uint32_t>& blocks = found->blocks->blocks;
  blocks.insert(blocks.end(), acquired.blocks.begin(), acquired.blocks.end());
  found->parked.clear();
  return ok_status();
}

Status OpenvinoEngine::take_blocks(std::span<const StepItem> items) {
  std::uint64_t count = 0;
  for (const StepItem& item : items) {
    const Sequence& sequence = sequences_.at(item.sequence);
    count += lacking(sequence, sequence.length + item.tokens.size());
  }
  if (count == 0) return ok_status();
  reclaim();
  ISTHMUS_TRY(const BlockPool::Acquired acquired, pool_.acquire(count));
  auto next = acquired.blocks.begin();
  for (const StepItem& item : items) {
    const Sequence& sequence = sequences_.at(item.sequence);
    const auto end =
        next + static_cast<std::ptrdiff_t>(lacking(sequence, sequence.length + item.tokens.size()));
    sequence.blocks->blocks.insert(sequence.blocks->blocks.end(), next, end);
    next = end;
  }
  return ok_status();
}

Status OpenvinoEngine::check_item(const StepItem& item) {
  ISTHMUS_TRY(const Sequence* sequence, find_unparked(item.sequence));
  const auto refuse = [&](Code code, const std::string& why) {
    return Error{code, fmt::format("step: sequence {}: {}", item.sequence, why)};
  };
  if (sequence->bound) return refuse(Code::kInvalidArgument, "it is bound, and not adopted yet");
  if (sequence->blocks->unsettled_exports.load(std::memory_order_acquire) > 0) {
    return refuse(
        Code::kInvalidArgument,
        "its last block is exported, and appending would requantise it; wait until the export is gone");
  }
  if (item.tokens.empty()) return refuse(Code::kInvalidArgument, "no tokens");
  if (item.drafts > 0 && (speculation() == nullptr || item.drafts + 1 != item.tokens.size()))
    return refuse(Code::kInvalidArgument, "drafts stand behind one token, where they can be taken back");
  if (item.logits > item.tokens.size()) {
    return refuse(Code::kInvalidArgument,
                  fmt::format("{} logits of {} tokens", item.logits, item.tokens.size()));
  }
  if (item.tokens.size() > sequence->tokens_max - sequence->length) {
    return refuse(Code::kExhausted, fmt::format("{} tokens after {} exceed the {} it was opened for",
                                                item.tokens.size(), sequence->length, sequence->tokens_max));
  }
  for (const TokenId token : item.tokens) {
    if (token < 0 || static_cast<std::uint32_t>(token) >= parts_.info.vocabulary) {
      return refuse(Code::kInvalidArgument,
                    fmt::format("token {} isn't in the vocabulary of {}", token, parts_.info.vocabulary));
    }
  }
  return ok_status();
}

Status OpenvinoEngine::check_items(std::span<const StepItem> items) {
  if (items.empty()) return Error{Code::kInvalidArgument, "step: no items"};
  std::uint64_t tokens = 0;
  std::vector<SequenceId> ids;
  for (const StepItem& item : items) {
    ISTHMUS_TRY(check_item(item));
    tokens += item.tokens.size();
    ids.push_back(item.sequence);
  }
  std::sort(ids.begin(), ids.end());
  const auto twice = std::adjacent_find(ids.begin(), ids.end());
  if (twice != ids.end()) {
    return Error{Code::kInvalidArgument, fmt::format("step: sequence {} comes twice", *twice)};
  }
  if (tokens > parts_.options.step_tokens_max) {
    return Error{Code::kInvalidArgument, fmt::format("step: {} tokens exceed step_tokens_max {}", tokens,
                                                     parts_.options.step_tokens_max)};
  }
  return ok_status();
}

void OpenvinoEngine::check_writable(const Sequence& sequence, std::uint64_t tokens) const {
  const std::uint64_t end = blocks_of(sequence.length + tokens);
  for (std::uint64_t block = sequence.length / kBlockTokens; block < end; ++block)
    ISTHMUS_CHECK(pool_.is_writable(sequence.blocks->blocks[block]));
}

// Only blocks that one step has filled: a token that was decoded, or a block that was requantised on the way,
// has other last bits than a prompt's.
void OpenvinoEngine::share_blocks(Sequence& sequence, std::span<const TokenId> tokens) {
  if (!sequence.chain) return;
  if (sequence.length != sequence.shared) return sequence.chain.reset();
  while (tokens.size() >= kBlockTokens) {
    std::uint32_t& block = sequence.blocks->blocks[sequence.shared / kBlockTokens];
    block = pool_.share(block, sequence.chain->append(tokens.first(kBlockTokens)));
    sequence.shared += kBlockTokens;
    tokens = tokens.subspan(kBlockTokens);
  }
}

// A token and drafts behind it run as sequences of one token over the same blocks: attention of several
// tokens of one sequence has other last bits. Every row is written before any is read.
void OpenvinoEngine::append(std::vector<BatchItem>& batch, const StepItem& item, const Sequence& sequence) {
  const std::size_t parts = item.drafts == 0 ? 1 : item.tokens.size();
  const std::size_t size = item.tokens.size() / parts;
  for (std::size_t i = 0; i < parts; ++i) {
    const std::size_t behind = (parts - 1 - i) * size;  // Tokens of the item behind this part.
    const std::size_t logits = item.logits - std::min<std::size_t>(item.logits, behind);
    batch.push_back({.tokens = item.tokens.subspan(i * size, size),
                     .past = sequence.length + i * size,
                     .blocks = sequence.blocks->blocks,
                     .logits = static_cast<std::uint32_t>(std::min(logits, size))});
  }
}

Result<StepOutput> OpenvinoEngine::step(std::span<const StepItem> items) {
  ISTHMUS_TRY(check_items(items));
  ISTHMUS_TRY(take_blocks(items));
  std::vector<BatchItem> batch;
  std::uint64_t rows = 0;
  for (const StepItem& item : items) {
    const Sequence& sequence = sequences_.at(item.sequence);
    check_writable(sequence, item.tokens.size());
    append(batch, item, sequence);
    rows += item.logits;
  }
  forward_ = make_forward(batch, padding_block_);
  ISTHMUS_TRY(const std::span<const float> logits, parts_.model->forward(forward_));
  for (const StepItem& item : items) {
    Sequence& sequence = sequences_.at(item.sequence);
    share_blocks(sequence, item.tokens);
    sequence.length += item.tokens.size();
    tokens_computed_ += item.tokens.size();
  }
  return StepOutput{.logits = logits.first(rows * parts_.info.vocabulary), .rows = rows};
}

// Rows behind the length are read by nobody, and written anew by the next step.
void OpenvinoEngine::take_back(SequenceId sequence, std::uint64_t tokens) {
  Sequence& found = sequences_.at(sequence);
  ISTHMUS_CHECK(found.length > tokens && found.shared <= found.length - tokens);
  found.length -= tokens;
}

kv::Binding OpenvinoEngine::binding_of(const Sequence& sequence, kv::TokenRange range) const {
  kv::Binding binding = parts_.regions;
  const auto blocks = static_cast<std::ptrdiff_t>(blocks_of(range.end));
  binding.blocks.assign(sequence.blocks->blocks.begin(), sequence.blocks->blocks.begin() + blocks);
  binding.valid = range;
  return binding;
}

// Rows are appended and never written again, but for K by channel.
bool OpenvinoEngine::is_unsettled(const Sequence& sequence, kv::TokenRange range) const {
  const std::uint64_t full = sequence.length - sequence.length % kBlockTokens;
  return parts_.model->shape().rewrites_partial_blocks && range.end > full;
}

Result<std::unique_ptr<ExportedKv>> OpenvinoEngine::export_range(SequenceId sequence, kv::TokenRange range) {
  ISTHMUS_TRY(const Sequence* source, find_unparked(sequence));
  if (range.begin >= range.end || range.end > source->length) {
    return Error{Code::kInvalidArgument, fmt::format("export [{}, {}) of sequence {}, which has {} tokens",
                                                     range.begin, range.end, sequence, source->length)};
  }
  if (source->blocks->exports.load(std::memory_order_relaxed) == std::numeric_limits<std::uint32_t>::max()) {
    return Error{Code::kExhausted, fmt::format("sequence {} has too many exports", sequence)};
  }
  return std::unique_ptr<ExportedKv>(std::make_unique<PoolExport>(
      source->blocks, binding_of(*source, range), range.size() * parts_.info.kv_bytes_per_token,
      is_unsettled(*source, range)));
}

// Without the blocks before it, which others may hold: whoever writes here doesn't know of them.
Result<std::vector<kv::Binding>> OpenvinoEngine::bind(SequenceId sequence, kv::TokenRange range) {
  ISTHMUS_TRY(Sequence * target, find(sequence));
  if (target->length != target->arrived || target->bound) {
    return Error{Code::kInvalidArgument, fmt::format("bind: sequence {} isn't empty", sequence)};
  }
  if (range.begin != target->arrived || range.end <= range.begin || range.end > target->tokens_max) {
    return Error{Code::kInvalidArgument,
                 fmt::format("bind [{}, {}): sequence {} takes a range from {} to at most {}", range.begin,
                             range.end, sequence, target->arrived, target->tokens_max)};
  }
  reclaim();
  ISTHMUS_TRY(const BlockPool::Acquired acquired, pool_.acquire(lacking(*target, range.end)));
  std::vector<std::uint32_t>& blocks = target->blocks->blocks;
  blocks.insert(blocks.end(), acquired.blocks.begin(), acquired.blocks.end());
  check_writable(*target, range.size());
  target->bound = range;
  kv::Binding binding = binding_of(*target, range);
  binding.blocks.erase(binding.blocks.begin(),
                       binding.blocks.begin() + static_cast<std::ptrdiff_t>(range.begin / kBlockTokens));
  binding.first_position = range.begin;
  return std::vector{std::move(binding)};
}

Status OpenvinoEngine::adopt(SequenceId sequence, kv::TokenRange range) {
  ISTHMUS_TRY(Sequence * target, find(sequence));
  if (!target->bound || target->bound->begin != range.begin || range.end == range.begin ||
      !target->bound->contains(range)) {
    return Error{Code::kInvalidArgument,
                 fmt::format("adopt [{}, {}): sequence {} {}", range.begin, range.end, sequence,
                             target->bound ? fmt::format("is bound to [{}, {})", target->bound->begin,
                                                         target->bound->end)
                                           : "isn't bound")};
  }
  target->length = range.end;
  target->bound.reset();
  keep_arrived(*target);
  return ok_status();
}

void OpenvinoEngine::keep_arrived(Sequence& sequence) {
  std::uint64_t at = sequence.arrived / kBlockTokens;
  for (const BlockKey& key : std::exchange(sequence.arriving, {})) {
    if ((at + 1) * kBlockTokens > sequence.length) return;
    std::uint32_t& block = sequence.blocks->blocks[at++];
    block = pool_.share(block, key);
  }
}

}  // namespace isthmus::engine::openvino
