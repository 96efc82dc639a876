// SPDX-License-Identifier: Apache-2.0
// The crossing in one process.
#include "qualify/pair.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "engine/api/sampler.h"
#include "net/run_until.h"
#include "transport/tcp/tcp.h"

namespace isthmus::qualify {
namespace {

constexpr std::size_t kTile = 256;
// A long prompt of a large model on a busy processor takes minutes, and no lease is renewed meanwhile.
constexpr Duration kPatience = std::chrono::minutes(10);

handoff::AgentOptions agent_options(const char* name, const engine::Engine& engine,
                                    const kv::Policy& policy) {
  handoff::AgentOptions options;
  options.name = name;
  options.policy = policy;
  // Engines and agents share one thread here: who computes doesn't answer meanwhile.
  options.timings.lease = options.timings.handshake_max = options.timings.open_max = kPatience;
  options.capacity = {.kv = {.bytes = engine.usage().kv_bytes_total, .blocks = engine.usage().blocks_total},
                      .staging_bytes = std::uint64_t{64} << 20};
  return options;
}

std::span<const engine::TokenId> tile_at(const Tokens& prompt, std::size_t begin) {
  std::size_t end = std::min(prompt.size(), begin + kTile);
  if (prompt.size() - end == 1) end = prompt.size();  // No chunk of a single token.
  return std::span(prompt).subspan(begin, end - begin);
}

}  // namespace

struct Pair::Crossing {
  engine::SequenceId sequence = 0;
  kv::Binding binding;
  handoff::SealInfo seal;
  handoff::Ending ending;
  handoff::GrantId grant = 0;
  bool is_over = false, is_owned = false, is_released = false;
  std::uint64_t room = 0;
};

Pair::Pair(engine::Engine& prefill, engine::Engine& decode, const kv::Policy& policy)
    : prefill_(prefill), decode_(decode), transport_(transport::make_tcp(loop_)) {
  producer_ = *handoff::make_agent(loop_, {transport_.get()}, prefill.descriptor(),
                                   agent_options("p", prefill, policy), prefill_metrics_);
  consumer_ = *handoff::make_agent(loop_, {transport_.get()}, decode.descriptor(),
                                   agent_options("d", decode, policy), decode_metrics_);
}

Pair::~Pair() = default;

handoff::FetchEvents Pair::events(const std::shared_ptr<Crossing>& crossing) {
  handoff::FetchEvents events;
  events.reserve = [this, crossing](kv::TokenRange range,
                                    const std::function<void(Result<std::vector<kv::Binding>>)>& done) {
    const Result<engine::SequenceId> opened = decode_.open(crossing->room);
    if (!opened.ok()) return done(opened.error());
    crossing->sequence = *opened;
    Result<std::vector<kv::Binding>> bound = decode_.kv_sink()->bind(*opened, range);
    if (bound.ok()) crossing->binding = bound->front();
    done(std::move(bound));
  };
  events.release = [this, crossing] { decode_.close(crossing->sequence); };
  events.owned = [crossing](const handoff::SealInfo& seal, handoff::GrantId grant,
                            const handoff::Ending& ending) {
    crossing->seal = seal;
    crossing->grant = grant;
    crossing->ending = ending;
    crossing->is_owned = crossing->is_over = true;
  };
  events.ended = [crossing](const handoff::SealInfo*, const handoff::Ending& ending) {
    crossing->ending = ending;
    crossing->is_over = true;
  };
  return events;
}

Status Pair::publish(Id128 reservation, engine::SequenceId sequence, kv::TokenRange range) {
  ISTHMUS_TRY(auto exported, prefill_.kv_source()->export_range(sequence, range));
  producer_->publish(reservation, range, std::move(exported));
  // Frames and chunks move between two tiles as they would beside a running engine.
  static_cast<void>(
      net::run_until(loop_, [n = 0]() mutable { return ++n > 8; }, std::chrono::milliseconds(20)));
  return ok_status();
}

Result<HandedOver> Pair::hand_over(const Tokens& prompt, std::uint64_t room,
                                   const std::function<void(const kv::Binding&)>& before_adopt) {
  ISTHMUS_TRY(const engine::SequenceId source, prefill_.open(room));
  const auto produce = [&](Id128 reservation) -> Result<Logits> {
    Logits last_row;
    for (std::size_t at = 0; at < prompt.size();) {
      const auto tile = tile_at(prompt, at);
      const engine::StepItem item{source, tile, at + tile.size() == prompt.size() ? 1u : 0u};
      ISTHMUS_TRY(const engine::StepOutput output, prefill_.step({&item, 1}));
      last_row.assign(output.logits.begin(), output.logits.end());
      ISTHMUS_TRY(publish(reservation, source, {at, at + tile.size()}));
      at += tile.size();
    }
    return last_row;
  };
  ISTHMUS_TRY(HandedOver result, cross(prompt, room, produce, before_adopt));
  result.source = source;
  return result;
}

Result<HandedOver> Pair::hand_over(const Computed& source, std::uint64_t room) {
  const auto produce = [&](Id128 reservation) -> Result<Logits> {
    for (std::size_t at = 0; at < source.prompt.size();) {
      const std::size_t end = at + tile_at(source.prompt, at).size();
      ISTHMUS_TRY(publish(reservation, source.sequence, {at, end}));
      at = end;
    }
    return source.first_row;
  };
  return cross(source.prompt, room, produce, {});
}

Result<HandedOver> Pair::cross(const Tokens& prompt, std::uint64_t room, const Produce& produce,
                               const std::function<void(const kv::Binding&)>& before_adopt) {
  auto crossing = std::make_shared<Crossing>();
  crossing->room = room;
  const Instant deadline = now() + kPatience;
  bool is_released = false;
  ISTHMUS_TRY(const handoff::Offered offered,
              producer_->offer({.prompt_tokens = prompt.size(), .pinned = {}, .deadline = deadline},
                               [&](const handoff::Ending&) { is_released = true; }));
  ISTHMUS_TRY(consumer_->fetch({.ticket = offered.ticket,
                                .endpoints = producer_->endpoints(),
                                .prompt = kv::TokenChain(prompt),
                                .destination = {},
                                .deadline = deadline},
                               events(crossing)));
  HandedOver result;
  ISTHMUS_TRY(result.first_row, produce(offered.reservation));
  kv::TokenChain chain;
  for (const engine::TokenId token : prompt) chain.append(token);
  producer_->seal(offered.reservation, {.tokens = {0, prompt.size()},
                                        .token_digest = chain.digest(),
                                        .tile_root = {},
                                        .first_tokens = {engine::likeliest(result.first_row)}});
  const bool ended = net::run_until(loop_, [&] { return crossing->is_over && is_released; }, kPatience);
  if (!ended) return Error{Code::kDeadlineExceeded, "the handoff did not end"};
  if (!crossing->is_owned) return crossing->ending.error;
  consumer_->free_memory(crossing->grant);
  if (before_adopt) before_adopt(crossing->binding);
  ISTHMUS_TRY(decode_.kv_sink()->adopt(crossing->sequence, {0, prompt.size()}));
  result.sequence = crossing->sequence;
  result.seal = crossing->seal;
  result.ending = crossing->ending;
  return result;
}

Result<Logits> run_prompt(engine::Engine& engine, engine::SequenceId sequence, const Tokens& prompt) {
  Logits last;
  for (std::size_t at = 0; at < prompt.size();) {
    const auto tile = tile_at(prompt, at);
    const engine::StepItem item{sequence, tile, at + tile.size() == prompt.size() ? 1u : 0u};
    ISTHMUS_TRY(const engine::StepOutput output, engine.step({&item, 1}));
    last.assign(output.logits.begin(), output.logits.end());
    at += tile.size();
  }
  return last;
}

Result<Logits> run_forced(engine::Engine& engine, engine::SequenceId sequence,
                          std::span<const engine::TokenId> forced) {
  const engine::StepItem item{sequence, forced, static_cast<std::uint32_t>(forced.size())};
  ISTHMUS_TRY(const engine::StepOutput output, engine.step({&item, 1}));
  return Logits(output.logits.begin(), output.logits.end());
}

Result<Tokens> run_greedy(engine::Engine& engine, engine::SequenceId sequence, const Logits& last_row,
                          std::size_t count) {
  Tokens tokens{engine::likeliest(last_row)};
  while (tokens.size() < count) {
    const engine::StepItem item{sequence, std::span(tokens).last(1), 1};
    ISTHMUS_TRY(const engine::StepOutput output, engine.step({&item, 1}));
    tokens.push_back(engine::likeliest(output.logits));
  }
  return tokens;
}

}  // namespace isthmus::qualify
