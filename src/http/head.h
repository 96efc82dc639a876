// SPDX-License-Identifier: Apache-2.0
// The text of message heads; within http only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "http/message.h"

namespace isthmus::http {

struct Framing {
  std::optional<std::uint64_t> length;  // Content-Length, or:
  bool is_chunked = false;              // neither: the body ends with the connection.
  bool keep_alive = true;
};

// Control characters in names and values are dropped, so that no value can start a header of its own.
std::string response_head(const Response& response, const Framing& framing);
// `host` as in the Host header.
std::string request_head(const Request& request, std::string_view host);

bool equal_ignoring_case(std::string_view a, std::string_view b);

}  // namespace isthmus::http
