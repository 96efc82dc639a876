// SPDX-License-Identifier: Apache-2.0
// One request that is answered with tokens here: from a state handed over, recomputed, or computed alone.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "worker/service.h"
#include "worker/text_stream.h"

namespace isthmus::worker {

class Service::Generation : public std::enable_shared_from_this<Service::Generation> {
 public:
  Generation(Service& service, std::shared_ptr<http::Exchange> exchange, Prepared prepared, std::uint64_t id);
  void start();

 private:
  // The state's way here.
  void start_fetch();
  void start_local();
  void reserve(kv::TokenRange range, std::function<void(Result<std::vector<kv::Binding>>)> done);
  void owned(const handoff::SealInfo& seal, handoff::GrantId grant, const handoff::Ending& ending);
  void handoff_ended(const handoff::SealInfo* seal, const handoff::Ending& ending);
  void handoff_failed(const Error& why);
  Job job() const;
  JobEvents events();
  // The answer.
  void on_token(engine::TokenId token);
  void show(const std::string& text);
  void begin_stream();
  void finish(FinishReason reason);
  void fail(const Error& why);
  void on_disconnect();
  void end(const char* outcome);
  http::Headers headers() const;

  Service& service_;
  std::shared_ptr<http::Exchange> exchange_;
  Prepared prepared_;
  std::uint64_t id_ = 0;
  AnswerWriter writer_;
  TextStream text_;
  std::string collected_;
  std::uint64_t tokens_ = 0;
  bool is_streaming_ = false;  // The head has been sent.
  bool is_over_ = false;
  std::optional<JobId> job_;
  std::optional<handoff::FetchId> fetch_;
  std::optional<engine::SequenceId> destination_;
  handoff::GrantId grant_ = 0;
  Duration retry_after_{0};      // For an answer that is `exhausted`.
  std::string route_ = "local";  // How the prompt's state came: local, handoff, recompute.
  Instant begun_at_, first_token_at_;
};

}  // namespace isthmus::worker
