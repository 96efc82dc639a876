// SPDX-License-Identifier: Apache-2.0
// HTTP/1.1 requests and answers as plain values.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace isthmus::http {

using Headers = std::vector<std::pair<std::string, std::string>>;
// Case-insensitive; "" if absent.
std::string_view header(const Headers& headers, std::string_view name);

struct Request {
  std::string method;  // "POST"
  std::string path;    // Without query.
  std::string query;   // Without '?'.
  Headers headers;
  std::string body;
};

struct Response {
  int status = 200;
  Headers headers;  // Content-Length, Date and Connection are the server's.
  std::string body;
};

}  // namespace isthmus::http
