// SPDX-License-Identifier: Apache-2.0
// From a prepared request to its last token, or its error.
#include "worker/generation.h"

#include <fmt/format.h>

#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "http/openai_error.h"

namespace isthmus::worker {

Service::Generation::Generation(Service& service, std::shared_ptr<http::Exchange> exchange, Prepared prepared,
                                std::uint64_t id)
    : service_(service),
      exchange_(std::move(exchange)),
      prepared_(std::move(prepared)),
      id_(id),
      writer_(service.writer_of(prepared_)),
      text_(prepared_.request.stop),
      begun_at_(now()) {}

void Service::Generation::start() {
  exchange_->on_disconnect([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->on_disconnect();
  });
  if (prepared_.request.transfer.do_remote_prefill) {
    start_fetch();
  } else {
    start_local();
  }
}

// --- The state's way here.

void Service::Generation::start_fetch() {
  const auto self = shared_from_this();
  handoff::FetchEvents events;
  events.reserve = [self](kv::TokenRange range, std::function<void(Result<std::vector<kv::Binding>>)> done) {
    self->reserve(range, std::move(done));
  };
  events.release = [self] {
    self->service_.engine_.release(self->destination_.value());
    self->destination_.reset();
  };
  events.owned = [self](const handoff::SealInfo& seal, handoff::GrantId grant,
                        const handoff::Ending& ending) {
    self->fetch_.reset();
    self->owned(seal, grant, ending);
  };
  events.ended = [self](const handoff::SealInfo* seal, const handoff::Ending& ending) {
    self->fetch_.reset();
    self->handoff_ended(seal, ending);
  };
  Result<handoff::FetchId> fetch = service_.agent_.fetch(
      {.ticket = prepared_.request.transfer.ticket,
       .endpoints = prepared_.request.transfer.endpoints,
       .is_pushed = prepared_.request.transfer.is_pushed,
       .prompt = prepared_.prompt,
       .destination = service_.amount_of(prepared_.prompt.size() + prepared_.tokens_max),
       .deadline = prepared_.deadline},
      std::move(events));
  if (!fetch.ok()) return handoff_failed(fetch.error());
  fetch_ = *fetch;
}

void Service::Generation::reserve(kv::TokenRange range,
                                  std::function<void(Result<std::vector<kv::Binding>>)> done) {
  service_.engine_.reserve(
      prepared_.prompt.size() + prepared_.tokens_max, range, prepared_.deadline,
      [self = shared_from_this(), done = std::move(done)](Result<Destination> destination) {
        if (!destination.ok()) return done(destination.error());
        self->destination_ = destination->sequence;
        done(std::move(destination->bindings));
      });
}

void Service::Generation::owned(const handoff::SealInfo& seal, handoff::GrantId grant,
                                const handoff::Ending& ending) {
  grant_ = grant;
  route_ = fmt::format("handoff; bytes={}; chunks={}; transport={}; wire=\"{}\"", ending.bytes, ending.chunks,
                       ending.transport, ending.wire);
  const engine::SequenceId sequence = std::exchange(destination_, std::nullopt).value();
  const auto give_up = [&](const Error& why) {
    service_.engine_.release(sequence);
    fail(why);
  };
  if (is_over_) {  // The client left while the state became ours.
    service_.engine_.release(sequence);
    service_.agent_.free_memory(std::exchange(grant_, 0));
    return;
  }
  if (seal.first_tokens.size() != 1)
    return give_up({Code::kMalformed, "the seal doesn't carry one first token"});
  const engine::TokenId first = seal.first_tokens.front();
  if (first < 0 || static_cast<std::uint32_t>(first) >= service_.engine_.info().vocabulary) {
    return give_up({Code::kMalformed, fmt::format("first token {} isn't in the vocabulary", first)});
  }
  Result<JobId> job = service_.engine_.resume(sequence, this->job(), first, events());
  if (!job.ok()) return give_up(job.error());
  job_ = *job;
}

void Service::Generation::handoff_ended(const handoff::SealInfo* seal, const handoff::Ending& ending) {
  if (is_over_) return;
  if (ending.kind == handoff::TerminalKind::kFinished && seal != nullptr) {
    route_ = "handoff; finished";
    return finish(seal->finish == wire::FinishState::kLength ? FinishReason::kLength : FinishReason::kStop);
  }
  retry_after_ = ending.retry_after;
  handoff_failed(ending.error);
}

// Doubt means recompute or a typed error, as the model's policy says; never an answer from a state in doubt.
void Service::Generation::handoff_failed(const Error& why) {
  if (is_over_) return;
  const bool is_late = why.code == Code::kDeadlineExceeded && now() >= prepared_.deadline;
  const bool recompute = !prepared_.request.transfer.fail_instead_of_recompute && !is_late;
  service_.metrics_
      .counter("isthmus_handoff_failures_total", "Requests whose handoff failed, by code and what followed",
               {{"code", std::string(name(why.code))}, {"then", recompute ? "recompute" : "error"}})
      .add();
  ISTHMUS_LOG(kWarn, "handoff failed", "request={} then={} why=\"{}\"", prepared_.request_id,
              recompute ? "recompute" : "error", why.text());
  if (!recompute) return fail(why);
  route_ = fmt::format("recompute; code={}", name(why.code));
  start_local();
}

void Service::Generation::start_local() {
  Result<handoff::GrantId> grant = service_.agent_.take_memory(
      service_.amount_of(prepared_.prompt.size() + prepared_.tokens_max), prepared_.deadline);
  if (!grant.ok()) {
    retry_after_ = service_.memory_hint();
    return fail(grant.error());
  }
  grant_ = *grant;
  Result<JobId> job = service_.engine_.generate(this->job(), events());
  if (!job.ok()) return fail(job.error());
  job_ = *job;
}

Job Service::Generation::job() const {
  return {.prompt = prepared_.prompt,
          .sampling = prepared_.request.sampling,
          .tokens_max = prepared_.tokens_max,
          .deadline = prepared_.deadline};
}

JobEvents Service::Generation::events() {
  const auto self = shared_from_this();
  JobEvents events;
  events.on_token = [self](engine::TokenId token) { self->on_token(token); };
  events.on_finished = [self](FinishReason reason) {
    self->job_.reset();
    self->finish(reason);
  };
  events.on_failed = [self](const Error& why) {
    self->job_.reset();
    self->fail(why);
  };
  return events;
}

// --- The answer.

http::Headers Service::Generation::headers() const {
  return {{"X-Request-Id", prepared_.request_id}, {"X-Isthmus-Route", route_}};
}

void Service::Generation::on_token(engine::TokenId token) {
  if (is_over_) return;
  if (++tokens_ == 1) {
    first_token_at_ = now();
    service_.metrics_
        .histogram("isthmus_ttft_seconds", "Time to first token, from the request's arrival",
                   {0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30})
        .observe(std::chrono::duration<double>(first_token_at_ - begun_at_).count());
    begin_stream();
  }
  show(text_.add(service_.tokenizer_.piece(token)));
  if (!text_.stopped()) return;
  service_.engine_.cancel(job_.value());
  job_.reset();
  finish(FinishReason::kStop);
}

void Service::Generation::begin_stream() {
  if (!prepared_.request.stream || is_streaming_) return;
  is_streaming_ = true;
  http::Response head{.status = 200, .headers = headers(), .body = ""};
  head.headers.emplace_back("Content-Type", "text/event-stream");
  head.headers.emplace_back("Cache-Control", "no-cache");
  exchange_->begin(std::move(head));
  if (std::string first = writer_.first_event(); !first.empty()) exchange_->write(std::move(first));
}

void Service::Generation::show(const std::string& text) {
  if (text.empty()) return;
  if (is_streaming_) {
    exchange_->write(writer_.text_event(text));
  } else {
    collected_ += text;
  }
}

void Service::Generation::finish(FinishReason reason) {
  if (is_over_) return;
  begin_stream();  // An answer without a token.
  show(text_.finish());
  const Usage usage{prepared_.prompt.size(), tokens_};
  if (is_streaming_) {
    exchange_->write(writer_.finish_event(reason));
    if (prepared_.request.include_usage) exchange_->write(writer_.usage_event(usage));
    exchange_->write(AnswerWriter::done_event());
    exchange_->end();
  } else {
    http::Response response{
        .status = 200, .headers = headers(), .body = writer_.whole(collected_, reason, usage, {})};
    response.headers.emplace_back("Content-Type", "application/json");
    exchange_->send(std::move(response));
  }
  if (tokens_ > 1) {
    service_.metrics_
        .histogram("isthmus_time_per_output_token_seconds",
                   "Mean time per output token after the first, by request",
                   {0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5})
        .observe(std::chrono::duration<double>(now() - first_token_at_).count() /
                 static_cast<double>(tokens_ - 1));
  }
  end("ok");
}

void Service::Generation::fail(const Error& why) {
  if (is_over_) return;
  if (is_streaming_) {
    exchange_->write(AnswerWriter::error_event(why));
    exchange_->end();
  } else {
    http::Response response = http::error_response(why, {}, retry_after_);
    for (auto& header : headers()) response.headers.push_back(std::move(header));
    exchange_->send(std::move(response));
  }
  end(std::string(name(why.code)).c_str());
}

void Service::Generation::on_disconnect() {
  if (is_over_) return;
  if (job_) service_.engine_.cancel(*job_);
  job_.reset();
  const auto fetch = std::exchange(fetch_, std::nullopt);
  end("disconnected");
  if (fetch) service_.agent_.cancel(*fetch);
}

void Service::Generation::end(const char* outcome) {
  is_over_ = true;
  if (job_) service_.engine_.cancel(*job_);
  job_.reset();
  service_.agent_.free_memory(std::exchange(grant_, 0));
  service_.count_request(outcome);
  ISTHMUS_LOG(kInfo, "request ended", "request={} outcome={} route=\"{}\" prompt_tokens={} tokens={}",
              prepared_.request_id, outcome, route_.substr(0, route_.find(';')), prepared_.prompt.size(),
              tokens_);
  exchange_.reset();
  service_.generations_.erase(id_);  // May destroy this.
}

}  // namespace isthmus::worker
