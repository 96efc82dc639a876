// SPDX-License-Identifier: Apache-2.0
// See token_runs.h.
#include "transform/token_runs.h"

#include <fmt/format.h>

#include <limits>

namespace isthmus::transform {

Status check_table(const TokenTable& table, kv::TokenRange tokens) {
  const auto refuse = [](std::string why) { return Error{Code::kInvalidArgument, std::move(why)}; };
  if (tokens.begin >= tokens.end)
    return refuse(fmt::format("tokens [{}, {}) are none", tokens.begin, tokens.end));
  if (!table.valid.contains(tokens) || tokens.begin < table.first_position) {
    return refuse(fmt::format("tokens [{}, {}) are wanted, the binding holds [{}, {}) from position {}",
                              tokens.begin, tokens.end, table.valid.begin, table.valid.end,
                              table.first_position));
  }
  const std::uint64_t last = tokens.end - 1 - table.first_position;
  if (table.block_tokens == 0) {
    if (table.first_row <= std::numeric_limits<std::uint64_t>::max() - last - 1) return ok_status();
    return refuse(fmt::format("first row {} is out of range", table.first_row));
  }
  if (last / table.block_tokens < table.blocks.size()) return ok_status();
  return refuse(fmt::format("position {} needs block table entry {}, the table has {}",
                            table.first_position + table.blocks.size() * table.block_tokens,
                            table.blocks.size(), table.blocks.size()));
}

Status check_distinct(const TokenTable& table, std::uint64_t pool) {
  std::vector<std::uint64_t> seen((std::min(pool, std::uint64_t{1} << 32) + 63) / 64, 0);
  for (const std::uint32_t block : table.blocks) {
    if (block >= pool) {
      return Error{Code::kInvalidArgument, fmt::format("block {} isn't among the pool's {}", block, pool)};
    }
    const std::uint64_t bit = std::uint64_t{1} << (block % 64);
    if ((seen[block / 64] & bit) != 0) {
      return Error{Code::kInvalidArgument, fmt::format("the block table names block {} twice", block)};
    }
    seen[block / 64] |= bit;
  }
  return ok_status();
}

Status find_runs(const TokenTable& source, const TokenTable& target, kv::TokenRange tokens,
                 std::vector<TokenRun>& runs) {
  ISTHMUS_TRY(check_table(source, tokens));
  ISTHMUS_TRY(check_table(target, tokens));
  runs.clear();
  TokenWalk from(source, tokens.begin), to(target, tokens.begin);
  TokenRun run{from.place(), to.place(), 0};
  for (std::uint64_t left = tokens.size();;) {
    const std::uint64_t step = std::min({from.left(), to.left(), left});
    run.tokens += step;
    left -= step;
    if (left == 0) break;
    from.advance(step);
    to.advance(step);
    if (from.place() == run.source + run.tokens && to.place() == run.target + run.tokens) continue;
    runs.push_back(run);
    run = {from.place(), to.place(), 0};
  }
  runs.push_back(run);
  return ok_status();
}

}  // namespace isthmus::transform
