// SPDX-License-Identifier: Apache-2.0
// Child processes: lines, ends, signals, destruction.
#include "cli/child.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <optional>

#include "net/run_until.h"

namespace isthmus::cli {
namespace {

struct Watched {
  explicit Watched(net::Loop& loop, const std::vector<std::string>& arguments) {
    ChildEvents events;
    events.on_line = [this](std::string line) { lines.push_back(std::move(line)); };
    events.on_end = [this](Ended how) { ended = how; };
    auto started = Child::start(loop, arguments, std::move(events));
    if (started.ok()) child = *std::move(started);
  }
  std::vector<std::string> lines;
  std::optional<Ended> ended;
  std::unique_ptr<Child> child;
};

TEST(Child, GivesItsLinesAndThenItsExitCode) {
  net::Loop loop;
  Watched w(loop, {"/bin/sh", "-c", "echo one; printf 'two\\nthree'; exit 7"});
  ASSERT_TRUE(net::run_until(loop, [&] { return w.ended.has_value(); }));
  EXPECT_THAT(w.lines, ::testing::ElementsAre("one", "two")) << "a line ends with a newline";
  EXPECT_EQ(w.ended->exit_code, 7);
  EXPECT_EQ(w.ended->text(), "exit code 7");
  EXPECT_FALSE(w.child->is_running());
}

TEST(Child, IsSignalled) {
  net::Loop loop;
  Watched w(loop, {"/bin/cat", "/dev/zero"});
  w.child->send_signal(SIGTERM);
  ASSERT_TRUE(net::run_until(loop, [&] { return w.ended.has_value(); }));
  EXPECT_EQ(w.ended->signal, SIGTERM);
  w.child->send_signal(SIGTERM);
}

TEST(Child, IsGoneAfterDestruction) {
  net::Loop loop;
  Watched w(loop, {"/bin/sh", "-c", "trap '' TERM; echo up; while :; do read -r x < /dev/zero; done"});
  ASSERT_TRUE(net::run_until(loop, [&] { return !w.lines.empty(); }));
  const pid_t pid = w.child->pid();
  w.child.reset();
  EXPECT_EQ(kill(pid, 0), -1);
  EXPECT_FALSE(w.ended.has_value());
}

TEST(Child, CutsALineWithoutEnd) {
  net::Loop loop;
  Watched w(loop, {"/bin/sh", "-c", "head -c 100000 /dev/zero | tr '\\0' x; echo"});
  ASSERT_TRUE(net::run_until(loop, [&] { return w.ended.has_value(); }));
  ASSERT_EQ(w.lines.size(), 1u);
  EXPECT_EQ(w.lines[0].size(), 4096u);
}

TEST(Child, NamesAProgramThatCannotStart) {
  net::Loop loop;
  const auto started = Child::start(loop, {"/no/such/program"}, {});
  ASSERT_FALSE(started.ok());
  EXPECT_EQ(started.error().text(), "unavailable: cannot start /no/such/program: No such file or directory");
}

}  // namespace
}  // namespace isthmus::cli
