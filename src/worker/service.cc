// SPDX-License-Identifier: Apache-2.0
// Routes, and what requests have in common.
#include "worker/service.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/rng.h"
#include "http/openai_error.h"
#include "wire/descriptor_codec.h"
#include "worker/answer.h"
#include "worker/canary_request.h"
#include "worker/utf8.h"

namespace isthmus::worker {
namespace {

constexpr std::uint64_t kCompletionTokensDefault = 16;  // OpenAI's default of /v1/completions.
// A prompt this short is computed where it is decoded: its handoff costs more than its prefill.
constexpr std::size_t kHandoffPromptMin = 3;

http::Response json_response(const json::Value& value, int status = 200) {
  return {.status = status, .headers = {{"Content-Type", "application/json"}}, .body = value.dump()};
}

Error no_route(const http::Request& request) {
  return {Code::kNotFound, fmt::format("no route {} {}", request.method, request.path)};
}

}  // namespace

// A reservation's prefill, from its admission until its pins may go.
struct Service::Prefill {
  std::string request_id;
  std::vector<engine::TokenId> prompt;
  Id128 reservation;
  JobId job = 0;
};

Service::Service(EngineLoop& engine, handoff::Agent& agent, const engine::Tokenizer& tokenizer,
                 MetricsRegistry& metrics, ServiceOptions options)
    : engine_(engine), agent_(agent), tokenizer_(tokenizer), metrics_(metrics), options_(std::move(options)) {
  if (engine_.keeps_prefixes()) arrivals_.emplace(engine_.descriptor().digest(), engine_.info().block_tokens);
}

Service::~Service() = default;

void Service::handle(const std::shared_ptr<http::Exchange>& exchange) {
  const http::Request& request = exchange->request();
  const bool is_post = request.method == "POST";
  const bool is_get = request.method == "GET";
  if (is_post && request.path == "/v1/completions") return handle_completion(exchange, Api::kCompletions);
  if (is_post && request.path == "/v1/chat/completions") return handle_completion(exchange, Api::kChat);
  if (is_post && request.path == "/tokenize") return handle_tokenize(*exchange);
  if (is_post && request.path == "/detokenize") return handle_detokenize(*exchange);
  if (is_post && request.path == "/drain") return handle_drain(*exchange);
  if (is_post && request.path == "/isthmus/canary") return handle_canary(exchange);
  if (is_post && request.path == "/isthmus/cancel") return handle_cancel(*exchange);
  if (is_post && request.path == "/isthmus/supersede") return handle_supersede(*exchange);
  if (is_post && request.path == "/isthmus/reach") return handle_reach(*exchange);
  if (is_get && request.path == "/v1/models") return exchange->send(models());
  if (is_get && request.path == "/health")
    return exchange->send(json_response(json::object({{"status", "ok"}})));
  if (is_get && request.path == "/ready") return exchange->send(ready());
  if (is_get && request.path == "/metrics") return exchange->send(metrics());
  if (is_get && request.path == "/state") return exchange->send(state());
  if (is_get && request.path == "/isthmus/descriptor") {
    return exchange->send(
        {.headers = {{"Content-Type", "text/plain"}}, .body = engine_.descriptor().canonical_text()});
  }
  if (is_get && request.path == "/isthmus/descriptor.pb") return exchange->send(descriptor_bytes());
  refuse(*exchange, no_route(request));
}

http::Response Service::models() const {
  json::Value model = json::object({{"id", options_.served_model},
                                    {"object", "model"},
                                    {"owned_by", "isthmus"},
                                    {"max_model_len", engine_.info().context_tokens_max}});
  return json_response(json::object({{"object", "list"}, {"data", json::array({std::move(model)})}}));
}

json::Value Service::endpoints() const {
  json::Array texts;
  for (const std::string& endpoint : agent_.endpoints()) texts.emplace_back(endpoint);
  return texts;
}

http::Response Service::ready() const {
  if (is_draining_) return http::error_response({Code::kUnavailable, "draining"});
  return json_response(json::object({{"status", "ready"},
                                     {"model", options_.served_model},
                                     {"engine", engine_.info().name},
                                     {"storage", engine_.info().storage},
                                     {"agent", endpoints()},
                                     {"incarnation", agent_.incarnation().hex()},
                                     {"descriptor", engine_.descriptor().digest().hex()}}));
}

http::Response Service::descriptor_bytes() const {
  const auto bytes = wire::encode_descriptor(engine_.descriptor());
  if (!bytes.ok()) return http::error_response(bytes.error());
  return {.status = 200,
          .headers = {{"Content-Type", "application/x-protobuf"}},
          .body = std::string(text_of(*bytes))};
}

void Service::refuse(http::Exchange& exchange, const Error& error, const std::string& field,
                     Duration retry_after) {
  count_request(std::string(name(error.code)).c_str());
  http::Response response = http::error_response(error, field, retry_after);
  // A field that this worker doesn't have is the request's fault: routers must not try it elsewhere.
  if (error.code == Code::kUnsupported && !field.empty()) response.status = 400;
  exchange.send(std::move(response));
}

Duration Service::memory_hint() const {
  constexpr Duration kHintMax = std::chrono::seconds(5);  // What holds it may end long before it must.
  return agent_.ledger().retry_hint(now(), kHintMax);
}

void Service::count_request(const char* outcome) {
  metrics_.counter("isthmus_requests_total", "Completion requests by outcome", {{"outcome", outcome}}).add();
}

handoff::Amount Service::amount_of(std::uint64_t tokens) const {
  const engine::EngineInfo& info = engine_.info();
  if (info.block_tokens == 0) return {.bytes = tokens * info.kv_bytes_per_token, .blocks = 0};
  const std::uint64_t blocks = (tokens + info.block_tokens - 1) / info.block_tokens;
  return {.bytes = blocks * info.block_tokens * info.kv_bytes_per_token, .blocks = blocks};
}

AnswerWriter Service::writer_of(const Prepared& prepared) const {
  return {prepared.request.api, prepared.request_id, options_.served_model, unix_seconds()};
}

Result<std::vector<engine::TokenId>> Service::tokenize(const Prompt& prompt) const {
  if (const auto* tokens = std::get_if<std::vector<engine::TokenId>>(&prompt)) {
    const std::uint32_t vocabulary = engine_.info().vocabulary;
    for (const engine::TokenId token : *tokens) {
      if (static_cast<std::uint32_t>(token) < vocabulary) continue;
      return Error{Code::kInvalidArgument,
                   fmt::format("'prompt': token {} isn't below {}", token, vocabulary)};
    }
    return *tokens;
  }
  if (const auto* text = std::get_if<std::string>(&prompt)) return tokenizer_.encode(*text, true, true);
  ISTHMUS_TRY(const std::string text,
              tokenizer_.apply_chat_template(std::get<std::vector<engine::ChatMessage>>(prompt)));
  return tokenizer_.encode(text, true, true);
}

Status Service::check_role(const CompletionRequest& request, std::string& bad_field) const {
  bad_field = "kv_transfer_params";
  const TransferField& transfer = request.transfer;
  if (transfer.do_remote_decode && options_.role == Role::kDecode)
    return Error{Code::kInvalidArgument, "this worker only decodes; it doesn't prefill for others"};
  if (transfer.do_remote_prefill && options_.role == Role::kPrefill)
    return Error{Code::kInvalidArgument, "this worker only prefills; it doesn't decode a state of others"};
  if (transfer.do_remote_prefill && !request.fits_a_handoff()) {
    return Error{
        Code::kUnsupported,
        "a state that is handed over has one prompt, one choice and no logprobs; send such a request "
        "without a ticket"};
  }
  bad_field.clear();
  return ok_status();
}

// The answer's bound, and room for it behind each prompt.
Status Service::fit_context(Prepared& prepared, std::string& bad_field) const {
  const CompletionRequest& asked = prepared.request;
  const std::uint64_t context = engine_.info().context_tokens_max;
  std::uint64_t longest = 0;
  bad_field = asked.api == Api::kChat ? "messages" : "prompt";
  for (const auto& prompt : prepared.prompts) {
    if (prompt.empty()) return Error{Code::kInvalidArgument, fmt::format("'{}' holds no token", bad_field)};
    longest = std::max<std::uint64_t>(longest, prompt.size());
  }
  if (longest >= context) {
    return Error{Code::kInvalidArgument, fmt::format("'{}' has {} tokens; the context is {} with the answer",
                                                     bad_field, longest, context)};
  }
  const std::uint64_t fallback =
      asked.api == Api::kChat ? options_.tokens_max_default : kCompletionTokensDefault;
  prepared.tokens_max = asked.tokens_max.value_or(std::min(fallback, context - longest));
  if (longest + prepared.tokens_max > context) {
    bad_field = "max_tokens";
    return Error{Code::kInvalidArgument,
                 fmt::format("{} prompt tokens and {} to generate exceed the context of {}", longest,
                             prepared.tokens_max, context)};
  }
  bad_field.clear();
  return ok_status();
}

Result<Service::Prepared> Service::prepare(const http::Request& request, Api api,
                                           std::string& bad_field) const {
  Prepared prepared;
  ISTHMUS_TRY(prepared.request, parse_completion(request.body, api, bad_field));
  CompletionRequest& asked = prepared.request;
  if (!asked.model.empty() && asked.model != options_.served_model) {
    bad_field = "model";
    return Error{Code::kNotFound, fmt::format("model '{}' isn't served here; this is '{}'", asked.model,
                                              options_.served_model)};
  }
  ISTHMUS_TRY(check_role(asked, bad_field));
  bad_field = api == Api::kChat ? "messages" : "prompt";
  for (const Prompt& prompt : asked.prompts) {
    ISTHMUS_TRY(std::vector<engine::TokenId> tokens, tokenize(prompt));
    prepared.prompts.push_back(std::move(tokens));
  }
  ISTHMUS_TRY(fit_context(prepared, bad_field));
  if (!asked.has_seed) asked.sampling.seed = random_id().low;
  prepared.deadline = now() + options_.request_timeout;
  ISTHMUS_TRY(prepared.start_by, start_by(request, bad_field));
  prepared.request_id = std::string(http::header(request.headers, "X-Request-Id")).substr(0, 128);
  if (prepared.request_id.empty()) prepared.request_id = random_id().hex();
  return prepared;
}

// A router tells what is left of the time that the request may wait.
Result<Instant> Service::start_by(const http::Request& request, std::string& bad_field) const {
  constexpr std::string_view kHeader = "X-Isthmus-Queue-Wait-Ms";
  const std::string_view text = http::header(request.headers, kHeader);
  if (text.empty()) return now() + options_.queue_wait;
  std::uint32_t ms = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), ms);
  bad_field = kHeader;
  if (error != std::errc() || end != text.data() + text.size())
    return Error{Code::kInvalidArgument, fmt::format("{} must be a number of milliseconds", kHeader)};
  bad_field.clear();
  return now() + std::min<Duration>(options_.queue_wait, std::chrono::milliseconds(ms));
}

void Service::handle_completion(const std::shared_ptr<http::Exchange>& exchange, Api api) {
  if (is_draining_) return refuse(*exchange, {Code::kUnavailable, "this worker is draining"});
  std::string bad_field;
  Result<Prepared> prepared = prepare(exchange->request(), api, bad_field);
  if (!prepared.ok()) return refuse(*exchange, prepared.error(), bad_field);
  if (prepared->request.transfer.do_remote_decode) return start_prefill(exchange, *std::move(prepared));
  start_answer(exchange, *std::move(prepared));
}

void Service::start_answer(const std::shared_ptr<http::Exchange>& exchange, Prepared prepared) {
  const std::uint64_t id = next_answer_++;
  const auto answer = std::make_shared<Answer>(*this, exchange, std::move(prepared), id);
  answers_[id] = answer;
  answer->start();
}

// Answers at admission, so that the consumer can open while prefill runs; a later failure travels as ABORT.
// An answer without a transfer field: nothing is handed over, and whoever decodes computes the prompt.
void Service::start_prefill(const std::shared_ptr<http::Exchange>& exchange, Prepared prepared) {
  if (prefills_.contains(prepared.request_id)) {
    return refuse(*exchange, {Code::kInvalidArgument,
                              fmt::format("request {} is being prefilled already", prepared.request_id)});
  }
  const std::vector<engine::TokenId>& prompt = prepared.prompts.front();
  json::Value transfer;
  if (prepared.request.fits_a_handoff() && prompt.size() >= kHandoffPromptMin) {
    auto prefill = std::make_shared<Prefill>();
    prefill->request_id = prepared.request_id;
    prefill->prompt = prompt;
    Result<handoff::Offered> offered = agent_.offer(
        {.prompt_tokens = prompt.size(), .pinned = amount_of(prompt.size()), .deadline = prepared.deadline},
        [this, prefill](const handoff::Ending& ending) {
          engine_.finish_prefill(prefill->job);
          prefills_.erase(prefill->request_id);
          count_request(ending.kind == handoff::TerminalKind::kDone ||
                                ending.kind == handoff::TerminalKind::kFinished
                            ? "handed_over"
                            : "not_handed_over");
          ISTHMUS_LOG(kInfo, "reservation ended", "request={} outcome={} bytes={} stored={}",
                      prefill->request_id, handoff::name(ending.kind), ending.bytes, ending.stored_bytes);
        });
    if (!offered.ok()) return refuse(*exchange, offered.error(), {}, memory_hint());
    prefill->reservation = offered->reservation;
    wire_prefill(prefill, {.prompt = prompt,
                           .sampling = prepared.request.sampling,
                           .tokens_max = 1,
                           .ignores_end = prepared.request.ignores_end,
                           .deadline = prepared.deadline,
                           .start_by = prepared.start_by,
                           .salt = prepared.request.cache_salt});
    if (prefill->job == 0)
      return refuse(*exchange, {Code::kExhausted, "too many requests are in this worker; retry later"});
    transfer = transfer_of(offered->ticket, prompt.size());
  }
  http::Response response{
      .status = 200,
      .headers = {{"Content-Type", "application/json"}, {"X-Request-Id", prepared.request_id}},
      .body = writer_of(prepared).whole(std::array{Choice{}}, {prompt.size(), 0, 0}, std::move(transfer))};
  exchange->send(std::move(response));
}

json::Value Service::transfer_of(const std::string& ticket, std::uint64_t prompt_tokens) const {
  return json::object({{"do_remote_prefill", true},
                       {"do_remote_decode", false},
                       {"isthmus_ticket", ticket},
                       {"isthmus_endpoints", endpoints()},
                       {"remote_engine_id", agent_.incarnation().hex()},
                       {"remote_num_tokens", prompt_tokens}});
}

// Starts the engine's part; prefill->job stays 0 if the engine has no place for it.
void Service::wire_prefill(const std::shared_ptr<Prefill>& prefill, Job job) {
  PrefillEvents events;
  events.on_exported = [this, prefill](kv::TokenRange range, std::unique_ptr<engine::ExportedKv> memory) {
    agent_.publish(prefill->reservation, range, std::move(memory));
  };
  events.on_prefilled = [this, prefill](engine::TokenId first, bool ends) {
    kv::TokenChain chain;
    for (const engine::TokenId token : prefill->prompt) chain.append(token);
    agent_.seal(prefill->reservation, {.tokens = {0, prefill->prompt.size()},
                                       .token_digest = chain.digest(),
                                       .tile_root = {},
                                       .first_tokens = {first},
                                       .finish = ends ? wire::FinishState::kStop : wire::FinishState::kNone});
  };
  events.on_failed = [this, prefill](const Error& why) { agent_.fail(prefill->reservation, why); };
  prefills_[prefill->request_id] = prefill;
  const Result<JobId> started = engine_.prefill(std::move(job), std::move(events));
  if (started.ok()) {
    prefill->job = *started;
  } else {
    agent_.withdraw(prefill->reservation, started.error().text());
  }
}

Result<std::string> Service::named_request(const http::Request& request) {
  ISTHMUS_TRY(const json::Value body, json::parse(request.body));
  return body.require<std::string>("request_id");
}

void Service::handle_cancel(http::Exchange& exchange) {
  const Result<std::string> id = named_request(exchange.request());
  if (!id.ok()) return exchange.send(http::error_response(id.error(), "request_id"));
  const auto at = prefills_.find(*id);
  const bool found = at != prefills_.end();
  if (found) agent_.withdraw(at->second->reservation, "cancelled by its router");
  exchange.send(json_response(json::object({{"cancelled", found}})));
}

// A completion request for a state that another worker made; its answer is how far that is from our own.
void Service::handle_canary(const std::shared_ptr<http::Exchange>& exchange) {
  std::string bad_field;
  const auto refused = [&](const Error& why) { exchange->send(http::error_response(why, bad_field)); };
  if (is_draining_) return refused({Code::kUnavailable, "this worker is draining"});
  if (canary_) return refused({Code::kExhausted, "another comparison is under way; retry later"});
  Result<Prepared> prepared = prepare(exchange->request(), Api::kCompletions, bad_field);
  if (!prepared.ok()) return refused(prepared.error());
  if (!prepared->request.transfer.do_remote_prefill) {
    bad_field = "kv_transfer_params";
    return refused({Code::kInvalidArgument, "'kv_transfer_params' must be a producer's, with its ticket"});
  }
  if (prepared->prompts.front().size() > kCanaryTokensMax) {
    bad_field = "prompt";
    return refused(
        {Code::kInvalidArgument, fmt::format("'prompt' has more than {} tokens", kCanaryTokensMax)});
  }
  canary_ = std::make_shared<Canary>(*this, exchange, *std::move(prepared));
  const auto keep = canary_;
  keep->start();
}

// As vLLM's: {"prompt"} or {"messages"} → {"count", "max_model_len", "tokens"}.
void Service::handle_tokenize(http::Exchange& exchange) {
  std::string field;
  const std::string_view body = exchange.request().body;
  const Result<json::Value> value = json::parse(body);
  const bool is_chat = value.ok() && value->member("messages") != nullptr;
  const Result<CompletionRequest> request =
      parse_completion(body, is_chat ? Api::kChat : Api::kCompletions, field);
  if (!request.ok()) return exchange.send(http::error_response(request.error(), field));
  if (request->prompts.size() != 1)
    return exchange.send(http::error_response({Code::kUnsupported, "'prompt' must be one prompt"}, "prompt"));
  const Result<std::vector<engine::TokenId>> tokens = tokenize(request->prompts.front());
  if (!tokens.ok())
    return exchange.send(http::error_response(tokens.error(), is_chat ? "messages" : "prompt"));
  json::Array ids;
  for (const engine::TokenId token : *tokens) ids.emplace_back(token);
  exchange.send(json_response(json::object({{"count", tokens->size()},
                                            {"max_model_len", engine_.info().context_tokens_max},
                                            {"tokens", std::move(ids)}})));
}

// As vLLM's: {"tokens"} → {"prompt"}.
void Service::handle_detokenize(http::Exchange& exchange) {
  const auto refused = [&](std::string detail) {
    exchange.send(http::error_response({Code::kInvalidArgument, std::move(detail)}, "tokens"));
  };
  const Result<json::Value> body = json::parse(exchange.request().body);
  if (!body.ok()) return exchange.send(http::error_response(body.error()));
  const json::Value* value = body->member("tokens");
  const json::Array* items = value != nullptr ? value->as_array() : nullptr;
  if (items == nullptr) return refused("'tokens' must be an array of token ids");
  std::string text;
  for (const json::Value& item : *items) {
    const auto token = item.as_int();
    if (!token || *token < 0 || *token >= engine_.info().vocabulary)
      return refused(fmt::format("'tokens' must hold ids below {}", engine_.info().vocabulary));
    text += tokenizer_.piece(static_cast<engine::TokenId>(*token), true);
  }
  exchange.send(json_response(json::object({{"prompt", shown(text)}})));
}

void Service::handle_drain(http::Exchange& exchange) {
  drain();
  exchange.send(json_response(
      json::object({{"draining", true}, {"requests", answers_.size()}, {"prefills", prefills_.size()}})));
}

void Service::handle_reach(http::Exchange& exchange) {
  const auto refused = [&](std::string detail) {
    exchange.send(http::error_response({Code::kInvalidArgument, std::move(detail)}, "endpoints"));
  };
  const Result<json::Value> body = json::parse(exchange.request().body);
  if (!body.ok()) return exchange.send(http::error_response(body.error()));
  const json::Value* value = body->member("endpoints");
  const json::Array* items = value != nullptr ? value->as_array() : nullptr;
  if (items == nullptr || items->empty() || items->size() > kEndpointsMax)
    return refused(fmt::format("'endpoints' must list 1 to {} endpoints of a handoff agent", kEndpointsMax));
  std::vector<std::string> endpoints;
  for (const json::Value& item : *items) {
    if (!item.is_string()) return refused("'endpoints' must hold strings");
    endpoints.push_back(*item.as_string());
  }
  agent_.reach(endpoints);
  exchange.send(json_response(json::object({{"reaching", endpoints.size()}})));
}

// Its consumer has failed while the state is still here: another takes over, and nothing is prefilled again.
void Service::handle_supersede(http::Exchange& exchange) {
  const Result<std::string> id = named_request(exchange.request());
  if (!id.ok()) return exchange.send(http::error_response(id.error(), "request_id"));
  const auto at = prefills_.find(*id);
  Result<std::string> ticket = Error{Code::kNotFound, "no state is kept for that request"};
  if (at != prefills_.end()) ticket = agent_.supersede(at->second->reservation);
  if (!ticket.ok()) return exchange.send(http::error_response(ticket.error(), "request_id"));
  exchange.send(
      json_response(json::object({{"kv_transfer_params", transfer_of(*ticket, at->second->prompt.size())}})));
}

http::Response Service::metrics() {
  const EngineLoopStats stats = engine_.stats();
  const auto count = [&](const char* name, const char* help, std::uint64_t value, std::uint64_t& shown) {
    metrics_.counter(name, help).add(static_cast<double>(value - shown));
    shown = value;
  };
  count("isthmus_prompt_tokens_computed_total", "Prompt tokens that this worker's engine ran",
        stats.prompt_tokens_computed, shown_.prompt_tokens_computed);
  count("isthmus_prompt_tokens_adopted_total", "Prompt tokens whose state was handed over to this worker",
        stats.prompt_tokens_adopted, shown_.prompt_tokens_adopted);
  count("isthmus_tokens_generated_total", "Tokens sampled or taken over as first token",
        stats.tokens_generated, shown_.tokens_generated);
  count("isthmus_prefix_cache_query_tokens_total", "Prompt tokens looked up among those computed before",
        stats.prefix_tokens_queried, shown_.prefix_tokens_queried);
  count("isthmus_prefix_cache_hit_tokens_total", "Prompt tokens whose state was here already",
        stats.prefix_tokens_known, shown_.prefix_tokens_known);
  if (arrivals_) {
    count("isthmus_handoff_prefix_query_tokens_total",
          "Prompt tokens of states to be handed over, looked up among those handed over before",
          arrivals_->tokens_queried(), shown_.arriving_queried);
    count("isthmus_handoff_prefix_hit_tokens_total",
          "Prompt tokens of states handed over that were here already and didn't cross",
          arrivals_->tokens_known(), shown_.arriving_known);
  }
  count("isthmus_preemptions_total", "Times that a running sequence had to wait for others' memory",
        stats.preemptions, shown_.preemptions);
  count("isthmus_draft_tokens_total", "Tokens guessed and run beside a lone one", stats.draft_tokens,
        shown_.draft_tokens);
  count("isthmus_draft_tokens_accepted_total", "Of these, those that were right", stats.draft_tokens_accepted,
        shown_.draft_tokens_accepted);
  const auto set = [&](const char* name, const char* help, double value, const MetricLabels& labels = {}) {
    metrics_.gauge(name, help, labels).set(value);
  };
  set("isthmus_engine_sequences", "Open sequences of the engine", stats.usage.sequences);
  set("isthmus_engine_blocks_used", "KV blocks in use", static_cast<double>(stats.usage.blocks_used));
  set("isthmus_engine_blocks_kept", "KV blocks of computed prompts that nobody holds",
      static_cast<double>(stats.usage.blocks_kept));
  set("isthmus_engine_kv_bytes_used", "KV memory in use", static_cast<double>(stats.usage.kv_bytes_used));
  set("isthmus_engine_blocks_parked", "KV blocks of preempted sequences beside the pool",
      static_cast<double>(stats.usage.blocks_parked));
  set("isthmus_engine_kv_bytes_parked", "KV memory of these",
      static_cast<double>(stats.usage.blocks_parked * engine_.info().block_tokens *
                          engine_.info().kv_bytes_per_token));
  set("isthmus_jobs_preempted", "Jobs in the engine that wait for others' memory", stats.jobs_preempted);
  set("isthmus_jobs_running", "Jobs in the engine", stats.jobs_running);
  set("isthmus_jobs_waiting", "Jobs that wait for the engine", stats.jobs_waiting);
  const handoff::Ledger& ledger = agent_.ledger();
  for (std::size_t i = 0; i < handoff::kCategoryCount; ++i) {
    const auto category = static_cast<handoff::Category>(i);
    set("isthmus_ledger_bytes", "Memory by what holds it", static_cast<double>(ledger.held(category).bytes),
        {{"category", std::string(handoff::name(category))}});
  }
  set("isthmus_ledger_grants", "Live grants of the ledger", static_cast<double>(ledger.live()));
  return {
      .status = 200, .headers = {{"Content-Type", "text/plain; version=0.0.4"}}, .body = metrics_.render()};
}

}  // namespace isthmus::worker
