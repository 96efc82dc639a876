// SPDX-License-Identifier: Apache-2.0
// From a prompt to its last token, or its error.
#include "worker/generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "base/log.h"

namespace isthmus::worker {
namespace {

// Of a prompt's choice number `index`; the first draws as a request for one choice does.
std::uint64_t seed_of(std::uint64_t seed, std::size_t index) {
  constexpr std::uint64_t kApart = 0x9e3779b97f4a7c15;  // Odd, so that no two indices meet.
  return seed + index * kApart;
}

}  // namespace

Service::Generation::Generation(Service& service, Answer& answer, std::size_t choice)
    : service_(service),
      answer_(answer),
      choice_(choice),
      prepared_(answer.prepared()),
      prompt_(prepared_->prompts[choice / prepared_->request.n]),
      text_(prepared_->request.stop),
      // Further choices wait for those before them, not for others' requests.
      start_by_(choice == 0 ? prepared_->start_by : kFarFuture) {}

void Service::Generation::start() {
  if (prepared_->request.transfer.do_remote_prefill) {
    start_fetch();
  } else {
    start_local();
  }
}

// --- The state's way here.

void Service::Generation::start_fetch() {
  const auto self = shared_from_this();
  auto incoming = Incoming::start(
      service_, prepared_->request.transfer, prompt_,
      {prompt_.size() + prepared_->tokens_max, std::min(prepared_->deadline, start_by_), prepared_->deadline},
      Incoming::Sharing{prepared_->request.cache_salt},
      {.arrived = [self](const Arrived& state) { self->arrived(state); },
       .ended = [self](const handoff::SealInfo* seal,
                       const handoff::Ending& ending) { self->handoff_ended(seal, ending); }});
  if (!incoming.ok()) return handoff_failed(incoming.error());
  incoming_ = *std::move(incoming);
}

void Service::Generation::arrived(const Arrived& state) {
  incoming_.reset();
  grant_ = state.grant;
  answer_.known(choice_, state.known);
  route_ = fmt::format("handoff; bytes={}; chunks={}; transport={}; wire=\"{}\"", state.ending.bytes,
                       state.ending.chunks, state.ending.transport, state.ending.wire);
  Result<JobId> job = service_.engine_.resume(state.sequence, this->job(), state.first, events());
  if (!job.ok()) {
    service_.engine_.release(state.sequence);
    return fail(job.error());
  }
  job_ = *job;
}

void Service::Generation::handoff_ended(const handoff::SealInfo* seal, const handoff::Ending& ending) {
  incoming_.reset();
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
  // A request that found no place in time isn't served late: others wait who can still be in time.
  const bool is_late = (why.code == Code::kDeadlineExceeded && now() >= prepared_->deadline) ||
                       (why.code == Code::kExhausted && now() >= start_by_);
  const bool recompute = !prepared_->request.transfer.fail_instead_of_recompute && !is_late;
  service_.metrics_
      .counter("isthmus_handoff_failures_total", "Requests whose handoff failed, by code and what followed",
               {{"code", std::string(name(why.code))}, {"then", recompute ? "recompute" : "error"}})
      .add();
  ISTHMUS_LOG(kWarn, "handoff failed", "request={} then={} why=\"{}\"", prepared_->request_id,
              recompute ? "recompute" : "error", why.text());
  if (!recompute) return fail(why);
  route_ = fmt::format("recompute; code={}", name(why.code));
  // What failed had its place already, and waits for one anew.
  if (why.code != Code::kExhausted) start_by_ = now() + service_.options_.queue_wait;
  start_local();
}

void Service::Generation::start_local() {
  Result<handoff::GrantId> grant = service_.agent_.take_memory(
      service_.amount_of(prompt_.size() + prepared_->tokens_max), prepared_->deadline);
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
  engine::SamplingParams sampling = prepared_->request.sampling;
  sampling.seed = seed_of(sampling.seed, choice_ % prepared_->request.n);
  return {.prompt = prompt_,
          .sampling = sampling,
          .scores = prepared_->request.logprobs,
          .tokens_max = prepared_->tokens_max,
          .ignores_end = prepared_->request.ignores_end,
          .deadline = prepared_->deadline,
          .start_by = start_by_,
          .salt = prepared_->request.cache_salt};
}

JobEvents Service::Generation::events() {
  const auto self = shared_from_this();
  JobEvents events;
  events.on_started = [self](std::uint64_t known) {
    if (!self->is_over_) self->answer_.known(self->choice_, known);
  };
  events.on_token = [self](const GeneratedToken& token) { self->on_token(token); };
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

void Service::Generation::on_token(const GeneratedToken& token) {
  if (is_over_) return;
  if (++tokens_ == 1) {
    first_token_at_ = now();
    answer_.begin(route_);
  }
  if (token.scores) untold_.push_back(scored(*token.scores));
  if (std::string text = text_.add(service_.tokenizer_.piece(token.id)); !text.empty()) tell(std::move(text));
  if (!text_.stopped()) return;
  service_.engine_.cancel(job_.value());
  job_.reset();
  finish(FinishReason::kStop);
}

ScoredToken Service::Generation::scored(const engine::Scores& scores) const {
  const auto likely = [&](const engine::Score& score) {
    return LikelyToken{service_.tokenizer_.piece(score.token, true), score.log_probability};
  };
  ScoredToken token{likely(scores.drawn), {}};
  for (const engine::Score& score : scores.top) token.top.push_back(likely(score));
  return token;
}

void Service::Generation::tell(std::string text) {
  answer_.tell(choice_, {std::move(text), std::exchange(untold_, {}), std::nullopt});
}

void Service::Generation::finish(FinishReason reason) {
  if (is_over_) return;
  answer_.begin(route_);  // A choice without a token.
  std::string rest = text_.finish();
  if (!rest.empty() || !untold_.empty()) tell(std::move(rest));
  if (tokens_ > 1) {
    service_.metrics_
        .histogram("isthmus_time_per_output_token_seconds",
                   "Mean time per output token after the first, by choice",
                   {0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5})
        .observe(std::chrono::duration<double>(now() - first_token_at_).count() /
                 static_cast<double>(tokens_ - 1));
  }
  const auto keep = shared_from_this();
  end();
  answer_.finish(choice_, reason, tokens_);
}

void Service::Generation::fail(const Error& why) {
  if (is_over_) return;
  const auto keep = shared_from_this();
  end();
  answer_.fail(why, retry_after_, route_);
}

void Service::Generation::drop() {
  if (is_over_) return;
  const auto incoming = incoming_.lock();
  end();
  if (incoming) incoming->cancel();
}

void Service::Generation::end() {
  is_over_ = true;
  if (job_) service_.engine_.cancel(*job_);
  job_.reset();
  service_.agent_.free_memory(std::exchange(grant_, 0));
}

}  // namespace isthmus::worker
