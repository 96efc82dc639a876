// SPDX-License-Identifier: Apache-2.0
// Four requests, one after the other: who are you, twice; tokens; a ticket; a comparison.
#include "doctor/pair.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "http/openai_error.h"
#include "watch/fetch.h"
#include "watch/text.h"

namespace isthmus::doctor {
namespace {

// Words, digits, code, other scripts and blanks: what tokenizers split in unlike ways. Some 150 tokens.
constexpr const char* kPrompt =
    "The isthmus is a narrow strip of land that joins two larger ones. In 1914, after ten years of work, the "
    "first ship passed through the canal: 77 kilometres, 12 locks, about 9.5 hours.\n\n"
    "def area(width, height):\n    if width < 0 or height < 0:\n        raise ValueError('negative')\n"
    "    return width * height\n\n"
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. "
    "\xe6\xb5\xb7\xe5\xb3\xa1 \xd0\xbf\xd0\xb5\xd1\x80\xd0\xb5\xd1\x88\xd0\xb5\xd0\xb5\xd0\xba.  "
    "Where two seas nearly meet, everything that has to cross the land between them has to";

struct Worker {
  const char* part;  // "prefill" or "decode"
  net::Endpoint at;
};

std::string text_at(const json::Value& value, std::string_view path) {
  const json::Value* at = value.find(path);
  return at != nullptr && at->is_string() ? *at->as_string() : "?";
}

Error said(const Worker& worker, const http::Response& response, std::string_view path) {
  Error error = http::error_of(response);
  if (response.status == 404) error.code = Code::kMalformed;  // It has no such path: it isn't a worker.
  error.detail =
      fmt::format("the {} worker {} answers {} with {}", worker.part, worker.at.text(), path, error.detail);
  return error;
}

Result<json::Value> value_of(const Worker& worker, std::string_view path,
                             const Result<http::Response>& answer) {
  if (!answer.ok()) return answer.error();
  if (answer->status != 200) return said(worker, *answer, path);
  auto value = json::parse(answer->body);
  if (value.ok()) return value;
  return Error{Code::kMalformed, fmt::format("the {} worker {} answers {} with {}", worker.part,
                                             worker.at.text(), path, value.error().text())};
}

using Tokens = std::vector<std::int64_t>;

Result<Tokens> tokens_in(const Worker& worker, const json::Value& answer) {
  const json::Value* tokens = answer.member("tokens");
  if (tokens == nullptr || !tokens->is_array())
    return Error{Code::kMalformed, fmt::format("{} answers /tokenize without tokens", worker.at.text())};
  Tokens ids;
  for (const json::Value& token : *tokens->as_array()) ids.push_back(token.as_int().value_or(-1));
  return ids;
}

std::string unlike(const Tokens& a, const Tokens& b) {
  const auto [x, y] = std::ranges::mismatch(a, b);
  if (x == a.end() && y == b.end()) return "";
  const auto shown = [](const auto& at, const auto& all) {
    return at == all.end() ? std::string("the end") : fmt::format("{}", *at);
  };
  return fmt::format(
      "the workers tokenize unlike: token {} is {} for prefill and {} for decode; give both the same "
      "tokenizer",
      x - a.begin(), shown(x, a), shown(y, b));
}

// Null stands for what isn't a number.
double number(const json::Value& value, std::string_view path) {
  const json::Value* at = value.find(path);
  return at == nullptr ? NAN : at->as_double().value_or(NAN);
}

std::string findings_text(const json::Value& findings) {
  std::string text;
  if (const json::Value* numbers = findings.member("numbers"); numbers != nullptr && numbers->is_array()) {
    for (const json::Value& one : *numbers->as_array()) {
      text += fmt::format(
          "  {:<12} differs by {:.3g} of its size, most in layer {:.0f}: {:.3g} (at most {:.3g})\n",
          text_at(one, "component"), number(one, "rms"), number(one, "worst.layer"), number(one, "worst.rms"),
          number(findings, "limits.layer_rms"));
    }
  }
  const bool is_same_token = number(findings, "next_token.own") == number(findings, "next_token.handed_over");
  text += fmt::format("  {:<12} {:.3g} nats away (at most {:.3g}), the likeliest is {}\n", "next token",
                      number(findings, "kl"), number(findings, "limits.kl"),
                      is_same_token ? "the same" : "another");
  return text;
}

}  // namespace

std::string PairReport::summary() const {
  std::string text;
  if (const json::Value* numbers = findings.member("numbers"); numbers != nullptr && numbers->is_array()) {
    for (const json::Value& one : *numbers->as_array()) {
      text += fmt::format("{} differs by {:.3g} of its size at most, ", text_at(one, "component"),
                          number(one, "worst.rms"));
    }
  }
  return text + fmt::format("next token {:.3g} nats away", number(findings, "kl"));
}

std::string PairReport::text(const PairCheck& check) const {
  std::string text = fmt::format("{} {} -> {} {}: {}\n", prefill, check.prefill.text(), decode,
                                 check.decode.text(), passed ? "passed" : "FAILED");
  for (const std::string& fault : faults) text += fmt::format("  {}\n", fault);
  if (findings.is_null()) return text;
  text += fmt::format("  {:<12} {:.0f} tokens, {} over {}\n", "handoff", number(findings, "tokens"),
                      watch::bytes_text(number(findings, "handoff.bytes")),
                      text_at(findings, "handoff.transport"));
  return text + findings_text(findings);
}

json::Value PairReport::to_json(const PairCheck& check) const {
  const auto worker = [](const std::string& storage, const net::Endpoint& at) {
    return json::object({{"url", "http://" + at.text()}, {"storage", storage}});
  };
  return json::object({{"prefill", worker(prefill, check.prefill)},
                       {"decode", worker(decode, check.decode)},
                       {"passed", passed},
                       {"faults", json::array_of(faults)},
                       {"findings", findings}});
}

// Four rounds of requests: who are you; tokens; a ticket; a comparison.
struct PairTrial::Course : std::enable_shared_from_this<Course> {
  Course(net::Loop& its_loop, PairCheck its_check, Done its_done)
      : loop(its_loop), check(std::move(its_check)), done(std::move(its_done)) {}

  net::Loop& loop;
  PairCheck check;
  Done done;
  Worker prefill{"prefill", check.prefill}, decode{"decode", check.decode};
  PairReport report{};
  json::Value agents{};   // Endpoints of the decode worker's, for a prefill worker that dials.
  json::Value request{};  // Of both legs.
  std::unique_ptr<watch::Gathering> gathering{};

  // Asks, and goes on with the answers' values; an error of any is the trial's.
  template <typename Next>
  void ask(std::vector<std::pair<Worker, watch::Ask>> asks, Next next) {
    std::vector<watch::Ask> plain;
    for (auto& [worker, one] : asks) plain.push_back(one);
    gathering = std::make_unique<watch::Gathering>(
        loop, plain, check.timeout,
        [self = shared_from_this(), asks = std::move(asks), next](const watch::Answers& answers) {
          std::vector<json::Value> values;
          for (std::size_t i = 0; i < answers.size(); ++i) {
            auto value = value_of(asks[i].first, asks[i].second.path, answers[i]);
            if (!value.ok()) return self->failed(value.error());
            values.push_back(*std::move(value));
          }
          next(*self, values);
        });
  }

  void begin() {
    ask({{prefill, {prefill.at, "/ready"}}, {decode, {decode.at, "/ready"}}},
        [](Course& self, const std::vector<json::Value>& ready) { self.introduced(ready); });
  }

  void introduced(const std::vector<json::Value>& ready) {
    report.prefill = text_at(ready[0], "storage");
    report.decode = text_at(ready[1], "storage");
    if (const json::Value* agent = ready[1].member("agent")) agents = *agent;
    const std::string text = json::object({{"prompt", check.prompt.empty() ? kPrompt : check.prompt}}).dump();
    ask({{prefill, {prefill.at, "/tokenize", text}}, {decode, {decode.at, "/tokenize", text}}},
        [](Course& self, const std::vector<json::Value>& answers) { self.tokenized(answers); });
  }

  void tokenized(const std::vector<json::Value>& answers) {
    const auto tokens = tokens_in(prefill, answers[0]);
    if (!tokens.ok()) return failed(tokens.error());
    const auto others = tokens_in(decode, answers[1]);
    if (!others.ok()) return failed(others.error());
    if (std::string why = unlike(*tokens, *others); !why.empty()) {
      report.faults.push_back(std::move(why));
      return finish(std::move(report));
    }
    request = json::object({{"prompt", json::array_of(*tokens)}, {"max_tokens", 1}, {"temperature", 0}});
    json::Value asked = request;
    asked.set("kv_transfer_params", json::object({{"do_remote_decode", true}}));
    ask({{prefill, {prefill.at, "/v1/completions", asked.dump()}}},
        [](Course& self, const std::vector<json::Value>& admitted) { self.admitted(admitted[0]); });
  }

  void admitted(const json::Value& answer) {
    const json::Value* transfer = answer.member("kv_transfer_params");
    if (transfer == nullptr || !transfer->is_object()) {
      return failed(
          {Code::kMalformed, fmt::format("the prefill worker {} gives no ticket", prefill.at.text())});
    }
    json::Value ticket = *transfer;
    if (check.is_pushed) ticket.set("isthmus_dialer", "prefill");
    request.set("kv_transfer_params", std::move(ticket));
    std::vector<std::pair<Worker, watch::Ask>> asks = {
        {decode, {decode.at, "/isthmus/canary", request.dump()}}};
    if (check.is_pushed) {
      const std::string endpoints = json::object({{"endpoints", agents}}).dump();
      asks.emplace_back(prefill, watch::Ask{prefill.at, "/isthmus/reach", endpoints});
    }
    ask(std::move(asks),
        [](Course& self, const std::vector<json::Value>& found) { self.compared(found[0]); });
  }

  void compared(const json::Value& findings) {
    const auto passed = findings.require<bool>("passed");
    if (!passed.ok()) return failed(passed.error());
    report.passed = *passed;
    report.findings = findings;
    if (const json::Value* faults = findings.member("faults"); faults != nullptr && faults->is_array()) {
      for (const json::Value& fault : *faults->as_array())
        report.faults.push_back(fault.is_string() ? *fault.as_string() : fault.dump());
    }
    finish(std::move(report));
  }

  // A state that mayn't be handed over is a finding; what may be otherwise another time is an error.
  void failed(const Error& why) {
    const bool is_verdict = why.code == Code::kIncompatible || why.code == Code::kUnsupported ||
                            why.code == Code::kInvalidArgument;
    if (!is_verdict) return finish(why);
    report.faults.push_back(why.detail);
    finish(std::move(report));
  }

  void finish(Result<PairReport> result) {
    if (const auto told = std::exchange(done, nullptr)) told(std::move(result));
  }
};

PairTrial::PairTrial(net::Loop& loop, PairCheck check, Done done)
    : course_(std::make_shared<Course>(loop, std::move(check), std::move(done))) {
  course_->begin();
}

PairTrial::~PairTrial() {
  course_->done = nullptr;
  course_->gathering.reset();  // And with it what keeps the course.
}

Result<PairReport> check_pair(const PairCheck& check) {
  net::Loop loop;
  Result<PairReport> report = Error{Code::kInternal, "not tried"};
  const PairTrial trial(loop, check, [&](Result<PairReport> result) {
    report = std::move(result);
    loop.stop();
  });
  loop.run();
  return report;
}

}  // namespace isthmus::doctor
