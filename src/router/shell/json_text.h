// SPDX-License-Identifier: Apache-2.0
// A JSON object as text: look up and replace top-level members without changing any other byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace isthmus::router::shell {

// One top-level member. Offsets are bytes of the scanned text; the segment runs from the '{' or ',' before it
// to the ',' or '}' after it and so includes white space.
struct JsonMember {
  std::string key;  // Escapes decoded.
  std::size_t segment_begin = 0, segment_end = 0;
  std::size_t value_begin = 0, value_end = 0;
};

// Key order and bytes matter: an engine's chat template may print tool schemas as the client wrote them, so
// re-serialising a body could change the prompt's tokens.
class JsonObjectText {
 public:
  // Checks all of `text` (strict JSON apart from UTF-8, nesting up to kDepthMax) and finds the members. Keeps
  // a view: `text` must outlive this. Errors: malformed with the byte offset; invalid_argument if it is
  // another kind of value.
  static Result<JsonObjectText> scan(std::string_view text);
  static constexpr std::size_t kDepthMax = 64;

  std::string_view text() const { return text_; }
  const std::vector<JsonMember>& members() const { return members_; }
  // The member of that name, the last one if it was given twice (as most parsers do); null if absent.
  const JsonMember* find(std::string_view key) const;
  // The value's own bytes; "" if absent.
  std::string_view raw(std::string_view key) const;
  // The value if it is of that kind; nothing if absent or of another kind.
  std::optional<std::string> as_string(std::string_view key) const;
  std::optional<bool> as_bool(std::string_view key) const;
  std::optional<std::uint64_t> as_uint(std::string_view key) const;

 private:
  std::string_view text_;
  std::vector<JsonMember> members_;
};

// Sets a member to a raw JSON value (in place if it exists, else at the end), or removes it. Twins of a
// repeated key go either way.
struct JsonEdit {
  std::string_view key;
  std::optional<std::string_view> value;  // Nothing removes.
};
std::string edited(const JsonObjectText& object, std::span<const JsonEdit> edits);

}  // namespace isthmus::router::shell
