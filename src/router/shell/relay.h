// SPDX-License-Identifier: Apache-2.0
// One client's request on its way: the exchange with the client and the calls to the two workers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/time.h"
#include "fleet/fleet.h"
#include "http/client.h"
#include "http/server.h"
#include "router/core/core.h"
#include "router/shell/json_text.h"

namespace isthmus::router::shell {

// The client's own X-Request-Id if it is fit for a header and a log line, else a fresh one.
std::string request_id_of(const http::Request& request);

// Carries out what the core decides for one request and tells it what came of it. Thread: the loop's.
class Relay {
 public:
  using Tell = std::function<void(const core::Event&)>;
  struct Setup {
    core::RequestId id = 0;
    std::string request_id;  // request_id_of()
    std::shared_ptr<http::Exchange> exchange;
    JsonObjectText body;  // Of exchange->request(), which lives as long as the exchange.
    fleet::OnFailure on_failure = fleet::OnFailure::kRecompute;
    fleet::Dialer dialer = fleet::Dialer::kDecode;
    Instant arrived;
    Instant start_by;                // It has a place in an engine by then, or is refused.
    std::uint32_t earlier_uses = 0;  // Of the client's request id, by requests before this one.
  };
  // `client` and what `tell` needs must outlive this.
  Relay(Setup setup, http::Client& client, Tell tell);

  void ask_prefill(const fleet::Worker& worker, std::uint32_t attempt);
  // For the state that the last prefill keeps, another ticket: the decode worker asked before has failed.
  void supersede(const fleet::Worker& worker, std::uint32_t attempt);
  void ask_decode(const fleet::Worker& worker, std::uint32_t attempt, bool with_transfer);
  void drop_prefill() { prefill_call_.reset(); }
  void drop_decode() { decode_call_.reset(); }
  // Ends the answer: an error in OpenAI's shape, an event in the stream once it has begun, or the very answer
  // of a worker that refused the request as the client's fault.
  void answer_error(const Error& error);

  // The name of the request at both workers: X-Request-Id, with a suffix if that name was used before, by an
  // earlier pair or an earlier request.
  const std::string& leg_id() const { return leg_id_; }
  const std::string& request_id() const { return setup_.request_id; }
  const std::string& prefill_worker() const { return prefill_worker_; }
  const std::string& decode_worker() const { return decode_worker_; }
  Instant arrived() const { return setup_.arrived; }
  std::optional<Instant> first_token_at() const { return first_token_at_; }

 private:
  void name_leg(std::uint32_t number);
  // `may_wait`: it may wait for a place in the engine as long as the worker lets it; else what is left.
  http::Request request_to_worker(std::string body, bool may_wait) const;
  http::Headers headers_to_client() const;
  void prefill_answered(const std::string& worker, std::uint32_t attempt,
                        const Result<http::Response>& answer);
  void decode_head(int status, const http::Headers& headers);
  void decode_piece(std::uint32_t attempt, std::string_view piece);
  void decode_done(std::uint32_t attempt, const Status& status);
  void decode_whole(std::uint32_t attempt);
  void note_first_token(std::uint32_t attempt);
  void fail(core::Leg leg, std::uint32_t attempt, Error error);

  Setup setup_;
  http::Client& client_;
  Tell tell_;
  std::string leg_id_;
  std::string prefill_worker_, decode_worker_;
  std::uint32_t prefills_asked_ = 0, decodes_asked_ = 0;
  std::optional<std::string> transfer_;
  std::unique_ptr<http::Call> prefill_call_, decode_call_;
  http::Response decode_answer_;  // Head; and the body unless it streams.
  bool streams_ = false, begun_ = false;
  std::optional<http::Response> refusal_;  // A worker's answer to a request that is wrong in itself.
  std::optional<Instant> first_token_at_;
};

}  // namespace isthmus::router::shell
