// SPDX-License-Identifier: Apache-2.0
// A reader of GGUF files that shares no code with any engine: metadata, tensor table, dequantised rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"

namespace isthmus::engine {

// Element encodings of GGUF tensors that rows can be read from (ggml.h's enum ggml_type, ggml 0.25).
enum class TensorType : std::uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ40 = 2,
  kQ41 = 3,
  kQ80 = 8,
  kQ6k = 14,
  kBf16 = 30,
};

struct GgufTensor {
  std::string name;
  std::vector<std::uint64_t> shape;  // Innermost (elements of a row) first.
  std::uint32_t type = 0;            // As stored; row() refuses what TensorType doesn't list.
  std::uint64_t offset =
      0;  // From the start of the file; inside it, with all its bytes, if the type is known.

  std::uint64_t columns() const { return shape.empty() ? 0 : shape[0]; }
  std::uint64_t rows() const;
};

// A scalar of the metadata. Arrays aren't kept, except as raw bytes.
using GgufValue = std::variant<std::uint64_t, std::int64_t, double, bool, std::string>;

// The file is mapped, so it must not shrink meanwhile. Thread: any, after open().
class GgufFile {
 public:
  // Every length in the file is checked against the file before it is used.
  // Errors: not_found (can't be opened), malformed (what is wrong and where), unsupported (GGUF version).
  static Result<GgufFile> open(const std::string& path);
  ~GgufFile();
  GgufFile(GgufFile&&) noexcept;
  GgufFile& operator=(GgufFile&&) noexcept;

  // malformed if the key is missing or of another kind.
  Result<std::string> text(std::string_view key) const;
  Result<std::uint64_t> count(std::string_view key) const;  // Any integer type, not negative.
  Result<double> real(std::string_view key) const;          // f32 or f64.
  bool has(std::string_view key) const;
  // Stored bytes (type code and value) of every key that starts with `prefix`, by key.
  std::map<std::string, std::span<const std::byte>> raw(std::string_view prefix) const;
  // Elements of an array value; malformed if `key` is missing or not an array.
  Result<std::uint64_t> array_length(std::string_view key) const;

  // Null if there is no such tensor.
  const GgufTensor* tensor(std::string_view name) const;
  // One row, dequantised. invalid_argument if there is no such row, unsupported naming the tensor and its
  // type.
  Result<std::vector<float>> row(const GgufTensor& tensor, std::uint64_t index) const;

 private:
  struct Entry {
    std::uint32_t type = 0;
    std::span<const std::byte> bytes;  // With the type code.
    std::optional<GgufValue> value;    // Nothing for an array.
    std::uint64_t elements = 0;        // Of an array.
  };
  class Mapping;
  class Parser;

  GgufFile();

  std::unique_ptr<Mapping> mapping_;
  std::map<std::string, Entry, std::less<>> entries_;
  std::map<std::string, GgufTensor, std::less<>> tensors_;
};

}  // namespace isthmus::engine
