// SPDX-License-Identifier: Apache-2.0
// What a live worker holds, for people: descriptor, pools, states with their token ranges.
#pragma once

#include <string>

#include "watch/worker_state.h"

namespace isthmus::watch {

// Some paragraphs of text; `url` is where it was asked.
std::string inspection(const WorkerState& state, const std::string& url);

}  // namespace isthmus::watch
