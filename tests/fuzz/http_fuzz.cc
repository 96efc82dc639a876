// SPDX-License-Identifier: Apache-2.0
// HTTP as it comes from a socket, in pieces; then the body as a completion, as JSON, and as a text to splice.
#include <algorithm>

#include "fuzz/input.h"
#include "http/json.h"
#include "http/reader.h"
#include "router/shell/json_text.h"
#include "worker/openai.h"

namespace isthmus::fuzz {
namespace {

constexpr http::ReaderLimits kLimits{.header_bytes_max = 4096, .body_bytes_max = 1 << 16};

// Feeds `text` in pieces of `step` bytes. The inbox must stay bounded, or a peer could fill our memory.
void read_message(http::Reader& reader, std::string_view text, std::size_t step) {
  std::string inbox;
  while (!text.empty() && !reader.done()) {
    const std::size_t take = std::min(step, text.size());
    inbox += text.substr(0, take);
    text.remove_prefix(take);
    if (!reader.feed(inbox).ok()) return;
    ISTHMUS_CHECK(inbox.size() <= kLimits.header_bytes_max + step);
    ISTHMUS_CHECK(reader.body.size() <= *kLimits.body_bytes_max);
  }
}

void check_json(std::string_view body) {
  const Result<json::Value> value = json::parse(body);
  if (!value.ok()) return;
  const std::string text = value->dump();
  const Result<json::Value> again = json::parse(text);
  ISTHMUS_CHECK(again.ok());
  ISTHMUS_CHECK(again->dump() == text);
  const auto scanned = router::shell::JsonObjectText::scan(body);
  if (!value->is_object()) {
    ISTHMUS_CHECK(!scanned.ok());
    return;
  }
  ISTHMUS_CHECK(scanned.ok());
  ISTHMUS_CHECK(scanned->members().size() == value->as_object()->size());
}

void check_splice(std::string_view body) {
  const auto scanned = router::shell::JsonObjectText::scan(body);
  if (!scanned.ok()) return;
  const router::shell::JsonEdit edits[] = {{"kv_transfer_params", R"({"do_remote_decode":true})"},
                                           {"stream", std::nullopt}};
  const std::string spliced = router::shell::edited(*scanned, edits);
  const auto again = router::shell::JsonObjectText::scan(spliced);
  ISTHMUS_CHECK(again.ok());
  ISTHMUS_CHECK(again->raw("kv_transfer_params") == R"({"do_remote_decode":true})");
  ISTHMUS_CHECK(again->find("stream") == nullptr);
}

void check_body(std::string_view body) {
  for (const worker::Api api : {worker::Api::kCompletions, worker::Api::kChat}) {
    std::string bad_field;
    const auto request = worker::parse_completion(body, api, bad_field);
    if (request.ok()) {
      ISTHMUS_CHECK(json::parse(body).ok());
    } else {
      ISTHMUS_CHECK(!request.error().detail.empty());
    }
  }
  check_json(body);
  check_splice(body);
}

}  // namespace
}  // namespace isthmus::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace isthmus;
  const std::string_view text = fuzz::text_of_input(data, size);
  const auto whole = http::make_request_reader(fuzz::kLimits);
  fuzz::read_message(*whole, text, std::max<std::size_t>(text.size(), 1));
  const auto trickled = http::make_request_reader(fuzz::kLimits);
  fuzz::read_message(*trickled, text, 3);
  ISTHMUS_CHECK(whole->done() == trickled->done());
  if (whole->done()) {
    ISTHMUS_CHECK(whole->body == trickled->body && whole->headers == trickled->headers);
    fuzz::check_body(whole->body);
  }
  const auto answer = http::make_response_reader(fuzz::kLimits, false);
  fuzz::read_message(*answer, text, 7);
  fuzz::check_body(text);
  return 0;
}
