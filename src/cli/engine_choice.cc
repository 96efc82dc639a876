// SPDX-License-Identifier: Apache-2.0
// Which engine and KV type can take which role, as data.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>

#include "cli/options.h"
#include "kv/catalogue.h"

namespace isthmus::cli {
namespace {

// The first KV type of an engine is its default.
struct Possible {
  std::string_view engine;
  std::vector<std::string_view> kv_types;
};

const std::vector<Possible>& sources() {
  static const std::vector<Possible> kSources = {{"llamacpp", {"f16", "f32", "bf16"}}};
  return kSources;
}
const std::vector<Possible>& sinks() {
  static const std::vector<Possible> kSinks = {{"openvino", {"u8", "f32", "f16"}}};
  return kSinks;
}

std::string list_of(const std::vector<Possible>& possible) {
  std::vector<std::string> texts;
  for (const Possible& p : possible) {
    for (const std::string_view kv_type : p.kv_types)
      texts.push_back(fmt::format("{}:{}", p.engine, kv_type));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

Result<EngineChoice> parse_choice(const std::string& text, std::string_view role,
                                  const std::vector<Possible>& possible,
                                  const std::vector<Possible>& of_other_role) {
  const auto colon = std::min(text.find(':'), text.size());
  EngineChoice choice{text.substr(0, colon), colon < text.size() ? text.substr(colon + 1) : ""};
  const auto by_engine = [&](const Possible& p) { return p.engine == choice.engine; };
  const auto engine = std::ranges::find_if(possible, by_engine);
  if (engine == possible.end()) {
    const bool is_known = std::ranges::any_of(of_other_role, by_engine);
    return Error{Code::kInvalidArgument,
                 fmt::format("{}: {} here; {} can be {}", text.empty() ? "''" : text,
                             is_known ? fmt::format("{} has no part in {} yet", choice.engine, role)
                                      : "no such engine",
                             role, list_of(possible))};
  }
  if (choice.kv_type.empty() && colon == text.size()) choice.kv_type = engine->kv_types.front();
  if (std::ranges::find(engine->kv_types, choice.kv_type) != engine->kv_types.end()) return choice;
  const bool is_catalogued = kv::find_storage(choice.text()).ok();
  return Error{Code::kInvalidArgument,
               fmt::format("{}: {}; {} can be {}", text,
                           is_catalogued ? "described, but no engine here stores it yet" : "no such KV type",
                           role, list_of(possible))};
}

}  // namespace

Result<EngineChoice> parse_prefill(const std::string& text) {
  return parse_choice(text, "prefill", sources(), sinks());
}
Result<EngineChoice> parse_decode(const std::string& text) {
  return parse_choice(text, "decode", sinks(), sources());
}

}  // namespace isthmus::cli
