// SPDX-License-Identifier: Apache-2.0
// The one translation unit that includes spdlog.
#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>

namespace isthmus::log {
namespace {

spdlog::level::level_enum to_spdlog(Level level) {
  switch (level) {
    case Level::kDebug:
      return spdlog::level::debug;
    case Level::kInfo:
      return spdlog::level::info;
    case Level::kWarn:
      return spdlog::level::warn;
    case Level::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

spdlog::logger& logger() {
  static const auto instance = [] {
    auto made =
        std::make_shared<spdlog::logger>("isthmus", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_level(spdlog::level::info);
    made->flush_on(spdlog::level::info);
    return made;
  }();
  return *instance;
}

}  // namespace

void configure(Level lowest, std::string_view component) {
  logger().set_level(to_spdlog(lowest));
  logger().set_pattern(fmt::format("%Y-%m-%dT%H:%M:%S.%e level=%l at={} %v", component));
}

bool enabled(Level level) {
  return logger().should_log(to_spdlog(level));
}

void write(Level level, std::string_view event, std::string_view fields) {
  logger().log(to_spdlog(level), "event=\"{}\" {}", event, fields);
}

}  // namespace isthmus::log
