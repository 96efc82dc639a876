// SPDX-License-Identifier: Apache-2.0
// Errors in OpenAI's shape, made and read: {"error":{"message","type","param","code"}}.
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

// An answer other than 200 of a worker, by whoever asked it. The asker's own fault (400, 404, 413, 422, …) is
// invalid_argument; busy is exhausted; else the code that the answer's error names, or one by its status.
Error error_of(const Response& answer);
// error.message of an OpenAI-shaped error body, or the start of the body.
std::string message_of(std::string_view body);

}  // namespace isthmus::http
