// SPDX-License-Identifier: Apache-2.0
// A state on its way from another worker into a sequence of this one's engine.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "worker/service.h"

namespace isthmus::worker {

// A state that has come: its bytes are verified and this worker's, but not adopted by the engine yet.
struct Arrived {
  engine::SequenceId sequence = 0;  // The receiver's to resume or release.
  engine::TokenId first = 0;        // Sampled by the producer, in the vocabulary.
  handoff::GrantId grant = 0;       // The receiver's to free.
  std::uint64_t known = 0;          // Tokens of the prompt that were here already.
  handoff::Ending ending;
};

// Loop's thread. Each event comes at most once, and none after cancel(). The agent owns it while it fetches,
// and it owns its events: a receiver that they own keeps a weak pointer.
class Service::Incoming : public std::enable_shared_from_this<Service::Incoming> {
 public:
  struct Events {
    std::function<void(const kv::Descriptor& source)> planned{};  // The producer's state has this form.
    std::function<void(const Arrived&)> arrived;
    // `seal` for kFinished, else null.
    std::function<void(const handoff::SealInfo* seal, const handoff::Ending&)> ended;
  };

  struct Room {
    std::uint64_t tokens = 0;  // The prompt's among them.
    Instant by;                // It must be had by then.
    Instant deadline;          // Of the request.
  };

  // What of the state is here already may be used, and it may be kept, among those of an equal salt.
  struct Sharing {
    std::optional<std::string> salt;
  };

  // Errors: those of Agent::fetch().
  static Result<std::shared_ptr<Incoming>> start(Service& service, const TransferField& transfer,
                                                 const std::vector<engine::TokenId>& prompt, const Room& room,
                                                 std::optional<Sharing> sharing, Events events);
  // What it holds goes as soon as nothing writes there.
  void cancel();

 private:
  Incoming(Service& service, const Room& room, Events events);
  handoff::FetchEvents fetch_events();
  void look_up(engine::ArrivingState state, std::function<void(handoff::KnownState)> done);
  void reserve(kv::TokenRange range, std::function<void(Result<std::vector<kv::Binding>>)> done);
  void owned(const handoff::SealInfo& seal, handoff::GrantId grant, const handoff::Ending& ending);

  Service& service_;
  Room room_;
  Events events_;
  std::optional<handoff::FetchId> fetch_;
  std::optional<engine::SequenceId> destination_;
  std::shared_ptr<const engine::ArrivingState> state_;  // If it may be kept.
  std::uint64_t known_ = 0;
};

}  // namespace isthmus::worker
