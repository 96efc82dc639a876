// SPDX-License-Identifier: Apache-2.0
// Cuts what crosses into chunks (spec/wire-form.md §2, §3, §6).
#include "transform/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

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

// Cut points of one end's ranks, clipped to the group.
void add_cuts(Product::Group& cuts, const kv::Descriptor& descriptor, std::uint32_t group) {
  const std::uint32_t layers = cuts.layers.back(), heads = cuts.heads.back();
  const auto add = [](std::vector<std::uint32_t>& points, std::uint32_t at) {
    const auto place = std::lower_bound(points.begin(), points.end(), at);
    if (place == points.end() || *place != at) points.insert(place, at);
  };
  for (const kv::RankBox& box : descriptor.partition) {
    if (box.group != group) continue;
    for (const std::uint32_t at : {box.layer_begin, box.layer_end}) add(cuts.layers, std::min(at, layers));
    for (const std::uint32_t at : {box.head_begin, box.head_end}) add(cuts.heads, std::min(at, heads));
  }
}

Result<std::uint32_t> common_heads(const kv::LayerGroup& group, std::uint32_t index) {
  if (group.layers.empty() || group.components.empty()) {
    return Error{Code::kInvalidArgument, fmt::format("group {} has no layers or no components", index)};
  }
  const bool has_tokens = group.attention != kv::AttentionKind::kRecurrent;
  const kv::Component& first = group.components.front();
  for (const kv::Component& component : group.components) {
    if (component.heads > kHeadsMax || component.dim > kDimMax) {
      return Error{Code::kUnsupported,
                   fmt::format("group {}: component {} has {} heads of {} elements; at most {} of {}", index,
                               component.name, component.heads, component.dim, kHeadsMax, kDimMax)};
    }
    if (component.has_token_axis != has_tokens || component.heads != first.heads || component.heads == 0) {
      return Error{
          Code::kUnsupported,
          fmt::format("group {}: component {} has {} heads and {} token axis, {} has {} heads in a {} "
                      "group",
                      index, component.name, component.heads, component.has_token_axis ? "a" : "no",
                      first.name, first.heads, kv::name(group.attention))};
    }
  }
  return first.heads;
}

// Body bytes of one layer of `heads` heads and `tokens` tokens, each section padded.
std::uint64_t layer_bytes(const GroupParts& parts, std::uint64_t heads, std::uint64_t tokens) {
  std::uint64_t bytes = 0;
  for (const auto& component : parts) {
    for (const FormPart& part : component) bytes += align_up(heads * part.tile_bytes(tokens));
  }
  return bytes;
}

Error too_many_chunks() {
  return Error{Code::kExhausted,
               fmt::format("more than {} chunks; hand over a shorter token range", kChunksMax)};
}

// Tokens of the smallest range that is whole groups of every scale of both ends.
std::uint64_t common_granule(const kv::Descriptor& source, const kv::Descriptor& target) {
  std::uint64_t granule = 1;
  for (const kv::Descriptor* end : {&source, &target}) {
    for (const kv::GroupRepresentation& group : end->representation) {
      for (const kv::DecodeForm& form : group.forms)
        granule = std::lcm(granule, std::max<std::uint64_t>(form.granule_tokens, 1));
    }
  }
  return granule;
}

// A scale that spans tokens can't be cut: what moves begins where a token group begins.
Status check_token_groups(const kv::Descriptor& source, const kv::Descriptor& target, kv::TokenRange tokens) {
  const std::uint64_t whole = whole_groups_from(source, target, tokens.begin);
  for (const kv::Descriptor* end : {&source, &target}) {
    for (const kv::GroupRepresentation& group : end->representation) {
      for (const kv::DecodeForm& form : group.forms) {
        if (form.granule_tokens != 0 && tokens.begin % form.granule_tokens == 0) continue;
        return Error{
            Code::kInvalidArgument,
            fmt::format("tokens from {} on: \"{}\" shares a scale among {} tokens, which it is of; ask "
                        "for those from {} on, which writes that group anew, or from {} on",
                        tokens.begin, form.text(), form.granule_tokens, whole,
                        whole + common_granule(source, target))};
      }
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
  return check_token_groups(source, target, tokens);
}

void add_list(fmt::memory_buffer& text, const char* name, const std::vector<std::uint32_t>& values) {
  fmt::format_to(std::back_inserter(text), " {}", name);
  for (const std::uint32_t value : values) fmt::format_to(std::back_inserter(text), " {}", value);
}

}  // namespace

// Fills a plan step by step; friend of Plan, so that a finished plan has no setters.
class PlanBuilder {
 public:
  enum class Of : std::uint8_t { kWhole, kMember, kMembers };
  PlanBuilder(const kv::Descriptor& source, const kv::Descriptor& target, Of of = Of::kWhole,
              const Route& route = {})
      : source_(source), target_(target), of_(of), route_(route), members_(source, target) {}

  // Of kMembers, once built.
  std::vector<Route> routes() const { return {routes_.begin(), routes_.end()}; }

  Result<Plan> build(const kv::Verdict& verdict, kv::TokenRange tokens,
                     const std::optional<EndDigests>& digests) {
    plan_.wire_ = verdict.wire;
    plan_.tokens_ = tokens;
    for (std::uint32_t group = 0; group < source_.groups.size(); ++group) ISTHMUS_TRY(add_group(group));
    ISTHMUS_TRY(add_tiles());
    for (std::uint32_t group = 0; group < source_.groups.size(); ++group) ISTHMUS_TRY(cut_tokens(group));
    ISTHMUS_TRY(prove(plan_.product_, source_, target_, tokens));
    for (std::size_t tile = 0; tile < plan_.product_.tiles.size(); ++tile) ISTHMUS_TRY(place_tile(tile));
    const EndDigests ends = digests ? *digests : EndDigests{source_.digest(), target_.digest()};
    plan_.digest_ = digest_of(ends);
    return std::move(plan_);
  }

 private:
  // Tiles of one shape are cut alike.
  struct Shape {
    std::vector<std::uint64_t> tokens;    // By group.
    std::vector<std::uint32_t> patterns;  // By group.
    std::vector<std::uint32_t> holders;   // Unless all is wanted: which boxes have each token cut.
    friend auto operator<=>(const Shape&, const Shape&) = default;
  };

  Status add_group(std::uint32_t index) {
    const kv::LayerGroup& group = source_.groups[index];
    const std::vector<kv::WireComponent>& wire = plan_.wire_.groups[index];
    ISTHMUS_TRY(const std::uint32_t heads, common_heads(group, index));
    if (wire.size() != group.components.size()) {
      return Error{Code::kInvalidArgument, fmt::format("group {}: {} wire forms for {} components", index,
                                                       wire.size(), group.components.size())};
    }
    GroupParts& parts = parts_.emplace_back();
    for (std::size_t component = 0; component < wire.size(); ++component) {
      ISTHMUS_TRY(auto form, form_parts(wire[component].form, group.components[component].dim));
      parts.push_back(std::move(form));
    }
    Product::Group& cuts = plan_.product_.groups.emplace_back();
    cuts.layers = {0, static_cast<std::uint32_t>(group.layers.size())};
    cuts.heads = {0, heads};
    cuts.token_begin = token_begin_of(source_, target_, index, plan_.tokens_);
    add_cuts(cuts, source_, index);
    add_cuts(cuts, target_, index);
    plan_.group_layers_.push_back(group.layers);
    return ok_status();
  }

  // Bounded before the list is made: each tile has at least a chunk a piece of a group that isn't a window.
  Status add_tiles() {
    const kv::TokenRange tokens = plan_.tokens_;
    const std::uint64_t tiles = (tokens.end - 1) / kTileTokens - tokens.begin / kTileTokens + 1;
    if (tiles > kChunksMax) return too_many_chunks();
    plan_.product_.tiles.reserve(tiles);
    for (std::uint64_t at = tokens.begin; at < tokens.end;) {
      const std::uint64_t end = std::min((at / kTileTokens + 1) * kTileTokens, tokens.end);
      plan_.product_.tiles.push_back({at, end});
      at = end;
    }
    return ok_status();
  }

  Status cut_tokens(std::uint32_t index) {
    std::vector<kv::RankBox> stripes = stripes_of(source_, target_, index);
    if (stripes.empty()) return ok_status();
    Product::Group& group = plan_.product_.groups[index];
    TokenCutter cutter(std::move(stripes));
    std::map<TokenPattern, std::uint32_t> known;
    std::uint64_t cuts = 0;
    for (const kv::TokenRange& tile : plan_.product_.tiles) {
      const kv::TokenRange tokens = Product::tokens_of(group, tile);
      ISTHMUS_TRY(TokenPattern pattern, cutter.cut(tokens));
      cuts += pattern.size();
      if (cuts > kChunksMax) return too_many_chunks();
      const auto [at, is_new] = known.try_emplace(pattern, static_cast<std::uint32_t>(group.patterns.size()));
      if (is_new) group.patterns.push_back(std::move(pattern));
      group.tile_patterns.push_back(at->second);
    }
    return ok_status();
  }

  // Token tiles are outermost, so that what the producer has finished is always the first chunks.
  Status place_tile(std::size_t index) {
    const kv::TokenRange tile = plan_.product_.tiles[index];
    Shape shape;
    for (const Product::Group& group : plan_.product_.groups) {
      shape.tokens.push_back(Product::tokens_of(group, tile).size());
      shape.patterns.push_back(group.patterns.empty() ? 0 : group.tile_patterns[index]);
    }
    if (of_ != Of::kWhole) shape.holders = holders_of(tile, shape);
    const auto [at, is_new] =
        known_classes_.try_emplace(std::move(shape), static_cast<std::uint32_t>(plan_.classes_.size()));
    if (is_new) ISTHMUS_TRY(add_class(at->first, tile));
    const Plan::TileClass& tile_class = plan_.classes_[at->second];
    if (tile_class.chunks > kChunksMax - plan_.chunk_count_) return too_many_chunks();
    plan_.tiles_.push_back({tile, plan_.chunk_count_, at->second});
    plan_.chunk_count_ += tile_class.chunks;
    plan_.total_bytes_ += tile_class.bytes;
    return ok_status();
  }

  // Where ranks deal out positions, tiles that are cut alike may lie on other ranks.
  std::vector<std::uint32_t> holders_of(const kv::TokenRange& tile, const Shape& shape) const {
    constexpr std::uint32_t kNext = 0xffffffffu;
    std::vector<std::uint32_t> holders;
    for (std::uint32_t g = 0; g < plan_.product_.groups.size(); ++g) {
      const Product::Group& group = plan_.product_.groups[g];
      if (group.patterns.empty()) continue;
      for (const TokenCut& cut : group.patterns[shape.patterns[g]]) {
        const std::uint64_t position = Product::tokens_of(group, tile).begin + cut.runs.front().begin;
        for (const kv::Descriptor* end : {&source_, &target_}) {
          for (std::uint32_t i = 0; i < end->partition.size(); ++i) {
            if (end->partition[i].group == g && end->partition[i].has_token(position)) holders.push_back(i);
          }
          holders.push_back(kNext);
        }
      }
    }
    return holders;
  }

  Status add_class(const Shape& shape, const kv::TokenRange& tile) {
    Plan::TileClass made;
    made.tokens = shape.tokens;
    made.patterns = shape.patterns;
    for (std::uint32_t g = 0; g < plan_.product_.groups.size(); ++g) {
      if (shape.tokens[g] == 0) continue;
      const Product::Group& cuts = plan_.product_.groups[g];
      const std::uint64_t begin = Product::tokens_of(cuts, tile).begin;
      if (cuts.patterns.empty()) {
        ISTHMUS_TRY(add_pieces(made, g, {.runs = {{0, shape.tokens[g]}}}, begin));
      } else {
        for (const TokenCut& cut : cuts.patterns[shape.patterns[g]])
          ISTHMUS_TRY(add_pieces(made, g, cut, begin));
      }
    }
    plan_.classes_.push_back(std::move(made));
    return ok_status();
  }

  // `begin`: the group's first token of the tile.
  Status add_pieces(Plan::TileClass& tile, std::uint32_t group, const TokenCut& cut, std::uint64_t begin) {
    const Product::Group& cuts = plan_.product_.groups[group];
    Plan::Tokens tokens{.first = cut.runs.front().begin,
                        .count = cut.tokens(),
                        .end = cut.runs.back().end,
                        .runs = cut.runs,
                        .is_tile = cut.runs.front() == kv::TokenRange{0, tile.tokens[group]}};
    for (kv::TokenRange& run : tokens.runs) run = {run.begin - tokens.first, run.end - tokens.first};
    const auto index = static_cast<std::uint32_t>(plan_.tokens_of_pieces_.size());
    plan_.tokens_of_pieces_.push_back(std::move(tokens));
    for (std::size_t l = 0; l + 1 < cuts.layers.size(); ++l) {
      for (std::size_t h = 0; h + 1 < cuts.heads.size(); ++h) {
        if (!is_wanted({group, cuts.layers[l], cuts.heads[h], begin + cut.runs.front().begin})) continue;
        ISTHMUS_TRY(add_piece(tile, {.group = group,
                                     .tokens = index,
                                     .layer_begin = cuts.layers[l],
                                     .layer_end = cuts.layers[l + 1],
                                     .head_begin = cuts.heads[h],
                                     .head_end = cuts.heads[h + 1]}));
      }
    }
    return ok_status();
  }

  bool is_wanted(const Place& place) {
    if (of_ == Of::kMember) return members_.reads(route_, place);
    if (of_ == Of::kMembers) {
      for (const Route& route : members_.routes(place)) routes_.insert(route);
    }
    return of_ == Of::kWhole;
  }

  // Heads are innermost: a source whose rows hold all heads is read in order.
  Status add_piece(Plan::TileClass& tile, Plan::Piece piece) {
    const std::uint64_t tokens = plan_.tokens_of_pieces_[piece.tokens].count;
    const std::uint32_t layers = piece.layer_end - piece.layer_begin;
    const std::uint32_t heads = piece.head_end - piece.head_begin;
    const auto fitting = [](std::uint64_t one, std::uint32_t of) {
      return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(kChunkBytesMax / one, 1, of));
    };
    const GroupParts& parts = parts_[piece.group];
    piece.layers = fitting(layer_bytes(parts, heads, tokens), layers);
    piece.heads = piece.layers > 1 ? heads : fitting(layer_bytes(parts, 1, tokens), heads);
    piece.head_chunks = (heads + piece.heads - 1) / piece.heads;
    piece.first_chunk = tile.chunks;
    const std::uint64_t layer_chunks = (layers + piece.layers - 1) / piece.layers;
    if (layer_chunks * piece.head_chunks > kChunksMax - tile.chunks) return too_many_chunks();
    tile.chunks += static_cast<std::uint32_t>(layer_chunks * piece.head_chunks);
    const std::uint32_t rest = heads - (piece.head_chunks - 1) * piece.heads;
    piece.whole = sections_of(piece, piece.heads, tokens);
    piece.rest = sections_of(piece, rest, tokens);
    const std::uint64_t whole_bytes = plan_.sections_[piece.whole].layer_bytes;
    tile.bytes += layers * (whole_bytes * (piece.head_chunks - 1) + plan_.sections_[piece.rest].layer_bytes);
    plan_.body_bytes_max_ = std::max(plan_.body_bytes_max_, piece.layers * whole_bytes);
    tile.pieces.push_back(piece);
    return ok_status();
  }

  // Shared by all pieces and tiles of that many heads and tokens.
  std::uint32_t sections_of(const Plan::Piece& piece, std::uint32_t heads, std::uint64_t tokens) {
    const auto [at, is_new] = known_sections_.try_emplace({piece.group, heads, tokens},
                                                          static_cast<std::uint32_t>(plan_.sections_.size()));
    const std::uint32_t index = at->second;
    if (is_new) {
      Plan::Sections made;
      made.group = piece.group;
      made.heads = heads;
      made.tokens = tokens;
      made.layer_bytes = layer_bytes(parts_[piece.group], heads, tokens);
      for (const auto& component : parts_[piece.group])
        made.parts += static_cast<std::uint32_t>(component.size());
      plan_.sections_.push_back(std::move(made));
    }
    Plan::Sections& sections = plan_.sections_[index];
    sections.list.reserve(std::size_t{piece.layers} * sections.parts);
    for (; sections.layers < piece.layers; ++sections.layers) add_layer(sections);
    return index;
  }

  void add_layer(Plan::Sections& sections) const {
    std::uint64_t offset = sections.layers * sections.layer_bytes;
    const GroupParts& parts = parts_[sections.group];
    for (std::uint32_t component = 0; component < parts.size(); ++component) {
      for (const FormPart& part : parts[component]) {
        const std::uint64_t head_bytes = part.tile_bytes(sections.tokens);
        sections.list.push_back({.layer = sections.layers,
                                 .component = component,
                                 .part = part.part,
                                 .format = part.format,
                                 .units = part.units,
                                 .offset = offset,
                                 .head_bytes = head_bytes,
                                 .bytes = sections.heads * head_bytes});
        offset += align_up(sections.heads * head_bytes);
      }
    }
  }

  // Byte recipe: spec/wire-form.md §6.
  Digest128 digest_of(const EndDigests& ends) const {
    fmt::memory_buffer text;
    const auto out = std::back_inserter(text);
    fmt::format_to(out, "isthmus-plan 2\nwire\n{}tokens {} {}\nsource {}\ntarget {}\n", plan_.wire_.text(),
                   plan_.tokens_.begin, plan_.tokens_.end, ends.source.hex(), ends.target.hex());
    if (of_ == Of::kMember) fmt::format_to(out, "route {} {}\n", route_.source_rank, route_.target_rank);
    for (std::size_t g = 0; g < plan_.product_.groups.size(); ++g) {
      const Product::Group& group = plan_.product_.groups[g];
      fmt::format_to(out, "group {} from {}", g, group.token_begin);
      add_list(text, "layers", group.layers);
      add_list(text, "heads", group.heads);
      text.push_back('\n');
    }
    for (const Plan::Tile& tile : plan_.tiles_)
      fmt::format_to(out, "tile {} {} {}\n", tile.tokens.begin, tile.tokens.end, tile.first_chunk);
    for (const Plan::TileClass& tile : plan_.classes_) {
      for (const Plan::Piece& piece : tile.pieces) {
        const Plan::Tokens& tokens = plan_.tokens_of_pieces_[piece.tokens];
        fmt::format_to(out, "piece {} {} {} {} {} {} {} {} {}", tokens.count, piece.group, piece.layer_begin,
                       piece.layer_end, piece.head_begin, piece.head_end, piece.layers, piece.heads,
                       piece.layers * plan_.sections_[piece.whole].layer_bytes);
        if (!tokens.is_tile) {
          fmt::format_to(out, " runs");
          for (const kv::TokenRange& run : tokens.runs)
            fmt::format_to(out, " {} {}", tokens.first + run.begin, tokens.first + run.end);
        }
        text.push_back('\n');
      }
    }
    return digest128(std::string_view(text.data(), text.size()));
  }

  const kv::Descriptor& source_;
  const kv::Descriptor& target_;
  const Of of_;
  const Route route_;
  Members members_;
  std::set<Route> routes_;
  Plan plan_;
  std::vector<GroupParts> parts_;
  std::map<Shape, std::uint32_t> known_classes_;
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint64_t>, std::uint32_t> known_sections_;
};

std::uint64_t whole_groups_from(const kv::Descriptor& source, const kv::Descriptor& target,
                                std::uint64_t position) {
  return position - position % common_granule(source, target);
}

std::uint64_t Chunk::tile_count() const {
  return sections.size() * std::uint64_t{box.head_end - box.head_begin};
}

Result<Plan> Plan::make(const kv::Descriptor& source, const kv::Descriptor& target,
                        const kv::Verdict& verdict, kv::TokenRange tokens,
                        const std::optional<EndDigests>& digests) {
  ISTHMUS_TRY(check_inputs(source, target, verdict, tokens));
  return PlanBuilder(source, target).build(verdict, tokens, digests);
}

Result<Plan> Plan::make_member(const kv::Descriptor& source, const kv::Descriptor& target,
                               const kv::Verdict& verdict, kv::TokenRange tokens, const Route& route,
                               const std::optional<EndDigests>& digests) {
  if (!has_rank(source, route.source_rank) || !has_rank(target, route.target_rank)) {
    return Error{Code::kInvalidArgument, fmt::format("source rank {} or target rank {} isn't there",
                                                     route.source_rank, route.target_rank)};
  }
  if (!is_split(source) && !is_split(target)) return make(source, target, verdict, tokens, digests);
  ISTHMUS_TRY(check_inputs(source, target, verdict, tokens));
  return PlanBuilder(source, target, PlanBuilder::Of::kMember, route).build(verdict, tokens, digests);
}

Result<std::vector<Route>> Plan::members(const kv::Descriptor& source, const kv::Descriptor& target,
                                         const kv::Verdict& verdict, kv::TokenRange tokens) {
  ISTHMUS_TRY(check_inputs(source, target, verdict, tokens));
  PlanBuilder builder(source, target, PlanBuilder::Of::kMembers);
  ISTHMUS_TRY(const Plan none, builder.build(verdict, tokens, EndDigests{}));
  return builder.routes();
}

Chunk Plan::chunk(std::uint32_t index) const {
  ISTHMUS_CHECK(index < chunk_count_);
  const auto after = [](std::uint32_t at, const auto& one) { return at < one.first_chunk; };
  const Tile& tile = *(std::upper_bound(tiles_.begin(), tiles_.end(), index, after) - 1);
  const TileClass& cuts = classes_[tile.tile_class];
  const std::uint32_t in_tile = index - tile.first_chunk;
  const Piece& piece = *(std::upper_bound(cuts.pieces.begin(), cuts.pieces.end(), in_tile, after) - 1);
  const std::uint32_t layer_run = (in_tile - piece.first_chunk) / piece.head_chunks;
  const std::uint32_t head_run = (in_tile - piece.first_chunk) % piece.head_chunks;
  const Sections& sections = sections_[head_run + 1 == piece.head_chunks ? piece.rest : piece.whole];
  Chunk chunk;
  chunk.index = index;
  chunk.group = piece.group;
  chunk.box.layer_begin = piece.layer_begin + layer_run * piece.layers;
  chunk.box.layer_end = std::min(chunk.box.layer_begin + piece.layers, piece.layer_end);
  chunk.box.head_begin = piece.head_begin + head_run * piece.heads;
  chunk.box.head_end = chunk.box.head_begin + sections.heads;
  const Tokens& tokens = tokens_of_pieces_[piece.tokens];
  const std::uint64_t first = tile.tokens.end - cuts.tokens[piece.group];
  chunk.box.tokens = {first + tokens.first, first + tokens.end};
  chunk.runs = tokens.runs;
  chunk.token_count = tokens.count;
  const std::uint32_t layers = chunk.box.layer_end - chunk.box.layer_begin;
  chunk.sections = std::span(sections.list).first(std::size_t{layers} * sections.parts);
  chunk.body_bytes = layers * sections.layer_bytes;
  return chunk;
}

std::uint32_t Plan::chunk_layers_max(std::uint32_t group) const {
  std::uint32_t layers = 0;
  for (const Sections& sections : sections_) {
    if (sections.group == group) layers = std::max(layers, sections.layers);
  }
  return layers;
}

std::uint32_t Plan::chunks_below(std::uint64_t watermark) const {
  const auto first_above = std::partition_point(
      tiles_.begin(), tiles_.end(), [&](const Tile& tile) { return tile.tokens.end <= watermark; });
  return first_above == tiles_.end() ? chunk_count_ : first_above->first_chunk;
}

TileKey Plan::tile_key(const Chunk& chunk, std::uint64_t i) const {
  ISTHMUS_CHECK(i < chunk.tile_count());
  const std::uint64_t heads = chunk.box.head_end - chunk.box.head_begin;
  const Section& section = chunk.sections[i / heads];
  return {chunk.group, group_layers_.at(chunk.group).at(chunk.box.layer_begin + section.layer), section.part,
          chunk.box.head_begin + static_cast<std::uint32_t>(i % heads), chunk.box.tokens};
}

std::string Plan::tile_text(const Chunk& chunk, std::uint64_t i) const {
  const TileKey key = tile_key(chunk, i);
  return fmt::format("group {}, layer {}, part {}, head {}, tokens [{}, {})", key.group, key.layer, key.part,
                     key.head, key.tokens.begin, key.tokens.end);
}

Status Plan::check_chunk(const Chunk& chunk) const {
  if (chunk.index < chunk_count_) {
    const Chunk own = this->chunk(chunk.index);
    if (own.group == chunk.group && own.box == chunk.box && own.body_bytes == chunk.body_bytes &&
        own.sections.size() == chunk.sections.size() &&
        (own.sections.data() == chunk.sections.data() ||
         std::equal(own.sections.begin(), own.sections.end(), chunk.sections.begin()))) {
      return ok_status();
    }
  }
  return Error{Code::kInvalidArgument, fmt::format("chunk {} isn't one of this plan's", chunk.index)};
}

}  // namespace isthmus::transform
