// SPDX-License-Identifier: Apache-2.0
// Descriptor::validate: what must hold before a descriptor's other functions may be believed.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "kv/descriptor.h"
#include "kv/layout_text.h"

namespace isthmus::kv {
namespace {

Error invalid(std::string detail) {
  return {Code::kInvalidArgument, std::move(detail)};
}

Status check_count(std::string_view path, std::size_t count, std::size_t max) {
  if (count <= max) return {};
  return invalid(fmt::format("{}: {} entries, more than {}", path, count, max));
}

Status check_text(std::string_view path, std::string_view text, bool may_be_empty) {
  if (text.empty() && !may_be_empty) return invalid(fmt::format("{}: empty; nothing may be inferred", path));
  if (text.size() > kTextMax)
    return invalid(fmt::format("{}: {} bytes, more than {}", path, text.size(), kTextMax));
  const bool is_printable =
      std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c < 0x7f; });
  if (!is_printable) return invalid(fmt::format("{}: holds a character that isn't printable ASCII", path));
  return {};
}

bool is_identifier(std::string_view text) {
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  if (text.empty() || !is_letter(text.front())) return false;
  return std::all_of(text.begin(), text.end(),
                     [&](char c) { return is_letter(c) || (c >= '0' && c <= '9'); });
}

Status check_identity(const Identity& identity) {
  ISTHMUS_TRY(check_text("identity.architecture", identity.architecture, false));
  ISTHMUS_TRY(check_text("identity.lineage", identity.lineage, false));
  ISTHMUS_TRY(check_text("identity.config_digest", identity.config_digest, false));
  ISTHMUS_TRY(check_text("identity.tokenizer_digest", identity.tokenizer_digest, false));
  ISTHMUS_TRY(check_count("identity.adapters", identity.adapters.size(), kAdaptersMax));
  for (std::size_t i = 0; i < identity.adapters.size(); ++i) {
    ISTHMUS_TRY(check_text(fmt::format("identity.adapters.{}.name", i), identity.adapters[i].name, false));
    ISTHMUS_TRY(
        check_text(fmt::format("identity.adapters.{}.digest", i), identity.adapters[i].digest, false));
  }
  const std::string& scheme = identity.position_scheme;
  if (scheme != "rope" && scheme != "none") {
    return Error{Code::kUnsupported,
                 fmt::format("identity.position.scheme: \"{:.64}\" isn't known; known: rope none", scheme)};
  }
  if (scheme == "rope" && !(std::isfinite(identity.rope_theta) && identity.rope_theta > 0)) {
    return invalid(
        fmt::format("identity.position.rope_theta: {} isn't a positive number", identity.rope_theta));
  }
  return check_text("identity.position.rope_scaling", identity.rope_scaling, scheme != "rope");
}

// rope:interleaved, rope:halves, hadamard:n with n a power of two that divides the row.
Status check_transform(const std::string& path, const std::string& transform, std::uint32_t dim) {
  if (transform == "rope:interleaved" || transform == "rope:halves") {
    if (dim % 2 == 0) return {};
    return invalid(fmt::format("{}: {} needs rows of an even size, not {}", path, transform, dim));
  }
  constexpr std::string_view kHadamard = "hadamard:";
  if (transform.starts_with(kHadamard)) {
    for (std::uint32_t n = 2; n <= dim; n *= 2) {
      if (dim % n == 0 && transform == fmt::format("{}{}", kHadamard, n)) return {};
    }
    return invalid(fmt::format("{}: {:.64} isn't a power of two that divides {}", path, transform, dim));
  }
  return Error{Code::kUnsupported,
               fmt::format("{}: \"{:.64}\" isn't known; known: rope:interleaved rope:halves "
                           "hadamard:n",
                           path, transform)};
}

Status check_component(const std::string& path, const Component& component) {
  if (!is_identifier(component.name) || component.name.size() > 64 || is_axis(component.name)) {
    return invalid(fmt::format("{}: component name \"{:.64}\" isn't an identifier of the notation", path,
                               component.name));
  }
  const std::string at = fmt::format("{}.component.{}", path, component.name);
  if (component.heads == 0 || component.heads > kHeadsMax) {
    return invalid(fmt::format("{}.heads: {} isn't in 1..{}", at, component.heads, kHeadsMax));
  }
  if (component.dim == 0 || component.dim > kDimMax) {
    return invalid(fmt::format("{}.dim: {} isn't in 1..{}", at, component.dim, kDimMax));
  }
  if (!component.has_token_axis) {
    return Error{Code::kUnsupported,
                 at + ".token_axis: state without a token axis can't be described in the notation"};
  }
  ISTHMUS_TRY(check_count(at + ".transforms", component.value_transforms.size(), kTransformsMax));
  for (const std::string& transform : component.value_transforms) {
    ISTHMUS_TRY(check_transform(at + ".transforms", transform, component.dim));
  }
  const auto is_rope = [](const std::string& transform) { return transform.starts_with("rope:"); };
  if (std::count_if(component.value_transforms.begin(), component.value_transforms.end(), is_rope) > 1) {
    return invalid(at + ".transforms: rope is there twice");
  }
  return {};
}

Status check_group(const std::string& path, const LayerGroup& group) {
  if (group.layers.empty()) return invalid(path + ".layers: empty");
  ISTHMUS_TRY(check_count(path + ".layers", group.layers.size(), kLayersMax));
  for (std::size_t i = 0; i < group.layers.size(); ++i) {
    if (group.layers[i] >= kLayersMax || (i > 0 && group.layers[i] <= group.layers[i - 1])) {
      return invalid(fmt::format("{}.layers: entry {} is {}: not ascending below {}", path, i,
                                 group.layers[i], kLayersMax));
    }
  }
  if (group.attention > AttentionKind::kRecurrent) {
    return Error{Code::kUnsupported, fmt::format("{}.attention: kind {} isn't known", path,
                                                 static_cast<unsigned>(group.attention))};
  }
  if ((group.attention == AttentionKind::kSlidingWindow) != (group.window != 0)) {
    return invalid(
        fmt::format("{}.window: {} tokens with {} attention", path, group.window, name(group.attention)));
  }
  if (group.components.empty()) return invalid(path + ".components: empty");
  ISTHMUS_TRY(check_count(path + ".components", group.components.size(), kComponentsMax));
  std::set<std::string> names;
  for (const Component& component : group.components) {
    ISTHMUS_TRY(check_component(path, component));
    if (!names.insert(component.name).second) {
      return invalid(fmt::format("{}.components: {} is there twice", path, component.name));
    }
    if (component.heads != group.components.front().heads) {
      return invalid(fmt::format("{}.component.{}.heads: {} differs from {}'s {}; use a layer group each",
                                 path, component.name, component.heads, group.components.front().name,
                                 group.components.front().heads));
    }
  }
  return {};
}

Status check_groups(const std::vector<LayerGroup>& groups) {
  if (groups.empty()) return invalid("groups: empty");
  ISTHMUS_TRY(check_count("groups", groups.size(), kGroupsMax));
  std::set<std::pair<std::uint32_t, std::string>> seen;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    ISTHMUS_TRY(check_group(fmt::format("groups.{}.geometry", i), groups[i]));
    for (const std::uint32_t layer : groups[i].layers) {
      for (const Component& component : groups[i].components) {
        if (!seen.emplace(layer, component.name).second) {
          return invalid(
              fmt::format("groups.{}.geometry: component {} of layer {} is in an earlier group too", i,
                          component.name, layer));
        }
      }
    }
  }
  return {};
}

Status check_form(const std::string& path, const DecodeForm& form, const Component& component) {
  if (form.component != component.name) {
    return invalid(
        fmt::format("{}: form of \"{:.64}\" where {} is expected", path, form.component, component.name));
  }
  const auto is_format = [](Format format) { return static_cast<std::uint8_t>(format) < kFormatCount; };
  if (!is_format(form.codes) || !is_format(form.scale) || !is_format(form.zero) ||
      form.operation > DecodeOperation::kScaledConstantZero) {
    return Error{Code::kUnsupported, path + ": a number format or operation isn't known"};
  }
  ISTHMUS_TRY(check_text(path + ".recipe", form.recipe, true));
  const bool has_constant = form.operation == DecodeOperation::kScaledConstantZero;
  const bool is_code = precision(form.codes).is_integer && form.zero_constant >> bits(form.codes) == 0;
  if (has_constant != (form.zero_constant != 0) || (has_constant && !is_code)) {
    return invalid(
        fmt::format("{}: constant zero point {} in \"{}\"", path, form.zero_constant, form.text()));
  }
  if (form.high_nibble_first && bits(form.codes) != 4) {
    return invalid(fmt::format("{}: nibble order with {} codes", path, name(form.codes)));
  }
  if (form.operation == DecodeOperation::kPlain) {
    if (form.granule_dim == 0 && form.granule_tokens == 1) return {};
    return invalid(fmt::format("{}: plain codes with a granule of {} elements, {} tokens", path,
                               form.granule_dim, form.granule_tokens));
  }
  if (form.granule_dim == 0 || form.granule_dim > component.dim) {
    return invalid(
        fmt::format("{}: granule of {} elements in rows of {}", path, form.granule_dim, component.dim));
  }
  if (form.granule_tokens == 0 || form.granule_tokens > kBlockTokensMax) {
    return invalid(fmt::format("{}: granule of {} tokens", path, form.granule_tokens));
  }
  return {};
}

// Does the element of even index lie in the high nibble?
bool is_high_nibble_first(const PartLayout& part) {
  return std::any_of(part.digits.begin(), part.digits.end(), [](const Digit& digit) {
    return digit.axis == Axis::kDim && digit.div == 1 && digit.stride_bits == -4;
  });
}

Status check_side(const std::string& path, const PartLayout& side, Format format, const DecodeForm& form) {
  if (side.format != format) {
    return invalid(fmt::format("{}: part {} is {} in the layout and {} in the decode form", path, side.part,
                               name(side.format), name(format)));
  }
  if (side.head_granule != 1) {
    return Error{Code::kUnsupported,
                 fmt::format("{}: part {} serves {} heads; decode forms know granules of elements "
                             "and tokens only",
                             path, side.part, side.head_granule)};
  }
  if (side.dim_granule != form.granule_dim || side.token_granule != form.granule_tokens) {
    return invalid(fmt::format(
        "{}: part {} serves {} elements, {} tokens in the layout and {}, {} in the decode form", path,
        side.part, side.dim_granule, side.token_granule, form.granule_dim, form.granule_tokens));
  }
  return {};
}

// The layout places exactly the parts that the decode form needs, in its formats.
Status check_parts(const std::string& path, const Layout& layout, const DecodeForm& form) {
  ISTHMUS_TRY(const PartLayout* codes, layout.part(form.component));
  if (codes->format != form.codes) {
    return invalid(fmt::format("{}: part {} is {} in the layout and {} in the decode form", path, codes->part,
                               name(codes->format), name(form.codes)));
  }
  if (bits(form.codes) == 4 && is_high_nibble_first(*codes) != form.high_nibble_first) {
    return invalid(fmt::format("{}: part {}: layout and decode form disagree about the nibble order", path,
                               codes->part));
  }
  const bool needs_scale = form.operation != DecodeOperation::kPlain;
  const bool needs_zero = form.operation == DecodeOperation::kScaledZeroPoint;
  for (const auto& [suffix, format, needed] :
       {std::tuple{".s", form.scale, needs_scale}, std::tuple{".z", form.zero, needs_zero}}) {
    const auto side = layout.part(form.component + suffix);
    if (side.ok() != needed) {
      return invalid(fmt::format("{}: part {}{} is {} the layout, and the decode form is \"{}\"", path,
                                 form.component, suffix, side.ok() ? "in" : "missing in", form.text()));
    }
    if (needed) ISTHMUS_TRY(check_side(path, **side, format, form));
  }
  return {};
}

Status check_representation(const Descriptor& descriptor, std::size_t group) {
  const GroupRepresentation& representation = descriptor.representation[group];
  const std::vector<Component>& components = descriptor.groups[group].components;
  const std::string path = fmt::format("groups.{}", group);
  if (representation.block_tokens > kBlockTokensMax) {
    return invalid(fmt::format("{}.block_tokens: {} is more than {}", path, representation.block_tokens,
                               kBlockTokensMax));
  }
  if (representation.forms.size() != components.size()) {
    return invalid(fmt::format("{}.form: {} forms for {} components", path, representation.forms.size(),
                               components.size()));
  }
  for (std::size_t c = 0; c < components.size(); ++c) {
    ISTHMUS_TRY(check_form(fmt::format("{}.form.{}", path, components[c].name), representation.forms[c],
                           components[c]));
  }
  return {};
}

Status check_boxes(const Descriptor& descriptor) {
  if (descriptor.partition.empty()) return invalid("partition: empty");
  ISTHMUS_TRY(check_count("partition", descriptor.partition.size(), kBoxesMax));
  std::set<std::pair<std::uint32_t, std::uint32_t>> seen;
  for (const RankBox& box : descriptor.partition) {
    const std::string path = fmt::format("partition.group.{}.rank.{}", box.group, box.rank);
    if (box.group >= descriptor.groups.size()) return invalid(path + ": there is no such group");
    if (!seen.emplace(box.group, box.rank).second)
      return invalid(path + ": the rank has two boxes of the group");
    const LayerGroup& group = descriptor.groups[box.group];
    if (box.layer_begin >= box.layer_end || box.layer_end > group.layers.size() ||
        box.head_begin >= box.head_end || box.head_end > group.components.front().heads) {
      return invalid(fmt::format("{}: layers {}..{} heads {}..{} isn't a box within {} layers, {} heads",
                                 path, box.layer_begin, box.layer_end, box.head_begin, box.head_end,
                                 group.layers.size(), group.components.front().heads));
    }
  }
  return {};
}

bool overlap(const RankBox& a, const RankBox& b) {
  return a.layer_begin < b.layer_end && b.layer_begin < a.layer_end && a.head_begin < b.head_end &&
         b.head_begin < a.head_end;
}

// Boxes of one replica are disjoint and their areas add up to the group's: they cover it exactly once.
Status check_cover(const Descriptor& descriptor, std::uint32_t group) {
  std::map<std::uint32_t, std::vector<RankBox>> replicas;
  for (const RankBox& box : descriptor.partition) {
    if (box.group == group) replicas[box.replica].push_back(box);
  }
  const std::uint64_t whole = std::uint64_t{descriptor.groups[group].components.front().heads} *
                              descriptor.groups[group].layers.size();
  if (replicas.empty()) return invalid(fmt::format("partition.group.{}: no rank holds it", group));
  for (const auto& [replica, boxes] : replicas) {
    std::uint64_t area = 0;
    for (std::size_t i = 0; i < boxes.size(); ++i) {
      area += std::uint64_t{boxes[i].layer_end - boxes[i].layer_begin} *
              (boxes[i].head_end - boxes[i].head_begin);
      for (std::size_t j = 0; j < i; ++j) {
        if (!overlap(boxes[i], boxes[j])) continue;
        return invalid(fmt::format("partition.group.{} replica {}: ranks {} and {} overlap", group, replica,
                                   boxes[j].rank, boxes[i].rank));
      }
    }
    if (area != whole) {
      return invalid(fmt::format("partition.group.{} replica {}: boxes cover {} of {} (layer, head) pairs",
                                 group, replica, area, whole));
    }
  }
  return {};
}

}  // namespace

Status Descriptor::validate() const {
  if (schema_major != kSchemaMajor) {
    return Error{Code::kIncompatible, fmt::format("schema.major: {} isn't known; this side speaks {}",
                                                  schema_major, kSchemaMajor)};
  }
  ISTHMUS_TRY(check_identity(identity));
  ISTHMUS_TRY(check_text("weights.recipe", weights_recipe, false));
  ISTHMUS_TRY(check_text("weights.digest", weights_digest, true));
  ISTHMUS_TRY(check_groups(groups));
  if (representation.size() != groups.size()) {
    return invalid(
        fmt::format("groups: {} representations for {} groups", representation.size(), groups.size()));
  }
  for (std::size_t g = 0; g < groups.size(); ++g) ISTHMUS_TRY(check_representation(*this, g));
  ISTHMUS_TRY(check_boxes(*this));
  for (std::uint32_t g = 0; g < groups.size(); ++g) ISTHMUS_TRY(check_cover(*this, g));
  for (const RankBox& box : partition) {
    ISTHMUS_TRY(const Layout parsed, layout(box.group, box.rank));
    for (const DecodeForm& form : representation[box.group].forms) {
      ISTHMUS_TRY(check_parts(fmt::format("groups.{}", box.group), parsed, form));
    }
  }
  return {};
}

}  // namespace isthmus::kv
