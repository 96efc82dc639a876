// SPDX-License-Identifier: Apache-2.0
// Incremental text with stop strings.
#include "worker/text_stream.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "worker/utf8.h"

namespace isthmus::worker {
namespace {

// Length of the longest prefix of `text` that ends at a character boundary.
std::size_t whole_characters(std::string_view text) {
  // A UTF-8 character has at most three continuation bytes after its first.
  for (std::size_t back = 1; back <= std::min<std::size_t>(4, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xC0u) == 0x80u) continue;
    const std::size_t need = byte < 0x80u ? 1 : byte >= 0xF0u ? 4 : byte >= 0xE0u ? 3 : byte >= 0xC0u ? 2 : 1;
    return need > back ? text.size() - back : text.size();
  }
  return text.size();  // No first byte within reach: not UTF-8.
}

// Length of the longest suffix of `text` that could still grow into `stop`.
std::size_t possible_start(std::string_view text, std::string_view stop) {
  for (std::size_t n = std::min(text.size(), stop.size() - 1); n > 0; --n) {
    if (text.substr(text.size() - n) == stop.substr(0, n)) return n;
  }
  return 0;
}

}  // namespace

std::string TextStream::add(std::string_view piece) {
  if (stopped_) return "";
  held_ += piece;
  std::size_t at = std::string::npos;
  for (const std::string& stop : stops_) at = std::min(at, held_.find(stop));
  if (at != std::string::npos) {
    stopped_ = true;
    return shown(std::exchange(held_, "").substr(0, at));
  }
  std::size_t hold = held_.size() - whole_characters(held_);
  for (const std::string& stop : stops_) hold = std::max(hold, possible_start(held_, stop));
  // A character must not be cut by holding back the start of a stop string either; stops begin at characters.
  std::string certain = held_.substr(0, held_.size() - hold);
  held_.erase(0, certain.size());
  return shown(certain);
}

std::string TextStream::finish() {
  if (stopped_) return "";
  std::string rest = std::exchange(held_, "");
  const std::size_t whole = whole_characters(rest);
  return shown(rest.substr(0, whole)) + (whole < rest.size() ? "\xEF\xBF\xBD" : "");
}

}  // namespace isthmus::worker
