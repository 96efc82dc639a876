// SPDX-License-Identifier: Apache-2.0
// A descriptor as sorted `path = value` lines: what is digested, compared and shown.
#include "kv/descriptor.h"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/bytes.h"

namespace isthmus::kv {
namespace {

// Values come from peers: nothing in one may look like another line.
std::string escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\') {
      out += "\\\\";
    } else if (c >= 0x20 && c < 0x7f) {
      out += c;
    } else {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  return out;
}

std::string_view truth(bool value) {
  return value ? "true" : "false";
}

std::string join(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += fmt::format("{}{}", out.empty() ? "" : ",", word);
  return out;
}

// "0-3,5,7-9": runs of consecutive indices.
std::string runs(const std::vector<std::uint32_t>& indices) {
  std::string out;
  for (std::size_t begin = 0; begin < indices.size();) {
    std::size_t end = begin + 1;
    while (end < indices.size() && indices[end] == indices[end - 1] + 1) ++end;
    if (!out.empty()) out += ",";
    out += end - begin == 1 ? fmt::format("{}", indices[begin])
                            : fmt::format("{}-{}", indices[begin], indices[end - 1]);
    begin = end;
  }
  return out;
}

class Lines {
 public:
  void add(std::string path, std::string_view value) { lines_.emplace_back(std::move(path), escape(value)); }
  void add(std::string path, std::uint64_t value) { add(std::move(path), fmt::format("{}", value)); }
  void add(std::string path, double value) {
    add(std::move(path), fmt::format("0x{:016x}", std::bit_cast<std::uint64_t>(value)));
  }
  CanonicalLines sorted() && {
    std::sort(lines_.begin(), lines_.end());
    return std::move(lines_);
  }

 private:
  CanonicalLines lines_;
};

void add_identity(const Identity& identity, Lines& lines) {
  lines.add("identity.architecture", identity.architecture);
  lines.add("identity.lineage", identity.lineage);
  lines.add("identity.config_digest", identity.config_digest);
  lines.add("identity.tokenizer_digest", identity.tokenizer_digest);
  lines.add("identity.adapters.count", identity.adapters.size());
  for (std::size_t i = 0; i < identity.adapters.size(); ++i) {
    lines.add(fmt::format("identity.adapters.{}.name", i), identity.adapters[i].name);
    lines.add(fmt::format("identity.adapters.{}.digest", i), identity.adapters[i].digest);
  }
  lines.add("identity.position.scheme", identity.position_scheme);
  lines.add("identity.position.rope_theta", identity.rope_theta);
  lines.add("identity.position.rope_scaling", identity.rope_scaling);
  lines.add("identity.position.key_after_rotation", truth(identity.key_after_rotation));
  lines.add("identity.position.first_position", identity.first_position);
}

void add_geometry(const LayerGroup& group, const std::string& path, Lines& lines) {
  lines.add(path + ".geometry.layers", runs(group.layers));
  lines.add(path + ".geometry.attention", name(group.attention));
  lines.add(path + ".geometry.window", std::uint64_t{group.window});
  std::vector<std::string> names;
  for (const Component& component : group.components) {
    const std::string at = fmt::format("{}.geometry.component.{}", path, escape(component.name));
    names.push_back(component.name);
    lines.add(at + ".heads", std::uint64_t{component.heads});
    lines.add(at + ".dim", std::uint64_t{component.dim});
    lines.add(at + ".token_axis", truth(component.has_token_axis));
    lines.add(at + ".transforms", join(component.value_transforms));
  }
  lines.add(path + ".geometry.components", join(names));
}

// "0x3f800000,0x3f000000*3": bit patterns, equal neighbours counted.
std::string scales_text(const std::vector<float>& scales) {
  std::string out;
  for (std::size_t begin = 0; begin < scales.size();) {
    const auto pattern = std::bit_cast<std::uint32_t>(scales[begin]);
    std::size_t end = begin + 1;
    while (end < scales.size() && std::bit_cast<std::uint32_t>(scales[end]) == pattern) ++end;
    out += fmt::format("{}0x{:08x}", out.empty() ? "" : ",", pattern);
    if (end - begin > 1) out += fmt::format("*{}", end - begin);
    begin = end;
  }
  return out;
}

void add_representation(const GroupRepresentation& representation, const std::string& path, Lines& lines) {
  lines.add(path + ".block_tokens", std::uint64_t{representation.block_tokens});
  for (const DecodeForm& form : representation.forms) {
    const std::string component = escape(form.component);
    lines.add(fmt::format("{}.form.{}", path, component), form.text());
    lines.add(fmt::format("{}.recipe.{}", path, component), form.recipe);
    if (!form.static_scales.empty())
      lines.add(fmt::format("{}.static.{}", path, component), scales_text(form.static_scales));
  }
}

// The parts' canonical text, or why there is none: an invalid descriptor has lines too, so that it can be
// shown.
void add_layout(const Descriptor& descriptor, const RankBox& box, Lines& lines) {
  const std::string path = fmt::format("groups.{}.layout.rank.{}", box.group, box.rank);
  const auto layout = descriptor.layout(box.group, box.rank);
  if (!layout) {
    lines.add(path + ".invalid", layout.error().text());
    return;
  }
  for (const PartLayout& part : layout->parts()) {
    lines.add(fmt::format("{}.{}", path, part.part), part.text().substr(part.part.size() + 1));
  }
}

void add_partition(const Descriptor& descriptor, Lines& lines) {
  lines.add("partition.count", descriptor.partition.size());
  for (const RankBox& box : descriptor.partition) {
    lines.add(fmt::format("partition.group.{}.rank.{}", box.group, box.rank), box.text());
    add_layout(descriptor, box, lines);
  }
}

// What a peer sent may hold any number until validate() has seen it; it must be showable all the same.
template <std::size_t kCount>
std::string_view text_at(const std::array<std::string_view, kCount>& texts, std::size_t index) {
  return index < kCount ? texts.at(index) : "unknown";
}

std::string operation_text(const DecodeForm& form) {
  if (form.operation == DecodeOperation::kScaledConstantZero)
    return fmt::format("(q-{})*s", form.zero_constant);
  constexpr std::array<std::string_view, 5> kTexts{"q", "q*s", "(q-z)*s", "", "q*c"};
  return std::string(text_at(kTexts, static_cast<std::size_t>(form.operation)));
}

std::string replica_text(const RankBox& box) {
  std::string out;
  for (const auto& [kind, number] :
       {std::pair{"gqa", box.gqa_replica}, {"mla", box.mla_replica}, {"data", box.data_replica}}) {
    if (number != 0) out += fmt::format("{}{}:{}", out.empty() ? "" : ",", kind, number);
  }
  return out.empty() ? "0" : out;
}

}  // namespace

std::string_view name(AttentionKind kind) {
  constexpr std::array<std::string_view, 5> kNames{"full", "sliding", "mla", "sparse-indexed", "recurrent"};
  return text_at(kNames, static_cast<std::size_t>(kind));
}

std::string DecodeForm::text() const {
  std::string out = fmt::format("{} codes={}", component, name(codes));
  if (high_nibble_first) out += " nibble=high";
  out += fmt::format(" op={}", operation_text(*this));
  if (operation == DecodeOperation::kStaticScaled) {
    const auto bytes = bytes_of(std::span<const float>(static_scales));
    out += fmt::format(" static={}:{}", static_scales.size(), digest128(bytes).hex());
  }
  if (!has_stored_scale(operation)) return out;
  out += fmt::format(" scale={}", name(scale));
  if (operation == DecodeOperation::kScaledZeroPoint) out += fmt::format(" zero={}", name(zero));
  return out + fmt::format(" granule=dim:{},tok:{}", granule_dim, granule_tokens);
}

bool DecodeForm::same_form(const DecodeForm& other) const {
  return text() == other.text();
}

namespace {

// A box without an end reaches to the last position.
std::uint64_t end_of_run(const RankBox& box) {
  return box.token_end != 0 || box.token_period != 0 ? box.token_end : kPositionMax;
}

}  // namespace

bool RankBox::has_token(std::uint64_t position) const {
  const std::uint64_t at = token_period == 0 ? position : position % token_period;
  return at >= token_begin && at < end_of_run(*this);
}

std::uint64_t RankBox::tokens_below(std::uint64_t position) const {
  const std::uint64_t end = end_of_run(*this);
  const auto in_run = [&](std::uint64_t at) { return std::clamp(at, token_begin, end) - token_begin; };
  if (token_period == 0) return in_run(position);
  return position / token_period * (end - token_begin) + in_run(position % token_period);
}

std::uint64_t RankBox::token_at(std::uint64_t number) const {
  if (token_period == 0) return token_begin + number;
  const std::uint64_t run = token_end - token_begin;
  return number / run * token_period + token_begin + number % run;
}

std::uint64_t RankBox::token_bound_after(std::uint64_t position) const {
  const std::uint64_t first = token_period == 0 ? 0 : position - position % token_period;
  for (const std::uint64_t at : {token_begin, end_of_run(*this), token_period + token_begin}) {
    if (first + at > position) return std::min(first + at, kPositionMax);
  }
  return kPositionMax;
}

std::string RankBox::text() const {
  std::string out = fmt::format("layers={}..{} heads={}..{} replica={}", layer_begin, layer_end, head_begin,
                                head_end, replica_text(*this));
  if (has_all_tokens()) return out;
  out += fmt::format(" tokens={}..", token_begin);
  if (token_end != 0 || token_period != 0) out += fmt::format("{}", token_end);
  if (token_period != 0) out += fmt::format("%{}", token_period);
  return out;
}

std::uint32_t Descriptor::minimum_minor() const {
  const bool has_new_boxes = std::any_of(partition.begin(), partition.end(), [](const RankBox& box) {
    return box.is_replicated() || !box.has_all_tokens();
  });
  bool has_static_scales = false, has_states = false;
  for (const GroupRepresentation& group : representation) {
    for (const DecodeForm& form : group.forms)
      has_static_scales |= form.operation == DecodeOperation::kStaticScaled;
  }
  for (const LayerGroup& group : groups) {
    for (const Component& component : group.components) has_states |= !component.has_token_axis;
  }
  return has_new_boxes || has_static_scales || has_states ? 1 : 0;
}

Result<Layout> Descriptor::layout(std::uint32_t group, std::uint32_t rank) const {
  const auto box = std::find_if(partition.begin(), partition.end(),
                                [&](const RankBox& one) { return one.group == group && one.rank == rank; });
  if (box == partition.end() || group >= groups.size() || group >= representation.size()) {
    return Error{Code::kNotFound, fmt::format("rank {} holds nothing of layer group {}", rank, group)};
  }
  LayoutExtents extents;
  extents.layers = box->layer_end > box->layer_begin ? box->layer_end - box->layer_begin : 0;
  extents.block_tokens = representation[group].block_tokens;
  const std::uint32_t heads = box->head_end > box->head_begin ? box->head_end - box->head_begin : 0;
  bool same_dim = true;
  for (const Component& component : groups[group].components) {
    extents.components[component.name] = {.heads = heads, .dim = component.dim};
    same_dim = same_dim && component.dim == groups[group].components.front().dim;
  }
  if (same_dim && !groups[group].components.empty())
    extents.parameters["D"] = groups[group].components.front().dim;
  if (extents.block_tokens != 0) extents.parameters["B"] = extents.block_tokens;
  auto layout = Layout::parse(representation[group].layout_text, extents);
  if (!layout) return layout.status().with_context(fmt::format("group {} rank {}", group, rank));
  return layout;
}

CanonicalLines Descriptor::canonical_lines() const {
  Lines lines;
  lines.add("schema.major", std::uint64_t{schema_major});
  lines.add("schema.minor", std::uint64_t{schema_minor});
  add_identity(identity, lines);
  lines.add("weights.recipe", weights_recipe);
  lines.add("weights.digest", weights_digest);
  lines.add("groups.count", groups.size());
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const std::string path = fmt::format("groups.{}", i);
    add_geometry(groups[i], path, lines);
    if (i < representation.size()) add_representation(representation[i], path, lines);
  }
  add_partition(*this, lines);
  return std::move(lines).sorted();
}

std::string Descriptor::canonical_text() const {
  std::string out;
  for (const auto& [path, value] : canonical_lines()) out += fmt::format("{} = {}\n", path, value);
  return out;
}

Digest128 Descriptor::digest() const {
  return digest128(canonical_text());
}

std::vector<Difference> diff(const Descriptor& a, const Descriptor& b) {
  // Paths are unique in a valid descriptor; in an invalid one the last value wins, which is enough to show
  // it.
  std::map<std::string, Difference> all;
  for (auto& [path, value] : a.canonical_lines()) all[path].a = value;
  for (auto& [path, value] : b.canonical_lines()) all[path].b = value;
  std::vector<Difference> out;
  for (auto& [path, difference] : all) {
    if (difference.a == difference.b) continue;
    difference.path = path;
    out.push_back(std::move(difference));
  }
  return out;
}

double bytes_per_token(const std::vector<LayerGroup>& groups,
                       const std::vector<std::vector<DecodeForm>>& forms) {
  double bytes = 0;
  for (std::size_t g = 0; g < groups.size() && g < forms.size(); ++g) {
    for (std::size_t c = 0; c < groups[g].components.size() && c < forms[g].size(); ++c) {
      const Component& component = groups[g].components[c];
      const DecodeForm& form = forms[g][c];
      double row_bits = double{1} * component.dim * bits(form.codes);
      if (!component.has_token_axis) continue;
      if (has_stored_scale(form.operation) && form.granule_dim != 0 && form.granule_tokens != 0) {
        const std::uint32_t side_bits =
            bits(form.scale) + (form.operation == DecodeOperation::kScaledZeroPoint ? bits(form.zero) : 0);
        const std::uint32_t granules = (component.dim + form.granule_dim - 1) / form.granule_dim;
        row_bits += double{1} * granules * side_bits / form.granule_tokens;
      }
      bytes += row_bits / 8 * component.heads * static_cast<double>(groups[g].layers.size());
    }
  }
  return bytes;
}

}  // namespace isthmus::kv
