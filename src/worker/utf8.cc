// SPDX-License-Identifier: Apache-2.0
// UTF-8 by its table of well-formed bytes.
#include "worker/utf8.h"

#include <algorithm>
#include <cstdint>

namespace isthmus::worker {
namespace {

bool continues(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0u) == 0x80u;
}

}  // namespace

std::size_t character(std::string_view text) {
  if (text.empty()) return 0;
  const auto first = static_cast<unsigned char>(text.front());
  if (first < 0x80u) return 1;
  const std::size_t length = first >= 0xF0u ? 4 : first >= 0xE0u ? 3 : 2;
  if (first < 0xC2u || first > 0xF4u || text.size() < length) return 0;
  if (!std::ranges::all_of(text.substr(1, length - 1), continues)) return 0;
  const auto second = static_cast<unsigned char>(text[1]);
  const bool is_overlong = (first == 0xE0u && second < 0xA0u) || (first == 0xF0u && second < 0x90u);
  const bool is_outside = (first == 0xEDu && second >= 0xA0u) || (first == 0xF4u && second >= 0x90u);
  return is_overlong || is_outside ? 0 : length;
}

std::size_t characters(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(text, [](char byte) { return !continues(byte); }));
}

std::string shown(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t length = character(text);
    out += length == 0 ? std::string_view("\xEF\xBF\xBD") : text.substr(0, length);
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return out;
}

}  // namespace isthmus::worker
