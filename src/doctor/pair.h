// SPDX-License-Identifier: Apache-2.0
// A pair of live workers, tried: the prefill worker's state of a known prompt, against the decode worker's
// own.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/time.h"
#include "http/json.h"
#include "net/loop.h"
#include "net/stream.h"

namespace isthmus::doctor {

struct PairCheck {
  net::Endpoint prefill, decode;
  std::string prompt{};                          // Text that both tokenize; "" for one of this program's.
  bool is_pushed = false;                        // The prefill worker opens the connections.
  Duration timeout = std::chrono::seconds(120);  // Of each answer.
};

struct PairReport {
  bool passed = false;
  std::vector<std::string> faults;  // Why not, in words.
  std::string prefill, decode;      // What runs there: "llamacpp llamacpp:f16".
  json::Value findings;             // The decode worker's (spec/canary.md); null if it came to none.

  std::string summary() const;  // One line: how far the layers and the next token are away.
  std::string text(const PairCheck& check) const;  // Some lines for people.
  json::Value to_json(const PairCheck& check) const;
};

// Loop's thread. `done` is called once, by the loop; destroying it gives up. Workers that tokenize unlike, or
// whose state mayn't be handed over, make a report that hasn't passed: each worker answered, and would answer
// the same again. Errors, after which it may: unavailable, deadline_exceeded; exhausted (a worker has no room
// now); internal, aborted, corrupt (it failed); malformed (it isn't a worker).
class PairTrial {
 public:
  using Done = std::function<void(Result<PairReport>)>;
  PairTrial(net::Loop& loop, PairCheck check, Done done);
  ~PairTrial();

 private:
  struct Course;
  std::shared_ptr<Course> course_;
};

// The same with a loop of its own; blocks.
Result<PairReport> check_pair(const PairCheck& check);

}  // namespace isthmus::doctor
