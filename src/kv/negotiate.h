// SPDX-License-Identifier: Apache-2.0
// May two ends share a state, and what must change on the way? Pure; both ends run it and must agree.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "kv/descriptor.h"
#include "kv/value_transforms.h"

namespace isthmus::kv {

// What unlike weight recipes and lossy numeric conversion need to be allowed.
enum class Exactness : std::uint8_t {
  kLossless,     // Exact embeddings only.
  kBounded,      // Conversions within `roundings_max`; unlike recipes need a qualification record.
  kUnqualified,  // As kBounded, without a record; warns.
};

// Measured evidence that a pair answers like its decoder alone (schema: spec/qualification.md).
struct Qualification {
  std::string prefill_recipe, decode_recipe;  // Weights recipes with engine: "llamacpp/gguf-q4_1".
  std::string lineage;                        // Model identity that was measured.
  std::string wire_form, decode_form;         // qualification_form() of the source and of the target.
  double kl_pair = 0, kl_engines = 0;         // Mean KL, nats.
  std::uint32_t prompts = 0;
  bool operator==(const Qualification&) const = default;
};

// How much farther from the decoder alone than the two engines are from each other a qualified pair may be.
inline constexpr double kKlRatioMax = 1.5;

// What a conversion does with infinities and NaNs.
enum class NonFinite : std::uint8_t {
  kRefuse,
  kReplace,  // By the largest finite number of the source's format, NaNs by 0 (spec/wire-form.md §7).
};

struct Policy {
  Exactness exactness = Exactness::kLossless;
  std::uint32_t roundings_max = 1;
  std::vector<Qualification> qualifications;
  NonFinite non_finite = NonFinite::kRefuse;
  bool operator==(const Policy&) const = default;
};

enum class VerdictKind : std::uint8_t { kReject, kDirect, kRedistribute, kConvert, kRedistributeConvert };
std::string_view name(
    VerdictKind kind);  // "reject", "direct", "redistribute", "convert", "redistribute+convert"

struct Reason {
  std::string path;            // Descriptor path, or a policy clause ("policy.qualification").
  std::string source, target;  // Both values; "" where one end lacks the path.
  std::string text;            // One sentence for people.
  friend bool operator==(const Reason&, const Reason&) = default;
};

// One component's numbers: what the codes mean and what was done to the values before.
struct WireComponent {
  DecodeForm form;
  std::vector<std::string> value_transforms = {};
  NonFinite non_finite = NonFinite::kRefuse;
  // The form's text, " after T,T" behind it if there are value transforms.
  std::string text() const;
};

// The numbers that cross; rows in `head tok dim` order.
struct WireForm {
  std::vector<std::vector<WireComponent>> groups;  // [group][component]
  std::string text() const;                        // Canonical; enters the plan digest.
};

struct Verdict {
  VerdictKind kind = VerdictKind::kReject;
  std::vector<Reason> rejects;          // Every difference that forbids; empty unless kReject.
  std::vector<Reason> redistributions;  // Layout, block size, partition.
  std::vector<Reason> conversions;      // Decode form, value transforms.
  std::vector<std::string> warnings;
  std::uint32_t roundings = 0;  // Numeric roundings on the way.
  bool exact = false;           // The target's bits restore the source's.
  WireForm
      wire;  // Filled unless kReject: the source's form, the target's, or an exact superset of the source's.
};

// The decode forms of all groups with their value transforms but rope, joined by ";"; a component whose text
// differs from an earlier one of its group by its name only is left out. "k codes=f16 op=q". The descriptor
// is valid.
std::string qualification_form(const Descriptor& descriptor);
// The record of the policy that covers this pair, or null. It covers it if recipes, lineage and both forms
// are equal (a recipe without an instruction set covers each), prompts were measured, both KLs are finite and
// not negative, and kl_pair <= kKlRatioMax * kl_engines.
const Qualification* find_qualification(const Descriptor& source, const Descriptor& target,
                                        const Policy& policy);

// Can a component of rows of `dim` elements cross from form `from` to form `to`, with `steps` between?
// unsupported, saying what is missing (tables: kv/encoding.h).
Status implemented(const DecodeForm& from, const DecodeForm& to, const std::vector<ValueStep>& steps,
                   std::uint32_t dim);
// Static scales under which each code of `from` is the same number's code in `to`: equal ones, or from
// e4m3fn to e4m3fnuz the doubled ones, as each of its codes is half as large. (Of e4m3fn's codes the two NaNs
// never cross, and -0 becomes 0.)
bool keeps_static_codes(const DecodeForm& from, const DecodeForm& to);
// True if every finite value of `from` is exactly a value of `to` after `steps`. Says nothing about whether
// it's implemented.
bool restores(const DecodeForm& from, const DecodeForm& to, const std::vector<ValueStep>& steps);

// Never fails: a descriptor that doesn't validate, or a schema major not known, is a reject that says so.
// Equal inputs give equal verdicts, whatever the order of the partition or the way a layout is written. The
// wire form is the source's: bytes are packed as they are, and conversion, where needed, runs once, at the
// consumer.
Verdict negotiate(const Descriptor& source, const Descriptor& target, const Policy& policy);

struct Prices;
// What `isthmus kv explain` prints: class, each difference with both values, wire form, where each step runs,
// bytes a token. With prices the wire form is that of choose(), and each step has its price; without, it is
// the verdict's, converted at the consumer.
std::string explain(const Descriptor& source, const Descriptor& target, const Policy& policy,
                    const Prices* prices = nullptr);

}  // namespace isthmus::kv
