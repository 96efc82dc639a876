// SPDX-License-Identifier: Apache-2.0
// Cuts what crosses into chunks (spec/wire-form.md §2, §3, §6).
#include "transform/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/bytes.h"
#include "transform/form_parts.h"

namespace isthmus::transform {
namespace {

// No model has more; they keep every product below 2^64 whatever a peer's descriptor says.
constexpr std::uint32_t kHeadsMax = 1u << 16;
constexpr std::uint32_t kDimMax = 1u << 20;

constexpr std::uint64_t align_up(std::uint64_t bytes) {
  return (bytes + kSectionAlign - 1) / kSectionAlign * kSectionAlign;
}

using GroupParts = std::vector<std::vector<FormPart>>;  // By component.

// One group with what its chunks are cut by.
struct GroupCuts {
  std::uint32_t group = 0;
  GroupParts parts;
  std::vector<std::uint32_t> layers, heads;  // Ascending cut points, both ends included.
};

void sort_unique(std::vector<std::uint32_t>& values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
}

// Cut points from one end's partition, clipped to the group.
void add_cuts(GroupCuts& cuts, const kv::Descriptor& descriptor) {
  const std::uint32_t layers = cuts.layers.back(), heads = cuts.heads.back();
  std::vector<std::uint32_t> layer_cuts = cuts.layers, head_cuts = cuts.heads;
  for (const kv::RankBox& box : descriptor.partition) {
    if (box.group != cuts.group) continue;
    for (const std::uint32_t at : {box.layer_begin, box.layer_end})
      layer_cuts.push_back(std::min(at, layers));
    for (const std::uint32_t at : {box.head_begin, box.head_end}) head_cuts.push_back(std::min(at, heads));
  }
  sort_unique(layer_cuts);
  sort_unique(head_cuts);
  cuts.layers = std::move(layer_cuts);
  cuts.heads = std::move(head_cuts);
}

Result<std::uint32_t> common_heads(const kv::LayerGroup& group, std::uint32_t index) {
  if (group.layers.empty() || group.components.empty()) {
    return Error{Code::kInvalidArgument, fmt::format("group {} has no layers or no components", index)};
  }
  if (group.attention != kv::AttentionKind::kFull) {
    return Error{Code::kUnsupported,
                 fmt::format("group {} isn't full attention; recompute its state", index)};
  }
  const kv::Component& first = group.components.front();
  for (const kv::Component& component : group.components) {
    if (component.heads > kHeadsMax || component.dim > kDimMax) {
      return Error{Code::kUnsupported,
                   fmt::format("group {}: component {} has {} heads of {} elements; at most {} of {}", index,
                               component.name, component.heads, component.dim, kHeadsMax, kDimMax)};
    }
    if (!component.has_token_axis || component.heads != first.heads || component.heads == 0) {
      return Error{
          Code::kUnsupported,
          fmt::format("group {}: component {} has {} heads{}, {} has {}; all need the same heads and a "
                      "token axis",
                      index, component.name, component.heads,
                      component.has_token_axis ? "" : " and no token axis", first.name, first.heads)};
    }
  }
  return first.heads;
}

Result<GroupCuts> cut_group(std::uint32_t index, const kv::LayerGroup& group,
                            const std::vector<kv::WireComponent>& wire) {
  GroupCuts cuts;
  cuts.group = index;
  ISTHMUS_TRY(const std::uint32_t heads, common_heads(group, index));
  if (wire.size() != group.components.size()) {
    return Error{Code::kInvalidArgument, fmt::format("group {}: {} wire forms for {} components", index,
                                                     wire.size(), group.components.size())};
  }
  for (std::size_t component = 0; component < wire.size(); ++component) {
    ISTHMUS_TRY(auto parts, form_parts(wire[component].form, group.components[component].dim));
    cuts.parts.push_back(std::move(parts));
  }
  cuts.layers = {0, static_cast<std::uint32_t>(group.layers.size())};
  cuts.heads = {0, heads};
  return cuts;
}

// Body bytes of one layer of `heads` heads and `tokens` tokens, each section padded.
std::uint64_t layer_bytes(const GroupParts& parts, std::uint64_t heads, std::uint64_t tokens) {
  std::uint64_t bytes = 0;
  for (const auto& component : parts) {
    for (const FormPart& part : component) bytes += align_up(heads * part.tile_bytes(tokens));
  }
  return bytes;
}

void fill_sections(Chunk& chunk, const GroupParts& parts) {
  const std::uint64_t heads = chunk.box.head_end - chunk.box.head_begin;
  const std::uint64_t tokens = chunk.box.tokens.size();
  std::uint64_t offset = 0;
  for (std::uint32_t layer = chunk.box.layer_begin; layer < chunk.box.layer_end; ++layer) {
    for (std::uint32_t component = 0; component < parts.size(); ++component) {
      for (const FormPart& part : parts[component]) {
        const std::uint64_t head_bytes = part.tile_bytes(tokens);
        chunk.sections.push_back({.layer = layer,
                                  .component = component,
                                  .part = part.part,
                                  .format = part.format,
                                  .units = part.units,
                                  .offset = offset,
                                  .head_bytes = head_bytes,
                                  .bytes = heads * head_bytes});
        offset += align_up(heads * head_bytes);
      }
    }
  }
  chunk.body_bytes = offset;
}

Error too_many_chunks() {
  return Error{Code::kExhausted,
               fmt::format("more than {} chunks; hand over a shorter token range", kChunksMax)};
}

// One layer piece, head piece and token tile. Heads are innermost: a source whose rows hold all heads is read
// in order.
Status cut_piece(const GroupCuts& cuts, const kv::Box& piece, std::vector<Chunk>& chunks) {
  const std::uint32_t heads = piece.head_end - piece.head_begin;
  const auto fitting = [](std::uint64_t one, std::uint32_t of) {
    return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(kChunkBytesMax / one, 1, of));
  };
  const std::uint32_t layer_run =
      fitting(layer_bytes(cuts.parts, heads, piece.tokens.size()), piece.layer_end - piece.layer_begin);
  const std::uint32_t head_run =
      layer_run > 1 ? heads : fitting(layer_bytes(cuts.parts, 1, piece.tokens.size()), heads);
  for (std::uint32_t layer = piece.layer_begin; layer < piece.layer_end; layer += layer_run) {
    for (std::uint32_t head = piece.head_begin; head < piece.head_end; head += head_run) {
      if (chunks.size() == kChunksMax) return too_many_chunks();
      Chunk chunk;
      chunk.index = static_cast<std::uint32_t>(chunks.size());
      chunk.group = cuts.group;
      chunk.box = {layer, std::min(layer + layer_run, piece.layer_end), head,
                   std::min(head + head_run, piece.head_end), piece.tokens};
      fill_sections(chunk, cuts.parts);
      chunks.push_back(std::move(chunk));
    }
  }
  return ok_status();
}

// Appends the chunks of one group and one token tile.
Status cut_tile(const GroupCuts& cuts, kv::TokenRange tokens, std::vector<Chunk>& chunks) {
  for (std::size_t l = 0; l + 1 < cuts.layers.size(); ++l) {
    for (std::size_t h = 0; h + 1 < cuts.heads.size(); ++h) {
      const kv::Box piece{cuts.layers[l], cuts.layers[l + 1], cuts.heads[h], cuts.heads[h + 1], tokens};
      ISTHMUS_TRY(cut_piece(cuts, piece, chunks));
    }
  }
  return ok_status();
}

Status check_inputs(const kv::Descriptor& source, const kv::Descriptor& target, const kv::Verdict& verdict,
                    kv::TokenRange tokens) {
  if (verdict.kind == kv::VerdictKind::kReject) {
    const std::string why = verdict.rejects.empty() ? "no reason given" : verdict.rejects.front().text;
    return Error{Code::kIncompatible, fmt::format("the verdict rejects this pair ({} reasons, first: {})",
                                                  verdict.rejects.size(), why)};
  }
  if (tokens.begin >= tokens.end || tokens.end > kPositionMax) {
    return Error{Code::kInvalidArgument, fmt::format("token range [{}, {}) is empty or ends beyond {}",
                                                     tokens.begin, tokens.end, kPositionMax)};
  }
  if (source.groups.size() != target.groups.size() || verdict.wire.groups.size() != source.groups.size()) {
    return Error{Code::kInvalidArgument,
                 fmt::format("source has {} layer groups, target {}, wire form {}", source.groups.size(),
                             target.groups.size(), verdict.wire.groups.size())};
  }
  return ok_status();
}

// A scale that spans tokens can't be cut: what moves begins where a token group begins.
Status check_token_groups(const kv::Descriptor& descriptor, kv::TokenRange tokens) {
  for (const kv::GroupRepresentation& group : descriptor.representation) {
    for (const kv::DecodeForm& form : group.forms) {
      if (form.granule_tokens != 0 && tokens.begin % form.granule_tokens == 0) continue;
      return Error{
          Code::kInvalidArgument,
          fmt::format("tokens from {} on: \"{}\" shares a scale among {} tokens; begin at a multiple",
                      tokens.begin, form.text(), form.granule_tokens)};
    }
  }
  return ok_status();
}

// Byte recipe: spec/wire-form.md §6.
Digest128 plan_digest(const Plan& plan, Digest128 source, Digest128 target) {
  DigestStream stream;
  const auto add = [&stream](std::string_view line) { stream.add(bytes_of(line)); };
  add("isthmus-plan 1\n");
  add("wire\n");
  add(plan.wire().text());
  add(fmt::format("tokens {} {}\n", plan.tokens().begin, plan.tokens().end));
  add(fmt::format("source {}\n", source.hex()));
  add(fmt::format("target {}\n", target.hex()));
  fmt::memory_buffer line;
  for (const Chunk& chunk : plan.chunks()) {
    line.clear();
    const kv::Box& box = chunk.box;
    fmt::format_to(std::back_inserter(line), "chunk {} {} {} {} {} {} {} {} {}\n", chunk.index, chunk.group,
                   box.layer_begin, box.layer_end, box.head_begin, box.head_end, box.tokens.begin,
                   box.tokens.end, chunk.body_bytes);
    add({line.data(), line.size()});
  }
  return stream.finish();
}

}  // namespace

std::uint64_t Chunk::tile_count() const {
  return sections.size() * std::uint64_t{box.head_end - box.head_begin};
}

Result<Plan> Plan::make(const kv::Descriptor& source, const kv::Descriptor& target,
                        const kv::Verdict& verdict, kv::TokenRange tokens,
                        const std::optional<EndDigests>& digests) {
  ISTHMUS_TRY(check_inputs(source, target, verdict, tokens));
  for (const kv::Descriptor* end : {&source, &target}) ISTHMUS_TRY(check_token_groups(*end, tokens));
  Plan plan;
  plan.wire_ = verdict.wire;
  plan.tokens_ = tokens;
  std::vector<GroupCuts> groups;
  for (std::uint32_t index = 0; index < source.groups.size(); ++index) {
    ISTHMUS_TRY(GroupCuts cuts, cut_group(index, source.groups[index], verdict.wire.groups[index]));
    add_cuts(cuts, source);
    add_cuts(cuts, target);
    groups.push_back(std::move(cuts));
    plan.group_layers_.push_back(source.groups[index].layers);
  }
  const std::uint64_t tiles = (tokens.end - 1) / kTileTokens - tokens.begin / kTileTokens + 1;
  if (tiles * groups.size() > kChunksMax) return too_many_chunks();
  // Token tiles are outermost, so that what the producer has finished is always a prefix of the list.
  for (std::uint64_t at = tokens.begin; at < tokens.end;) {
    const std::uint64_t end = std::min((at / kTileTokens + 1) * kTileTokens, tokens.end);
    for (const GroupCuts& cuts : groups) ISTHMUS_TRY(cut_tile(cuts, {at, end}, plan.chunks_));
    at = end;
  }
  ISTHMUS_TRY(prove(plan.chunks_, source, target, tokens));
  const EndDigests ends = digests ? *digests : EndDigests{source.digest(), target.digest()};
  plan.digest_ = plan_digest(plan, ends.source, ends.target);
  return plan;
}

std::uint64_t Plan::total_bytes() const {
  std::uint64_t bytes = 0;
  for (const Chunk& chunk : chunks_) bytes += chunk.body_bytes;
  return bytes;
}

std::uint64_t Plan::body_bytes_max() const {
  std::uint64_t bytes = 0;
  for (const Chunk& chunk : chunks_) bytes = std::max(bytes, chunk.body_bytes);
  return bytes;
}

std::uint32_t Plan::chunks_below(std::uint64_t watermark) const {
  const auto first_above = std::partition_point(
      chunks_.begin(), chunks_.end(), [&](const Chunk& chunk) { return chunk.box.tokens.end <= watermark; });
  return static_cast<std::uint32_t>(first_above - chunks_.begin());
}

TileKey Plan::tile_key(const Chunk& chunk, std::uint64_t i) const {
  ISTHMUS_CHECK(i < chunk.tile_count());
  const std::uint64_t heads = chunk.box.head_end - chunk.box.head_begin;
  const Section& section = chunk.sections[i / heads];
  return {chunk.group, group_layers_.at(chunk.group).at(section.layer), section.part,
          chunk.box.head_begin + static_cast<std::uint32_t>(i % heads), chunk.box.tokens};
}

std::string Plan::tile_text(const Chunk& chunk, std::uint64_t i) const {
  const TileKey key = tile_key(chunk, i);
  return fmt::format("group {}, layer {}, part {}, head {}, tokens [{}, {})", key.group, key.layer, key.part,
                     key.head, key.tokens.begin, key.tokens.end);
}

Status Plan::check_chunk(const Chunk& chunk) const {
  if (chunk.index < chunks_.size()) {
    const Chunk& own = chunks_[chunk.index];
    if (&own == &chunk) return ok_status();
    if (own.group == chunk.group && own.box == chunk.box && own.body_bytes == chunk.body_bytes &&
        own.sections == chunk.sections) {
      return ok_status();
    }
  }
  return Error{Code::kInvalidArgument, fmt::format("chunk {} isn't one of this plan's", chunk.index)};
}

}  // namespace isthmus::transform
