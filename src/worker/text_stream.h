// SPDX-License-Identifier: Apache-2.0
// Turns token pieces into text that may be shown: whole UTF-8 characters, U+FFFD for what is none,
// nothing at or after a stop string.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace isthmus::worker {

class TextStream {
 public:
  explicit TextStream(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // The text that has become certain with this piece; "" while a character or a possible stop string is
  // incomplete.
  std::string add(std::string_view piece);
  // What was held back, at the end of the answer (an incomplete character becomes U+FFFD).
  std::string finish();
  // A stop string was met; nothing more will come.
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace isthmus::worker
