// SPDX-License-Identifier: Apache-2.0
// A worker without an engine, for tests: speaks the router's side of the protocol and does what it is told.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "http/json.h"
#include "http/openai_error.h"
#include "http/server.h"
#include "net/loop.h"

namespace isthmus::router::shell {

using FakeAnswer = std::function<void(std::shared_ptr<http::Exchange>)>;

// On the loop's thread. By default it admits what asks for a remote decode, and completes anything else with
// "Hello world".
class FakeWorker {
 public:
  FakeWorker(net::Loop& loop, const net::Endpoint& at, std::string name) : name_(std::move(name)) {
    auto served =
        http::serve(loop, at, http::ServerLimits{},
                    [this](std::shared_ptr<http::Exchange> exchange) { handle(std::move(exchange)); });
    ISTHMUS_CHECK(served.ok());
    server_ = *std::move(served);
  }

  net::Endpoint endpoint() const { return server_->endpoint(); }
  // Closes its port and all connections, as a process that dies does.
  void die() {
    held.clear();
    server_.reset();
  }
  // Answers of completions instead of the default; the last one stays.
  void script(std::vector<FakeAnswer> answers) { script_ = std::move(answers); }

  static FakeAnswer error(int status, std::string code, std::string message) {
    return [=](const std::shared_ptr<http::Exchange>& exchange) {
      const json::Value body = json::object(
          {{"error", json::object({{"message", message}, {"code", code}, {"param", "worker"}})}});
      exchange->send({status, {{"Content-Type", "application/json"}}, body.dump()});
    };
  }
  static FakeAnswer text(std::string body) {
    return [=](const std::shared_ptr<http::Exchange>& exchange) {
      exchange->send({200, {{"Content-Type", "application/json"}}, body});
    };
  }
  // Keeps the exchange unanswered in `held`.
  FakeAnswer hold() {
    return [this](std::shared_ptr<http::Exchange> exchange) { held.push_back(std::move(exchange)); };
  }
  // Sends the pieces, then keeps the stream open in `held`.
  FakeAnswer stream_and_hold(std::vector<std::string> pieces) {
    return [this, pieces = std::move(pieces)](std::shared_ptr<http::Exchange> exchange) {
      exchange->begin({200, {{"Content-Type", "text/event-stream"}}, ""});
      for (const std::string& piece : pieces) exchange->write(piece);
      held.push_back(std::move(exchange));
    };
  }

  std::string not_ready;  // The reason; "" means ready.
  std::string incarnation = "1";
  bool is_sound = true;  // As its canary finds.
  std::vector<http::Request> canaries;
  std::vector<http::Request> seen;     // Completions.
  std::vector<std::string> cancelled;  // Request ids.
  std::vector<std::shared_ptr<http::Exchange>> held;
  bool keeps_states = true;
  std::uint32_t superseded = 0;
  std::uint32_t disconnects = 0;  // Of completions not answered yet.

 private:
  void handle(std::shared_ptr<http::Exchange> exchange) {
    const http::Request& request = exchange->request();
    if (request.path == "/ready") {
      return exchange->send(not_ready.empty()
                                ? http::Response{200, {}, R"({"incarnation":")" + incarnation + R"("})"}
                                : http::error_response({Code::kUnavailable, not_ready}));
    }
    if (request.path == "/metrics")
      return exchange->send({200, {{"Content-Type", "text/plain"}}, "# none\n"});
    if (request.path == "/isthmus/cancel") {
      const auto body = json::parse(request.body);
      cancelled.push_back(body.ok() ? body->get<std::string>("request_id").value().value_or("") : "");
      return exchange->send({200, {}, "{}"});
    }
    if (request.path == "/tokenize") return text(R"({"tokens":[1,2,3]})")(exchange);
    if (request.path == "/isthmus/canary") {
      canaries.push_back(request);
      const char* passed = R"({"passed":true,"faults":[],"kl":0})";
      const char* failed = R"({"passed":false,"faults":["v differs"],"kl":9})";
      return text(is_sound ? passed : failed)(exchange);
    }
    if (request.path == "/isthmus/supersede") {
      ++superseded;
      return keeps_states
                 ? text(R"({"kv_transfer_params":{"isthmus_ticket":")" + name_ + R"(-another"}})")(exchange)
                 : error(404, "not_found", "no state is kept for that request")(exchange);
    }
    seen.push_back(request);
    exchange->on_disconnect([this] { ++disconnects; });
    if (script_.empty()) return complete(*exchange);
    const FakeAnswer answer = script_.front();
    if (script_.size() > 1) script_.erase(script_.begin());
    answer(std::move(exchange));
  }

  void complete(http::Exchange& exchange) {
    const auto body = json::parse(exchange.request().body);
    if (!body.ok()) return exchange.send(http::error_response(body.error()));
    const json::Value* remote = body->find("kv_transfer_params.do_remote_decode");
    if (remote != nullptr && remote->as_bool() == true) {
      return text(
          R"({"id":"p","choices":[],"kv_transfer_params": {"do_remote_prefill": true, "isthmus_ticket":")" +
          name_ + R"(-ticket","n":9007199254740993}})")(ref(exchange));
    }
    const json::Value* stream = body->find("stream");
    if (stream == nullptr || stream->as_bool() != true) {
      return text(R"({"id":"d","choices":[{"text":"Hello world"}]})")(ref(exchange));
    }
    exchange.begin({200, {{"Content-Type", "text/event-stream"}}, ""});
    exchange.write("data: {\"choices\":[{\"text\":\"Hello\"}]}\n\n");
    exchange.write("data: {\"choices\":[{\"text\":\" world\"}]}\n\ndata: [DONE]\n\n");
    exchange.end();
  }

  // A pointer that owns nothing, for answers that end within the call.
  static std::shared_ptr<http::Exchange> ref(http::Exchange& exchange) {
    return std::shared_ptr<http::Exchange>(std::shared_ptr<void>(), &exchange);
  }

  std::string name_;
  std::vector<FakeAnswer> script_;
  std::unique_ptr<http::Server> server_;
};

}  // namespace isthmus::router::shell
