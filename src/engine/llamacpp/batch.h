// SPDX-License-Identifier: Apache-2.0
// Arrays that a llama_batch points to.
#pragma once

#include <llama.h>

#include <cstdint>
#include <vector>

#include "engine/api/engine.h"

namespace isthmus::engine::llamacpp {

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

}  // namespace isthmus::engine::llamacpp
