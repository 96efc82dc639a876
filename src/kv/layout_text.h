// SPDX-License-Identifier: Apache-2.0
// The layout notation as a tree, before any extent is known to matter. Private to kv/layout.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "kv/layout.h"

namespace isthmus::kv {

// The notation's axes; kHeadDim is `hd` = head·D + dim and never leaves the layout component.
enum class TextAxis : std::uint8_t { kLayer, kBlock, kSlot, kToken, kHead, kDim, kHeadDim };
std::string_view name(TextAxis axis);
// True if the word is an axis of the notation, hence no component's name.
bool is_axis(std::string_view word);

struct Factor {
  TextAxis axis = TextAxis::kDim;
  bool descending = false;                    // ~
  std::uint64_t div = 1;                      // /N
  std::optional<std::uint64_t> mod;           // %N
  std::optional<std::uint64_t> stride_bytes;  // @N
  // "~dim/2%8", as in errors.
  std::string text() const;
};

struct Leaf {
  std::string component;
  std::string part;  // component, component.s or component.z
  Format format = Format::kF16;
};

struct Node;

enum class MemberKind : std::uint8_t { kNode, kPad, kAlign };

struct Member {
  MemberKind kind = MemberKind::kNode;
  std::uint64_t bytes = 0;  // Of kPad and kAlign.
  std::vector<Node> node;   // One, if kNode.
};

// factors, then a leaf (no members) or a group.
struct Node {
  std::vector<Factor> factors;
  std::optional<Leaf> leaf;
  std::vector<Member> members;
};

struct RegionText {
  std::string name;
  bool per_layer = false;
  Node node;
};

// Bounds of what a peer may send; far above what any known storage needs.
inline constexpr std::size_t kLayoutTextMax = 4096;
inline constexpr std::uint32_t kLayoutDepthMax = 8;
inline constexpr std::uint32_t kLayoutFactorsMax = 32;  // In front of one leaf or group.
inline constexpr std::uint32_t kLayoutRegionsMax = 16;
inline constexpr std::uint32_t kLayoutMembersMax = 32;  // Of one group.
inline constexpr std::uint32_t kLayoutPartsMax = 32;    // Of the text: 8 components have 24.

// Work that a text may cost, in steps: a step looks at one character, or begins one word, number, node or
// member. A budget instead of trust in the grammar: no text takes time beyond its length.
inline constexpr std::uint64_t kLayoutStepsPerByte = 16;

struct LayoutText {
  std::vector<RegionText> regions;
  std::uint64_t steps = 0;  // At most kLayoutStepsPerByte · (size of the text + 1).
};

// Errors: invalid_argument naming line and column, unsupported for a number format.
Result<LayoutText> parse_layout_text(std::string_view text,
                                     const std::map<std::string, std::uint64_t>& parameters);

}  // namespace isthmus::kv
