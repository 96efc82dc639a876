// SPDX-License-Identifier: Apache-2.0
// Descriptor::validate: what must hold before a descriptor's other functions may be believed.
#include <algorithm>
#include <array>
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

Status check_components(const std::string& path, const LayerGroup& group) {
  if (group.components.empty()) return invalid(path + ".components: empty");
  ISTHMUS_TRY(check_count(path + ".components", group.components.size(), kComponentsMax));
  const bool is_recurrent = group.attention == AttentionKind::kRecurrent;
  std::set<std::string> names;
  for (const Component& component : group.components) {
    ISTHMUS_TRY(check_component(path, component));
    if (!names.insert(component.name).second) {
      return invalid(fmt::format("{}.components: {} is there twice", path, component.name));
    }
    const std::string at = fmt::format("{}.component.{}", path, component.name);
    if (component.has_token_axis == is_recurrent) {
      return invalid(fmt::format("{}.token_axis: {} in a {} group", at, component.has_token_axis,
                                 name(group.attention)));
    }
    if (group.attention == AttentionKind::kMla && component.heads != 1) {
      return invalid(
          fmt::format("{}.heads: {} in an mla group, whose state has no heads: 1", at, component.heads));
    }
    if (component.heads != group.components.front().heads) {
      return invalid(fmt::format("{}.component.{}.heads: {} differs from {}'s {}; use a layer group each",
                                 path, component.name, component.heads, group.components.front().name,
                                 group.components.front().heads));
    }
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
  return check_components(path, group);
}

Status check_groups(const std::vector<LayerGroup>& groups) {
  if (groups.empty()) return invalid("groups: empty");
  ISTHMUS_TRY(check_count("groups", groups.size(), kGroupsMax));
  std::map<std::string, std::vector<bool>> seen;  // By component: layers that an earlier group has.
  for (std::size_t i = 0; i < groups.size(); ++i) {
    ISTHMUS_TRY(check_group(fmt::format("groups.{}.geometry", i), groups[i]));
    for (const Component& component : groups[i].components) {
      std::vector<bool>& layers = seen.try_emplace(component.name, kLayersMax, false).first->second;
      for (const std::uint32_t layer : groups[i].layers) {
        if (layers[layer]) {
          return invalid(
              fmt::format("groups.{}.geometry: component {} of layer {} is in an earlier group too", i,
                          component.name, layer));
        }
        layers[layer] = true;
      }
    }
  }
  return {};
}

// One for the group, one a layer, or one a layer and head; the shortest way that says it.
Status check_static_scales(const std::string& path, const DecodeForm& form, const Component& component,
                           std::size_t layers) {
  const std::vector<float>& scales = form.static_scales;
  if (form.operation != DecodeOperation::kStaticScaled) {
    if (scales.empty()) return {};
    return invalid(fmt::format("{}: {} static scales with \"{}\"", path, scales.size(), form.text()));
  }
  ISTHMUS_TRY(check_count(path + ".static", scales.size(), kStaticScalesMax));
  const std::size_t heads = component.heads;
  const std::size_t rows = scales.size() == layers * heads ? layers : 1;
  if (scales.size() != 1 && scales.size() != layers && scales.size() != layers * heads) {
    return invalid(
        fmt::format("{}.static: {} scales for {} layers of {} heads", path, scales.size(), layers, heads));
  }
  for (const float scale : scales) {
    if (!std::isfinite(scale) || scale <= 0)
      return invalid(fmt::format("{}.static: {} isn't a positive number", path, scale));
  }
  if (scales.size() == 1) return {};
  bool is_needed = false;  // Some row of one value a head, or the list itself, holds unlike values.
  const std::size_t row = scales.size() / rows;
  for (std::size_t i = 0; i < scales.size(); ++i)
    is_needed |= scales[i] != scales[row == 1 ? 0 : i / row * row];
  if (is_needed) return {};
  return invalid(fmt::format("{}.static: {} scales where fewer say the same", path, scales.size()));
}

Status check_form(const std::string& path, const DecodeForm& form, const Component& component,
                  std::size_t layers) {
  if (form.component != component.name) {
    return invalid(
        fmt::format("{}: form of \"{:.64}\" where {} is expected", path, form.component, component.name));
  }
  const auto is_format = [](Format format) { return static_cast<std::uint8_t>(format) < kFormatCount; };
  if (!is_format(form.codes) || !is_format(form.scale) || !is_format(form.zero) ||
      form.operation > DecodeOperation::kStaticScaled) {
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
  ISTHMUS_TRY(check_static_scales(path, form, component, layers));
  if (!has_stored_scale(form.operation)) {
    if (form.granule_dim == 0 && form.granule_tokens == 1) return {};
    return invalid(fmt::format("{}: \"{}\" with a granule of {} elements, {} tokens", path, form.text(),
                               form.granule_dim, form.granule_tokens));
  }
  if (!component.has_token_axis && form.granule_tokens != 1) {
    return invalid(fmt::format("{}: granule of {} tokens without a token axis", path, form.granule_tokens));
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
                 fmt::format("{}: part {}, axis head: one serves {} heads; decode forms know granules of "
                             "elements and tokens only",
                             path, side.part, side.head_granule)};
  }
  const auto differs = [&](std::string_view axis, std::uint32_t placed, std::uint32_t meant) {
    return invalid(fmt::format("{}: part {}, axis {}: one serves {} in the layout and {} in the decode form",
                               path, side.part, axis, placed, meant));
  };
  if (side.dim_granule != form.granule_dim) return differs("dim", side.dim_granule, form.granule_dim);
  if (side.token_granule != form.granule_tokens)
    return differs("slot", side.token_granule, form.granule_tokens);
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
  const bool needs_scale = has_stored_scale(form.operation);
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
  if (representation.block_tokens != 0 && !components.front().has_token_axis) {
    return invalid(fmt::format("{}.block_tokens: {} in a group without a token axis", path,
                               representation.block_tokens));
  }
  if (representation.forms.size() != components.size()) {
    return invalid(fmt::format("{}.form: {} forms for {} components", path, representation.forms.size(),
                               components.size()));
  }
  for (std::size_t c = 0; c < components.size(); ++c) {
    ISTHMUS_TRY(check_form(fmt::format("{}.form.{}", path, components[c].name), representation.forms[c],
                           components[c], descriptor.groups[group].layers.size()));
  }
  return {};
}

// Positions as ranges: a box without an end reaches to the last one.
TokenRange tokens_of(const RankBox& box) {
  const bool has_end = box.token_end != 0 || box.token_period != 0;
  return {box.token_begin, has_end ? box.token_end : kPositionMax};
}

Status check_tokens(const std::string& path, const Descriptor& descriptor, const RankBox& box) {
  if (box.has_all_tokens()) return {};
  const TokenRange tokens = tokens_of(box);
  const std::uint64_t end = box.token_period == 0 ? kPositionMax : box.token_period;
  if (tokens.begin >= tokens.end || tokens.end > end || end > kPositionMax) {
    return invalid(fmt::format("{}: \"{}\" isn't a range of positions", path, box.text()));
  }
  if (descriptor.groups[box.group].attention == AttentionKind::kRecurrent)
    return invalid(fmt::format("{}: a range of positions in a group without a token axis", path));
  for (const DecodeForm& form : descriptor.representation[box.group].forms) {
    const std::uint64_t granule = form.granule_tokens;
    if (tokens.begin % granule == 0 && tokens.end % granule == 0 && box.token_period % granule == 0) continue;
    return invalid(fmt::format("{}: \"{}\" cuts scales that {} tokens share", path, box.text(), granule));
  }
  return {};
}

// Copies have the kind that the state's shape allows.
Status check_replica(const std::string& path, const LayerGroup& group, const RankBox& box) {
  const bool is_latent =
      group.attention == AttentionKind::kMla || group.attention == AttentionKind::kSparseIndexed;
  if (is_latent ? box.gqa_replica != 0 : box.mla_replica != 0) {
    return invalid(fmt::format("{}: \"{}\" in a {} group", path, box.text(), name(group.attention)));
  }
  if (std::max({box.gqa_replica, box.mla_replica, box.data_replica}) < kReplicasMax) return {};
  return invalid(fmt::format("{}: \"{}\": replica numbers are below {}", path, box.text(), kReplicasMax));
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
    ISTHMUS_TRY(check_tokens(path, descriptor, box));
    ISTHMUS_TRY(check_replica(path, group, box));
  }
  return {};
}

bool overlap(const RankBox& a, const RankBox& b) {
  const TokenRange ours = tokens_of(a), theirs = tokens_of(b);
  return a.layer_begin < b.layer_end && b.layer_begin < a.layer_end && a.head_begin < b.head_end &&
         b.head_begin < a.head_end && ours.begin < theirs.end && theirs.begin < ours.end;
}

using ReplicaKey = std::array<std::uint32_t, 3>;  // gqa, mla, data

std::string text_of(const ReplicaKey& key) {
  return fmt::format("gqa:{},mla:{},data:{}", key[0], key[1], key[2]);
}

// Boxes of one replica are disjoint and their volumes add up to the group's: they cover it exactly once.
// Positions count by the pieces that the boxes' bounds cut them into.
Status check_replica_cover(const std::string& path, const LayerGroup& group,
                           const std::vector<RankBox>& boxes) {
  const std::uint64_t period = boxes.front().token_period;
  std::vector<std::uint64_t> cuts{0, period == 0 ? kPositionMax : period};
  for (const RankBox& box : boxes) {
    if (box.token_period != period) {
      return invalid(fmt::format("{}: positions repeat every {} tokens on rank {} and every {} on rank {}",
                                 path, period, boxes.front().rank, box.token_period, box.rank));
    }
    cuts.insert(cuts.end(), {tokens_of(box).begin, tokens_of(box).end});
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  const auto piece = [&](std::uint64_t position) {
    return static_cast<std::uint64_t>(std::lower_bound(cuts.begin(), cuts.end(), position) - cuts.begin());
  };
  const std::uint64_t whole =
      std::uint64_t{group.components.front().heads} * group.layers.size() * (cuts.size() - 1);
  std::uint64_t volume = 0;
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    const TokenRange tokens = tokens_of(boxes[i]);
    volume += std::uint64_t{boxes[i].layer_end - boxes[i].layer_begin} *
              (boxes[i].head_end - boxes[i].head_begin) * (piece(tokens.end) - piece(tokens.begin));
    for (std::size_t j = 0; j < i; ++j) {
      if (!overlap(boxes[i], boxes[j])) continue;
      return invalid(fmt::format("{}: ranks {} and {} overlap", path, boxes[j].rank, boxes[i].rank));
    }
  }
  if (volume == whole) return {};
  return invalid(
      fmt::format("{}: boxes cover {} of {} {}", path, volume, whole,
                  cuts.size() == 2 ? "(layer, head) pairs" : "(layer, head, piece of positions) triples"));
}

// Each replica covers the group, and the typed numbers count from 0 without a hole, each with each other.
Status check_cover(const Descriptor& descriptor, std::uint32_t group) {
  std::map<ReplicaKey, std::vector<RankBox>> replicas;
  ReplicaKey extent{};
  for (const RankBox& box : descriptor.partition) {
    if (box.group != group) continue;
    const ReplicaKey key{box.gqa_replica, box.mla_replica, box.data_replica};
    replicas[key].push_back(box);
    for (std::size_t kind = 0; kind < key.size(); ++kind)
      extent.at(kind) = std::max(extent.at(kind), key.at(kind) + 1);
  }
  const std::string path = fmt::format("partition.group.{}", group);
  if (replicas.empty()) return invalid(path + ": no rank holds it");
  const std::uint64_t wanted = std::uint64_t{extent[0]} * extent[1] * extent[2];
  if (replicas.size() != wanted) {
    return invalid(fmt::format("{}: {} replicas where the numbers up to {} make {}", path, replicas.size(),
                               text_of(replicas.rbegin()->first), wanted));
  }
  for (const auto& [key, boxes] : replicas) {
    ISTHMUS_TRY(check_replica_cover(fmt::format("{} replica {}", path, text_of(key)),
                                    descriptor.groups[group], boxes));
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
  if (schema_minor < minimum_minor()) {
    return invalid(
        fmt::format("schema.minor: {}, and fields of minor {} are in use", schema_minor, minimum_minor()));
  }
  for (const RankBox& box : partition) {
    ISTHMUS_TRY(const Layout parsed, layout(box.group, box.rank));
    for (const DecodeForm& form : representation[box.group].forms) {
      ISTHMUS_TRY(check_parts(fmt::format("groups.{}", box.group), parsed, form));
    }
  }
  return {};
}

}  // namespace isthmus::kv
