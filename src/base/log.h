// SPDX-License-Identifier: Apache-2.0
// Structured logging: one line per event, key=value fields. Prompts and keys never go in.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

namespace isthmus::log {

enum class Level { kDebug, kInfo, kWarn, kError };

// Process-wide; call once, early. `component` is printed on each line (p1, d1, router).
void configure(Level lowest, std::string_view component);
bool enabled(Level level);
void write(Level level, std::string_view event, std::string_view fields);

}  // namespace isthmus::log

// ISTHMUS_LOG(kInfo, "handoff owned", "request={} bytes={}", id, n): to stderr, evaluated only when enabled.
#define ISTHMUS_LOG(level, event, ...)                                                        \
  do {                                                                                        \
    if (::isthmus::log::enabled(::isthmus::log::Level::level))                                \
      ::isthmus::log::write(::isthmus::log::Level::level, event, ::fmt::format(__VA_ARGS__)); \
  } while (false)
