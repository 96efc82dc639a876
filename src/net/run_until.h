// SPDX-License-Identifier: Apache-2.0
// Turn a loop on the calling thread until something holds; for tests and for programs that wait for one
// answer.
#pragma once

#include <functional>

#include "base/time.h"
#include "net/loop.h"

namespace isthmus::net {

// `done` is asked before the first event and after each. False if it doesn't hold after `limit`, or the loop
// was stopped. Not inside run().
[[nodiscard]] bool run_until(Loop& loop, const std::function<bool()>& done,
                             Duration limit = std::chrono::seconds(10));

}  // namespace isthmus::net
