// SPDX-License-Identifier: Apache-2.0
// One choice of an answer: from a state handed over, recomputed, or computed alone.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "worker/answer.h"
#include "worker/incoming.h"
#include "worker/service.h"
#include "worker/text_stream.h"

namespace isthmus::worker {

// Loop's thread. Its answer is told until it is over, and not touched afterwards.
class Service::Generation : public std::enable_shared_from_this<Service::Generation> {
 public:
  // The answer's choice number `choice`.
  Generation(Service& service, Answer& answer, std::size_t choice);
  void start();
  // Nobody wants it any more: what it holds goes as soon as nothing writes there.
  void drop();

 private:
  // The state's way here.
  void start_fetch();
  void start_local();
  void arrived(const Arrived& state);
  void handoff_ended(const handoff::SealInfo* seal, const handoff::Ending& ending);
  void handoff_failed(const Error& why);
  Job job() const;
  JobEvents events();
  // The answer.
  void on_token(const GeneratedToken& token);
  ScoredToken scored(const engine::Scores& scores) const;
  void tell(std::string text);
  void finish(FinishReason reason);
  void fail(const Error& why);
  void end();

  Service& service_;
  Answer& answer_;
  std::size_t choice_ = 0;
  std::shared_ptr<const Prepared> prepared_;    // The answer's.
  const std::vector<engine::TokenId>& prompt_;  // Of this choice.
  TextStream text_;
  std::vector<ScoredToken> untold_;  // Tokens whose text isn't certain yet.
  std::uint64_t tokens_ = 0;
  bool is_over_ = false;
  std::optional<JobId> job_;
  std::weak_ptr<Incoming> incoming_;
  Instant start_by_;  // It has a place in the engine by then, or is refused.
  handoff::GrantId grant_ = 0;
  Duration retry_after_{0};      // For an answer that is `exhausted`.
  std::string route_ = "local";  // How the prompt's state came: local, handoff, recompute.
  Instant first_token_at_;
};

}  // namespace isthmus::worker
