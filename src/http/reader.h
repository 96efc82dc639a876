// SPDX-License-Identifier: Apache-2.0
// Reads one HTTP/1.1 message from bytes as they come; within http only. Beast's parser stays behind this
// header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/status.h"
#include "http/message.h"

namespace isthmus::http {

struct ReaderLimits {
  std::size_t header_bytes_max = 0;
  std::optional<std::uint64_t>
      body_bytes_max;  // Nothing: unbounded, for a caller who takes the body as it comes.
};

class Reader {
 public:
  virtual ~Reader() = default;

  // Takes from the front of `in` what belongs to the message. Errors: malformed; exhausted (a limit; `status`
  // says 413 or 431 then). Not after done().
  virtual Status feed(std::string& in) = 0;
  // The peer will send no more. malformed if the message isn't complete.
  virtual Status end() = 0;

  virtual bool has_head() const = 0;
  virtual bool done() const = 0;
  virtual bool keep_alive() const = 0;

  bool has_begun() const { return begun_; }
  bool is_version_1_0 = false;
  std::string method;  // Requests.
  std::string target;
  int status = 0;  // Answers; after an error in a request, what to answer.
  Headers headers;
  std::string body;  // What came so far; the caller may take it away between calls.

 protected:
  bool begun_ = false;
};

std::unique_ptr<Reader> make_request_reader(const ReaderLimits& limits);
// `is_body_absent`: the answer to HEAD.
std::unique_ptr<Reader> make_response_reader(const ReaderLimits& limits, bool is_body_absent);

}  // namespace isthmus::http
