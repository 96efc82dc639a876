// SPDX-License-Identifier: Apache-2.0
// Stops a worker's loop at a named state of the handoff, on command of the process that started it.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <variant>

#include "handoff/core/states.h"
#include "net/loop.h"

namespace isthmus::matrix {

// Commands, one a line on stdin; each is answered by one line on stdout:
//   hold SIDE STATE entering|entered   → armed    the next time, once
//   free                               → freed    not any more
//   go                                 → going    the loop runs on
// and, when the loop stands:             held SIDE STATE
// entering: nothing that the transition causes (frames, memory given back) has been carried out.
// entered: all of it has, and then the loop stands.
class StateHold {
 public:
  explicit StateHold(net::Loop& loop) : loop_(loop) {}

  // AgentOptions::on_state; the loop's thread.
  void on_state(std::variant<handoff::ProducerState, handoff::ConsumerState> state);
  // A thread of its own: reads commands; ends the process with stdin.
  static void read_commands(const std::shared_ptr<StateHold>& hold);

 private:
  struct Want {
    std::string side, state;
    bool is_entered = false;
  };

  void obey(const std::string& line);
  void stand(const std::string& side, const std::string& state);

  net::Loop& loop_;
  std::mutex mutex_;
  std::condition_variable went_;
  std::optional<Want> want_;
  bool stands_ = false;
};

}  // namespace isthmus::matrix
