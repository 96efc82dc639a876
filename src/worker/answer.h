// SPDX-License-Identifier: Apache-2.0
// One HTTP answer: its choices, each made by a generation, told as they come or all at the end.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "worker/service.h"

namespace isthmus::worker {

// Loop's thread. The service keeps it until it is over; then all its generations are, and nothing is told.
class Service::Answer : public std::enable_shared_from_this<Service::Answer> {
 public:
  Answer(Service& service, std::shared_ptr<http::Exchange> exchange, Prepared prepared, std::uint64_t id);
  ~Answer();
  void start();

  const std::shared_ptr<const Prepared>& prepared() const { return prepared_; }
  // By its generations. `part`: what has become certain of a choice. The last choice's end ends the answer,
  // an error of any does so at once; the caller may be gone afterwards.
  void known(std::size_t choice, std::uint64_t tokens);  // Of its prompt, whose state was here already.
  void begin(const std::string& route);                  // A first token, or an end without one.
  void tell(std::size_t choice, const Choice& part);
  void finish(std::size_t choice, FinishReason reason, std::uint64_t tokens);
  void fail(const Error& why, Duration retry_after, const std::string& route);

 private:
  http::Headers headers() const;
  std::uint64_t prompt_tokens() const;  // Of all prompts.
  void on_disconnect();
  void end(const char* outcome);

  Service& service_;
  std::shared_ptr<http::Exchange> exchange_;
  std::shared_ptr<const Prepared> prepared_;  // Outlives this: a generation that still winds up has it too.
  std::uint64_t id_ = 0;
  AnswerWriter writer_;
  std::vector<std::shared_ptr<Generation>> generations_;  // By choice.
  std::vector<Choice> choices_;                           // Whole if they aren't streamed.
  std::vector<std::size_t> characters_;                   // Told of each choice.
  std::size_t finished_ = 0;
  std::uint64_t tokens_ = 0;         // Of finished choices.
  std::uint64_t cached_tokens_ = 0;  // Of the prompts, each as its first choice found it.
  std::string route_;                // Of the first choice that has begun; "" before.
  bool is_streaming_ = false;
  Instant begun_at_;
};

}  // namespace isthmus::worker
