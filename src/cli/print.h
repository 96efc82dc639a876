// SPDX-License-Identifier: Apache-2.0
// The one way to write to the terminal: results on stdout, everything for people watching on stderr.
#pragma once

#include <string_view>

namespace isthmus::cli {

// As they are, flushed; `line` gets a newline.
void print(std::string_view text);
void print_line(std::string_view line);
void note_line(std::string_view line);
// On a terminal: in the place of what was noted over before; "" leaves the line empty.
void note_over(std::string_view line);

}  // namespace isthmus::cli
