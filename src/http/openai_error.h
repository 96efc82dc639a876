// SPDX-License-Identifier: Apache-2.0
// Errors in OpenAI's shape: {"error":{"message","type","param","code"}}.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "base/time.h"
#include "http/message.h"

namespace isthmus::http {

// `param`: the request field at fault, or "". exhausted and unavailable carry Retry-After: `retry_after` in
// whole seconds, at least one.
Response error_response(const Error& error, std::string_view param = {}, Duration retry_after = Duration{0});
// The JSON object alone, for an SSE error event.
std::string error_json(const Error& error, std::string_view param = {});

}  // namespace isthmus::http
