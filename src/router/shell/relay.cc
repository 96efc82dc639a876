// SPDX-License-Identifier: Apache-2.0
// The calls to both workers and the answer to the client.
#include "router/shell/relay.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/rng.h"
#include "http/json.h"
#include "http/openai_error.h"
#include "router/shell/bodies.h"

namespace isthmus::router::shell {
namespace {

// Of a stream and per client: beyond the first the worker's stream rests until no more than the second is
// left.
constexpr std::size_t kClientBufferMax = std::size_t{128} << 10;
constexpr std::size_t kClientBufferLow = std::size_t{32} << 10;

constexpr std::string_view kRequestId = "X-Request-Id";

// A pair asked for one request is retried fewer times than this, so that names of requests with one id stay
// apart.
constexpr std::uint32_t kLegsPerRequest = 100;

}  // namespace

std::string request_id_of(const http::Request& request) {
  constexpr std::size_t kIdMax = 100;  // Workers keep 128 bytes, suffix included.
  const std::string_view given = http::header(request.headers, kRequestId);
  const bool is_fit = !given.empty() && given.size() <= kIdMax && std::ranges::all_of(given, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.' || c == ':' || c == '/';
  });
  return is_fit ? std::string(given) : "req-" + random_id().hex();
}

Relay::Relay(Setup setup, http::Client& client, Tell tell)
    : setup_(std::move(setup)), client_(client), tell_(std::move(tell)) {
  name_leg(1);
}

// A cancel of an earlier leg may arrive late, and a client may repeat its id: neither must hit this leg.
void Relay::name_leg(std::uint32_t number) {
  const std::uint32_t of_all = setup_.earlier_uses * kLegsPerRequest + number;
  leg_id_ = of_all == 1 ? setup_.request_id : fmt::format("{}.{}", setup_.request_id, of_all);
}

http::Request Relay::request_to_worker(std::string body, bool may_wait) const {
  const http::Request& from = setup_.exchange->request();
  http::Request to;
  to.method = "POST";
  to.path = from.path;
  to.query = from.query;
  to.headers = {{"Content-Type", "application/json"}, {std::string(kRequestId), leg_id_}};
  for (const std::string_view name : {"traceparent", "tracestate"}) {
    const std::string_view value = http::header(from.headers, name);
    if (!value.empty()) to.headers.emplace_back(name, value);
  }
  if (!may_wait) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(setup_.start_by - now()).count();
    to.headers.emplace_back("X-Isthmus-Queue-Wait-Ms", std::to_string(std::max<long long>(left, 1)));
  }
  to.body = std::move(body);
  return to;
}

http::Headers Relay::headers_to_client() const {
  http::Headers headers = {{std::string(kRequestId), setup_.request_id}};
  if (!prefill_worker_.empty()) headers.emplace_back("X-Isthmus-Prefill", prefill_worker_);
  if (!decode_worker_.empty()) headers.emplace_back("X-Isthmus-Decode", decode_worker_);
  return headers;
}

void Relay::ask_prefill(const fleet::Worker& worker, std::uint32_t attempt) {
  name_leg(++prefills_asked_);
  prefill_worker_ = worker.name;
  transfer_.reset();
  prefill_call_ =
      http::fetch(client_, worker.http, request_to_worker(prefill_body(setup_.body), prefills_asked_ > 1),
                  [this, attempt, name = worker.name](const Result<http::Response>& answer) {
                    prefill_answered(name, attempt, answer);
                  });
}

void Relay::supersede(const fleet::Worker& worker, std::uint32_t attempt) {
  decode_call_.reset();  // Whatever it would say is no answer any more.
  http::Request request = request_to_worker(json::object({{"request_id", leg_id_}}).dump(), true);
  request.path = "/isthmus/supersede";
  request.query.clear();
  prefill_call_ =
      http::fetch(client_, worker.http, std::move(request),
                  [this, attempt, name = worker.name](const Result<http::Response>& answer) {
                    if (!answer.ok() || answer->status == 200) return prefill_answered(name, attempt, answer);
                    const Code code = answer->status == 404 ? Code::kNotFound : Code::kUnavailable;
                    fail(core::Leg::kPrefill, attempt,
                         {code, fmt::format("worker {}: {}", name, http::message_of(answer->body))});
                  });
}

void Relay::prefill_answered(const std::string& worker, std::uint32_t attempt,
                             const Result<http::Response>& answer) {
  if (!answer.ok()) {
    return fail(core::Leg::kPrefill, attempt, answer.status().with_context("worker " + worker).error());
  }
  if (answer->status != 200) {
    Error error = Status(http::error_of(*answer)).with_context("worker " + worker).error();
    if (error.code == Code::kInvalidArgument) refusal_ = *answer;
    return fail(core::Leg::kPrefill, attempt, std::move(error));
  }
  auto transfer = transfer_of(answer->body, setup_.on_failure, setup_.dialer);
  if (!transfer.ok()) {
    return fail(core::Leg::kPrefill, attempt, transfer.status().with_context("worker " + worker).error());
  }
  transfer_ = *std::move(transfer);
  tell_(core::PrefillAdmitted{setup_.id, attempt, transfer_.has_value()});
}

void Relay::ask_decode(const fleet::Worker& worker, std::uint32_t attempt, bool with_transfer) {
  decode_worker_ = worker.name;
  if (!with_transfer) {
    prefill_worker_.clear();
    transfer_.reset();
  }
  decode_answer_ = {};
  streams_ = false;
  http::ClientEvents events;
  events.on_head = [this](int status, const http::Headers& headers) { decode_head(status, headers); };
  events.on_piece = [this, attempt](std::string_view piece) { decode_piece(attempt, piece); };
  events.on_done = [this, attempt](const Status& status) { decode_done(attempt, status); };
  decode_call_ =
      client_.call(worker.http, request_to_worker(decode_body(setup_.body, transfer_), decodes_asked_++ > 0),
                   std::move(events));
}

void Relay::decode_head(int status, const http::Headers& headers) {
  decode_answer_.status = status;
  decode_answer_.headers = headers_to_client();
  const std::string_view type = http::header(headers, "Content-Type");
  if (!type.empty()) decode_answer_.headers.emplace_back("Content-Type", type);
  const std::string_view retry = http::header(headers, "Retry-After");
  if (!retry.empty()) decode_answer_.headers.emplace_back("Retry-After", retry);
  // How the worker came by the prompt's state.
  const std::string_view route = http::header(headers, "X-Isthmus-Route");
  if (!route.empty()) decode_answer_.headers.emplace_back("X-Isthmus-Route", route);
  streams_ = status == 200 && type.starts_with("text/event-stream");
  if (streams_) decode_answer_.headers.emplace_back("Cache-Control", "no-cache");
}

void Relay::decode_piece(std::uint32_t attempt, std::string_view piece) {
  if (!streams_) {
    const std::uint64_t bytes_max = client_.limits().body_bytes_max;
    if (decode_answer_.body.size() + piece.size() <= bytes_max) {
      decode_answer_.body += piece;
      return;
    }
    return fail(core::Leg::kDecode, attempt,
                {Code::kUnavailable,
                 fmt::format("worker {}: its answer is longer than {} bytes", decode_worker_, bytes_max)});
  }
  if (piece.empty()) return;
  // Nothing is shown to the client before the first token, so that another worker may still take over.
  if (!begun_) {
    begun_ = true;
    setup_.exchange->begin(std::move(decode_answer_));
    note_first_token(attempt);
  }
  setup_.exchange->write(std::string(piece));
  if (setup_.exchange->buffered() <= kClientBufferMax) return;
  // A slow client slows its worker's stream, not our memory.
  decode_call_->rest();
  setup_.exchange->on_drained(kClientBufferLow, [this] {
    if (decode_call_) decode_call_->go_on();
  });
}

void Relay::note_first_token(std::uint32_t attempt) {
  first_token_at_ = now();
  tell_(core::FirstToken{setup_.id, attempt});
}

void Relay::decode_done(std::uint32_t attempt, const Status& status) {
  if (!status.ok()) {
    return fail(core::Leg::kDecode, attempt, Status(status).with_context("worker " + decode_worker_).error());
  }
  if (!streams_) return decode_whole(attempt);
  if (!begun_) {
    return fail(core::Leg::kDecode, attempt,
                {Code::kUnavailable,
                 fmt::format("worker {}: its stream ended before the first token", decode_worker_)});
  }
  setup_.exchange->end();
  tell_(core::Finished{setup_.id, attempt});
}

void Relay::decode_whole(std::uint32_t attempt) {
  if (decode_answer_.status != 200) {
    Error error = Status(http::error_of(decode_answer_)).with_context("worker " + decode_worker_).error();
    if (error.code == Code::kInvalidArgument) refusal_ = decode_answer_;
    return fail(core::Leg::kDecode, attempt, std::move(error));
  }
  note_first_token(attempt);
  setup_.exchange->send(std::move(decode_answer_));
  tell_(core::Finished{setup_.id, attempt});
}

void Relay::fail(core::Leg leg, std::uint32_t attempt, Error error) {
  tell_(core::Failed{setup_.id, attempt, leg, std::move(error)});
}

void Relay::answer_error(const Error& error) {
  if (begun_) {
    setup_.exchange->write(fmt::format("data: {}\n\ndata: [DONE]\n\n", http::error_json(error)));
    return setup_.exchange->end();
  }
  const bool is_refused = refusal_.has_value() && error.code == Code::kInvalidArgument;
  http::Response answer = is_refused ? *std::move(refusal_) : http::error_response(error);
  http::Headers headers = headers_to_client();
  const std::string_view type = http::header(answer.headers, "Content-Type");
  if (!type.empty()) headers.emplace_back("Content-Type", type);
  const std::string_view retry = http::header(answer.headers, "Retry-After");
  if (!retry.empty()) headers.emplace_back("Retry-After", retry);
  answer.headers = std::move(headers);
  setup_.exchange->send(std::move(answer));
}

}  // namespace isthmus::router::shell
