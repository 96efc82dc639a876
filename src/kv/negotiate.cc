// SPDX-License-Identifier: Apache-2.0
// Differences of two descriptors, sorted into what forbids, what is moved and what is converted.
#include "kv/negotiate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "kv/encoding.h"

namespace isthmus::kv {
namespace {

// One line of canonical text for each box of a group, without replica order: equal partitions are equal sets.
std::vector<RankBox> boxes_of(const Descriptor& descriptor, std::uint32_t group) {
  std::vector<RankBox> boxes;
  for (const RankBox& box : descriptor.partition) {
    if (box.group == group) boxes.push_back(box);
  }
  std::sort(boxes.begin(), boxes.end(), [](const RankBox& a, const RankBox& b) { return a.rank < b.rank; });
  return boxes;
}

// A part's digits in elements instead of bits, so that f16 and f32 planes of one order compare equal. Bits
// where the strides aren't whole elements (records that hold something else too).
std::string shape_text(const PartLayout& part) {
  const std::int64_t unit = bits(part.format);
  PartLayout shape = part;
  bool is_whole = part.start_bits % static_cast<std::uint64_t>(unit) == 0;
  shape.start_bits /= static_cast<std::uint64_t>(unit);
  for (Digit& digit : shape.digits) {
    is_whole = is_whole && digit.stride_bits % unit == 0;
    digit.stride_bits /= unit;
  }
  if (!is_whole) return part.text();
  const std::string text = shape.text();
  // "k f16 region=…" → "k region=…": the format isn't part of the shape.
  const std::string head = fmt::format("{} {} ", part.part, name(part.format));
  return fmt::format("{} elements {}", part.part, text.substr(head.size()));
}

// Everything of a valid descriptor as it is stored.
WireForm wire_of(const Descriptor& descriptor) {
  WireForm wire;
  for (std::size_t g = 0; g < descriptor.groups.size(); ++g) {
    std::vector<WireComponent>& components = wire.groups.emplace_back();
    for (std::size_t c = 0; c < descriptor.groups[g].components.size(); ++c) {
      components.push_back(
          {descriptor.representation[g].forms[c], descriptor.groups[g].components[c].value_transforms});
    }
  }
  return wire;
}

class Negotiation {
 public:
  Negotiation(const Descriptor& source, const Descriptor& target, const Policy& policy)
      : source_(source), target_(target), policy_(policy) {}

  Verdict run() {
    if (check_descriptors()) {
      compare_lines();
      check_weights();
      const std::size_t groups = std::min(source_.groups.size(), target_.groups.size());
      for (std::uint32_t group = 0; group < groups; ++group) check_group(group);
      check_policy();
    }
    verdict_.exact = is_exact_ && verdict_.rejects.empty();
    if (!verdict_.rejects.empty()) {
      verdict_.roundings = 0;
      return std::move(verdict_);
    }
    verdict_.kind = kind();
    verdict_.wire = wire_of(source_);
    for (std::vector<WireComponent>& group : verdict_.wire.groups) {
      for (WireComponent& component : group) component.non_finite = policy_.non_finite;
    }
    return std::move(verdict_);
  }

 private:
  VerdictKind kind() const {
    if (verdict_.redistributions.empty()) {
      return verdict_.conversions.empty() ? VerdictKind::kDirect : VerdictKind::kConvert;
    }
    return verdict_.conversions.empty() ? VerdictKind::kRedistribute : VerdictKind::kRedistributeConvert;
  }

  void reject(std::string path, std::string source, std::string target, std::string text) {
    verdict_.rejects.push_back({std::move(path), std::move(source), std::move(target), std::move(text)});
  }

  // Nothing else of a descriptor may be read before it validates.
  bool check_descriptors() {
    if (source_.schema_major != kSchemaMajor || target_.schema_major != kSchemaMajor) {
      reject("schema.major", fmt::format("{}", source_.schema_major), fmt::format("{}", target_.schema_major),
             fmt::format("only schema {} is known here", kSchemaMajor));
      return false;
    }
    const Status source = source_.validate();
    const Status target = target_.validate();
    if (!source.ok()) {
      reject("source", source.error().text(), "",
             "the source's descriptor contradicts itself or isn't understood");
    }
    if (!target.ok()) {
      reject("target", "", target.error().text(),
             "the target's descriptor contradicts itself or isn't understood");
    }
    return source.ok() && target.ok();
  }

  // Invariants: identity and geometry, each path that differs.
  void compare_lines() {
    for (Difference& line : diff(source_, target_)) {
      const std::string_view path = line.path;
      const bool is_identity = path.starts_with("identity.");
      const bool is_geometry = path == "groups.count" || path.find(".geometry.") != std::string_view::npos;
      if (path == "schema.minor") {
        verdict_.warnings.push_back(fmt::format(
            "schema.minor: {} and {}; fields that only the newer one knows are ignored", line.a, line.b));
      } else if (path == "identity.position.rope_theta") {
        reject(line.path, fmt::format("{} ({})", line.a, source_.identity.rope_theta),
               fmt::format("{} ({})", line.b, target_.identity.rope_theta), "the ends run different models");
      } else if (is_identity) {
        reject(line.path, line.a, line.b, "the ends run different models");
      } else if (is_geometry && !path.ends_with(".transforms")) {
        reject(line.path, line.a, line.b, "the ends keep different state");
      }
    }
  }

  void check_weights() {
    if (source_.weights_recipe == target_.weights_recipe && source_.weights_digest == target_.weights_digest)
      return;
    const bool same_recipe = source_.weights_recipe == target_.weights_recipe;
    const std::string path = same_recipe ? "weights.digest" : "weights.recipe";
    const std::string a = same_recipe ? source_.weights_digest : source_.weights_recipe;
    const std::string b = same_recipe ? target_.weights_digest : target_.weights_recipe;
    if (policy_.exactness == Exactness::kLossless) {
      reject(path, a, b, "the policy is lossless, and unlike weights never give the same state");
    } else if (policy_.exactness == Exactness::kUnqualified) {
      verdict_.warnings.push_back(fmt::format(
          "{}: {} and {}: unlike weights without a qualification record; answers may drift", path, a, b));
    } else if (find_qualification(source_, target_, policy_) == nullptr) {
      reject(
          "policy.qualification", a, b,
          fmt::format(
              "unlike weights need a qualification record with prefill_recipe \"{}\", decode_recipe \"{}\", "
              "lineage \"{}\", wire_form \"{}\", decode_form \"{}\" and kl_pair at most {} times kl_engines; "
              "the policy has {} records and none of these",
              source_.weights_recipe, target_.weights_recipe, source_.identity.lineage,
              qualification_form(source_), qualification_form(target_), kKlRatioMax,
              policy_.qualifications.size()));
    }
  }

  // The numbers and places of one group; nothing to say where the geometry already differs.
  void check_group(std::uint32_t group) {
    const std::vector<Component>& ours = source_.groups[group].components;
    const std::vector<Component>& theirs = target_.groups[group].components;
    const bool same_components = std::equal(ours.begin(), ours.end(), theirs.begin(), theirs.end(),
                                            [](const Component& a, const Component& b) {
                                              return a.name == b.name && a.dim == b.dim && a.heads == b.heads;
                                            });
    if (!same_components) return;
    for (std::size_t component = 0; component < ours.size(); ++component) check_component(group, component);
    check_places(group);
  }

  void check_component(std::uint32_t group, std::size_t index) {
    const Component& ours = source_.groups[group].components[index];
    const Component& theirs = target_.groups[group].components[index];
    const auto steps = check_transforms(group, ours, theirs);
    const DecodeForm& from = source_.representation[group].forms[index];
    const DecodeForm& to = target_.representation[group].forms[index];
    const std::string path = fmt::format("groups.{}.form.{}", group, ours.name);
    const bool is_same = from.same_form(to);
    if (!is_same)
      verdict_.conversions.push_back({path, from.text(), to.text(), "codes mean numbers in different ways"});
    const bool is_exact = steps && restores(from, to, *steps);
    const auto value = [](const DecodeForm& form, const Component& component) {
      return WireComponent{form, component.value_transforms}.text();
    };
    if (steps && !is_exact && !ours.has_token_axis) {
      reject(path, value(from, ours), value(to, theirs),
             "a state without a token axis enters every later token, so it crosses exactly or not at all");
      return;
    }
    const Status can = implemented(from, to, steps.value_or(std::vector<ValueStep>{}), ours.dim);
    if (!can.ok()) {
      reject(path, from.text(), to.text(), can.error().detail);
      return;
    }
    if (!steps || is_exact) return;
    is_exact_ = false;
    verdict_.roundings = 1;
    if (policy_.exactness == Exactness::kLossless) {
      reject("policy.exactness", value(from, ours), value(to, theirs),
             fmt::format("the policy is lossless, and {} can't hold every value exactly", path));
    }
  }

  // What brings the source's values to the target's; empty optional after a reject.
  std::optional<std::vector<ValueStep>> check_transforms(std::uint32_t group, const Component& ours,
                                                         const Component& theirs) {
    if (ours.value_transforms == theirs.value_transforms) return std::vector<ValueStep>{};
    const std::string path = fmt::format("groups.{}.geometry.component.{}.transforms", group, ours.name);
    const std::string a = fmt::format("{}", fmt::join(ours.value_transforms, ","));
    const std::string b = fmt::format("{}", fmt::join(theirs.value_transforms, ","));
    verdict_.conversions.push_back({path, a, b, "values are stored transformed in different ways"});
    auto steps = value_steps(ours.value_transforms, theirs.value_transforms);
    if (steps.ok()) return *std::move(steps);
    reject(path, a, b, steps.error().detail);
    return std::nullopt;
  }

  void check_places(std::uint32_t group) {
    const std::uint32_t ours = source_.representation[group].block_tokens;
    const std::uint32_t theirs = target_.representation[group].block_tokens;
    if (ours != theirs) {
      verdict_.redistributions.push_back({fmt::format("groups.{}.block_tokens", group),
                                          fmt::format("{}", ours), fmt::format("{}", theirs),
                                          "blocks have different sizes"});
    }
    const std::vector<RankBox> a = boxes_of(source_, group);
    const std::vector<RankBox> b = boxes_of(target_, group);
    check_shared_scales(group, a, b);
    if (a != b) {
      verdict_.redistributions.push_back({fmt::format("partition.group.{}", group), partition_text(a),
                                          partition_text(b), "the ranks hold different boxes"});
    }
    for (std::size_t component = 0; component < source_.groups[group].components.size(); ++component) {
      compare_layouts(group, component, a, b);
    }
  }

  // Each end's boxes leave its own scales whole; here they must leave the other end's whole too, as a scale
  // is written with all of its tokens.
  void check_shared_scales(std::uint32_t group, const std::vector<RankBox>& a,
                           const std::vector<RankBox>& b) {
    std::uint64_t granule = 1;
    for (const Descriptor* end : {&source_, &target_}) {
      for (const DecodeForm& form : end->representation[group].forms)
        granule = std::lcm(granule, std::uint64_t{form.granule_tokens});
    }
    const auto cuts = [granule](const RankBox& box) {
      return box.token_begin % granule != 0 || box.token_end % granule != 0 ||
             box.token_period % granule != 0;
    };
    if (std::none_of(a.begin(), a.end(), cuts) && std::none_of(b.begin(), b.end(), cuts)) return;
    reject(fmt::format("partition.group.{}", group), partition_text(a), partition_text(b),
           fmt::format("not implemented: ranks whose positions cut scales that {} tokens share at an end",
                       granule));
  }

  // The first rank whose part lies elsewhere, for codes and, where both ends have the same form, side arrays.
  void compare_layouts(std::uint32_t group, std::size_t component, const std::vector<RankBox>& a,
                       const std::vector<RankBox>& b) {
    const DecodeForm& from = source_.representation[group].forms[component];
    const DecodeForm& to = target_.representation[group].forms[component];
    const bool is_same = from.same_form(to);
    std::vector<std::string> parts{from.component};
    if (is_same && has_stored_scale(from.operation)) parts.push_back(from.component + ".s");
    if (is_same && from.operation == DecodeOperation::kScaledZeroPoint)
      parts.push_back(from.component + ".z");
    for (const std::string& part : parts) {
      const std::size_t ranks = a == b ? a.size() : 1;
      for (std::size_t i = 0; i < ranks; ++i) {
        const std::string ours = place_text(source_, a[i], part, is_same);
        const std::string theirs = place_text(target_, b[i], part, is_same);
        if (ours == theirs) continue;
        verdict_.redistributions.push_back({fmt::format("groups.{}.layout.{}", group, part), ours, theirs,
                                            "elements lie in different places"});
        break;
      }
    }
  }

  // validate() has passed: layout and part exist.
  static std::string place_text(const Descriptor& descriptor, const RankBox& box, const std::string& part,
                                bool with_format) {
    const auto layout = descriptor.layout(box.group, box.rank);
    const PartLayout& placed = *layout.value().part(part).value();
    return with_format ? placed.text() : shape_text(placed);
  }

  static std::string partition_text(const std::vector<RankBox>& boxes) {
    std::string out;
    for (const RankBox& box : boxes) {
      out += fmt::format("{}rank {} {}", out.empty() ? "" : "; ", box.rank, box.text());
    }
    return out;
  }

  void check_policy() {
    if (verdict_.roundings > policy_.roundings_max) {
      reject("policy.roundings_max", fmt::format("{}", verdict_.roundings),
             fmt::format("{}", policy_.roundings_max),
             "values would be rounded more often than the policy allows");
    }
  }

  const Descriptor& source_;
  const Descriptor& target_;
  const Policy& policy_;
  Verdict verdict_;
  bool is_exact_ = true;
};

}  // namespace

std::string_view name(VerdictKind kind) {
  constexpr std::array<std::string_view, 5> kNames{"reject", "direct", "redistribute", "convert",
                                                   "redistribute+convert"};
  return kNames.at(static_cast<std::size_t>(kind));
}

std::string WireComponent::text() const {
  if (value_transforms.empty()) return form.text();
  return fmt::format("{} after {}", form.text(), fmt::join(value_transforms, ","));
}

std::string WireForm::text() const {
  std::string out;
  for (std::size_t group = 0; group < groups.size(); ++group) {
    for (const WireComponent& component : groups[group]) {
      out += fmt::format("{} {}{}\n", group, component.text(),
                         component.non_finite == NonFinite::kReplace ? " non-finite=replace" : "");
    }
  }
  return out;
}

std::string qualification_form(const Descriptor& descriptor) {
  std::string out;
  for (const std::vector<WireComponent>& group : wire_of(descriptor).groups) {
    std::vector<std::string> seen;
    for (WireComponent component : group) {
      // Pairings of rope change no number, so a record holds for both.
      std::erase_if(component.value_transforms,
                    [](const std::string& one) { return one.starts_with("rope:"); });
      const std::string text = component.text();
      const std::string unnamed = text.substr(component.form.component.size());
      if (std::find(seen.begin(), seen.end(), unnamed) != seen.end()) continue;
      seen.push_back(unnamed);
      out += fmt::format("{}{}", out.empty() ? "" : ";", text);
    }
  }
  return out;
}

bool keeps_static_codes(const DecodeForm& from, const DecodeForm& to) {
  if (from.operation != DecodeOperation::kStaticScaled || to.operation != from.operation) return false;
  if (from.codes == to.codes) return from.static_scales == to.static_scales;
  if (from.codes != Format::kE4m3fn || to.codes != Format::kE4m3fnuz) return false;
  return std::equal(from.static_scales.begin(), from.static_scales.end(), to.static_scales.begin(),
                    to.static_scales.end(), [](float ours, float theirs) { return theirs == 2 * ours; });
}

namespace {

// A record whose recipe names no instruction set holds for each: "llamacpp/q" for "llamacpp.avx512/q" too.
bool covers(std::string_view recorded, std::string_view recipe) {
  const std::size_t slash = std::min(recipe.find('/'), recipe.size());
  const std::size_t dot = std::min(recipe.find('.'), slash);
  return recorded == recipe || recorded == fmt::format("{}{}", recipe.substr(0, dot), recipe.substr(slash));
}

}  // namespace

const Qualification* find_qualification(const Descriptor& source, const Descriptor& target,
                                        const Policy& policy) {
  const std::string wire_form = qualification_form(source);
  const std::string decode_form = qualification_form(target);
  for (const Qualification& record : policy.qualifications) {
    const bool is_measured = record.prompts > 0 && std::isfinite(record.kl_pair) &&
                             std::isfinite(record.kl_engines) && record.kl_pair >= 0 &&
                             record.kl_engines >= 0 && record.kl_pair <= kKlRatioMax * record.kl_engines;
    if (is_measured && covers(record.prefill_recipe, source.weights_recipe) &&
        covers(record.decode_recipe, target.weights_recipe) && record.lineage == source.identity.lineage &&
        record.wire_form == wire_form && record.decode_form == decode_form) {
      return &record;
    }
  }
  return nullptr;
}

Status implemented(const DecodeForm& from, const DecodeForm& to, const std::vector<ValueStep>& steps,
                   std::uint32_t dim) {
  if (from.same_form(to) && steps.empty()) return movable(from, dim);
  if (only_moves(steps) && keeps_static_codes(from, to)) return decodable(from, dim);
  ISTHMUS_TRY(decodable(from, dim));
  return encoder_of(to, dim).status();
}

bool restores(const DecodeForm& from, const DecodeForm& to, const std::vector<ValueStep>& steps) {
  if (steps.empty() && from.same_form(to)) return true;
  if (!only_moves(steps)) return false;
  if (from.operation == DecodeOperation::kStaticScaled && to.operation == DecodeOperation::kStaticScaled)
    return keeps_static_codes(from, to);
  if (to.operation != DecodeOperation::kPlain) return false;
  if (from.operation == DecodeOperation::kPlain) return embeds(from.codes, to.codes);
  if (from.operation == DecodeOperation::kScaledZeroPoint ||
      from.operation == DecodeOperation::kStaticScaled) {
    return false;
  }
  // A product of significands has as many bits as both together, and may carry into the next exponent. A
  // constant zero point leaves a code's bits, as |q − c| is below 2^bits.
  const Precision codes = precision(from.codes);
  const Precision scale = precision(from.scale);
  const Precision held = precision(to.codes);
  return !held.is_integer && held.has_negative_zero &&
         codes.significand_bits + scale.significand_bits <= held.significand_bits &&
         codes.ulp_exponent + scale.ulp_exponent >= held.ulp_exponent &&
         codes.exponent_max + scale.exponent_max + 1 <= held.exponent_max;
}

Verdict negotiate(const Descriptor& source, const Descriptor& target, const Policy& policy) {
  return Negotiation(source, target, policy).run();
}

}  // namespace isthmus::kv
