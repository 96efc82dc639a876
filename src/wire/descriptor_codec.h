// SPDX-License-Identifier: Apache-2.0
// A descriptor by itself as bytes: the message isthmus.v1.Descriptor, as HELLO carries it.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/status.h"
#include "kv/descriptor.h"

namespace isthmus::wire {

// invalid_argument naming the field beyond its bound.
Result<std::vector<std::byte>> encode_descriptor(const kv::Descriptor& descriptor);
// malformed, naming the field. The result isn't validated.
Result<kv::Descriptor> decode_descriptor(std::span<const std::byte> bytes);

}  // namespace isthmus::wire
