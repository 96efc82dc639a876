// SPDX-License-Identifier: Apache-2.0
// A process that is one end of a group's handoff: the test's handle on it, and what both of them know.
#pragma once

#include <sys/types.h>

#include <iosfwd>
#include <string>
#include <string_view>

#include "groups/crossing.h"

namespace isthmus::groups {

// Five heads, dealt out as 3 + 2 and as 2 + 2 + 1.
engine::ReferenceOptions prefiller();
engine::ReferenceOptions decoder();

// "member SOURCE TARGET TICKET ENDPOINTS", and the same without its first word.
std::string line_of(const handoff::MemberTicket& member);
handoff::MemberTicket member_of(std::istream& in);
std::string digest_of(const Logits& rows);

// group_side_program, started. It dies with this object, or with this process.
class SideProcess {
 public:
  // `pace`: "hasty" or "patient". A failure to start is the test's.
  SideProcess(const std::string& role, const std::string& transport, const std::string& pace);
  ~SideProcess();
  SideProcess(const SideProcess&) = delete;
  SideProcess& operator=(const SideProcess&) = delete;

  void say(const std::string& line);
  // Its next line; "" and a failure of the test if none comes within patience.
  std::string hear();
  // Says "await WHAT" and gives what is answered behind WHAT; a failure if that isn't so within patience.
  std::string await(const std::string& what);
  void signal(int number);
  // Ends it in good order and gives its exit code.
  int end();
  void kill();  // Dead when this returns.

 private:
  int reap();

  pid_t pid_ = -1;
  int to_ = -1, from_ = -1;
  std::string heard_;
};

}  // namespace isthmus::groups
