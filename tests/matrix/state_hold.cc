// SPDX-License-Identifier: Apache-2.0
// Two threads: the loop, which stands, and the reader of commands, which lets it go.
#include "matrix/state_hold.h"

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <utility>

namespace isthmus::matrix {
namespace {

void say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

}  // namespace

void StateHold::on_state(std::variant<handoff::ProducerState, handoff::ConsumerState> state) {
  const std::string side = state.index() == 0 ? "producer" : "consumer";
  const std::string name(std::visit([](auto one) { return handoff::name(one); }, state));
  bool is_entered = false;
  {
    const std::lock_guard lock(mutex_);
    if (!want_ || want_->side != side || want_->state != name) return;
    is_entered = want_->is_entered;
    want_.reset();
  }
  if (!is_entered) return stand(side, name);
  loop_.post([this, side, name] { stand(side, name); });
}

void StateHold::stand(const std::string& side, const std::string& state) {
  std::unique_lock lock(mutex_);
  stands_ = true;
  say("held " + side + " " + state);
  went_.wait(lock, [this] { return !stands_; });
}

void StateHold::read_commands(const std::shared_ptr<StateHold>& hold) {
  std::string line;
  while (std::getline(std::cin, line)) hold->obey(line);
  std::_Exit(0);  // Whoever started this process is gone.
}

void StateHold::obey(const std::string& line) {
  std::istringstream words(line);
  std::string verb, moment;
  Want want;
  words >> verb >> want.side >> want.state >> moment;
  want.is_entered = moment == "entered";
  const std::lock_guard lock(mutex_);
  if (verb == "hold") {
    want_ = std::move(want);
    say("armed");
  } else if (verb == "free") {
    want_.reset();
    say("freed");
  } else if (verb == "go") {
    stands_ = false;
    say("going");
    went_.notify_all();
  }
}

}  // namespace isthmus::matrix
