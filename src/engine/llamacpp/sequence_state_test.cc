// SPDX-License-Identifier: Apache-2.0
// The parser of state bytes against a hand-written writer: nothing unexpected passes. The same bytes out and
// in.
#include "engine/llamacpp/sequence_state.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "engine/llamacpp/exported_state.h"
#include "engine/llamacpp/finite.h"
#include "engine/llamacpp/incoming_state.h"

namespace isthmus::engine::llamacpp {
namespace {

const StateShape kShape{.sequence = 4,
                        .layers = 2,
                        .k_type = 1,
                        .v_type = 1,
                        .k_row_bytes = 6,
                        .v_row_bytes = 4,
                        .position_begin = 10,
                        .position_end = 13};

// V in two columns of elements of two bytes.
StateShape transposed() {
  StateShape shape = kShape;
  shape.v_columns = 2;
  return shape;
}

// Layer 0 has a window, and so a cache of its own, which comes last.
StateShape windowed() {
  StateShape shape = kShape;
  shape.window = {.tokens = 8, .period = 2, .rope_theta = 1e4};
  return shape;
}

std::vector<StateShape> shapes() {
  StateShape both = windowed();
  both.v_columns = 2;
  return {kShape, transposed(), windowed(), both};
}

std::byte mark(int position, int layer, bool key, int column = 0) {
  return static_cast<std::byte>(position * 8 + column * 4 + layer * 2 + (key ? 0 : 1));
}

struct Written {
  std::vector<std::byte> bytes;
  std::vector<std::pair<std::string, std::size_t>> fields;  // Name and place of each number.

  template <typename T>
  void put(const std::string& name, T value) {
    fields.emplace_back(name, bytes.size());
    const auto raw = bytes_of(std::span<const T>(&value, 1));
    bytes.insert(bytes.end(), raw.begin(), raw.end());
  }
};

void write_plane(Written& out, const std::vector<std::int32_t>& positions, const StateShape& shape, int layer,
                 bool keys) {
  const bool v_transposed = shape.v_columns != 0;
  const std::string plane = "layer " + std::to_string(layer) + (keys ? " K" : " V");
  out.put<std::int32_t>(plane + " type", 1);
  if (!keys && v_transposed) {
    out.put<std::uint32_t>(plane + " element bytes", 2);
    out.put<std::uint32_t>(plane + " columns", 2);
  } else {
    out.put<std::uint64_t>(plane + " row bytes", keys ? 6 : 4);
  }
  const int columns = !keys && v_transposed ? 2 : 1;
  for (int column = 0; column < columns; ++column) {
    for (const std::int32_t position : positions) {
      out.bytes.insert(out.bytes.end(), (keys ? 6 : 4) / columns, mark(position, layer, keys, column));
    }
  }
}

void write_cache(Written& out, const std::vector<std::int32_t>& positions, const StateShape& shape,
                 const std::vector<int>& layers) {
  out.put<std::uint32_t>("stream count", 1);
  out.put<std::uint32_t>("cell count", static_cast<std::uint32_t>(positions.size()));
  for (const std::int32_t position : positions) {
    out.put<std::int32_t>("position", position);
    out.put<std::uint32_t>("owners of a cell", 1);
    out.put<std::int32_t>("sequence of a cell", 4);
  }
  out.put<std::uint32_t>("v_trans", shape.v_columns == 0 ? 0 : 1);
  out.put<std::uint32_t>("layer count", static_cast<std::uint32_t>(layers.size()));
  for (const bool keys : {true, false}) {
    for (const int layer : layers) write_plane(out, positions, shape, layer, keys);
  }
}

// `local`: the order of cells in the cache of layer 0, where it has one; else that of the other.
Written write(const std::vector<std::int32_t>& positions, const StateShape& shape = kShape,
              const std::vector<std::int32_t>& local = {}) {
  Written out;
  out.put<std::uint32_t>("magic", 0xaf143cd8);
  out.put<std::int32_t>("sequence", 4);
  if (shape.window.tokens == 0) {
    write_cache(out, positions, shape, {0, 1});
  } else {
    write_cache(out, positions, shape, {1});
    write_cache(out, local.empty() ? positions : local, shape, {0});
  }
  return out;
}

StateBuffer buffer_of(const std::vector<std::byte>& bytes) {
  StateBuffer buffer = std::make_shared<StateMemory>()->allocate(bytes.size()).value();
  std::copy(bytes.begin(), bytes.end(), buffer.bytes().begin());
  return buffer;
}

TEST(SequenceState, AWellFormedStateIsReadInFull) {
  const Written written = write({10, 11, 12});
  const auto state = parse_sequence_state(written.bytes, kShape);
  ASSERT_TRUE(state.ok()) << state.error().text();
  EXPECT_EQ(state->positions, (std::vector<std::int32_t>{10, 11, 12}));
  ASSERT_EQ(state->k.size(), 2u);
  EXPECT_EQ(state->k[1].size(), 18u);
  EXPECT_EQ(state->v[1].size(), 12u);
  EXPECT_EQ(state->v[1][4], mark(11, 1, false));
}

TEST(SequenceState, TransposedValuesLieByColumn) {
  const Written written = write({10, 11, 12}, transposed());
  const auto state = parse_sequence_state(written.bytes, transposed());
  ASSERT_TRUE(state.ok()) << state.error().text();
  ASSERT_EQ(state->v[1].size(), 12u);
  EXPECT_EQ(state->v[1][4], mark(12, 1, false, 0));
  EXPECT_EQ(state->v[1][6], mark(10, 1, false, 1));
}

TEST(SequenceState, EveryFieldThatIsOffIsNamed) {
  for (const StateShape& shape : shapes()) {
    const Written written = write({10, 11, 12}, shape);
    for (const auto& [name, place] : written.fields) {
      std::vector<std::byte> bytes = written.bytes;
      bytes[place + 1] ^= std::byte{0x40};
      const auto state = parse_sequence_state(bytes, shape);
      ASSERT_FALSE(state.ok()) << name;
      EXPECT_EQ(state.code(), Code::kIncompatible);
      EXPECT_NE(state.error().detail.find(name + " at byte " + std::to_string(place)), std::string::npos)
          << name << ": " << state.error().detail;
    }
  }
}

TEST(SequenceState, EveryTruncationAndAnyTailIsRefused) {
  for (const StateShape& shape : shapes()) {
    const Written written = write({10, 11, 12}, shape);
    for (std::size_t size = 0; size < written.bytes.size(); ++size) {
      EXPECT_EQ(parse_sequence_state(std::span(written.bytes).first(size), shape).code(), Code::kIncompatible)
          << size;
    }
    std::vector<std::byte> longer = written.bytes;
    longer.push_back(std::byte{0});
    EXPECT_EQ(parse_sequence_state(longer, shape).code(), Code::kIncompatible);
  }
}

TEST(SequenceState, APositionTwiceIsRefused) {
  const auto state = parse_sequence_state(write({10, 12, 12}).bytes, kShape);
  ASSERT_FALSE(state.ok());
  EXPECT_NE(state.error().detail.find("12 stands twice"), std::string::npos) << state.error().detail;
}

TEST(SequenceState, ValuesInTheOtherOrderAreRefused) {
  for (const bool v_transposed : {false, true}) {
    const auto state = parse_sequence_state(write({10, 11, 12}, v_transposed ? kShape : transposed()).bytes,
                                            v_transposed ? transposed() : kShape);
    ASSERT_FALSE(state.ok());
    EXPECT_NE(state.error().detail.find("v_trans"), std::string::npos);
  }
}

TEST(SequenceState, WhatIsFormattedIsWhatLlamaWrites) {
  for (const StateShape& shape : shapes()) {
    const Written written = write({10, 11, 12}, shape);
    ASSERT_EQ(sequence_state_bytes(shape), written.bytes.size());
    // Planes are left alone: what stood there is there still.
    std::vector<std::byte> formatted = written.bytes;
    for (const auto& [name, place] : written.fields) formatted[place] = std::byte{0xee};
    format_sequence_state(formatted, shape);
    EXPECT_EQ(formatted, written.bytes);
  }
}

// Positions 10 to 12, each unit with its mark.
void expect_ordered(const ExportedKv& exported, const StateShape& shape) {
  const kv::Binding& binding = exported.bindings().front();
  EXPECT_EQ(binding.first_position, 10u);
  ASSERT_EQ(binding.memory.size(), 4u);
  for (const kv::RegionMemory& memory : binding.memory) {
    const bool key = memory.region == "K";
    const std::size_t columns = !key && shape.v_columns != 0 ? 2 : 1, unit = (key ? 6 : 4) / columns;
    ASSERT_EQ(memory.bytes, 3 * columns * unit);
    EXPECT_EQ(memory.open_extent, 3u);
    for (std::size_t i = 0; i < 3 * columns; ++i) {
      const auto expected =
          mark(static_cast<int>(10 + i % 3), static_cast<int>(memory.layer), key, static_cast<int>(i / 3));
      EXPECT_EQ(memory.base[i * unit], expected) << memory.region << memory.layer << " " << i;
    }
  }
}

TEST(ExportedState, RowsComeInOrderOfPositionWhateverTheCells) {
  const auto counted = std::make_shared<StateMemory>();
  for (const StateShape& shape : shapes()) {
    for (const auto& [positions, local] :
         {std::pair{std::vector<std::int32_t>{10, 11, 12}, std::vector<std::int32_t>{}},
          {{12, 10, 11}, {}},
          {{10, 11, 12}, {11, 10, 12}}}) {
      const auto exported = export_state(*counted, buffer_of(write(positions, shape, local).bytes), shape);
      ASSERT_TRUE(exported.ok()) << exported.error().text();
      ASSERT_NO_FATAL_FAILURE(expect_ordered(**exported, shape));
    }
  }
}

TEST(ExportedState, PartsMakeAWhole) {
  for (const StateShape& shape : shapes()) {
    OrderedPlanes planes = OrderedPlanes::make(*std::make_shared<StateMemory>(), shape).value();
    for (const auto& positions : {std::vector<std::int32_t>{11, 10}, {12}}) {
      StateShape part = shape;
      part.position_begin = std::ranges::min(positions);
      part.position_end = std::ranges::max(positions) + 1;
      planes.add(parse_sequence_state(write(positions, part).bytes, part).value(), part);
    }
    ASSERT_NO_FATAL_FAILURE(expect_ordered(*std::move(planes).finish(), shape));
  }
}

// The state of write({0, 1, 2}), as others would write it into a bound sequence.
IncomingState incoming(StateShape shape) {
  shape.position_begin = 0;
  shape.position_end = 3;
  IncomingState state = IncomingState::make(*std::make_shared<StateMemory>(), shape).value();
  for (const kv::RegionMemory& memory : state.binding().memory) {
    std::fill_n(memory.base, memory.bytes, std::byte{0x11});
  }
  return state;
}

TEST(IncomingState, PlanesThatAreWrittenMakeAWholeState) {
  for (const StateShape& shape : shapes()) {
    IncomingState state = incoming(shape);
    EXPECT_EQ(state.binding().valid, (kv::TokenRange{0, 3}));
    const auto bytes = state.finish(3);
    ASSERT_TRUE(bytes.ok()) << bytes.error().text();
    StateShape filled = shape;
    filled.position_begin = 0;
    filled.position_end = 3;
    const auto parsed = parse_sequence_state(*bytes, filled);
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(std::ranges::count(parsed->k[1], std::byte{0x11}), 18);
    EXPECT_EQ(parsed->k[1].data(), state.binding().memory[2].base);
    EXPECT_EQ(std::ranges::count(parsed->v[1], std::byte{0x11}), 12);
  }
}

TEST(IncomingState, RowsBehindTheEndAreCleared) {
  for (const StateShape& shape : shapes()) {
    IncomingState state = incoming(shape);
    ASSERT_TRUE(state.finish(2).ok());
    for (const kv::RegionMemory& memory : state.binding().memory) {
      const bool key = memory.region == "K";
      const std::size_t columns = !key && shape.v_columns != 0 ? 2 : 1, unit = (key ? 6 : 4) / columns;
      for (std::size_t i = 0; i < memory.bytes; ++i) {
        EXPECT_EQ(memory.base[i], i / unit % 3 < 2 ? std::byte{0x11} : std::byte{0}) << memory.region << i;
      }
    }
  }
}

TEST(IncomingState, AByteChangedBesideThePlanesIsSeen) {
  for (const StateShape& shape : shapes()) {
    const std::size_t size = incoming(shape).bytes();
    std::size_t seen = 0;
    for (std::size_t at = 0; at < size; ++at) {
      IncomingState state = incoming(shape);
      // Planes lie in one buffer; its first byte is found from the state that finish() gives.
      auto* bytes = const_cast<std::byte*>(state.finish(3).value().data());
      bytes[at] ^= std::byte{1};
      if (state.finish(3).code() == Code::kCorrupt) ++seen;
    }
    EXPECT_EQ(seen, size - 2 * (18 + 12));
  }
}

TEST(IncomingState, CellsInAnotherOrderAreSeen) {
  IncomingState state = incoming(kShape);
  auto* bytes = const_cast<std::byte*>(state.finish(3).value().data());
  std::swap(bytes[16], bytes[28]);  // Positions of the first two cells.
  const auto finished = state.finish(3);
  ASSERT_EQ(finished.code(), Code::kCorrupt);
  EXPECT_NE(finished.error().detail.find("cell order"), std::string::npos);
}

TEST(IncomingState, ANumberThatIsNotFiniteIsNamed) {
  IncomingState state = incoming(kShape);
  store_le(std::span(state.binding().memory[3].base + 10, 2), std::uint16_t{0xfc00});
  const auto finished = state.finish(3);
  ASSERT_EQ(finished.code(), Code::kCorrupt);
  EXPECT_NE(finished.error().detail.find("V of layer 1 holds a number that isn't finite"), std::string::npos)
      << finished.error().detail;
  EXPECT_TRUE(state.finish(2).ok()) << "a row that isn't adopted counts";
}

TEST(StateMemory, WhatIsLetGoServesTheNextStateOfItsSize) {
  const auto memory = std::make_shared<StateMemory>();
  const std::byte* first = nullptr;
  {
    const StateBuffer a = memory->allocate(1000).value();
    const StateBuffer b = memory->allocate(1000).value();
    EXPECT_NE(a.bytes().data(), b.bytes().data());
    first = a.bytes().data();
    EXPECT_EQ(memory->kept_bytes(), 0u);
  }
  EXPECT_EQ(memory->kept_bytes(), 2000u);
  const StateBuffer b = memory->allocate(1000).value(), a = memory->allocate(600).value();
  EXPECT_EQ(a.bytes().data(), first);
  EXPECT_EQ(a.bytes().size(), 600u);
  EXPECT_EQ(memory->kept_bytes(), 0u);
}

TEST(StateMemory, NeitherTooSmallNorMuchTooLargeMemoryIsReused) {
  const auto memory = std::make_shared<StateMemory>();
  memory->allocate(1000).value();
  const StateBuffer larger = memory->allocate(1001).value(), smaller = memory->allocate(499).value();
  EXPECT_EQ(memory->kept_bytes(), 1000u);
}

TEST(StateMemory, KeptMemoryIsBoundedAndOutlivesItsOwner) {
  auto memory = std::make_shared<StateMemory>();
  constexpr std::uint64_t kQuarter = StateMemory::kKeptBytesMax / 4;
  std::vector<StateBuffer> buffers;
  for (int i = 0; i < 6; ++i) buffers.push_back(memory->allocate(kQuarter).value());
  // Larger than all that may be kept, it pushes nothing out.
  buffers.push_back(memory->allocate(StateMemory::kKeptBytesMax + 1).value());
  const StateBuffer last = memory->allocate(100).value();
  buffers.clear();
  EXPECT_EQ(memory->kept_bytes(), 4 * kQuarter);
  memory.reset();
  last.bytes()[99] = std::byte{1};
}

// ggml's numbers of its types.
constexpr std::int32_t kGgmlF32 = 0, kGgmlF16 = 1, kGgmlQ4 = 2, kGgmlQ8 = 8, kGgmlBf16 = 30;

TEST(Finite, InfinitiesAndNansOfEveryTypeAreSeenAndTheirNeighboursAreNot) {
  struct Case {
    std::int32_t type;
    std::size_t stride, width;
    std::vector<std::uint32_t> finite, others;
  };
  for (const Case& c : {Case{kGgmlF32, 4, 4, {0x7f7fffff, 0xff7fffff, 1}, {0x7f800000, 0xffc00001}},
                        Case{kGgmlF16, 2, 2, {0x7bff, 0xfbff, 1}, {0x7c00, 0xfe01}},
                        Case{kGgmlBf16, 2, 2, {0x7f7f, 0xff7f, 1}, {0x7f80, 0xffc1}},
                        Case{kGgmlQ8, 34, 2, {0x7bff, 0xfbff, 1}, {0x7c00, 0xfe01}},
                        Case{kGgmlQ4, 18, 2, {0x7bff, 0xfbff, 1}, {0x7c00, 0xfe01}}}) {
    // At an odd address; codes of blocks are all ones.
    std::vector<std::byte> memory(1 + 7 * c.stride, c.stride > 4 ? std::byte{0xff} : std::byte{0});
    const std::span<std::byte> plane = std::span(memory).subspan(1);
    for (std::size_t i = 0; i < 7; ++i) std::fill_n(plane.begin() + i * c.stride, c.width, std::byte{0});
    const auto with = [&](std::uint32_t bits) {
      const auto raw = bytes_of(std::span<const std::uint32_t>(&bits, 1));
      std::copy_n(raw.begin(), c.width, plane.begin() + 6 * c.stride);
      return all_finite(plane, c.type);
    };
    for (const std::uint32_t bits : c.finite) EXPECT_TRUE(with(bits)) << c.type << " " << bits;
    for (const std::uint32_t bits : c.others) EXPECT_FALSE(with(bits)) << c.type << " " << bits;
  }
}

}  // namespace
}  // namespace isthmus::engine::llamacpp
