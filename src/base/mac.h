// SPDX-License-Identifier: Apache-2.0
// Message authentication: HMAC-SHA-256, SHA-256 of files, constant-time comparison.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace isthmus {

using Mac = std::array<std::byte, 32>;
using Key = std::array<std::byte, 32>;

Mac hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> message);
// A key of its own for `label`, derived from `key`: HMAC(key, label || 0 || context).
Key derive_key(const Key& key, std::string_view label, std::span<const std::byte> context);
bool equal_constant_time(std::span<const std::byte> a, std::span<const std::byte> b);
// Lower-case hex SHA-256 of a file's content. not_found if it can't be read.
Result<std::string> sha256_file(const std::string& path);
std::string sha256_hex(std::span<const std::byte> bytes);
// A key from a file: 64 hex digits, white space around them ignored. invalid_argument otherwise.
Result<Key> load_key(const std::string& path);

}  // namespace isthmus
