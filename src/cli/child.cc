// SPDX-License-Identifier: Apache-2.0
// posix_spawn, a pipe, and a thread that reads it.
#include "cli/child.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

extern char** environ;  // NOLINT: POSIX wants the program to declare it.

namespace isthmus::cli {
namespace {

// Lines are our own workers'; a longer one is cut so that a mad child can't fill memory.
constexpr std::size_t kLineMax = 4096;

Error system_error(std::string_view what, int number) {
  return Error{Code::kUnavailable, fmt::format("{}: {}", what, std::strerror(number))};
}

// posix_spawn's settings; both objects are released with this.
class SpawnSettings {
 public:
  explicit SpawnSettings(int out) {
    posix_spawn_file_actions_init(&files_);
    posix_spawn_file_actions_addopen(&files_, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&files_, out, STDOUT_FILENO);
    posix_spawnattr_init(&attributes_);
    posix_spawnattr_setpgroup(&attributes_, 0);
    sigset_t defaults;
    sigemptyset(&defaults);
    for (const int number : {SIGPIPE, SIGINT, SIGTERM}) sigaddset(&defaults, number);
    posix_spawnattr_setsigdefault(&attributes_, &defaults);
    posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF);
  }
  ~SpawnSettings() {
    posix_spawn_file_actions_destroy(&files_);
    posix_spawnattr_destroy(&attributes_);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;

  int spawn(pid_t* pid, const std::vector<std::string>& arguments) {
    std::vector<std::string> copies = arguments;
    std::vector<char*> pointers;
    pointers.reserve(copies.size() + 1);
    for (std::string& copy : copies) pointers.push_back(copy.data());
    pointers.push_back(nullptr);
    return posix_spawn(pid, pointers[0], &files_, &attributes_, pointers.data(), environ);
  }

 private:
  posix_spawn_file_actions_t files_;
  posix_spawnattr_t attributes_;
};

Ended ended_of(int status) {
  if (WIFSIGNALED(status)) return {.exit_code = 0, .signal = WTERMSIG(status)};
  return {.exit_code = WEXITSTATUS(status), .signal = 0};
}

}  // namespace

std::string Ended::text() const {
  return signal != 0 ? fmt::format("signal {}", signal) : fmt::format("exit code {}", exit_code);
}

// Touched on the loop's thread only; the watcher just passes it on.
struct Child::Shared {
  ChildEvents events;      // Emptied when the Child goes, so that work posted before does nothing.
  bool is_reaped = false;  // Until then the process id is ours and may be signalled.
};

namespace {

// Reads lines until the pipe closes, then waits for the end without taking it: the loop's thread does that,
// so that the process id can't be another's while that thread may still signal it.
template <typename Post>
void watch(int out, pid_t pid, const Post& post) {
  std::string line;
  char buffer[1024];
  while (true) {
    const ssize_t got = read(out, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    for (const char c : std::string_view(buffer, static_cast<std::size_t>(got))) {
      if (c == '\n') {
        post.line(std::exchange(line, {}));
      } else if (line.size() < kLineMax) {
        line += c;
      }
    }
  }
  close(out);
  siginfo_t info;
  while (waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
  }
  post.end();
}

}  // namespace

Child::Child(Key, net::Loop& loop, pid_t pid, int out, ChildEvents events)
    : pid_(pid), shared_(std::make_shared<Shared>(Shared{std::move(events), false})) {
  struct Post {
    net::Loop& loop;
    std::shared_ptr<Shared> shared;
    pid_t pid;
    void line(std::string text) const {
      loop.post([to = shared, text = std::move(text)] {
        if (to->events.on_line) to->events.on_line(text);
      });
    }
    void end() const {
      loop.post([to = shared, process = pid] {
        if (to->is_reaped) return;
        int status = 0;
        waitpid(process, &status, 0);
        to->is_reaped = true;
        if (to->events.on_end) to->events.on_end(ended_of(status));
      });
    }
  };
  watcher_ = std::thread([out, post = Post{loop, shared_, pid}] { watch(out, post.pid, post); });
}

Child::~Child() {
  shared_->events = {};
  if (!shared_->is_reaped) {
    kill(pid_, SIGKILL);
    int status = 0;
    waitpid(pid_, &status, 0);
    shared_->is_reaped = true;
  }
  watcher_.join();
}

bool Child::is_running() const {
  return !shared_->is_reaped;
}

void Child::send_signal(int number) {
  if (!shared_->is_reaped) kill(pid_, number);
}

Result<std::unique_ptr<Child>> Child::start(net::Loop& loop, const std::vector<std::string>& arguments,
                                            ChildEvents events) {
  ISTHMUS_CHECK(!arguments.empty());
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return system_error("pipe", errno);
  pid_t pid = 0;
  const int failed = SpawnSettings(ends[1]).spawn(&pid, arguments);
  close(ends[1]);
  if (failed != 0) {
    close(ends[0]);
    return system_error("cannot start " + arguments[0], failed);
  }
  return std::make_unique<Child>(Key{}, loop, pid, ends[0], std::move(events));
}

}  // namespace isthmus::cli
