// SPDX-License-Identifier: Apache-2.0
// "Did you mean …?" for misspelt words.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace isthmus::fleet {

// Insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`.
std::size_t edit_distance(std::string_view a, std::string_view b);
// ", did you mean 'x'?" for the nearest of `known` if it is near enough to be one, else
// "; known are a, b, c".
std::string suggestion(std::string_view word, std::span<const std::string_view> known);

}  // namespace isthmus::fleet
