// SPDX-License-Identifier: Apache-2.0
// With queries of zeros each token gets the mean of the values that it heeds: a mark of 1 among zeros says
// how many these are, and whether it is one of them. With edges of windows marked, one position more or less
// shows.
#include "engine/openvino/window_probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "engine/openvino/kv_memory.h"

namespace isthmus::engine::openvino {
namespace {

// Element m of each value row is 1 at the position `marks[m]`, but element 0 is 1 everywhere: no row is all
// alike.
std::vector<float> marked_rows(std::uint32_t begin, std::uint32_t end, std::uint32_t width,
                               const std::vector<std::uint32_t>& marks) {
  std::vector<float> rows;
  for (std::uint32_t position = begin; position < end; ++position) {
    std::vector<float> row(width, 0.0f);
    row[0] = 1;
    for (std::size_t m = 0; m < marks.size(); ++m) row[m + 1] = position == marks[m] ? 1.0f : 0.0f;
    rows.insert(rows.end(), row.begin(), row.end());
  }
  return rows;
}

// `answer` is of the first head of the token at `position`.
Status check_answer(std::span<const float> answer, std::uint32_t position, const Window& window,
                    const std::vector<std::uint32_t>& marks) {
  const auto heeded = static_cast<float>(std::min<std::uint64_t>(position + 1, window.tokens));
  for (std::size_t m = 0; m < marks.size(); ++m) {
    const bool is_heeded = marks[m] <= position && position - marks[m] < window.tokens;
    const float expected = is_heeded ? 1 / heeded : 0;
    if (std::abs(answer[m + 1] - expected) < 0.25f / heeded) continue;
    return Error{
        Code::kIncompatible,
        fmt::format("window probe: token {} gets {:.3g} of position {}, which with a window of {} should be "
                    "{:.3g}",
                    position, answer[m + 1], marks[m], window.tokens, expected)};
  }
  return ok_status();
}

}  // namespace

Status probe_window(const PagedModel& model, const Window& window) {
  if (!window.is_local(0)) return ok_status();
  constexpr std::uint32_t kSteps = 3;
  const auto size = static_cast<std::uint32_t>(window.tokens);
  const std::uint32_t together = size + kBlockTokens + 5, tokens = together + kSteps;
  // The first; the edge of the window of the last that run together; that of the first step's.
  const std::vector<std::uint32_t> marks{0, together - size, together + 1 - size};
  const PagedModelShape& shape = model.shape();
  ISTHMUS_CHECK(shape.value_width > marks.size());
  ISTHMUS_TRY(const auto memory, KvMemory::map({.layers = 1,
                                                .blocks = static_cast<std::uint32_t>(blocks_of(tokens)),
                                                .key_bytes = shape.key_block_bytes,
                                                .value_bytes = shape.value_block_bytes}));
  std::vector<std::int32_t> blocks(blocks_of(tokens));
  std::iota(blocks.rbegin(), blocks.rend(), 0);
  for (std::uint32_t begin = 0; begin < tokens;) {
    const std::uint32_t end = begin == 0 ? together : begin + 1;
    const std::vector<float> key = marked_rows(begin, end, shape.key_width, {}),
                             value = marked_rows(begin, end, shape.value_width, marks);
    ISTHMUS_TRY(const std::vector<float> answers,
                model.write_attention(
                    {.past = begin,
                     .tokens = end - begin,
                     .key = key,
                     .value = value,
                     .blocks = {blocks.begin(), blocks.begin() + static_cast<std::ptrdiff_t>(blocks_of(end))},
                     .memory = memory.get()}));
    const std::size_t row = answers.size() / (end - begin);
    for (std::uint32_t position = begin; position < end; ++position) {
      ISTHMUS_TRY(
          check_answer(std::span(answers).subspan((position - begin) * row, row), position, window, marks));
    }
    begin = end;
  }
  return ok_status();
}

}  // namespace isthmus::engine::openvino
