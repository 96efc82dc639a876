// SPDX-License-Identifier: Apache-2.0
// OpenAI's request fields and answer shapes.
#include "worker/openai.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "http/openai_error.h"
#include "worker/utf8.h"

namespace isthmus::worker {
namespace {

constexpr std::size_t kStopsMax = 4;  // OpenAI's own limit.
constexpr std::size_t kMessagesMax = 1024;
constexpr std::int64_t kTopLogprobsMax = 20;  // OpenAI's own limit for chat.
constexpr std::uint64_t kTokensMax = std::uint64_t{1} << 20;

Error bad(std::string detail) {
  return {Code::kInvalidArgument, std::move(detail)};
}

// Reads one request object, remembering the field at hand so that an error can name it.
class Reader {
 public:
  Reader(const json::Value& body, std::string& field) : body_(body), field_(field) {}

  template <typename T>
  Result<std::optional<T>> get(std::string name) {
    field_ = std::move(name);
    return body_.get<T>(field_);
  }

  Status read_float(const char* name, float& out) {
    ISTHMUS_TRY(const auto value, get<double>(name));
    if (value) out = static_cast<float>(*value);
    return ok_status();
  }

  Result<CompletionRequest> read(Api api) {
    CompletionRequest request;
    request.api = api;
    ISTHMUS_TRY(const auto model, get<std::string>("model"));
    request.model = model.value_or("");
    ISTHMUS_TRY(refuse_unsupported());
    ISTHMUS_TRY(api == Api::kChat ? read_messages(request) : read_prompts(request));
    ISTHMUS_TRY(read_choices(request));
    ISTHMUS_TRY(read_sampling(request));
    ISTHMUS_TRY(read_length(request));
    ISTHMUS_TRY(read_stop(request));
    ISTHMUS_TRY(const auto stream, get<bool>("stream"));
    request.stream = stream.value_or(false);
    ISTHMUS_TRY(const auto usage, get<bool>("stream_options.include_usage"));
    request.include_usage = usage.value_or(false);
    ISTHMUS_TRY(request.cache_salt, get<std::string>("cache_salt"));
    if (request.cache_salt && (request.cache_salt->empty() || request.cache_salt->size() > kSaltBytesMax))
      return bad(fmt::format("'cache_salt' must have between 1 and {} bytes", kSaltBytesMax));
    ISTHMUS_TRY(read_transfer(request.transfer));
    field_.clear();
    return request;
  }

 private:
  // Fields that would change the answer and that this worker doesn't have.
  Status refuse_unsupported() {
    ISTHMUS_TRY(const auto best_of, get<std::int64_t>("best_of"));
    if (best_of && *best_of != 1)
      return Error{Code::kUnsupported, "'best_of' other than 1 isn't supported; ask for 'n'"};
    for (const char* name : {"tools", "functions", "logit_bias", "suffix", "response_format", "grammar",
                             "guided_json", "min_tokens", "repetition_penalty"}) {
      field_ = name;
      const json::Value* value = body_.member(name);
      if (value == nullptr || value->is_null() || is_neutral(name, *value)) continue;
      return Error{Code::kUnsupported, fmt::format("'{}' isn't supported by this worker", name)};
    }
    ISTHMUS_TRY(const auto echo, get<bool>("echo"));
    if (echo.value_or(false)) return Error{Code::kUnsupported, "'echo' isn't supported by this worker"};
    return ok_status();
  }

  // A value that asks for nothing special.
  static bool is_neutral(std::string_view name, const json::Value& value) {
    if (const auto* array = value.as_array()) return array->empty();
    if (name == "response_format") {
      const json::Value* type = value.member("type");
      return type != nullptr && type->as_string() != nullptr && *type->as_string() == "text";
    }
    if (const auto* object = value.as_object()) return object->empty();
    if (name == "min_tokens") return value.as_int() == 0;
    if (name == "repetition_penalty") return value.as_double() == 1.0;
    if (name == "suffix") return value.as_string() != nullptr && value.as_string()->empty();
    return false;
  }

  // Of how many choices the answer is, and what is told of each.
  Status read_choices(CompletionRequest& request) {
    ISTHMUS_TRY(const auto n, get<std::int64_t>("n"));
    if (n && (*n < 1 || static_cast<std::uint64_t>(*n) > kChoicesMax))
      return bad(fmt::format("'n' must be between 1 and {}, not {}", kChoicesMax, *n));
    request.n = static_cast<std::uint32_t>(n.value_or(1));
    if (request.choices() > kChoicesMax) {
      return bad(fmt::format("{} prompts of {} choices each are more than {}", request.prompts.size(),
                             request.n, kChoicesMax));
    }
    return request.api == Api::kChat ? read_chat_logprobs(request) : read_logprobs(request);
  }

  Status read_logprobs(CompletionRequest& request) {
    ISTHMUS_TRY(const auto top, get<std::int64_t>("logprobs"));
    if (!top) return ok_status();
    if (*top < 0 || *top > kTopLogprobsMax)
      return bad(fmt::format("'logprobs' must be between 0 and {}, not {}", kTopLogprobsMax, *top));
    request.logprobs = static_cast<std::uint32_t>(*top);
    return ok_status();
  }

  Status read_chat_logprobs(CompletionRequest& request) {
    ISTHMUS_TRY(const auto wanted, get<bool>("logprobs"));
    ISTHMUS_TRY(const auto top, get<std::int64_t>("top_logprobs"));
    if (top && (*top < 0 || *top > kTopLogprobsMax))
      return bad(fmt::format("'top_logprobs' must be between 0 and {}, not {}", kTopLogprobsMax, *top));
    if (top.value_or(0) > 0 && !wanted.value_or(false)) return bad("'top_logprobs' needs 'logprobs': true");
    if (wanted.value_or(false)) request.logprobs = static_cast<std::uint32_t>(top.value_or(0));
    return ok_status();
  }

  Status read_prompts(CompletionRequest& request) {
    field_ = "prompt";
    const json::Value* prompt = body_.member("prompt");
    if (prompt == nullptr || prompt->is_null()) return bad("'prompt' is missing");
    const json::Array* items = prompt->as_array();
    const bool is_batch =
        items != nullptr && !items->empty() && (items->front().is_string() || items->front().is_array());
    if (!is_batch) {
      ISTHMUS_TRY(Prompt one, read_prompt(*prompt));
      request.prompts.push_back(std::move(one));
      return ok_status();
    }
    if (items->size() > kChoicesMax)
      return bad(fmt::format("'prompt' holds {} prompts; at most {}", items->size(), kChoicesMax));
    for (const json::Value& item : *items) {
      ISTHMUS_TRY(Prompt one, read_prompt(item));
      request.prompts.push_back(std::move(one));
    }
    return ok_status();
  }

  static Result<Prompt> read_prompt(const json::Value& prompt) {
    if (const std::string* text = prompt.as_string()) {
      if (text->empty()) return bad("'prompt' is empty");
      return Prompt(*text);
    }
    const json::Array* items = prompt.as_array();
    if (items == nullptr)
      return bad("'prompt' must be a string, an array of token ids, or an array of such prompts");
    if (items->empty()) return bad("'prompt' is empty");
    std::vector<engine::TokenId> tokens;
    for (const json::Value& item : *items) {
      const auto token = item.as_int();
      if (!token || *token < 0 || *token > INT32_MAX)
        return bad("'prompt' holds something that is no token id");
      tokens.push_back(static_cast<engine::TokenId>(*token));
    }
    return Prompt(std::move(tokens));
  }

  Status read_messages(CompletionRequest& request) {
    field_ = "messages";
    const json::Value* value = body_.member("messages");
    const json::Array* items = value != nullptr ? value->as_array() : nullptr;
    if (items == nullptr || items->empty())
      return bad("'messages' must be an array with at least one message");
    if (items->size() > kMessagesMax)
      return bad(fmt::format("'messages' holds more than {} messages", kMessagesMax));
    std::vector<engine::ChatMessage> messages;
    for (std::size_t i = 0; i < items->size(); ++i) {
      field_ = fmt::format("messages.{}", i);
      ISTHMUS_TRY(auto message, read_message((*items)[i]));
      messages.push_back(std::move(message));
    }
    request.prompts.emplace_back(std::move(messages));
    return ok_status();
  }

  Result<engine::ChatMessage> read_message(const json::Value& item) const {
    if (!item.is_object()) return bad(fmt::format("'{}' must be an object with role and content", field_));
    ISTHMUS_TRY(const std::string role, item.require<std::string>("role"));
    const json::Value* content = item.member("content");
    if (content == nullptr) return bad(fmt::format("'{}.content' is missing", field_));
    if (const std::string* text = content->as_string()) return engine::ChatMessage{role, *text};
    const json::Array* parts = content->as_array();
    if (parts == nullptr)
      return bad(fmt::format("'{}.content' must be a string or an array of text parts", field_));
    std::string text;
    for (const json::Value& part : *parts) {
      const json::Value* type = part.member("type");
      const json::Value* piece = part.member("text");
      if (type == nullptr || type->as_string() == nullptr || *type->as_string() != "text" ||
          piece == nullptr || piece->as_string() == nullptr) {
        return Error{Code::kUnsupported, fmt::format("'{}.content' holds a part that isn't text", field_)};
      }
      text += *piece->as_string();
    }
    return engine::ChatMessage{role, text};
  }

  Status read_sampling(CompletionRequest& request) {
    engine::SamplingParams& sampling = request.sampling;
    ISTHMUS_TRY(read_float("temperature", sampling.temperature));
    ISTHMUS_TRY(read_float("top_p", sampling.top_p));
    ISTHMUS_TRY(read_float("min_p", sampling.min_p));
    ISTHMUS_TRY(read_float("presence_penalty", sampling.presence_penalty));
    ISTHMUS_TRY(read_float("frequency_penalty", sampling.frequency_penalty));
    ISTHMUS_TRY(const auto top_k, get<std::int64_t>("top_k"));
    if (top_k && (*top_k < -1 || *top_k > INT32_MAX))
      return bad("'top_k' must be -1 (all) or a positive number");
    sampling.top_k = top_k && *top_k > 0 ? static_cast<std::uint32_t>(*top_k) : 0;
    ISTHMUS_TRY(const auto seed, get<std::int64_t>("seed"));
    request.has_seed = seed.has_value();
    if (seed) sampling.seed = static_cast<std::uint64_t>(*seed);
    field_.clear();  // validate() names the field itself.
    return engine::validate(sampling);
  }

  Status read_length(CompletionRequest& request) {
    for (const char* name : {"max_tokens", "max_completion_tokens"}) {
      ISTHMUS_TRY(const auto value, get<std::int64_t>(name));
      if (!value) continue;
      if (*value < 1 || static_cast<std::uint64_t>(*value) > kTokensMax) {
        return bad(fmt::format("'{}' must be between 1 and {}, not {}", name, kTokensMax, *value));
      }
      request.tokens_max = static_cast<std::uint64_t>(*value);
    }
    ISTHMUS_TRY(const auto ignores_end, get<bool>("ignore_eos"));
    request.ignores_end = ignores_end.value_or(false);
    return ok_status();
  }

  Status read_stop(CompletionRequest& request) {
    field_ = "stop";
    const json::Value* stop = body_.member("stop");
    if (stop == nullptr || stop->is_null()) return ok_status();
    json::Array single{*stop};
    const json::Array& items = stop->is_array() ? *stop->as_array() : single;
    if (items.size() > kStopsMax) return bad(fmt::format("'stop' holds more than {} strings", kStopsMax));
    for (const json::Value& item : items) {
      const std::string* text = item.as_string();
      if (text == nullptr || text->empty())
        return bad("'stop' must be a string, or an array of strings, none empty");
      request.stop.push_back(*text);
    }
    return ok_status();
  }

  Status read_transfer(TransferField& transfer) {
    field_ = "kv_transfer_params";
    const json::Value* value = body_.member("kv_transfer_params");
    if (value == nullptr || value->is_null()) return ok_status();
    if (!value->is_object()) return bad("'kv_transfer_params' must be an object");
    ISTHMUS_TRY(const auto remote_decode, value->get<bool>("do_remote_decode"));
    ISTHMUS_TRY(const auto remote_prefill, value->get<bool>("do_remote_prefill"));
    ISTHMUS_TRY(const auto ticket, value->get<std::string>("isthmus_ticket"));
    ISTHMUS_TRY(const auto on_failure, value->get<std::string>("isthmus_on_failure"));
    transfer.do_remote_decode = remote_decode.value_or(false);
    transfer.do_remote_prefill = remote_prefill.value_or(false);
    transfer.ticket = ticket.value_or("");
    if (on_failure && *on_failure != "fail" && *on_failure != "recompute") {
      return bad("'kv_transfer_params.isthmus_on_failure' must be \"recompute\" or \"fail\"");
    }
    transfer.fail_instead_of_recompute = on_failure == "fail";
    if (transfer.do_remote_decode && transfer.do_remote_prefill) {
      return bad("'kv_transfer_params' asks for remote prefill and remote decode at once");
    }
    if (!transfer.do_remote_prefill) return ok_status();
    ISTHMUS_TRY(const auto dialer, value->get<std::string>("isthmus_dialer"));
    if (dialer && *dialer != "prefill" && *dialer != "decode")
      return bad("'kv_transfer_params.isthmus_dialer' must be \"prefill\" or \"decode\"");
    transfer.is_pushed = dialer == "prefill";
    const json::Value* endpoints = value->member("isthmus_endpoints");
    const json::Array* items = endpoints != nullptr ? endpoints->as_array() : nullptr;
    if (transfer.ticket.empty() || items == nullptr || items->empty() || items->size() > kEndpointsMax) {
      return bad("'kv_transfer_params' with do_remote_prefill needs isthmus_ticket and isthmus_endpoints");
    }
    for (const json::Value& item : *items) {
      if (!item.is_string()) return bad("'kv_transfer_params.isthmus_endpoints' must hold strings");
      transfer.endpoints.push_back(*item.as_string());
    }
    return ok_status();
  }

  const json::Value& body_;
  std::string& field_;
};

const char* text_of(FinishReason reason) {
  return reason == FinishReason::kStop ? "stop" : "length";
}

std::string data_event(const json::Value& value) {
  return fmt::format("data: {}\n\n", value.dump());
}

json::Value bytes_json(std::string_view piece) {
  json::Array bytes;
  for (const char byte : piece) bytes.emplace_back(static_cast<unsigned>(static_cast<unsigned char>(byte)));
  return bytes;
}

// {"token", "logprob", "bytes"}; a token that is a part of a character shows as U+FFFD and has its bytes.
json::Value chat_token(const LikelyToken& token) {
  return json::object({{"token", shown(token.piece)},
                       {"logprob", token.log_probability},
                       {"bytes", bytes_json(token.piece)}});
}

json::Value chat_logprobs(std::span<const ScoredToken> tokens) {
  json::Array content;
  for (const ScoredToken& token : tokens) {
    json::Array top;
    for (const LikelyToken& likely : token.top) top.push_back(chat_token(likely));
    json::Value item = chat_token(token.drawn);
    item.set("top_logprobs", std::move(top));
    content.push_back(std::move(item));
  }
  return json::object({{"content", std::move(content)}, {"refusal", nullptr}});
}

// `offset`: characters before the first token.
json::Value completion_logprobs(std::span<const ScoredToken> tokens, std::size_t offset) {
  json::Array texts, values, tops, offsets;
  for (const ScoredToken& token : tokens) {
    json::Object top;
    for (const LikelyToken& likely : token.top) top.emplace_back(shown(likely.piece), likely.log_probability);
    texts.emplace_back(shown(token.drawn.piece));
    values.emplace_back(token.drawn.log_probability);
    tops.emplace_back(top.empty() ? json::Value() : json::Value(std::move(top)));
    offsets.emplace_back(offset);
    offset += characters(token.drawn.piece);
  }
  return json::object({{"tokens", std::move(texts)},
                       {"token_logprobs", std::move(values)},
                       {"top_logprobs", std::move(tops)},
                       {"text_offset", std::move(offsets)}});
}

json::Value usage_json(const Usage& usage) {
  return json::object({{"prompt_tokens", usage.prompt_tokens},
                       {"completion_tokens", usage.completion_tokens},
                       {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
                       {"prompt_tokens_details", json::object({{"cached_tokens", usage.cached_tokens}})}});
}

}  // namespace

Result<CompletionRequest> parse_completion(std::string_view body, Api api, std::string& bad_field) {
  bad_field.clear();
  Result<json::Value> value = json::parse(body);
  if (!value.ok()) return bad(fmt::format("the body isn't JSON: {}", value.error().detail));
  if (!value->is_object()) return bad("the body must be a JSON object");
  return Reader(*value, bad_field).read(api);
}

AnswerWriter::AnswerWriter(Api api, std::string id, std::string model, std::int64_t created_unix_s)
    : api_(api), id_(std::move(id)), model_(std::move(model)), created_(created_unix_s) {}

json::Value AnswerWriter::head(bool chunk) const {
  const char* kind = api_ == Api::kCompletions ? "text_completion"
                     : chunk                   ? "chat.completion.chunk"
                                               : "chat.completion";
  const char* prefix = api_ == Api::kCompletions ? "cmpl-" : "chatcmpl-";
  return json::object({{"id", prefix + id_}, {"object", kind}, {"created", created_}, {"model", model_}});
}

json::Value AnswerWriter::logprobs(std::span<const ScoredToken> tokens, std::size_t offset) const {
  if (tokens.empty()) return nullptr;
  return api_ == Api::kChat ? chat_logprobs(tokens) : completion_logprobs(tokens, offset);
}

std::string AnswerWriter::whole(std::span<const Choice> choices, const Usage& usage,
                                json::Value transfer) const {
  json::Array items;
  for (const Choice& choice : choices) {
    json::Value item = json::object({{"index", items.size()}});
    if (api_ == Api::kChat) {
      item.set("message", json::object({{"role", "assistant"}, {"content", choice.text}}));
    } else {
      item.set("text", choice.text);
    }
    item.set("logprobs", logprobs(choice.tokens, 0));
    item.set("finish_reason", choice.reason ? json::Value(text_of(*choice.reason)) : json::Value());
    items.push_back(std::move(item));
  }
  json::Value answer = head(false);
  answer.set("choices", std::move(items));
  answer.set("usage", usage_json(usage));
  if (!transfer.is_null()) answer.set("kv_transfer_params", std::move(transfer));
  return answer.dump();
}

std::string AnswerWriter::event(std::size_t index, json::Value said, json::Value logprobs,
                                std::optional<FinishReason> reason) const {
  json::Value choice = json::object({{"index", index}});
  choice.set(api_ == Api::kChat ? "delta" : "text", std::move(said));
  choice.set("logprobs", std::move(logprobs));
  choice.set("finish_reason", reason ? json::Value(text_of(*reason)) : json::Value());
  json::Value answer = head(true);
  answer.set("choices", json::array({std::move(choice)}));
  return data_event(answer);
}

std::string AnswerWriter::first_event(std::size_t index) const {
  if (api_ != Api::kChat) return "";
  return event(index, json::object({{"role", "assistant"}, {"content", ""}}), nullptr, std::nullopt);
}

std::string AnswerWriter::text_event(std::size_t index, const Choice& part, std::size_t offset) const {
  json::Value said = api_ == Api::kChat ? json::object({{"content", part.text}}) : json::Value(part.text);
  return event(index, std::move(said), logprobs(part.tokens, offset), std::nullopt);
}

std::string AnswerWriter::finish_event(std::size_t index, FinishReason reason) const {
  return event(index, api_ == Api::kChat ? json::Value(json::Object{}) : json::Value(""), nullptr, reason);
}

std::string AnswerWriter::usage_event(const Usage& usage) const {
  json::Value answer = head(true);
  answer.set("choices", json::Array{});
  answer.set("usage", usage_json(usage));
  return data_event(answer);
}

std::string AnswerWriter::error_event(const Error& error) {
  return fmt::format("data: {}\n\n", http::error_json(error));
}

std::string AnswerWriter::done_event() {
  return "data: [DONE]\n\n";
}

}  // namespace isthmus::worker
