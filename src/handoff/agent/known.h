// SPDX-License-Identifier: Apache-2.0
// How much of a state may be kept for later handoffs, and how much of what was kept may be used.
#pragma once

#include <cstdint>

#include "kv/descriptor.h"

namespace isthmus::handoff {

// How many leading ones of a state's `tokens` have the same bytes at the target in each state of one origin.
// 0 where not every position crosses (a window, a recurrent state).
std::uint64_t repeated_tokens(const kv::Descriptor& source, const kv::Descriptor& target,
                              std::uint64_t tokens);

// The most of `tokens` that are whole units of the target's memory (`unit` tokens, at least 1) and whole
// token groups of both ends: from there on the rest can be asked for.
std::uint64_t usable_tokens(const kv::Descriptor& source, const kv::Descriptor& target, std::uint64_t tokens,
                            std::uint64_t unit);

}  // namespace isthmus::handoff
