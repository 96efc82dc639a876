// SPDX-License-Identifier: Apache-2.0
// What all fuzz targets share: views of the input, and a check that stops the run.
#pragma once

#include <fuzzer/FuzzedDataProvider.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/check.h"

namespace isthmus::fuzz {

inline std::span<const std::byte> bytes_of_input(const std::uint8_t* data, std::size_t size) {
  return std::as_bytes(std::span(data, size));
}
inline std::string_view text_of_input(const std::uint8_t* data, std::size_t size) {
  return text_of(bytes_of_input(data, size));
}

}  // namespace isthmus::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
