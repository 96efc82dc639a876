// SPDX-License-Identifier: Apache-2.0
// Reading and writing single fields of the generated messages, with their bounds. For this component's .cc
// files only.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "isthmus/v1/handoff.pb.h"
#include "kv/descriptor.h"
#include "wire/frames.h"

namespace isthmus::wire {

inline Error malformed_field(std::string_view field, std::string_view what) {
  return {Code::kMalformed, fmt::format("{}: {}", field, what)};
}

// Bounds are the same both ways: what encode accepts, decode accepts.
class Bounds {
 public:
  explicit Bounds(Code code) : code_(code) {}
  void text(std::string_view field, std::string_view value, std::size_t max) {
    if (value.size() > max)
      fail(fmt::format("{}: {} bytes, at most {} are allowed", field, value.size(), max));
  }
  void count(std::string_view field, std::size_t value, std::size_t max) {
    if (value > max) fail(fmt::format("{}: {} entries, at most {} are allowed", field, value, max));
  }
  void fail(std::string detail) {
    if (status_.ok()) status_ = Error{code_, std::move(detail)};
  }
  const Status& status() const { return status_; }

 private:
  Code code_;
  Status status_;
};

// Every bound of `descriptor` by itself.
Status check_bounds(const kv::Descriptor& descriptor, Code code);
void write_descriptor(const kv::Descriptor& descriptor, v1::Descriptor& out);
Result<kv::Descriptor> read_descriptor(const v1::Descriptor& in);

}  // namespace isthmus::wire
