// SPDX-License-Identifier: Apache-2.0
// The one error type of Isthmus: a closed set of codes, each named for what the caller should do about it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace isthmus {

// Numbers are fixed in spec/errors.md; they cross the wire and the C ABI.
enum class Code : std::uint8_t {
  kOk = 0,
  kInvalidArgument = 1,  // The request itself is wrong: fix it, never retry.
  kMalformed = 2,        // Bytes break the format: drop the peer's message, count it.
  kIncompatible = 3,  // Valid, but version, geometry or format isn't ours: choose another peer or recompute.
  kNotFound = 4,      // State is absent or evicted: recompute prefill.
  kExhausted = 5,     // Quota, memory or queue full: back off, shed.
  kUnavailable = 6,   // Peer or link down, not started: retry elsewhere.
  kAborted = 7,       // Handoff lost a race or its lease: restart the handoff.
  kDeadlineExceeded = 8,  // Outcome unknown: treat as maybe done, retry idempotently.
  kCancelled = 9,         // Someone asked: stop and release.
  kCorrupt = 10,          // Checksum failed: quarantine the copy, fetch again, alert.
  kUnsupported = 11,      // Never will work here: fall back.
  kInternal = 12,         // Our bug, seen and contained: report.
};
inline constexpr std::uint8_t kCodeCount = 13;

// The code's name as in spec/errors.md: "ok", "invalid_argument", ….
std::string_view name(Code code);
// The inverse of name(); nothing for an unknown name.
std::optional<Code> code_from_name(std::string_view text);
// HTTP status that a client gets for this code (spec/errors.md); 200 for ok.
int http_status(Code code);

struct [[nodiscard]] Error {
  Code code = Code::kInternal;
  std::string detail;

  // "incompatible: block size 16 != 32".
  std::string text() const;
};

// Success, or an Error. Dropping one is a compile error in this project's warnings.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Error error) : error_(std::move(error)) {
    ISTHMUS_CHECK(error_->code != Code::kOk);
  }  // NOLINT(*-explicit-*)

  bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }
  Code code() const { return ok() ? Code::kOk : error_->code; }
  const Error& error() const {
    ISTHMUS_CHECK(!ok());
    return *error_;
  }
  // The same failure with `where` put before its detail; unchanged on success.
  Status with_context(std::string_view where) &&;

 private:
  std::optional<Error> error_;
};

inline Status ok_status() {
  return {};
}

// A value, or an Error. Reading the value of a failure is a programmer error and stops the process.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}     // NOLINT(*-explicit-*)
  Result(Error error) : error_(std::move(error)) {  // NOLINT(*-explicit-*)
    ISTHMUS_CHECK(error_.code != Code::kOk);
  }
  Result(const Status& status) : error_(status.error()) {}  // NOLINT(*-explicit-*) status must have failed

  bool ok() const { return value_.has_value(); }
  explicit operator bool() const { return ok(); }
  Code code() const { return ok() ? Code::kOk : error_.code; }
  const Error& error() const {
    ISTHMUS_CHECK(!ok());
    return error_;
  }
  Status status() const { return ok() ? Status() : Status(error_); }

  T& value() & {
    ISTHMUS_CHECK(ok());
    return *value_;
  }
  const T& value() const& {
    ISTHMUS_CHECK(ok());
    return *value_;
  }
  T&& value() && {
    ISTHMUS_CHECK(ok());
    return *std::move(value_);
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::optional<T> value_;
  Error error_;
};

namespace detail {
inline Error error_of(const Status& status) {
  return status.error();
}
template <typename T>
Error error_of(const Result<T>& result) {
  return result.error();
}
}  // namespace detail

// `ISTHMUS_TRY(expr)` returns the failure of a Status or Result from the enclosing function;
// `ISTHMUS_TRY(auto x, expr)` also binds the value.
#define ISTHMUS_TRY_NAME2(line) isthmus_try_##line
#define ISTHMUS_TRY_NAME(line) ISTHMUS_TRY_NAME2(line)
#define ISTHMUS_TRY_STATUS(expr)                                                          \
  do {                                                                                    \
    auto&& isthmus_try_status = (expr);                                                   \
    if (!isthmus_try_status.ok()) return ::isthmus::detail::error_of(isthmus_try_status); \
  } while (false)
#define ISTHMUS_TRY_VALUE(decl, expr)                                                                   \
  auto&& ISTHMUS_TRY_NAME(__LINE__) = (expr);                                                           \
  if (!ISTHMUS_TRY_NAME(__LINE__).ok()) return ::isthmus::detail::error_of(ISTHMUS_TRY_NAME(__LINE__)); \
  decl = *std::move(ISTHMUS_TRY_NAME(__LINE__))
#define ISTHMUS_TRY_PICK(_1, _2, name, ...) name
#define ISTHMUS_TRY(...) ISTHMUS_TRY_PICK(__VA_ARGS__, ISTHMUS_TRY_VALUE, ISTHMUS_TRY_STATUS)(__VA_ARGS__)

}  // namespace isthmus
