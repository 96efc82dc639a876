// SPDX-License-Identifier: Apache-2.0
// OpenAI's completion and chat requests and answers, as this worker takes and gives them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"
#include "engine/api/sampler.h"
#include "engine/api/tokenizer.h"
#include "http/json.h"
#include "worker/engine_loop.h"

namespace isthmus::worker {

inline constexpr std::size_t kEndpointsMax = 16;  // Of an agent, in a request.
inline constexpr std::size_t kChoicesMax = 32;    // Of a request: prompts times n.
inline constexpr std::size_t kSaltBytesMax = 256;

enum class Api : std::uint8_t { kCompletions, kChat };

// The transfer field `kv_transfer_params`, in vLLM's convention.
struct TransferField {
  bool do_remote_decode = false;   // We prefill; somebody else decodes.
  bool do_remote_prefill = false;  // Somebody else prefilled; the ticket opens its state.
  std::string ticket;
  std::vector<std::string> endpoints;
  bool is_pushed = false;  // The prefill worker opens the connections.
  bool fail_instead_of_recompute = false;
};

using Prompt = std::variant<std::string, std::vector<engine::TokenId>, std::vector<engine::ChatMessage>>;

struct CompletionRequest {
  Api api = Api::kCompletions;
  std::string model;                      // "" if absent.
  std::vector<Prompt> prompts;            // One at least; chat has one.
  std::uint32_t n = 1;                    // Choices for each prompt.
  std::optional<std::uint32_t> logprobs;  // Tell how likely each token was, and so many of the likeliest.
  engine::SamplingParams sampling;
  bool has_seed = false;
  std::optional<std::uint64_t> tokens_max;
  std::vector<std::string> stop;  // At most 4, not empty.
  bool ignores_end = false;       // End-of-generation tokens don't end the answer.
  bool stream = false;
  bool include_usage = false;
  std::optional<std::string> cache_salt;  // The prompts' state is shared with requests of an equal one alone.
  TransferField transfer;

  std::size_t choices() const { return prompts.size() * n; }
  // A state that is handed over has one prompt and one answer, whose first token comes without scores.
  bool fits_a_handoff() const { return choices() == 1 && !logprobs.has_value(); }
};

// Parse a request body. Unknown fields are ignored, as OpenAI's servers do; a known field with a bad value is
// invalid_argument, one that would change the answer and isn't there (tools, echo, …) is
// unsupported; `bad_field` then names it ("" for the body as a whole).
Result<CompletionRequest> parse_completion(std::string_view body, Api api, std::string& bad_field);

struct Usage {
  std::uint64_t prompt_tokens = 0;
  std::uint64_t completion_tokens = 0;
  std::uint64_t cached_tokens = 0;  // Of prompt_tokens: whose state was here already.
};

struct LikelyToken {
  std::string piece;  // Raw bytes; special tokens by name.
  double log_probability = 0;
};
struct ScoredToken {
  LikelyToken drawn;
  std::vector<LikelyToken> top;
};

struct Choice {
  std::string text;
  std::vector<ScoredToken> tokens;  // Empty if nobody asked.
  std::optional<FinishReason> reason;
};

// Answers of one request: the same id, time and model in each.
class AnswerWriter {
 public:
  AnswerWriter(Api api, std::string id, std::string model, std::int64_t created_unix_s);

  std::string whole(std::span<const Choice> choices, const Usage& usage, json::Value transfer) const;
  // Server-sent events, each "data: …\n\n", of the choice at `index`.
  std::string first_event(std::size_t index) const;  // Chat: the role; completions: "".
  // What has become certain, with the tokens it is of. `offset`: characters of this choice before it.
  std::string text_event(std::size_t index, const Choice& part, std::size_t offset) const;
  std::string finish_event(std::size_t index, FinishReason reason) const;
  std::string usage_event(const Usage& usage) const;
  static std::string error_event(const Error& error);
  static std::string done_event();

 private:
  json::Value head(bool chunk) const;
  std::string event(std::size_t index, json::Value said, json::Value logprobs,
                    std::optional<FinishReason> reason) const;
  json::Value logprobs(std::span<const ScoredToken> tokens, std::size_t offset) const;

  Api api_;
  std::string id_;
  std::string model_;
  std::int64_t created_;
};

}  // namespace isthmus::worker
