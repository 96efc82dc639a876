// SPDX-License-Identifier: Apache-2.0
// Plain formatting; nothing here knows what it shows.
#include "watch/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace isthmus::watch {

std::string bytes_text(double bytes) {
  constexpr std::array<std::string_view, 5> kUnits{"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  while (bytes >= 999.5 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  const bool is_whole = unit == 0 || bytes >= 99.95;
  return is_whole ? fmt::format("{:.0f} {}", bytes, kUnits[unit])
                  : fmt::format("{:.1f} {}", bytes, kUnits[unit]);
}

std::string seconds_text(double seconds) {
  if (seconds < 0.9995) return fmt::format("{:.0f} ms", seconds * 1e3);
  if (seconds < 99.95) return fmt::format("{:.1f} s", seconds);
  if (seconds < 6000) return fmt::format("{:.0f} min", seconds / 60);
  return fmt::format("{:.0f} h", seconds / 3600);
}

std::string count_text(std::uint64_t count) {
  std::string digits = std::to_string(count);
  for (std::size_t at = digits.size(); at > 3;) {
    at -= 3;
    digits.insert(at, ",");
  }
  return digits;
}

std::string bar(double part, std::size_t width) {
  const double clean = std::isfinite(part) ? std::clamp(part, 0.0, 1.0) : 0.0;
  auto filled = static_cast<std::size_t>(std::lround(clean * static_cast<double>(width)));
  if (filled == 0 && clean > 0) filled = 1;  // A little isn't nothing.
  std::string text;
  for (std::size_t i = 0; i < width; ++i) text += i < filled ? "█" : "░";
  return text;
}

std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
}

std::string clipped(std::string_view text, std::size_t width) {
  if (width_of(text) <= width) return std::string(text);
  std::string cut;
  std::size_t cells = 0;
  for (const char c : text) {
    if ((c & 0xC0) != 0x80 && ++cells > width - 1) break;
    cut += c;
  }
  return cut + "…";
}

Table::Table(std::vector<std::string> names) : names_(std::move(names)) {
  for (std::string& name : names_) {
    right_.push_back(name.starts_with('>'));
    if (right_.back()) name.erase(0, 1);
  }
}

void Table::add(std::vector<std::string> cells) {
  cells.resize(names_.size());
  rows_.push_back({std::move(cells), ""});
}

void Table::add_note(std::string first, std::string rest) {
  rows_.push_back({{std::move(first)}, std::move(rest)});
}

std::string Table::text() const {
  std::vector<std::size_t> widths;
  for (std::size_t i = 0; i < names_.size(); ++i) {
    std::size_t width = width_of(names_[i]);
    for (const Row& row : rows_) {
      if (i < row.cells.size()) width = std::max(width, width_of(row.cells[i]));
    }
    widths.push_back(width);
  }
  std::string text;
  const auto add_line = [&](const std::vector<std::string>& cells, const std::string& note) {
    std::string line;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      const std::string pad(widths[i] - width_of(cells[i]), ' ');
      line += right_[i] ? pad + cells[i] : cells[i] + pad;
      line += "  ";
    }
    line += note;
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  add_line(names_, "");
  for (const Row& row : rows_) add_line(row.cells, row.note);
  return text;
}

}  // namespace isthmus::watch
