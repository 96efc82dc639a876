// SPDX-License-Identifier: Apache-2.0
// Reading and writing single fields of the generated messages, with their bounds. For this component's .cc
// files only.
#pragma once

#include <fmt/format.h>
#include <google/protobuf/stubs/logging.h>

#include <cstddef>
#include <cstdint>
#include <span>
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

// Remembers the first field that is out of bounds.
class Bounds {
 public:
  explicit Bounds(Code code) : code_(code) {}
  void bytes(std::string_view field, std::string_view value, std::size_t max) {
    if (value.size() > max) fail(field, fmt::format("{} bytes, at most {} are allowed", value.size(), max));
  }
  // A field of type string: a parser refuses one that isn't UTF-8.
  void text(std::string_view field, const std::string& value, std::size_t max);
  void count(std::string_view field, int value, std::size_t max) {
    if (static_cast<std::size_t>(value) > max)
      fail(field, fmt::format("{} entries, at most {} are allowed", value, max));
  }
  void between(std::string_view field, std::uint64_t value, std::uint64_t low, std::uint64_t high) {
    if (value < low || value > high) fail(field, fmt::format("{} isn't in [{}, {}]", value, low, high));
  }
  // An enumerator from 0 on; the schema's enumerations are open.
  void known(std::string_view field, std::int64_t value, std::int64_t count) {
    if (value < 0 || value >= count) fail(field, fmt::format("{} is unknown", value));
  }
  void fail(std::string_view field, std::string_view what) {
    if (status_.ok()) status_ = Error{code_, fmt::format("{}: {}", field, what)};
  }
  const Status& status() const { return status_; }

 private:
  Code code_;
  Status status_;
};

// Calls `use` with the body's message; false if it is of a kind that this version doesn't know.
template <typename Use>
bool with_body(const v1::Frame& in, const Use& use) {
  switch (in.body_case()) {
    case v1::Frame::kHello:
      return use(in.hello()), true;
    case v1::Frame::kHelloProof:
      return use(in.hello_proof()), true;
    case v1::Frame::kDataHello:
      return use(in.data_hello()), true;
    case v1::Frame::kOpen:
      return use(in.open()), true;
    case v1::Frame::kPlan:
      return use(in.plan()), true;
    case v1::Frame::kReject:
      return use(in.reject()), true;
    case v1::Frame::kPromised:
      return use(in.promised()), true;
    case v1::Frame::kBusy:
      return use(in.busy()), true;
    case v1::Frame::kCredit:
      return use(in.credit()), true;
    case v1::Frame::kSeal:
      return use(in.seal()), true;
    case v1::Frame::kDone:
      return use(in.done()), true;
    case v1::Frame::kReleased:
      return use(in.released()), true;
    case v1::Frame::kCancel:
      return use(in.cancel()), true;
    case v1::Frame::kAbort:
      return use(in.abort()), true;
    case v1::Frame::kRestart:
      return use(in.restart()), true;
    case v1::Frame::kRenew:
      return use(in.renew()), true;
    case v1::Frame::kRenewed:
      return use(in.renewed()), true;
    case v1::Frame::kValid:
      return use(in.valid()), true;
    case v1::Frame::kValidity:
      return use(in.validity()), true;
    case v1::Frame::kGroupBegin:
      return use(in.group_begin()), true;
    case v1::Frame::kGroupWord:
      return use(in.group_word()), true;
    case v1::Frame::kGroupReport:
      return use(in.group_report()), true;
    case v1::Frame::BODY_NOT_SET:
      return false;
  }
  return false;
}

// What a message may say. encode() asks of what it is about to send, decode() of what has come: so the one
// never accepts what the other refuses. unsupported for an unknown kind of frame, else `code` and the field.
Status check_frame(const v1::Frame& frame, Code code);
void check(const v1::Descriptor& descriptor, Bounds& bounds);

// False if the bytes aren't of the message's schema. The caller's error says so; protobuf's own line on
// stderr for each string that isn't UTF-8 would let a peer fill a log.
template <typename Message>
bool parse_message(std::span<const std::byte> bytes, Message& message) {
  [[maybe_unused]] static const auto kPrevious = google::protobuf::SetLogHandler(nullptr);
  return message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
}

void write_descriptor(const kv::Descriptor& descriptor, v1::Descriptor& out);
// Of a message that check() has passed. unsupported: a number format that isn't known.
Result<kv::Descriptor> read_descriptor(const v1::Descriptor& in);

}  // namespace isthmus::wire
