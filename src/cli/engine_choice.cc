// SPDX-License-Identifier: Apache-2.0
// "ENGINE:KV" against the engines that are built in.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "cli/options.h"
#include "kv/catalogue.h"
#include "worker/embedded/engine_kinds.h"

namespace isthmus::cli {
namespace {

std::string choices() {
  std::vector<std::string> texts;
  for (const worker::EngineKind& kind : worker::kEngineKinds) {
    for (const std::string_view kv_type : kind.kv_types)
      texts.push_back(fmt::format("{}:{}", kind.name, kv_type));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

std::string_view why_not(const EngineChoice& choice, bool is_known_engine) {
  if (choice.text() == "openvino:bf16") {
    return "OpenVINO stores bf16 under bf16 arithmetic only, which loses accuracy on GGUF models";
  }
  if (kv::find_storage(choice.text()).ok()) return "described, but no engine here stores it yet";
  return is_known_engine ? "no such KV type" : "no such engine";
}

const worker::EngineKind* find_kind(const std::string& engine) {
  const auto* kind = std::ranges::find(worker::kEngineKinds, engine, &worker::EngineKind::name);
  return kind == worker::kEngineKinds.end() ? nullptr : kind;
}

}  // namespace

Result<EngineChoice> parse_engine_choice(const std::string& text) {
  const auto colon = std::min(text.find(':'), text.size());
  EngineChoice choice{text.substr(0, colon), colon < text.size() ? text.substr(colon + 1) : ""};
  const worker::EngineKind* const kind = find_kind(choice.engine);
  const bool is_known = kind != nullptr;
  if (is_known && colon == text.size()) choice.kv_type = kind->kv_types.front();
  if (is_known && std::ranges::find(kind->kv_types, choice.kv_type) != kind->kv_types.end()) return choice;
  return Error{Code::kInvalidArgument, fmt::format("{}: {}; it can be {}", text.empty() ? "''" : text,
                                                   why_not(choice, is_known), choices())};
}

Status check_activations(const EngineChoice& choice, const std::string& activations) {
  const worker::EngineKind* const kind = find_kind(choice.engine);
  if (activations == worker::WorkerOptions{}.activations || (kind != nullptr && kind->chooses_activations))
    return ok_status();
  std::vector<std::string_view> able;
  for (const worker::EngineKind& other : worker::kEngineKinds) {
    if (other.chooses_activations) able.push_back(other.name);
  }
  return Error{Code::kInvalidArgument, fmt::format("{}: {} has no choice of activations; {} has", activations,
                                                   choice.engine, fmt::join(able, ", "))};
}

}  // namespace isthmus::cli
