// SPDX-License-Identifier: Apache-2.0
// Every field of a descriptor, to and from its message.
#include "wire/descriptor_codec.h"

#include <algorithm>
#include <array>
#include <bit>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "kv/layout_text.h"
#include "wire/proto_fields.h"

namespace isthmus::wire {
namespace {

// Fields that came after schema 1.0 and change what a byte means. A reader that doesn't know one must refuse
// the descriptor instead of reading it without.
constexpr std::string_view kStaticScales = "groups.form.static_scales";
constexpr std::string_view kReplicas = "partition.replicas";
constexpr std::string_view kTokens = "partition.tokens";
constexpr std::array kKnown{kStaticScales, kReplicas, kTokens};
constexpr std::size_t kCriticalMax = 64;

void check(const v1::Identity& in, Bounds& bounds) {
  bounds.text("identity.architecture", in.architecture(), kv::kTextMax);
  bounds.text("identity.lineage", in.lineage(), kv::kTextMax);
  bounds.text("identity.config_digest", in.config_digest(), kv::kTextMax);
  bounds.text("identity.tokenizer_digest", in.tokenizer_digest(), kv::kTextMax);
  bounds.text("identity.position_scheme", in.position_scheme(), kv::kTextMax);
  bounds.text("identity.rope_scaling", in.rope_scaling(), kv::kTextMax);
  bounds.count("identity.adapters", in.adapters_size(), kv::kAdaptersMax);
  for (const v1::Adapter& adapter : in.adapters()) {
    bounds.text("identity.adapters.name", adapter.name(), kv::kTextMax);
    bounds.text("identity.adapters.digest", adapter.digest(), kv::kTextMax);
  }
}

void check(const v1::LayerGroup& in, Bounds& bounds) {
  bounds.count("group.layers", in.layers_size(), kv::kLayersMax);
  bounds.known("group.attention", in.attention(), v1::AttentionKind_ARRAYSIZE);
  bounds.count("group.components", in.components_size(), kv::kComponentsMax);
  for (const v1::Component& component : in.components()) {
    bounds.text("component.name", component.name(), kv::kTextMax);
    bounds.count("component.value_transforms", component.value_transforms_size(), kv::kTransformsMax);
    for (const std::string& transform : component.value_transforms())
      bounds.text("component.value_transforms", transform, kv::kTextMax);
  }
}

void check(const v1::GroupRepresentation& in, Bounds& bounds) {
  bounds.text("representation.layout", in.layout_text(), kv::kLayoutTextMax);
  bounds.count("representation.forms", in.forms_size(), kv::kComponentsMax);
  for (const v1::DecodeForm& form : in.forms()) {
    bounds.text("form.component", form.component(), kv::kTextMax);
    bounds.known("form.operation", form.operation(), v1::DecodeOperation_ARRAYSIZE);
    bounds.text("form.recipe", form.recipe(), kv::kTextMax);
    bounds.count("form.static_scales", form.static_scales_size(), kv::kStaticScalesMax);
  }
}

void write_identity(const kv::Identity& identity, v1::Identity& out) {
  out.set_architecture(identity.architecture);
  out.set_lineage(identity.lineage);
  out.set_config_digest(identity.config_digest);
  out.set_tokenizer_digest(identity.tokenizer_digest);
  for (const kv::Adapter& adapter : identity.adapters) {
    v1::Adapter& written = *out.add_adapters();
    written.set_name(adapter.name);
    written.set_digest(adapter.digest);
  }
  out.set_position_scheme(identity.position_scheme);
  out.set_rope_theta(identity.rope_theta);
  out.set_rope_scaling(identity.rope_scaling);
  out.set_key_after_rotation(identity.key_after_rotation);
  out.set_first_position(identity.first_position);
}

kv::Identity read_identity(const v1::Identity& in) {
  kv::Identity identity;
  identity.architecture = in.architecture();
  identity.lineage = in.lineage();
  identity.config_digest = in.config_digest();
  identity.tokenizer_digest = in.tokenizer_digest();
  for (const v1::Adapter& adapter : in.adapters())
    identity.adapters.push_back({adapter.name(), adapter.digest()});
  identity.position_scheme = in.position_scheme();
  identity.rope_theta = in.rope_theta();
  identity.rope_scaling = in.rope_scaling();
  identity.key_after_rotation = in.key_after_rotation();
  identity.first_position = in.first_position();
  return identity;
}

void write_group(const kv::LayerGroup& group, v1::LayerGroup& out) {
  out.mutable_layers()->Add(group.layers.begin(), group.layers.end());
  out.set_attention(static_cast<v1::AttentionKind>(group.attention));
  out.set_window(group.window);
  for (const kv::Component& component : group.components) {
    v1::Component& written = *out.add_components();
    written.set_name(component.name);
    written.set_heads(component.heads);
    written.set_dim(component.dim);
    written.set_has_token_axis(component.has_token_axis);
    for (const std::string& transform : component.value_transforms) written.add_value_transforms(transform);
  }
}

kv::LayerGroup read_group(const v1::LayerGroup& in) {
  kv::LayerGroup group;
  group.layers.assign(in.layers().begin(), in.layers().end());
  group.attention = static_cast<kv::AttentionKind>(in.attention());
  group.window = in.window();
  for (const v1::Component& component : in.components()) {
    group.components.push_back({component.name(),
                                component.heads(),
                                component.dim(),
                                component.has_token_axis(),
                                {component.value_transforms().begin(), component.value_transforms().end()}});
  }
  return group;
}

void write_form(const kv::DecodeForm& form, v1::DecodeForm& out) {
  out.set_component(form.component);
  out.set_codes(std::string(kv::name(form.codes)));
  out.set_operation(static_cast<v1::DecodeOperation>(form.operation));
  out.set_scale(std::string(kv::name(form.scale)));
  out.set_zero(std::string(kv::name(form.zero)));
  out.set_granule_dim(form.granule_dim);
  out.set_granule_tokens(form.granule_tokens);
  out.set_high_nibble_first(form.high_nibble_first);
  out.set_recipe(form.recipe);
  out.set_zero_constant(form.zero_constant);
  for (const float scale : form.static_scales) out.add_static_scales(std::bit_cast<std::uint32_t>(scale));
}

Result<kv::DecodeForm> read_form(const v1::DecodeForm& in) {
  kv::DecodeForm form;
  form.component = in.component();
  ISTHMUS_TRY(form.codes, kv::parse_format(in.codes()));
  ISTHMUS_TRY(form.scale, kv::parse_format(in.scale()));
  ISTHMUS_TRY(form.zero, kv::parse_format(in.zero()));
  form.operation = static_cast<kv::DecodeOperation>(in.operation());
  form.granule_dim = in.granule_dim();
  form.granule_tokens = in.granule_tokens();
  form.high_nibble_first = in.high_nibble_first();
  form.recipe = in.recipe();
  form.zero_constant = in.zero_constant();
  for (const std::uint32_t pattern : in.static_scales())
    form.static_scales.push_back(std::bit_cast<float>(pattern));
  return form;
}

void write_box(const kv::RankBox& box, v1::RankBox& out) {
  out.set_rank(box.rank);
  out.set_group(box.group);
  out.set_layer_begin(box.layer_begin);
  out.set_layer_end(box.layer_end);
  out.set_head_begin(box.head_begin);
  out.set_head_end(box.head_end);
  out.set_gqa_replica(box.gqa_replica);
  out.set_mla_replica(box.mla_replica);
  out.set_data_replica(box.data_replica);
  out.set_token_begin(box.token_begin);
  out.set_token_end(box.token_end);
  out.set_token_period(box.token_period);
}

kv::RankBox read_box(const v1::RankBox& in) {
  return {.rank = in.rank(),
          .group = in.group(),
          .layer_begin = in.layer_begin(),
          .layer_end = in.layer_end(),
          .head_begin = in.head_begin(),
          .head_end = in.head_end(),
          .gqa_replica = in.gqa_replica(),
          .mla_replica = in.mla_replica(),
          .data_replica = in.data_replica(),
          .token_begin = in.token_begin(),
          .token_end = in.token_end(),
          .token_period = in.token_period()};
}

void write_critical(const kv::Descriptor& descriptor, v1::Descriptor& out) {
  bool has_static_scales = false, has_replicas = false, has_tokens = false;
  for (const kv::GroupRepresentation& representation : descriptor.representation) {
    for (const kv::DecodeForm& form : representation.forms) has_static_scales |= !form.static_scales.empty();
  }
  for (const kv::RankBox& box : descriptor.partition) {
    has_replicas |= box.is_replicated();
    has_tokens |= !box.has_all_tokens();
  }
  for (const auto& [is_used, field] :
       {std::pair{has_static_scales, kStaticScales}, {has_replicas, kReplicas}, {has_tokens, kTokens}}) {
    if (is_used) out.add_critical(std::string(field));
  }
}

}  // namespace

void check(const v1::Descriptor& in, Bounds& bounds) {
  check(in.identity(), bounds);
  bounds.text("weights_recipe", in.weights_recipe(), kv::kTextMax);
  bounds.text("weights_digest", in.weights_digest(), kv::kTextMax);
  bounds.count("groups", in.groups_size(), kv::kGroupsMax);
  bounds.count("representation", in.representation_size(), kv::kGroupsMax);
  bounds.count("partition", in.partition_size(), kv::kBoxesMax);
  bounds.count("critical", in.critical_size(), kCriticalMax);
  if (!bounds.status().ok()) return;  // Before a million groups are looked at.
  for (const v1::LayerGroup& group : in.groups()) check(group, bounds);
  for (const v1::GroupRepresentation& representation : in.representation()) check(representation, bounds);
}

void write_descriptor(const kv::Descriptor& descriptor, v1::Descriptor& out) {
  out.set_schema_major(descriptor.schema_major);
  out.set_schema_minor(descriptor.schema_minor);
  write_identity(descriptor.identity, *out.mutable_identity());
  out.set_weights_recipe(descriptor.weights_recipe);
  out.set_weights_digest(descriptor.weights_digest);
  for (const kv::LayerGroup& group : descriptor.groups) write_group(group, *out.add_groups());
  for (const kv::GroupRepresentation& representation : descriptor.representation) {
    v1::GroupRepresentation& written = *out.add_representation();
    written.set_layout_text(representation.layout_text);
    written.set_block_tokens(representation.block_tokens);
    for (const kv::DecodeForm& form : representation.forms) write_form(form, *written.add_forms());
  }
  for (const kv::RankBox& box : descriptor.partition) write_box(box, *out.add_partition());
  write_critical(descriptor, out);
}

Result<kv::Descriptor> read_descriptor(const v1::Descriptor& in) {
  for (const std::string& field : in.critical()) {
    if (std::find(kKnown.begin(), kKnown.end(), field) != kKnown.end()) continue;
    return Error{Code::kUnsupported, fmt::format("descriptor.critical: \"{:.64}\" isn't known here", field)};
  }
  kv::Descriptor descriptor;
  descriptor.schema_major = in.schema_major();
  descriptor.schema_minor = in.schema_minor();
  descriptor.identity = read_identity(in.identity());
  descriptor.weights_recipe = in.weights_recipe();
  descriptor.weights_digest = in.weights_digest();
  for (const v1::LayerGroup& group : in.groups()) descriptor.groups.push_back(read_group(group));
  for (const v1::GroupRepresentation& representation : in.representation()) {
    kv::GroupRepresentation read{representation.layout_text(), representation.block_tokens(), {}};
    for (const v1::DecodeForm& form : representation.forms()) {
      ISTHMUS_TRY(kv::DecodeForm decoded, read_form(form));
      read.forms.push_back(std::move(decoded));
    }
    descriptor.representation.push_back(std::move(read));
  }
  for (const v1::RankBox& box : in.partition()) {
    descriptor.partition.push_back(read_box(box));
  }
  return descriptor;
}

Result<std::vector<std::byte>> encode_descriptor(const kv::Descriptor& descriptor) {
  v1::Descriptor message;
  write_descriptor(descriptor, message);
  Bounds bounds(Code::kInvalidArgument);
  check(message, bounds);
  ISTHMUS_TRY(bounds.status());
  const std::size_t size = message.ByteSizeLong();
  if (size > kFrameBytesMax) {
    return Error{Code::kInvalidArgument,
                 fmt::format("descriptor: {} bytes, at most {}", size, kFrameBytesMax)};
  }
  std::vector<std::byte> bytes(size);
  if (!message.SerializeToArray(bytes.data(), static_cast<int>(size)))
    return Error{Code::kInternal, "a descriptor can't be serialised"};
  return bytes;
}

Result<kv::Descriptor> decode_descriptor(std::span<const std::byte> bytes) {
  if (bytes.size() > kFrameBytesMax)
    return malformed_field("descriptor", fmt::format("{} bytes, at most {}", bytes.size(), kFrameBytesMax));
  v1::Descriptor message;
  if (!parse_message(bytes, message)) return malformed_field("descriptor", "not of this schema");
  Bounds bounds(Code::kMalformed);
  check(message, bounds);
  ISTHMUS_TRY(bounds.status());
  return read_descriptor(message);
}

}  // namespace isthmus::wire
