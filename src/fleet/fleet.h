// SPDX-License-Identifier: Apache-2.0
// What an operator says about a fleet: models with their policies, workers, and measured qualification
// records.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/time.h"
#include "kv/negotiate.h"
#include "kv/prices.h"
#include "net/stream.h"
#include "net/tls.h"

namespace isthmus::fleet {

// Bounds of a file that anyone may have written; over them: exhausted.
inline constexpr std::size_t kFileBytesMax = std::size_t{1} << 20;
inline constexpr std::size_t kWorkersMax = 256;
inline constexpr std::size_t kModelsMax = 64;
inline constexpr std::size_t kPlanesMax = 64;  // With prices.
inline constexpr std::size_t kQualificationsMax = 256;

// What a decode worker does when a handoff fails.
enum class OnFailure : std::uint8_t {
  kRecompute,  // Prefill the prompt itself.
  kFail,       // Answer with a typed error.
};
std::string_view name(OnFailure on_failure);  // "recompute", "fail"

// Whether a pair of workers must pass the canary (spec/canary.md) before requests are handed over between
// them.
enum class Canary : std::uint8_t { kFirstContact, kOff };
std::string_view name(Canary canary);  // "first_contact", "off"

struct Model {
  std::string name;  // As clients name it.
  // SHA-256 (hex) of the files that were made of one base checkpoint, in whatever recipes: what the operator
  // claims (spec/identity.md). The first stands for all. Empty: each file is a checkpoint of its own.
  std::vector<std::string> lineage{};
  kv::Exactness exactness = kv::Exactness::kLossless;
  std::uint32_t roundings_max = 1;
  kv::NonFinite non_finite = kv::NonFinite::kRefuse;  // Infinities and NaNs that a conversion meets.
  OnFailure on_failure = OnFailure::kRecompute;
  Canary canary = Canary::kFirstContact;
  std::optional<Duration> ttft_slo;  // slo.ttft_p90: time to first token; the router counts answers over it.
};

enum class Role : std::uint8_t { kPrefill, kDecode, kBoth };
std::string_view name(Role role);  // "prefill", "decode", "both"
std::optional<Role> role_from_name(std::string_view text);

struct Worker {
  std::string name;
  Role role = Role::kBoth;
  std::string model;   // A name in Fleet::models.
  net::Endpoint http;  // Of `url`, which is http://HOST:PORT.
  std::string plane;   // Network that it can reach; workers of unlike planes never pair.
  std::string engine;  // For people: "llamacpp", "openvino"; "" if not said.
  std::string url() const { return "http://" + http.text(); }
};

// Which side of a handoff opens the connections; the other one must be reachable.
enum class Dialer : std::uint8_t { kDecode, kPrefill };

struct Fleet {
  std::string name;
  Dialer dialer = Dialer::kDecode;
  // Control and data connections between machines; none: in the clear. Relative to the fleet file's folder.
  std::optional<net::TlsFiles> tls;
  std::string key_file;  // HMAC key for tickets (64 hex digits); relative to the fleet file's folder.
  std::vector<Model> models;
  std::vector<Worker> workers;  // May be empty: a worker needs the key and the policies only.
  std::vector<kv::Qualification> qualifications;
  std::map<std::string, kv::Prices> prices;  // By plane: what its links, and the steps beside them, cost.

  const Model* find_model(std::string_view model) const;     // Null if absent.
  const Worker* find_worker(std::string_view worker) const;  // Null if absent.
  // Of the worker's plane. Null if the file says nothing of it, or doesn't know the worker.
  const kv::Prices* prices_of(std::string_view worker) const;
  // What kv::negotiate() needs for a model of this fleet.
  kv::Policy policy(const Model& model) const;
};

// The YAML text of a fleet file. `folder` is where relative file names in it start; `origin` names the text
// in errors. Errors: malformed (not YAML), invalid_argument (unknown key with the nearest known one, bad or
// missing value, duplicate name, unknown model) with origin:line and the path of the value, not_found (a
// named file), exhausted.
Result<Fleet> parse_fleet(std::string_view text, const std::string& folder, std::string_view origin);
Result<Fleet> load_fleet(const std::string& path);

// A qualification record file (spec/qualification.md): one record, or a list of them. Errors as above.
Result<std::vector<kv::Qualification>> parse_qualifications(std::string_view text, std::string_view origin);

}  // namespace isthmus::fleet
