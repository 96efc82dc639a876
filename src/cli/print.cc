// SPDX-License-Identifier: Apache-2.0
// stdout and stderr.
#include "cli/print.h"

#include <cstdio>

namespace isthmus::cli {
namespace {

void write_to(std::FILE* stream, std::string_view text, std::string_view end) {
  // A closed pipe is the reader's choice: there is nobody left to tell.
  (void)std::fwrite(text.data(), 1, text.size(), stream);
  (void)std::fwrite(end.data(), 1, end.size(), stream);
  (void)std::fflush(stream);
}

}  // namespace

void print(std::string_view text) {
  write_to(stdout, text, "");
}
void print_line(std::string_view line) {
  write_to(stdout, line, "\n");
}
void note_line(std::string_view line) {
  write_to(stderr, line, "\n");
}
void note_over(std::string_view line) {
  write_to(stderr, "\r", line);
  write_to(stderr, "\x1b[K", "");
}

}  // namespace isthmus::cli
