// SPDX-License-Identifier: Apache-2.0
// Header lookup and the text of message heads.
#include "http/message.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ctime>

#include "http/head.h"

namespace isthmus::http {
namespace {

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

void append_clean(std::string& out, std::string_view text) {
  for (const char c : text) {
    if (static_cast<unsigned char>(c) >= 0x20 || c == '\t') out += c;
  }
}

void append_headers(std::string& out, const Headers& headers) {
  // What frames a message is decided here, whatever the headers say; relayed ones describe another hop.
  constexpr std::array<std::string_view, 7> kOurs{
      "content-length", "connection", "date", "transfer-encoding", "expect", "host", "keep-alive"};
  for (const auto& [name, value] : headers) {
    const auto is_this = [&](std::string_view ours) { return equal_ignoring_case(ours, name); };
    if (std::any_of(kOurs.begin(), kOurs.end(), is_this)) continue;
    append_clean(out, name);
    out += ": ";
    append_clean(out, value);
    out += "\r\n";
  }
}

std::string_view reason(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 409:
      return "Conflict";
    case 413:
      return "Payload Too Large";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 499:
      return "Client Closed Request";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 502:
      return "Bad Gateway";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    default:
      return "Status";
  }
}

// RFC 9110 §5.6.7; the one instant of this process that is told to others, and nothing depends on it.
std::string date() {
  const std::time_t at = std::time(nullptr);
  std::tm fields{};
  gmtime_r(&at, &fields);
  std::array<char, 40> text{};
  const std::size_t length = std::strftime(text.data(), text.size(), "%a, %d %b %Y %H:%M:%S GMT", &fields);
  return {text.data(), length};
}

}  // namespace

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return lower(x) == lower(y); });
}

std::string_view header(const Headers& headers, std::string_view name) {
  for (const auto& [key, value] : headers) {
    if (equal_ignoring_case(key, name)) return value;
  }
  return {};
}

std::string response_head(const Response& response, const Framing& framing) {
  std::string out =
      fmt::format("HTTP/1.1 {} {}\r\nDate: {}\r\n", response.status, reason(response.status), date());
  append_headers(out, response.headers);
  if (framing.length) {
    out += fmt::format("Content-Length: {}\r\n", *framing.length);
  } else if (framing.is_chunked) {
    out += "Transfer-Encoding: chunked\r\n";
  }
  out += framing.keep_alive ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
  return out;
}

std::string request_head(const Request& request, std::string_view host) {
  std::string out;
  append_clean(out, request.method);
  out += ' ';
  append_clean(out, request.path.empty() ? "/" : request.path);
  if (!request.query.empty()) {
    out += '?';
    append_clean(out, request.query);
  }
  out += fmt::format(" HTTP/1.1\r\nHost: {}\r\n", host);
  append_headers(out, request.headers);
  const bool has_body = !request.body.empty() || request.method == "POST" || request.method == "PUT";
  if (has_body) out += fmt::format("Content-Length: {}\r\n", request.body.size());
  out += "\r\n";
  return out;
}

}  // namespace isthmus::http
