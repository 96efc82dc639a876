// SPDX-License-Identifier: Apache-2.0
// Four requests, one after the other: who are you, twice; tokens; a ticket; a comparison.
#include "doctor/pair.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

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
  const auto body = json::parse(response.body);
  const std::string detail = body.ok() ? text_at(*body, "error.message") : "?";
  const Code code = response.status == 429   ? Code::kExhausted
                    : response.status == 503 ? Code::kUnavailable
                    : response.status == 404 ? Code::kMalformed
                                             : Code::kIncompatible;
  return {code, fmt::format("the {} worker {} answers {} with status {}: {}", worker.part, worker.at.text(),
                            path, response.status, detail)};
}

Result<json::Value> ask(const Worker& worker, const std::string& path, const json::Value& body,
                        Duration timeout) {
  const std::string text = body.is_null() ? "" : body.dump();
  watch::Answers answers = watch::fetch_all({{worker.at, path, text}}, timeout);
  if (!answers[0].ok()) return answers[0].error();
  if (answers[0]->status != 200) return said(worker, *answers[0], path);
  auto value = json::parse(answers[0]->body);
  if (value.ok()) return value;
  return Error{Code::kMalformed, fmt::format("the {} worker {} answers {} with {}", worker.part,
                                             worker.at.text(), path, value.error().text())};
}

Result<std::string> introduced(const Worker& worker, Duration timeout) {
  ISTHMUS_TRY(const json::Value ready, ask(worker, "/ready", {}, timeout));
  ISTHMUS_TRY(const std::string storage, ready.require<std::string>("storage"));
  return storage;
}

Result<std::vector<std::int64_t>> tokens_of(const Worker& worker, const std::string& prompt,
                                            Duration timeout) {
  ISTHMUS_TRY(const json::Value answer,
              ask(worker, "/tokenize", json::object({{"prompt", prompt}}), timeout));
  const json::Value* tokens = answer.member("tokens");
  std::vector<std::int64_t> ids;
  if (tokens == nullptr || tokens->as_array() == nullptr)
    return Error{Code::kMalformed, fmt::format("{} answers /tokenize without tokens", worker.at.text())};
  for (const json::Value& token : *tokens->as_array()) ids.push_back(token.as_int().value_or(-1));
  return ids;
}

std::string unlike(const std::vector<std::int64_t>& a, const std::vector<std::int64_t>& b) {
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

// The prefill worker's state against the decode worker's own.
Result<json::Value> compare(const Worker& prefill, const Worker& decode,
                            const std::vector<std::int64_t>& tokens, Duration timeout) {
  json::Array ids;
  for (const std::int64_t token : tokens) ids.emplace_back(token);
  json::Value request = json::object({{"prompt", std::move(ids)}, {"max_tokens", 1}, {"temperature", 0}});
  json::Value asked = request;
  asked.set("kv_transfer_params", json::object({{"do_remote_decode", true}}));
  ISTHMUS_TRY(const json::Value admitted, ask(prefill, "/v1/completions", asked, timeout));
  const json::Value* transfer = admitted.member("kv_transfer_params");
  if (transfer == nullptr || transfer->is_null())
    return Error{Code::kMalformed, fmt::format("the prefill worker {} gives no ticket", prefill.at.text())};
  request.set("kv_transfer_params", *transfer);
  return ask(decode, "/isthmus/canary", request, timeout);
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

Result<PairReport> check_pair(const PairCheck& check) {
  const Worker prefill{"prefill", check.prefill}, decode{"decode", check.decode};
  const std::string prompt = check.prompt.empty() ? kPrompt : check.prompt;
  PairReport report;
  ISTHMUS_TRY(report.prefill, introduced(prefill, check.timeout));
  ISTHMUS_TRY(report.decode, introduced(decode, check.timeout));
  ISTHMUS_TRY(const auto tokens, tokens_of(prefill, prompt, check.timeout));
  ISTHMUS_TRY(const auto of_decode, tokens_of(decode, prompt, check.timeout));
  if (std::string why = unlike(tokens, of_decode); !why.empty()) {
    report.faults.push_back(std::move(why));
    return report;
  }
  auto findings = compare(prefill, decode, tokens, check.timeout);
  if (findings.code() == Code::kIncompatible) {
    report.faults.push_back(findings.error().text());
    return report;
  }
  ISTHMUS_TRY(report.findings, std::move(findings));
  ISTHMUS_TRY(report.passed, report.findings.require<bool>("passed"));
  if (const json::Value* faults = report.findings.member("faults"); faults != nullptr && faults->is_array()) {
    for (const json::Value& fault : *faults->as_array()) {
      if (fault.is_string()) report.faults.push_back(*fault.as_string());
    }
  }
  return report;
}

}  // namespace isthmus::doctor
