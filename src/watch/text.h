// SPDX-License-Identifier: Apache-2.0
// Numbers, bars and tables for a terminal.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace isthmus::watch {

// "0 B", "812 B", "1.2 KiB", "37.5 MiB": three digits at most before the unit.
std::string bytes_text(double bytes);
// "180 ms", "4.1 s", "3 min", "2 h".
std::string seconds_text(double seconds);
// "1,234,567"
std::string count_text(std::uint64_t count);
// A bar of `width` cells, filled to `part` (0 to 1).
std::string bar(double part, std::size_t width);
// Terminal cells that UTF-8 text takes, each code point one.
std::size_t width_of(std::string_view text);
// Cut to `width` cells, the last one '…' if something was cut.
std::string clipped(std::string_view text, std::size_t width);

// Columns as wide as their widest cell, two spaces between; cells of numbers stand at the right.
class Table {
 public:
  // A name that begins with '>' makes a column of numbers.
  explicit Table(std::vector<std::string> names);
  void add(std::vector<std::string> cells);
  // A line whose first cell stands in its column and whose second runs over all the others.
  void add_note(std::string first, std::string rest);
  bool empty() const { return rows_.empty(); }
  // With the names as first line; no space at the ends of lines.
  std::string text() const;

 private:
  struct Row {
    std::vector<std::string> cells;
    std::string note;
  };
  std::vector<std::string> names_;
  std::vector<bool> right_;
  std::vector<Row> rows_;
};

}  // namespace isthmus::watch
