// SPDX-License-Identifier: Apache-2.0
// vLLM's convention for disaggregated requests, spliced into the client's own text.
#include "router/shell/bodies.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "http/json.h"

namespace isthmus::router::shell {
namespace {

constexpr std::string_view kTransferField = "kv_transfer_params";
constexpr std::string_view kPrefillTransfer = R"({"do_remote_decode":true,"do_remote_prefill":false})";

}  // namespace

Result<Inbound> read_inbound(const JsonObjectText& request, const fleet::Fleet& fleet) {
  Inbound inbound;
  if (const auto model = request.as_string("model")) {
    inbound.model = *model;
  } else if (request.find("model") != nullptr) {
    return Error{Code::kInvalidArgument, "'model' must be a string"};
  } else if (fleet.models.size() == 1) {
    inbound.model = fleet.models.front().name;
  } else {
    return Error{Code::kInvalidArgument, "'model' is missing and this fleet has more than one"};
  }
  if (fleet.find_model(inbound.model) == nullptr) {
    std::string known;
    for (const fleet::Model& model : fleet.models) known += (known.empty() ? "" : ", ") + model.name;
    constexpr std::size_t kShownMax = 64;
    return Error{Code::kNotFound,
                 fmt::format("no model '{}'; there are {}", inbound.model.substr(0, kShownMax), known)};
  }
  // English text has about four bytes a token, and so has a printed list of token ids. Load needs no more.
  constexpr std::size_t kBytesPerToken = 4;
  const std::size_t prompt_bytes = request.raw("prompt").size() + request.raw("messages").size();
  inbound.prompt_tokens = 1 + prompt_bytes / kBytesPerToken;
  constexpr std::uint64_t kOutputDefault = 128;
  constexpr std::uint64_t kOutputCounted = 4096;
  const auto asked = request.as_uint("max_completion_tokens");
  inbound.output_tokens =
      std::min(asked.value_or(request.as_uint("max_tokens").value_or(kOutputDefault)), kOutputCounted);
  return inbound;
}

std::string prefill_body(const JsonObjectText& request) {
  std::vector<JsonEdit> edits = {{kTransferField, kPrefillTransfer},
                                 {"stream", "false"},
                                 {"stream_options", {}},
                                 {"max_tokens", "1"},
                                 {"min_tokens", {}},
                                 {"min_completion_tokens", {}}};
  if (request.find("max_completion_tokens") != nullptr) edits.push_back({"max_completion_tokens", "1"});
  return edited(request, edits);
}

std::string decode_body(const JsonObjectText& request, const std::optional<std::string>& transfer) {
  const std::vector<JsonEdit> edits = {{kTransferField, transfer}};
  return edited(request, edits);
}

Result<std::optional<std::string>> transfer_of(std::string_view answer, fleet::OnFailure on_failure,
                                               fleet::Dialer dialer) {
  ISTHMUS_TRY(const JsonObjectText object, JsonObjectText::scan(answer));
  const std::string_view raw = object.raw(kTransferField);
  if (raw.empty() || raw == "null") return std::optional<std::string>();
  if (!raw.starts_with('{')) {
    return Error{Code::kMalformed,
                 fmt::format("'{}' in the prefill worker's answer isn't an object", kTransferField)};
  }
  ISTHMUS_TRY(const JsonObjectText transfer, JsonObjectText::scan(raw));
  const std::string policy = fmt::format("\"{}\"", name(on_failure));
  std::vector<JsonEdit> edits = {{"isthmus_on_failure", policy}};
  if (dialer == fleet::Dialer::kPrefill) edits.push_back({"isthmus_dialer", R"("prefill")"});
  return std::optional<std::string>(edited(transfer, edits));
}

}  // namespace isthmus::router::shell
