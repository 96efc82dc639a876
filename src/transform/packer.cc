// SPDX-License-Identifier: Apache-2.0
// Source memory -> wire body: redistribute, convert where the wire form differs, digest, one head's tile at a
// time.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "transform/chunk_access.h"
#include "transform/convert.h"
#include "transform/program.h"
#include "transform/scratch.h"

namespace isthmus::transform {
namespace {

struct PackStep {
  std::size_t wire_parts = 0;
  std::optional<RowConverter> converter;  // Empty: the source's form crosses as it is.
};

}  // namespace

struct Packer::State {
  std::shared_ptr<const Plan> plan;
  ChunkAccess access;
  std::vector<std::vector<PackStep>> steps;  // [group][component].
  TileScratch scratch;                       // Source form.
  ConversionCounts counts;

  Status pack_component(const Chunk& chunk, std::size_t section, std::uint32_t component,
                        std::span<std::byte> body, std::span<Digest128> tiles);
};

Packer::Packer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Packer::~Packer() = default;
Packer::Packer(Packer&&) noexcept = default;
Packer& Packer::operator=(Packer&&) noexcept = default;

Result<Packer> Packer::make(std::shared_ptr<const Plan> plan, const kv::Descriptor& source,
                            std::uint32_t rank) {
  ISTHMUS_TRY(ChunkAccess access, ChunkAccess::make(*plan, source, rank));
  auto state = std::make_unique<State>(State{std::move(plan), std::move(access), {}, {}, {}});
  for (std::uint32_t group = 0; group < source.groups.size(); ++group) {
    std::vector<PackStep>& steps = state->steps.emplace_back();
    const std::vector<ComponentStorage>& components = state->access.components(group);
    for (std::size_t c = 0; c < components.size(); ++c) {
      const kv::WireComponent& wire = state->plan->wire().groups[group].at(c);
      PackStep& step = steps.emplace_back();
      ISTHMUS_TRY(const auto wire_parts, form_parts(wire.form, components[c].dim));
      step.wire_parts = wire_parts.size();
      if (same_numbers(components[c].numbers, wire)) continue;
      ISTHMUS_TRY(step.converter, RowConverter::make(components[c].numbers, wire,
                                                     ComponentShape::of(source.groups[group], c)));
      state->scratch.fit(components[c].parts);
    }
  }
  return Packer(std::move(state));
}

Status Packer::pack(const Chunk& chunk, const kv::Binding& source, std::span<std::byte> body,
                    std::span<Digest128> tiles) {
  State& state = *state_;
  ISTHMUS_TRY(state.plan->check_chunk(chunk));
  if (body.size() != chunk.body_bytes || tiles.size() != chunk.tile_count()) {
    return Error{Code::kInvalidArgument,
                 fmt::format("chunk {}: body of {} bytes and {} tiles, the plan has {} and {}", chunk.index,
                             body.size(), tiles.size(), chunk.body_bytes, chunk.tile_count())};
  }
  ISTHMUS_TRY(state.access.bind(chunk, source));
  std::size_t section = 0;
  const std::vector<PackStep>& steps = state.steps[chunk.group];
  while (section < chunk.sections.size()) {
    const std::uint32_t component = chunk.sections[section].component;
    ISTHMUS_TRY(state.pack_component(chunk, section, component, body, tiles));
    section += steps[component].wire_parts;
  }
  for (std::size_t s = 0; s < chunk.sections.size(); ++s) {
    const std::uint64_t end = chunk.sections[s].offset + chunk.sections[s].bytes;
    const std::uint64_t next =
        s + 1 < chunk.sections.size() ? chunk.sections[s + 1].offset : chunk.body_bytes;
    std::fill(body.begin() + static_cast<std::ptrdiff_t>(end),
              body.begin() + static_cast<std::ptrdiff_t>(next), std::byte{0});
  }
  return ok_status();
}

const ConversionCounts& Packer::counts() const {
  return state_->counts;
}

// Sections [section, section + wire parts): one layer, one component.
Status Packer::State::pack_component(const Chunk& chunk, std::size_t section, std::uint32_t component,
                                     std::span<std::byte> body, std::span<Digest128> tiles) {
  PackStep& step = steps[chunk.group][component];
  const ComponentStorage& storage = access.components(chunk.group)[component];
  const std::uint32_t layer = chunk.box.layer_begin + chunk.sections[section].layer;
  const std::uint32_t heads = chunk.box.head_end - chunk.box.head_begin;
  const std::span<const Section> wire = chunk.sections.subspan(section, step.wire_parts);
  for (std::uint32_t h = 0; h < heads; ++h) {
    const auto tile_at = [&](std::size_t part) {
      return body.data() + wire[part].offset + h * wire[part].head_bytes;
    };
    for (std::size_t part = 0; part < storage.parts.size(); ++part) {
      access.gather(layer, storage.first_part + part, chunk.box.head_begin + h,
                    step.converter ? scratch.part(part) : tile_at(part));
    }
    if (step.converter) {
      const RowArrays to{tile_at(0), wire.size() > 1 ? tile_at(1) : nullptr,
                         wire.size() > 2 ? tile_at(2) : nullptr};
      Status done = step.converter->convert(chunk.token_count, scratch.rows(storage.parts.size()), to,
                                            {layer, chunk.box.head_begin + h}, counts);
      if (!done.ok()) {
        return std::move(done).with_context(plan->tile_text(chunk, section * heads + h));
      }
    }
    for (std::size_t part = 0; part < wire.size(); ++part) {
      tiles[(section + part) * heads + h] =
          digest128(std::span<const std::byte>(tile_at(part), wire[part].head_bytes));
    }
  }
  return ok_status();
}

}  // namespace isthmus::transform
