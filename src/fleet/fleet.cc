// SPDX-License-Identifier: Apache-2.0
// Names and look-ups of a fleet, and reading its files.
#include "fleet/fleet.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "fleet/text_file.h"

namespace isthmus::fleet {

std::string_view name(Canary canary) {
  return canary == Canary::kFirstContact ? "first_contact" : "off";
}

std::string_view name(OnFailure on_failure) {
  return on_failure == OnFailure::kRecompute ? "recompute" : "fail";
}

std::string_view name(Role role) {
  switch (role) {
    case Role::kPrefill:
      return "prefill";
    case Role::kDecode:
      return "decode";
    case Role::kBoth:
      return "both";
  }
  return "both";
}

std::optional<Role> role_from_name(std::string_view text) {
  for (const Role role : {Role::kPrefill, Role::kDecode, Role::kBoth}) {
    if (name(role) == text) return role;
  }
  return std::nullopt;
}

const Model* Fleet::find_model(std::string_view model) const {
  const auto it = std::ranges::find(models, model, &Model::name);
  return it == models.end() ? nullptr : &*it;
}

const Worker* Fleet::find_worker(std::string_view worker) const {
  const auto it = std::ranges::find(workers, worker, &Worker::name);
  return it == workers.end() ? nullptr : &*it;
}

const kv::Prices* Fleet::prices_of(std::string_view worker) const {
  const Worker* known = find_worker(worker);
  const auto it = known == nullptr ? prices.end() : prices.find(known->plane);
  return it == prices.end() ? nullptr : &it->second;
}

kv::Policy Fleet::policy(const Model& model) const {
  kv::Policy policy;
  policy.exactness = model.exactness;
  policy.roundings_max = model.roundings_max;
  policy.non_finite = model.non_finite;
  policy.qualifications = qualifications;
  return policy;
}

Result<std::string> read_text_file(const std::string& path) {
  std::error_code failed;
  if (std::filesystem::is_directory(path, failed)) {
    return Error{Code::kNotFound, fmt::format("{} is a folder, not a file", path)};
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) return Error{Code::kNotFound, fmt::format("{} can't be read: {}", path, std::strerror(errno))};
  std::string text(kFileBytesMax + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (file.bad()) return Error{Code::kNotFound, fmt::format("{} can't be read to its end", path)};
  if (text.size() > kFileBytesMax) {
    return Error{Code::kExhausted, fmt::format("{} is larger than {} bytes", path, kFileBytesMax)};
  }
  return text;
}

Result<Fleet> load_fleet(const std::string& path) {
  ISTHMUS_TRY(const std::string text, read_text_file(path));
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  return parse_fleet(text, folder.string(), path);
}

}  // namespace isthmus::fleet
