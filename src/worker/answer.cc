// SPDX-License-Identifier: Apache-2.0
// From the first token of any choice to the end of all.
#include "worker/answer.h"

#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "http/openai_error.h"
#include "worker/generation.h"
#include "worker/utf8.h"

namespace isthmus::worker {

Service::Answer::Answer(Service& service, std::shared_ptr<http::Exchange> exchange, Prepared prepared,
                        std::uint64_t id)
    : service_(service),
      exchange_(std::move(exchange)),
      prepared_(std::make_shared<const Prepared>(std::move(prepared))),
      id_(id),
      writer_(service.writer_of(*prepared_)),
      choices_(prepared_->request.choices()),
      characters_(choices_.size()),
      begun_at_(now()) {}

Service::Answer::~Answer() = default;

void Service::Answer::start() {
  exchange_->on_disconnect([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->on_disconnect();
  });
  for (std::size_t i = 0; i < choices_.size(); ++i)
    generations_.push_back(std::make_shared<Generation>(service_, *this, i));
  const auto keep = shared_from_this();
  const auto started = generations_;  // One that can't begin ends them all.
  for (const auto& generation : started) {
    if (exchange_) generation->start();
  }
}

http::Headers Service::Answer::headers() const {
  return {{"X-Request-Id", prepared_->request_id}, {"X-Isthmus-Route", route_}};
}

std::uint64_t Service::Answer::prompt_tokens() const {
  std::uint64_t tokens = 0;
  for (const auto& prompt : prepared_->prompts) tokens += prompt.size();
  return tokens;
}

void Service::Answer::known(std::size_t choice, std::uint64_t tokens) {
  if (choice % prepared_->request.n == 0) cached_tokens_ += tokens;
}

void Service::Answer::begin(const std::string& route) {
  if (!route_.empty()) return;
  route_ = route;
  service_.metrics_
      .histogram("isthmus_ttft_seconds", "Time to first token, from the request's arrival",
                 {0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30})
      .observe(std::chrono::duration<double>(now() - begun_at_).count());
  if (!prepared_->request.stream) return;
  is_streaming_ = true;
  http::Response head{.status = 200, .headers = headers(), .body = ""};
  head.headers.emplace_back("Content-Type", "text/event-stream");
  head.headers.emplace_back("Cache-Control", "no-cache");
  exchange_->begin(std::move(head));
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    if (std::string first = writer_.first_event(i); !first.empty()) exchange_->write(std::move(first));
  }
}

void Service::Answer::tell(std::size_t choice, const Choice& part) {
  if (is_streaming_) {
    exchange_->write(writer_.text_event(choice, part, characters_[choice]));
    for (const ScoredToken& token : part.tokens) characters_[choice] += characters(token.drawn.piece);
    return;
  }
  choices_[choice].text += part.text;
  choices_[choice].tokens.insert(choices_[choice].tokens.end(), part.tokens.begin(), part.tokens.end());
}

void Service::Answer::finish(std::size_t choice, FinishReason reason, std::uint64_t tokens) {
  choices_[choice].reason = reason;
  tokens_ += tokens;
  if (is_streaming_) exchange_->write(writer_.finish_event(choice, reason));
  if (++finished_ < choices_.size()) return;
  const Usage usage{prompt_tokens(), tokens_, cached_tokens_};
  if (is_streaming_) {
    if (prepared_->request.include_usage) exchange_->write(writer_.usage_event(usage));
    exchange_->write(AnswerWriter::done_event());
    exchange_->end();
  } else {
    http::Response response{.status = 200, .headers = headers(), .body = writer_.whole(choices_, usage, {})};
    response.headers.emplace_back("Content-Type", "application/json");
    exchange_->send(std::move(response));
  }
  end("ok");
}

void Service::Answer::fail(const Error& why, Duration retry_after, const std::string& route) {
  if (is_streaming_) {
    exchange_->write(AnswerWriter::error_event(why));
    exchange_->end();
  } else {
    if (route_.empty()) route_ = route;
    http::Response response = http::error_response(why, {}, retry_after);
    for (auto& header : headers()) response.headers.push_back(std::move(header));
    exchange_->send(std::move(response));
  }
  end(std::string(name(why.code)).c_str());
}

void Service::Answer::on_disconnect() {
  if (exchange_) end("disconnected");
}

void Service::Answer::end(const char* outcome) {
  exchange_.reset();
  for (const auto& generation : std::exchange(generations_, {})) generation->drop();
  service_.count_request(outcome);
  ISTHMUS_LOG(kInfo, "request ended", "request={} outcome={} route=\"{}\" prompt_tokens={} tokens={}",
              prepared_->request_id, outcome, route_.substr(0, route_.find(';')), prompt_tokens(), tokens_);
  service_.answers_.erase(id_);  // May destroy this.
}

}  // namespace isthmus::worker
