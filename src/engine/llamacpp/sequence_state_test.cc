// SPDX-License-Identifier: Apache-2.0
// The parser of state bytes against a hand-written writer: nothing unexpected passes.
#include "engine/llamacpp/sequence_state.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "engine/llamacpp/exported_state.h"

namespace isthmus::engine::llamacpp {
namespace {

constexpr StateShape kShape{.sequence = 4,
                            .layers = 2,
                            .k_type = 1,
                            .v_type = 1,
                            .k_row_bytes = 6,
                            .v_row_bytes = 4,
                            .position_begin = 10,
                            .position_end = 13};

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

Written write(const std::vector<std::int32_t>& positions) {
  Written out;
  out.put<std::uint32_t>("magic", 0xaf143cd8);
  out.put<std::int32_t>("sequence", 4);
  out.put<std::uint32_t>("stream count", 1);
  out.put<std::uint32_t>("cell count", static_cast<std::uint32_t>(positions.size()));
  for (const std::int32_t position : positions) {
    out.put<std::int32_t>("position", position);
    out.put<std::uint32_t>("owners of a cell", 1);
    out.put<std::int32_t>("sequence of a cell", 4);
  }
  out.put<std::uint32_t>("v_trans", 0);
  out.put<std::uint32_t>("layer count", 2);
  for (const bool keys : {true, false}) {
    for (int layer = 0; layer < 2; ++layer) {
      const std::string plane = "layer " + std::to_string(layer) + (keys ? " K" : " V");
      const std::uint64_t row = keys ? 6 : 4;
      out.put<std::int32_t>(plane + " type", 1);
      out.put<std::uint64_t>(plane + " row bytes", row);
      for (const std::int32_t position : positions) {
        out.bytes.insert(out.bytes.end(), row,
                         static_cast<std::byte>(position * 10 + layer * 2 + (keys ? 0 : 1)));
      }
    }
  }
  return out;
}

TEST(SequenceState, AWellFormedStateIsReadInFull) {
  const Written written = write({10, 11, 12});
  const auto state = parse_sequence_state(written.bytes, kShape);
  ASSERT_TRUE(state.ok()) << state.error().text();
  EXPECT_EQ(state->positions, (std::vector<std::int32_t>{10, 11, 12}));
  ASSERT_EQ(state->k.size(), 2u);
  EXPECT_EQ(state->k[1].size(), 18u);
  EXPECT_EQ(state->v[1].size(), 12u);
  EXPECT_EQ(state->v[1][4], static_cast<std::byte>(11 * 10 + 3));
}

TEST(SequenceState, EveryFieldThatIsOffIsNamed) {
  const Written written = write({10, 11, 12});
  for (const auto& [name, place] : written.fields) {
    std::vector<std::byte> bytes = written.bytes;
    bytes[place + 1] ^= std::byte{0x40};
    const auto state = parse_sequence_state(bytes, kShape);
    ASSERT_FALSE(state.ok()) << name;
    EXPECT_EQ(state.code(), Code::kIncompatible);
    EXPECT_NE(state.error().detail.find(name + " at byte " + std::to_string(place)), std::string::npos)
        << name << ": " << state.error().detail;
  }
}

TEST(SequenceState, EveryTruncationAndAnyTailIsRefused) {
  const Written written = write({10, 11, 12});
  for (std::size_t size = 0; size < written.bytes.size(); ++size) {
    EXPECT_EQ(parse_sequence_state(std::span(written.bytes).first(size), kShape).code(), Code::kIncompatible)
        << size;
  }
  std::vector<std::byte> longer = written.bytes;
  longer.push_back(std::byte{0});
  EXPECT_EQ(parse_sequence_state(longer, kShape).code(), Code::kIncompatible);
}

TEST(SequenceState, APositionTwiceIsRefused) {
  const auto state = parse_sequence_state(write({10, 12, 12}).bytes, kShape);
  ASSERT_FALSE(state.ok());
  EXPECT_NE(state.error().detail.find("12 stands twice"), std::string::npos) << state.error().detail;
}

TEST(SequenceState, TransposedValuesAreRefused) {
  Written written = write({10, 11, 12});
  for (const auto& [name, place] : written.fields) {
    if (name == "v_trans") written.bytes[place] = std::byte{1};
  }
  const auto state = parse_sequence_state(written.bytes, kShape);
  ASSERT_FALSE(state.ok());
  EXPECT_NE(state.error().detail.find("v_trans"), std::string::npos);
}

TEST(ExportedState, RowsComeInOrderOfPositionWhateverTheCells) {
  for (const auto& positions : {std::vector<std::int32_t>{10, 11, 12}, {12, 10, 11}}) {
    const Written written = write(positions);
    auto buffer = std::make_unique<std::byte[]>(written.bytes.size());
    std::copy(written.bytes.begin(), written.bytes.end(), buffer.get());
    const auto exported = export_state(std::move(buffer), written.bytes.size(), kShape);
    ASSERT_TRUE(exported.ok()) << exported.error().text();
    const kv::Binding& binding = (*exported)->binding();
    EXPECT_EQ(binding.first_position, 10u);
    ASSERT_EQ(binding.memory.size(), 4u);
    for (const kv::RegionMemory& memory : binding.memory) {
      const std::size_t row = memory.region == "K" ? 6 : 4;
      ASSERT_EQ(memory.bytes, 3 * row);
      EXPECT_EQ(memory.open_extent, 3u);
      for (std::size_t i = 0; i < 3; ++i) {
        const int expected = static_cast<int>(10 + i) * 10 + static_cast<int>(memory.layer) * 2 +
                             (memory.region == "K" ? 0 : 1);
        EXPECT_EQ(std::to_integer<int>(memory.base[i * row]), expected)
            << memory.region << memory.layer << " " << i;
      }
    }
  }
}

}  // namespace
}  // namespace isthmus::engine::llamacpp
