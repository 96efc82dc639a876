// SPDX-License-Identifier: Apache-2.0
// A child process whose stdout is read line by line and whose end is reported.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"
#include "net/loop.h"

namespace isthmus::cli {

// How a process ended: `exit_code` if it exited, else `signal`.
struct Ended {
  int exit_code = 0;
  int signal = 0;
  std::string text() const;  // "exit code 4", "signal 9"
};

struct ChildEvents {
  std::function<void(std::string line)> on_line;  // Of stdout, without the newline.
  std::function<void(Ended)> on_end;              // Once, after the last line.
};

// The child has a process group of its own, so that Ctrl-C at the terminal reaches only us, and stdin from
// /dev/null; stderr is ours. A thread waits for it; all callbacks come on the loop's thread, which is also
// the one to call from.
class Child {
  struct Key {};  // Only start() has one.

 public:
  Child(Key, net::Loop& loop, pid_t pid, int out, ChildEvents events);
  // `arguments[0]` is the program's path. Errors: unavailable with the system's reason.
  static Result<std::unique_ptr<Child>> start(net::Loop& loop, const std::vector<std::string>& arguments,
                                              ChildEvents events);
  // Kills the process if it is still there, and waits for it. No callback comes afterwards.
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  bool is_running() const;
  // Nothing if it has ended.
  void send_signal(int number);

 private:
  struct Shared;  // With the watcher and with what it posts.

  pid_t pid_;
  std::shared_ptr<Shared> shared_;
  std::thread watcher_;
};

}  // namespace isthmus::cli
