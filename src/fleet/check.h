// SPDX-License-Identifier: Apache-2.0
// What is wrong or doubtful in a fleet file that can be read: found without asking any worker.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fleet/fleet.h"

namespace isthmus::fleet {

enum class Severity : std::uint8_t {
  kError,    // The fleet can't do what the file says.
  kWarning,  // It can, but hardly as meant.
};
std::string_view name(Severity severity);  // "error", "warning"

struct Finding {
  Severity severity = Severity::kError;
  int line = 0;        // Of the file, from 1; 0 if it is about the file as a whole.
  std::string path;    // "workers[2].url"
  std::string text;    // What is so.
  std::string advice;  // What to do.
};

// A fleet file's text with the lines of its values, for findings that come after it was parsed.
class Source {
 public:
  // `text` must be a fleet file that parse_fleet() accepts.
  explicit Source(std::string_view text);
  // The line of the value at `path`, or of the nearest value around it that there is.
  int line_of(std::string_view path) const;
  Finding finding(Severity severity, std::string path, std::string text, std::string advice) const;

 private:
  std::vector<std::pair<std::string, int>> lines_;  // By path, sorted.
};

// Roles that don't cover a model, pairs without a qualification record, planes that don't meet, urls that
// can't be right, SLOs that can't be kept, and what is wrong with the key file and with the files of TLS
// (looked at on disk). In file order.
std::vector<Finding> check_fleet(const Fleet& fleet, const Source& source);

// True if a prefill at `p` may be handed to `d` as far as the file alone says: roles, model and plane.
bool may_pair(const Worker& p, const Worker& d);

}  // namespace isthmus::fleet
