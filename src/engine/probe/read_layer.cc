// SPDX-License-Identifier: Apache-2.0
// One layer of a binding as f32 rows: element by element, offsets by the plain formula. Slow and simple on
// purpose.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "engine/probe/dequantise.h"
#include "engine/probe/probe.h"
#include "kv/layout.h"

namespace isthmus::engine {
namespace {

Error incompatible(std::string detail) {
  return {Code::kIncompatible, "state: " + std::move(detail)};
}

// One part (codes, scales or zero points) in the memory of one layer.
struct PartMemory {
  const kv::PartLayout* part = nullptr;
  const kv::RegionMemory* memory = nullptr;
  bool is_paged = false;
};

Result<PartMemory> locate(const kv::Layout& layout, const kv::Binding& binding, std::string_view part,
                          std::uint32_t layer) {
  PartMemory located;
  ISTHMUS_TRY(located.part, layout.part(part));
  const kv::RegionLayout& region = layout.region(located.part->region);
  located.is_paged = region.open_axis == kv::Axis::kBlock;
  const std::uint32_t wanted = region.per_layer ? layer : 0;
  const auto found = std::find_if(
      binding.memory.begin(), binding.memory.end(),
      [&](const kv::RegionMemory& memory) { return memory.region == region.name && memory.layer == wanted; });
  if (found == binding.memory.end()) {
    return incompatible(fmt::format("the binding has no region {} of layer {}", region.name, wanted));
  }
  located.memory = &*found;
  return located;
}

Result<float> load_number(const PartMemory& at, const kv::ElementIndex& index) {
  const std::uint64_t open_index = at.is_paged ? index.block : index.token;
  if (open_index >= at.memory->open_extent) {
    return incompatible(fmt::format("{} {} of region {}, which holds {}", at.is_paged ? "block" : "row",
                                    open_index, at.memory->region, at.memory->open_extent));
  }
  const std::uint64_t offset = kv::bit_offset(*at.part, index, at.memory->open_extent);
  const std::uint32_t width = kv::bits(at.part->format);
  if (offset / 8 + std::max(width / 8, 1u) > at.memory->bytes) {
    return incompatible(fmt::format("{} at byte {} of region {}, which has {} bytes", at.part->part,
                                    offset / 8, at.memory->region, at.memory->bytes));
  }
  const std::span<const std::byte> bytes(at.memory->base + offset / 8, std::max(width / 8, 1u));
  const auto octet = load_le<std::uint8_t>(bytes);
  const auto nibble = static_cast<std::uint8_t>(offset % 8 == 0 ? octet & 15 : octet >> 4);
  switch (at.part->format) {
    case kv::Format::kF32:
      return load_le<float>(bytes);
    case kv::Format::kF16:
      return f16_to_f32(load_le<std::uint16_t>(bytes));
    case kv::Format::kBf16:
      return bf16_to_f32(load_le<std::uint16_t>(bytes));
    case kv::Format::kU8:
      return static_cast<float>(octet);
    case kv::Format::kI8:
      return static_cast<float>(static_cast<std::int8_t>(octet));
    case kv::Format::kU4:
      return static_cast<float>(nibble);
    case kv::Format::kI4:
      return static_cast<float>(nibble < 8 ? nibble : nibble - 16);
    default:
      return Error{Code::kUnsupported,
                   fmt::format("state: {} in format {}", at.part->part, kv::name(at.part->format))};
  }
}

// The rows of one component, decoded.
class ComponentReader {
 public:
  static Result<ComponentReader> make(const kv::Layout& layout, const kv::Binding& binding,
                                      const kv::DecodeForm& form, std::uint32_t layer) {
    ComponentReader reader(form, binding);
    ISTHMUS_TRY(reader.codes_, locate(layout, binding, form.component, layer));
    if (form.operation != kv::DecodeOperation::kPlain) {
      ISTHMUS_TRY(reader.scale_, locate(layout, binding, form.component + ".s", layer));
    }
    if (form.operation == kv::DecodeOperation::kScaledZeroPoint) {
      ISTHMUS_TRY(reader.zero_, locate(layout, binding, form.component + ".z", layer));
    }
    reader.layer_ = layer;
    reader.block_tokens_ = layout.extents().block_tokens;
    return reader;
  }

  Result<std::vector<float>> read(kv::TokenRange tokens, std::uint32_t heads, std::uint32_t dim) const {
    std::vector<float> rows;
    rows.reserve(tokens.size() * heads * dim);
    for (std::uint64_t position = tokens.begin; position < tokens.end; ++position) {
      ISTHMUS_TRY(kv::ElementIndex index, index_of(position));
      for (index.head = 0; index.head < heads; ++index.head) {
        for (index.dim = 0; index.dim < dim; ++index.dim) {
          ISTHMUS_TRY(const float value, decode(index));
          rows.push_back(value);
        }
      }
    }
    return rows;
  }

 private:
  ComponentReader(const kv::DecodeForm& form, const kv::Binding& binding) : form_(form), binding_(&binding) {}

  Result<kv::ElementIndex> index_of(std::uint64_t position) const {
    const std::uint64_t place = position - binding_->first_position;
    kv::ElementIndex index{.layer = layer_, .token = binding_->first_row + place};
    if (!codes_.is_paged) return index;
    if (block_tokens_ == 0) return incompatible("a paged region without a block size");
    if (place / block_tokens_ >= binding_->blocks.size()) {
      return incompatible(fmt::format("position {} needs block table entry {}, the table has {}", position,
                                      place / block_tokens_, binding_->blocks.size()));
    }
    index.block = binding_->blocks[place / block_tokens_];
    index.slot = place % block_tokens_;
    return index;
  }

  Result<float> decode(const kv::ElementIndex& index) const {
    ISTHMUS_TRY(const float code, load_number(codes_, index));
    if (form_.operation == kv::DecodeOperation::kPlain) return code;
    ISTHMUS_TRY(const float scale, load_number(*scale_, index));
    if (form_.operation == kv::DecodeOperation::kScaled) return code * scale;
    if (form_.operation == kv::DecodeOperation::kScaledConstantZero) {
      return (code - static_cast<float>(form_.zero_constant)) * scale;
    }
    ISTHMUS_TRY(const float zero, load_number(*zero_, index));
    return (code - zero) * scale;
  }

  kv::DecodeForm form_;
  const kv::Binding* binding_;
  PartMemory codes_;
  std::optional<PartMemory> scale_, zero_;
  std::uint64_t layer_ = 0;
  std::uint32_t block_tokens_ = 0;
};

}  // namespace

Result<LayerRows> read_layer(const kv::Descriptor& descriptor, const kv::Binding& binding,
                             std::uint32_t layer, kv::TokenRange tokens) {
  if (descriptor.groups.size() != 1 || descriptor.representation.size() != 1) {
    return Error{Code::kUnsupported,
                 fmt::format("state: {} layer groups; one can be read", descriptor.groups.size())};
  }
  const kv::LayerGroup& group = descriptor.groups[0];
  if (layer >= group.layers.size() || !binding.valid.contains(tokens) || tokens.begin >= tokens.end) {
    return Error{
        Code::kInvalidArgument,
        fmt::format("state: layer {} of {}, positions [{}, {}) of valid [{}, {})", layer, group.layers.size(),
                    tokens.begin, tokens.end, binding.valid.begin, binding.valid.end)};
  }
  const std::vector<kv::DecodeForm>& forms = descriptor.representation[0].forms;
  if (forms.size() != group.components.size()) {
    return incompatible(
        fmt::format("{} decode forms for {} components", forms.size(), group.components.size()));
  }
  ISTHMUS_TRY(const kv::Layout layout, descriptor.layout(0, 0));
  LayerRows rows;
  rows.tokens = static_cast<std::uint32_t>(tokens.size());
  for (std::size_t i = 0; i < group.components.size(); ++i) {
    const kv::Component& component = group.components[i];
    if (component.name != "k" && component.name != "v") {
      return Error{Code::kUnsupported,
                   fmt::format("state: component {}; k and v can be read", component.name)};
    }
    if (i != 0 && (component.heads != rows.heads || component.dim != rows.dim)) {
      return Error{Code::kUnsupported, "state: components of unlike shape"};
    }
    rows.heads = component.heads;
    rows.dim = component.dim;
    ISTHMUS_TRY(const auto reader, ComponentReader::make(layout, binding, forms[i], layer));
    ISTHMUS_TRY((component.name == "k" ? rows.k : rows.v),
                reader.read(tokens, component.heads, component.dim));
  }
  return rows;
}

}  // namespace isthmus::engine
