// SPDX-License-Identifier: Apache-2.0
// The bodies of the two legs: what the prefill worker is asked, what is relayed to the decode worker. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "fleet/fleet.h"
#include "http/message.h"
#include "router/shell/json_text.h"

namespace isthmus::router::shell {

// What the router itself reads of a completion request.
struct Inbound {
  std::string model;
  std::uint64_t prompt_tokens = 0;  // Estimated from the text's length.
  std::uint64_t output_tokens = 0;  // As asked for, or a default.
};

// `fleet` gives the model when the request names none and there is only one. Errors: invalid_argument or
// not_found on field "model".
Result<Inbound> read_inbound(const JsonObjectText& request, const fleet::Fleet& fleet);

// The request as the prefill worker gets it: one token, not streamed, state kept for a remote decode.
std::string prefill_body(const JsonObjectText& request);

// The request as the decode worker gets it: the client's own, with the transfer object or with none at all.
// An object that the client sent is never passed on: tickets come from workers only.
std::string decode_body(const JsonObjectText& request, const std::optional<std::string>& transfer);

// The transfer object in a prefill worker's answer, its bytes untouched but for "isthmus_on_failure", which
// tells the decode worker what a failed handoff means, and "isthmus_dialer" where it isn't to dial. Nothing
// if the answer has none. Errors: malformed.
Result<std::optional<std::string>> transfer_of(std::string_view answer, fleet::OnFailure on_failure,
                                               fleet::Dialer dialer = fleet::Dialer::kDecode);

}  // namespace isthmus::router::shell
