// SPDX-License-Identifier: Apache-2.0
// Pipes, lines, signals.
#include "groups/side.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <istream>
#include <sstream>
#include <utility>

#include "base/clock.h"

extern char** environ;  // NOLINT: POSIX wants the program to declare it.

namespace isthmus::groups {
namespace {

engine::ReferenceOptions five_heads(const char* storage, std::uint32_t tensor_ranks) {
  engine::ReferenceOptions options =
      options_of(storage, {tensor_ranks}, engine::ReferenceAttention::kFull, 5);
  options.shape.query_heads = 5;
  return options;
}

}  // namespace

engine::ReferenceOptions prefiller() {
  return five_heads("vllm:flash_nhd", 2);
}
engine::ReferenceOptions decoder() {
  return five_heads("vllm:flash_hnd", 3);
}

std::string line_of(const handoff::MemberTicket& member) {
  return fmt::format("member {} {} {} {}", member.route.source_rank, member.route.target_rank, member.ticket,
                     fmt::join(member.endpoints, ","));
}

handoff::MemberTicket member_of(std::istream& in) {
  handoff::MemberTicket member;
  std::string endpoints;
  in >> member.route.source_rank >> member.route.target_rank >> member.ticket >> endpoints;
  std::istringstream each(endpoints);
  for (std::string endpoint; std::getline(each, endpoint, ',');) member.endpoints.push_back(endpoint);
  return member;
}

std::string digest_of(const Logits& rows) {
  return digest128(std::as_bytes(std::span(rows))).hex();
}

SideProcess::SideProcess(const std::string& role, const std::string& transport, const std::string& pace) {
  std::array<int, 2> in{}, out{};
  EXPECT_EQ(pipe2(in.data(), O_CLOEXEC), 0);
  EXPECT_EQ(pipe2(out.data(), O_CLOEXEC), 0);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, in[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&files, out[1], STDOUT_FILENO);
  std::array<std::string, 5> words{GROUP_SIDE_PROGRAM, role, transport, pace, std::to_string(getpid())};
  std::array<char*, 6> arguments{};
  for (std::size_t i = 0; i < words.size(); ++i) arguments[i] = words[i].data();
  const int failed = posix_spawn(&pid_, arguments[0], &files, nullptr, arguments.data(), environ);
  EXPECT_EQ(failed, 0) << arguments[0] << ": " << std::strerror(failed);
  posix_spawn_file_actions_destroy(&files);
  close(in[0]);
  close(out[1]);
  to_ = in[1];
  from_ = out[0];
  EXPECT_EQ(hear(), "ready");
}

SideProcess::~SideProcess() {
  kill();
  close(from_);
  if (to_ >= 0) close(to_);
}

// Whether it still reads is seen by what it answers.
void SideProcess::say(const std::string& line) {
  const std::string text = line + '\n';
  [[maybe_unused]] const ssize_t written = write(to_, text.data(), text.size());
}

std::string SideProcess::hear() {
  const Instant limit = now() + 2 * kPatience;  // It gives up before.
  while (heard_.find('\n') == std::string::npos) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(limit - now()).count();
    pollfd readable{.fd = from_, .events = POLLIN, .revents = 0};
    std::array<char, 4096> buffer;
    const ssize_t got = left > 0 && poll(&readable, 1, static_cast<int>(left)) > 0
                            ? read(from_, buffer.data(), buffer.size())
                            : -1;
    if (got <= 0) {
      ADD_FAILURE() << (got == 0 ? "it has ended" : "it says nothing") << " after " << heard_;
      return "";
    }
    heard_.append(buffer.data(), static_cast<std::size_t>(got));
  }
  const std::size_t end = heard_.find('\n');
  const std::string line = heard_.substr(0, end);
  heard_.erase(0, end + 1);
  return line;
}

std::string SideProcess::await(const std::string& what) {
  say("await " + what);
  const std::string line = hear();
  EXPECT_TRUE(line.starts_with(what + ' ')) << line;
  return line.size() > what.size() ? line.substr(what.size() + 1) : "";
}

void SideProcess::signal(int number) {
  if (pid_ > 0) ::kill(pid_, number);
}

int SideProcess::reap() {
  int status = 0;
  if (pid_ > 0) waitpid(std::exchange(pid_, -1), &status, 0);
  return status;
}

int SideProcess::end() {
  close(std::exchange(to_, -1));
  const int status = reap();
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void SideProcess::kill() {
  signal(SIGKILL);
  reap();
}

}  // namespace isthmus::groups
