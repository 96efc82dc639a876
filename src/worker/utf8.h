// SPDX-License-Identifier: Apache-2.0
// Characters of text that a model made, which need not be whole.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace isthmus::worker {

// The length of the character that `text` begins with, 0 if it isn't one: cut off, overlong, a surrogate, or
// no UTF-8.
std::size_t character(std::string_view text);
// Characters that begin in `text`.
std::size_t characters(std::string_view text);
// `text` with U+FFFD for each byte that belongs to no character.
std::string shown(std::string_view text);

}  // namespace isthmus::worker
