// SPDX-License-Identifier: Apache-2.0
// GGUF version 2 and 3: header, metadata, tensor table, aligned data; little-endian.
#include "engine/probe/gguf.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "base/bytes.h"
#include "engine/probe/dequantise.h"

namespace isthmus::engine {
namespace {

// Bounds on what a file may ask us to keep; real models have tens of keys and up to a few thousand tensors.
constexpr std::uint64_t kEntriesMax = 65'536;
constexpr std::uint64_t kTensorsMax = 1'048'576;
constexpr std::uint64_t kNameBytesMax = 65'535;
constexpr std::uint32_t kDimensionsMax = 4;
constexpr std::uint32_t kArrayDepthMax = 4;

enum ValueType : std::uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

// 0 for what has no fixed size.
std::uint64_t value_bytes(std::uint32_t type) {
  constexpr std::uint64_t kBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return type < std::size(kBytes) ? kBytes[type] : 0;
}

GgufValue scalar(std::uint32_t type, std::span<const std::byte> bytes) {
  switch (type) {
    case kU8:
      return std::uint64_t{load_le<std::uint8_t>(bytes)};
    case kI8:
      return std::int64_t{load_le<std::int8_t>(bytes)};
    case kU16:
      return std::uint64_t{load_le<std::uint16_t>(bytes)};
    case kI16:
      return std::int64_t{load_le<std::int16_t>(bytes)};
    case kU32:
      return std::uint64_t{load_le<std::uint32_t>(bytes)};
    case kI32:
      return std::int64_t{load_le<std::int32_t>(bytes)};
    case kU64:
      return load_le<std::uint64_t>(bytes);
    case kI64:
      return load_le<std::int64_t>(bytes);
    case kF32:
      return double{load_le<float>(bytes)};
    case kF64:
      return load_le<double>(bytes);
    default:
      return load_le<std::uint8_t>(bytes) != 0;
  }
}

Error malformed(std::string detail) {
  return {Code::kMalformed, "gguf: " + std::move(detail)};
}

}  // namespace

class GgufFile::Mapping {
 public:
  Mapping(void* address, std::size_t size) : address_(address), size_(size) {}
  ~Mapping() { ::munmap(address_, size_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(address_), size_}; }

  static Result<std::unique_ptr<Mapping>> open(const std::string& path) {
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0)
      return Error{Code::kNotFound, fmt::format("gguf: cannot open {}: {}", path, std::strerror(errno))};
    struct stat status{};
    const bool is_file = ::fstat(file, &status) == 0 && S_ISREG(status.st_mode);
    void* address = MAP_FAILED;
    if (is_file && status.st_size > 0) {
      address = ::mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ, MAP_PRIVATE, file, 0);
    }
    ::close(file);
    if (!is_file) return Error{Code::kNotFound, fmt::format("gguf: {} is not a regular file", path)};
    if (status.st_size == 0) return malformed(path + " is empty");
    if (address == MAP_FAILED) return Error{Code::kExhausted, fmt::format("gguf: cannot map {}", path)};
    return std::make_unique<Mapping>(address, static_cast<std::size_t>(status.st_size));
  }

 private:
  void* address_;
  std::size_t size_;
};

// Reads front to back; every read checks what is left first.
class GgufFile::Parser {
 public:
  explicit Parser(std::span<const std::byte> bytes) : bytes_(bytes) {}

  Status parse(GgufFile& file) {
    ISTHMUS_TRY(const auto magic, number<std::uint32_t>("magic"));
    if (magic != 0x46554747) return malformed(fmt::format("magic is {:#010x}, not \"GGUF\"", magic));
    ISTHMUS_TRY(const auto version, number<std::uint32_t>("version"));
    if (version != 2 && version != 3) {
      return Error{Code::kUnsupported, fmt::format("gguf: version {}; 2 and 3 are known", version)};
    }
    ISTHMUS_TRY(const auto tensors, number<std::uint64_t>("tensor count"));
    ISTHMUS_TRY(const auto entries, number<std::uint64_t>("metadata count"));
    if (tensors > kTensorsMax) return malformed(fmt::format("{} tensors; at most {}", tensors, kTensorsMax));
    if (entries > kEntriesMax)
      return malformed(fmt::format("{} metadata entries; at most {}", entries, kEntriesMax));
    for (std::uint64_t i = 0; i < entries; ++i) ISTHMUS_TRY(entry(file));
    for (std::uint64_t i = 0; i < tensors; ++i) ISTHMUS_TRY(tensor(file));
    return place_tensors(file);
  }

 private:
  std::uint64_t left() const { return bytes_.size() - at_; }

  Result<std::span<const std::byte>> take(std::uint64_t size, std::string_view what) {
    if (size > left()) {
      return malformed(fmt::format("{} at byte {} needs {} bytes, {} are left", what, at_, size, left()));
    }
    const auto taken = bytes_.subspan(at_, size);
    at_ += size;
    return taken;
  }

  template <typename T>
  Result<T> number(std::string_view what) {
    ISTHMUS_TRY(const auto bytes, take(sizeof(T), what));
    return load_le<T>(bytes);
  }

  Result<std::string_view> text(std::string_view what) {
    ISTHMUS_TRY(const auto size, number<std::uint64_t>(what));
    ISTHMUS_TRY(const auto bytes, take(size, what));
    return text_of(bytes);
  }

  Result<std::string> name(std::string_view what) {
    ISTHMUS_TRY(const auto found, text(what));
    if (found.size() > kNameBytesMax) {
      return malformed(fmt::format("{} of {} bytes; at most {}", what, found.size(), kNameBytesMax));
    }
    return std::string(found);
  }

  // Steps over an array's elements; the element count is bounded by what is left of the file.
  Result<std::uint64_t> array(const std::string& key, std::uint32_t depth) {
    if (depth >= kArrayDepthMax) return malformed(fmt::format("{}: arrays nested {} deep", key, depth + 1));
    ISTHMUS_TRY(const auto type, number<std::uint32_t>(key));
    ISTHMUS_TRY(const auto elements, number<std::uint64_t>(key));
    if (elements > left())
      return malformed(fmt::format("{}: {} elements, {} bytes are left", key, elements, left()));
    if (const std::uint64_t size = value_bytes(type); size != 0) {
      ISTHMUS_TRY(take(elements * size, key));  // Cannot overflow: elements is below the file's size.
      return elements;
    }
    if (type != kString && type != kArray) return malformed(fmt::format("{}: value type {}", key, type));
    for (std::uint64_t i = 0; i < elements; ++i) {
      if (type == kString) {
        ISTHMUS_TRY(text(key));
      } else {
        ISTHMUS_TRY(array(key, depth + 1));
      }
    }
    return elements;
  }

  Status entry(GgufFile& file) {
    ISTHMUS_TRY(std::string key, name("metadata key"));
    const std::size_t begin = at_;
    Entry found;
    ISTHMUS_TRY(found.type, number<std::uint32_t>(key));
    if (found.type == kString) {
      ISTHMUS_TRY(const auto value, text(key));
      found.value = std::string(value);
    } else if (found.type == kArray) {
      ISTHMUS_TRY(found.elements, array(key, 0));
    } else if (const std::uint64_t size = value_bytes(found.type); size != 0) {
      ISTHMUS_TRY(const auto value, take(size, key));
      found.value = scalar(found.type, value);
    } else {
      return malformed(fmt::format("{}: value type {}", key, found.type));
    }
    found.bytes = bytes_.subspan(begin, at_ - begin);
    if (!file.entries_.emplace(key, std::move(found)).second)
      return malformed(fmt::format("{} stands twice", key));
    return ok_status();
  }

  Status tensor(GgufFile& file) {
    GgufTensor found;
    ISTHMUS_TRY(found.name, name("tensor name"));
    ISTHMUS_TRY(const auto dimensions, number<std::uint32_t>(found.name));
    if (dimensions == 0 || dimensions > kDimensionsMax) {
      return malformed(fmt::format("{}: {} dimensions; 1 to {}", found.name, dimensions, kDimensionsMax));
    }
    std::uint64_t elements = 1;
    for (std::uint32_t d = 0; d < dimensions; ++d) {
      ISTHMUS_TRY(const auto extent, number<std::uint64_t>(found.name));
      if (extent == 0 || elements > std::numeric_limits<std::int64_t>::max() / extent) {
        return malformed(fmt::format("{}: extent {} of dimension {}", found.name, extent, d));
      }
      elements *= extent;
      found.shape.push_back(extent);
    }
    ISTHMUS_TRY(found.type, number<std::uint32_t>(found.name));
    ISTHMUS_TRY(found.offset, number<std::uint64_t>(found.name));
    const std::string key = found.name;
    if (!file.tensors_.emplace(key, std::move(found)).second)
      return malformed(fmt::format("{} stands twice", key));
    return ok_status();
  }

  // Offsets in the table count from the data section: make them absolute and check that the data is there.
  Status place_tensors(GgufFile& file) const {
    std::uint64_t alignment = 32;
    if (file.has("general.alignment")) {
      ISTHMUS_TRY(alignment, file.count("general.alignment"));
    }
    if (alignment == 0 || alignment > bytes_.size())
      return malformed(fmt::format("general.alignment is {}", alignment));
    const std::uint64_t data = (at_ + alignment - 1) / alignment * alignment;
    for (auto& [key, found] : file.tensors_) {
      if (data > bytes_.size() || found.offset > bytes_.size() - data) {
        return malformed(fmt::format("{}: data offset {} lies behind the file's end", key, found.offset));
      }
      found.offset += data;
      const TensorBlock block = tensor_block(found.type);
      if (block.elements == 0) continue;
      if (found.columns() % block.elements != 0) {
        return malformed(
            fmt::format("{}: rows of {} elements in blocks of {}", key, found.columns(), block.elements));
      }
      const std::uint64_t blocks = found.columns() / block.elements * found.rows();
      if (blocks > (bytes_.size() - found.offset) / block.bytes) {
        return malformed(fmt::format("{}: {} blocks of {} bytes at byte {} pass the file's end ({} bytes)",
                                     key, blocks, block.bytes, found.offset, bytes_.size()));
      }
    }
    return ok_status();
  }

  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
};

std::uint64_t GgufTensor::rows() const {
  std::uint64_t product = 1;
  for (std::size_t d = 1; d < shape.size(); ++d) product *= shape[d];
  return product;
}

GgufFile::GgufFile() = default;
GgufFile::~GgufFile() = default;
GgufFile::GgufFile(GgufFile&&) noexcept = default;
GgufFile& GgufFile::operator=(GgufFile&&) noexcept = default;

Result<GgufFile> GgufFile::open(const std::string& path) {
  GgufFile file;
  ISTHMUS_TRY(file.mapping_, Mapping::open(path));
  ISTHMUS_TRY(Parser(file.mapping_->bytes()).parse(file).with_context(path));
  return file;
}

bool GgufFile::has(std::string_view key) const {
  return entries_.find(key) != entries_.end();
}

Result<std::string> GgufFile::text(std::string_view key) const {
  const auto found = entries_.find(key);
  if (found == entries_.end()) return malformed(fmt::format("no {}", key));
  if (found->second.value) {
    if (const auto* value = std::get_if<std::string>(&*found->second.value)) return *value;
  }
  return malformed(fmt::format("{} is of value type {}, not a string", key, found->second.type));
}

Result<std::uint64_t> GgufFile::count(std::string_view key) const {
  const auto found = entries_.find(key);
  if (found == entries_.end()) return malformed(fmt::format("no {}", key));
  if (found->second.value) {
    if (const auto* value = std::get_if<std::uint64_t>(&*found->second.value)) return *value;
    if (const auto* value = std::get_if<std::int64_t>(&*found->second.value);
        value != nullptr && *value >= 0) {
      return static_cast<std::uint64_t>(*value);
    }
  }
  return malformed(fmt::format("{} (value type {}) is not a count", key, found->second.type));
}

Result<double> GgufFile::real(std::string_view key) const {
  const auto found = entries_.find(key);
  if (found == entries_.end()) return malformed(fmt::format("no {}", key));
  if (found->second.value) {
    if (const auto* value = std::get_if<double>(&*found->second.value)) return *value;
  }
  return malformed(fmt::format("{} is of value type {}, not a real number", key, found->second.type));
}

std::map<std::string, std::span<const std::byte>> GgufFile::raw(std::string_view prefix) const {
  std::map<std::string, std::span<const std::byte>> found;
  for (auto at = entries_.lower_bound(prefix); at != entries_.end() && at->first.starts_with(prefix); ++at) {
    found.emplace(at->first, at->second.bytes);
  }
  return found;
}

Result<std::uint64_t> GgufFile::array_length(std::string_view key) const {
  const auto found = entries_.find(key);
  if (found == entries_.end()) return malformed(fmt::format("no {}", key));
  if (found->second.type != kArray) {
    return malformed(fmt::format("{} is of value type {}, not an array", key, found->second.type));
  }
  return found->second.elements;
}

const GgufTensor* GgufFile::tensor(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

Result<std::vector<float>> GgufFile::row(const GgufTensor& tensor, std::uint64_t index) const {
  if (index >= tensor.rows()) {
    return Error{Code::kInvalidArgument,
                 fmt::format("gguf: {} has {} rows, not a row {}", tensor.name, tensor.rows(), index)};
  }
  const TensorBlock block = tensor_block(tensor.type);
  if (block.elements == 0) {
    return Error{Code::kUnsupported,
                 fmt::format("gguf: {} has tensor type {}; known are f32, f16, bf16, q4_0, q4_1, "
                             "q8_0, q6_k",
                             tensor.name, tensor.type)};
  }
  const std::uint64_t row_bytes = tensor.columns() / block.elements * block.bytes;
  std::vector<float> values(tensor.columns());
  dequantise(tensor.type, mapping_->bytes().subspan(tensor.offset + index * row_bytes, row_bytes), values);
  return values;
}

}  // namespace isthmus::engine
