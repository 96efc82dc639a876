// SPDX-License-Identifier: Apache-2.0
// Errors on their way to Python: the one place where a failure becomes an exception.
#pragma once

#include <exception>
#include <string>
#include <utility>

#include "base/status.h"

namespace isthmus::python {

class Failure final : public std::exception {
 public:
  explicit Failure(Error error) : error_(std::move(error)), text_(error_.text()) {}
  const char* what() const noexcept override { return text_.c_str(); }
  const Error& error() const { return error_; }

 private:
  Error error_;
  std::string text_;
};

[[noreturn]] void fail(Error error);

template <typename T>
T unwrap(Result<T> result) {
  if (!result.ok()) fail(result.error());
  return *std::move(result);
}

inline void unwrap(const Status& status) {
  if (!status.ok()) fail(status.error());
}

}  // namespace isthmus::python
