// SPDX-License-Identifier: Apache-2.0
// The fleet file and qualification records from YAML; the one translation unit that includes yaml-cpp.
#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <initializer_list>
#include <set>

#include "fleet/check.h"
#include "fleet/fleet.h"
#include "fleet/suggest.h"
#include "fleet/text_file.h"

namespace isthmus::fleet {
namespace {

// A YAML node with where it came from, for errors.
struct Value {
  YAML::Node node;
  std::string path;
  std::string_view origin;

  Error error(std::string_view text) const {
    const int line = node.Mark().line;
    const std::string where = line < 0 ? std::string(origin) : fmt::format("{}:{}", origin, line + 1);
    return Error{Code::kInvalidArgument,
                 fmt::format("{}: {}{}{}", where, path, path.empty() ? "" : ": ", text)};
  }
  std::string child_path(std::string_view key) const {
    return path.empty() ? std::string(key) : fmt::format("{}.{}", path, key);
  }
  std::string kind() const {
    if (node.IsScalar()) return fmt::format("'{}'", node.Scalar().substr(0, 64));
    if (node.IsSequence()) return "a list";
    return node.IsMap() ? "a map" : "nothing";
  }
};

struct Member {
  std::string key;
  Value value;
};

// The members of a map, in file order; duplicate keys are errors. An absent value counts as an empty map.
Result<std::vector<Member>> members(const Value& map) {
  std::vector<Member> found;
  if (map.node.IsNull()) return found;
  if (!map.node.IsMap()) return map.error(fmt::format("must be a map, is {}", map.kind()));
  for (const auto& entry : map.node) {
    const Value key{entry.first, map.path, map.origin};
    if (!entry.first.IsScalar()) return key.error("a key must be a word");
    const std::string& text = entry.first.Scalar();
    if (std::ranges::find(found, text, &Member::key) != found.end()) {
      return key.error(fmt::format("'{}' is given twice", text));
    }
    found.push_back({text, {entry.second, map.child_path(text), map.origin}});
  }
  return found;
}

using Keys = std::initializer_list<std::string_view>;

// A map whose keys are all among `known`.
class Fields {
 public:
  static Result<Fields> of(const Value& map, Keys known) {
    Fields fields(map);
    ISTHMUS_TRY(fields.members_, members(map));
    const std::vector<std::string_view> names(known);
    for (const Member& member : fields.members_) {
      if (std::ranges::find(names, member.key) == names.end()) {
        const Value at{member.value.node, map.path, map.origin};
        return at.error(fmt::format("unknown key '{}'{}", member.key, suggestion(member.key, names)));
      }
    }
    return fields;
  }
  const Value* find(std::string_view key) const {
    const auto it = std::ranges::find(members_, key, &Member::key);
    return it == members_.end() ? nullptr : &it->value;
  }
  Result<Value> required(std::string_view key) const {
    if (const Value* value = find(key)) return *value;
    return map_.error(fmt::format("'{}' is missing", key));
  }
  Result<std::string> required_text(std::string_view key) const;
  Result<std::string> optional_text(std::string_view key) const;
  Result<double> required_number(std::string_view key) const;

 private:
  explicit Fields(Value map) : map_(std::move(map)) {}
  Value map_;
  std::vector<Member> members_;
};

Result<std::string> text_of(const Value& value) {
  if (!value.node.IsScalar()) return value.error(fmt::format("must be a text, is {}", value.kind()));
  if (value.node.Scalar().empty()) return value.error("is empty");
  return value.node.Scalar();
}

Result<double> number_of(const Value& value) {
  ISTHMUS_TRY(const std::string text, text_of(value));
  double number = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failed != std::errc() || end != text.data() + text.size() || !std::isfinite(number) || number < 0) {
    return value.error(fmt::format("'{}' isn't a number of at least 0", text));
  }
  return number;
}

Result<std::uint32_t> count_of(const Value& value, std::uint32_t max) {
  ISTHMUS_TRY(const std::string text, text_of(value));
  std::uint32_t number = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failed != std::errc() || end != text.data() + text.size() || number > max) {
    return value.error(fmt::format("'{}' isn't a whole number of at most {}", text, max));
  }
  return number;
}

Result<Duration> duration_of(const Value& value) {
  ISTHMUS_TRY(const std::string text, text_of(value));
  double number = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  const double seconds = unit == "ms" ? number / 1e3 : unit == "s" ? number : unit == "m" ? number * 60 : -1;
  constexpr double kSecondsMax = 86400;
  if (failed != std::errc() || !(seconds > 0) || seconds > kSecondsMax) {
    return value.error(
        fmt::format("'{}' isn't a time above 0 and at most a day, such as 50ms, 2s or 5m", text));
  }
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

// A name that goes into labels, log lines and file names.
Result<std::string> name_of(const Value& value) {
  ISTHMUS_TRY(std::string text, text_of(value));
  constexpr std::size_t kNameMax = 64;
  const bool is_plain = std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.' || c == '/' || c == ':';
  });
  if (is_plain && text.size() <= kNameMax) return text;
  return value.error(
      fmt::format("'{}' isn't a name: 1 to {} of a-z A-Z 0-9 - _ . / :", text.substr(0, kNameMax), kNameMax));
}

template <typename T>
Result<T> choice_of(const Value& value, std::initializer_list<std::pair<std::string_view, T>> choices) {
  ISTHMUS_TRY(const std::string text, text_of(value));
  std::vector<std::string_view> names;
  for (const auto& [choice, meaning] : choices) {
    if (choice == text) return meaning;
    names.push_back(choice);
  }
  return value.error(fmt::format("unknown value '{}'{}", text, suggestion(text, names)));
}

Result<std::string> Fields::required_text(std::string_view key) const {
  ISTHMUS_TRY(const Value value, required(key));
  return text_of(value);
}

Result<std::string> Fields::optional_text(std::string_view key) const {
  const Value* value = find(key);
  return value == nullptr ? Result<std::string>(std::string()) : name_of(*value);
}

Result<double> Fields::required_number(std::string_view key) const {
  ISTHMUS_TRY(const Value value, required(key));
  return number_of(value);
}

Result<std::vector<Value>> items(const Value& list, std::size_t items_max) {
  std::vector<Value> found;
  if (list.node.IsNull()) return found;
  if (!list.node.IsSequence()) return list.error(fmt::format("must be a list, is {}", list.kind()));
  if (list.node.size() > items_max) {
    Error error = list.error(fmt::format("{} entries are more than {}", list.node.size(), items_max));
    return Error{Code::kExhausted, std::move(error.detail)};
  }
  for (const auto& node : list.node) {
    found.push_back({node, fmt::format("{}[{}]", list.path, found.size()), list.origin});
  }
  return found;
}

Result<std::vector<std::string>> lineage_of(const Value& list) {
  constexpr std::size_t kFilesMax = 64, kDigits = 64;
  ISTHMUS_TRY(const std::vector<Value> files, items(list, kFilesMax));
  if (files.empty()) return list.error("is empty: list the SHA-256 of each file of the checkpoint");
  std::vector<std::string> digests;
  for (const Value& file : files) {
    ISTHMUS_TRY(const std::string digest, text_of(file));
    const bool is_hex =
        std::ranges::all_of(digest, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
    if (!is_hex || digest.size() != kDigits)
      return file.error(fmt::format("'{}' isn't a SHA-256: {} digits 0-9 a-f", digest, kDigits));
    if (std::ranges::find(digests, digest) != digests.end())
      return file.error(fmt::format("'{}' is given twice", digest));
    digests.push_back(digest);
  }
  return digests;
}

Result<Model> model_of(const Member& member) {
  Model model;
  ISTHMUS_TRY(model.name, name_of({YAML::Node(member.key), member.value.path, member.value.origin}));
  ISTHMUS_TRY(const Fields fields, Fields::of(member.value, {"policy", "on_failure", "canary", "lineage",
                                                             "roundings_max", "non_finite", "slo"}));
  if (const Value* value = fields.find("policy")) {
    ISTHMUS_TRY(model.exactness,
                choice_of<kv::Exactness>(*value, {{"lossless", kv::Exactness::kLossless},
                                                  {"bounded", kv::Exactness::kBounded},
                                                  {"unqualified", kv::Exactness::kUnqualified}}));
  }
  if (const Value* value = fields.find("on_failure")) {
    ISTHMUS_TRY(model.on_failure, choice_of<OnFailure>(*value, {{"recompute", OnFailure::kRecompute},
                                                                {"fail", OnFailure::kFail}}));
  }
  if (const Value* value = fields.find("canary")) {
    ISTHMUS_TRY(model.canary,
                choice_of<Canary>(*value, {{"first_contact", Canary::kFirstContact}, {"off", Canary::kOff}}));
  }
  if (const Value* value = fields.find("lineage")) {
    ISTHMUS_TRY(model.lineage, lineage_of(*value));
  }
  if (const Value* value = fields.find("roundings_max")) {
    constexpr std::uint32_t kRoundingsMax = 16;
    ISTHMUS_TRY(model.roundings_max, count_of(*value, kRoundingsMax));
  }
  if (const Value* value = fields.find("non_finite")) {
    ISTHMUS_TRY(model.non_finite, choice_of<kv::NonFinite>(*value, {{"refuse", kv::NonFinite::kRefuse},
                                                                    {"replace", kv::NonFinite::kReplace}}));
  }
  if (const Value* value = fields.find("slo")) {
    ISTHMUS_TRY(const Fields slo, Fields::of(*value, {"ttft_p90"}));
    if (const Value* ttft = slo.find("ttft_p90")) {
      ISTHMUS_TRY(model.ttft_slo, duration_of(*ttft));
    }
  }
  return model;
}

Result<net::Endpoint> endpoint_of(const Value& value) {
  ISTHMUS_TRY(const std::string url, text_of(value));
  constexpr std::string_view kScheme = "http://";
  std::string_view rest = url;
  if (!rest.starts_with(kScheme)) return value.error(fmt::format("'{}' must be http://HOST:PORT", url));
  rest.remove_prefix(kScheme.size());
  if (rest.ends_with('/')) rest.remove_suffix(1);
  const auto endpoint = net::Endpoint::parse(rest);
  if (!endpoint.ok() || endpoint->port == 0 || rest.find('/') != std::string_view::npos) {
    return value.error(
        fmt::format("'{}' must be http://HOST:PORT with a port of 1 to 65535 and no path", url));
  }
  return *endpoint;
}

Result<Worker> worker_of(const Value& value, const Fleet& fleet) {
  ISTHMUS_TRY(const Fields fields, Fields::of(value, {"name", "role", "model", "url", "plane", "engine"}));
  Worker worker;
  ISTHMUS_TRY(const Value name_value, fields.required("name"));
  ISTHMUS_TRY(worker.name, name_of(name_value));
  if (fleet.find_worker(worker.name) != nullptr) {
    return name_value.error(fmt::format("a worker named '{}' exists already", worker.name));
  }
  ISTHMUS_TRY(const Value role, fields.required("role"));
  ISTHMUS_TRY(
      worker.role,
      choice_of<Role>(role, {{"prefill", Role::kPrefill}, {"decode", Role::kDecode}, {"both", Role::kBoth}}));
  ISTHMUS_TRY(const Value model, fields.required("model"));
  ISTHMUS_TRY(worker.model, text_of(model));
  if (fleet.find_model(worker.model) == nullptr) {
    std::vector<std::string_view> names;
    names.reserve(fleet.models.size());
    for (const Model& known : fleet.models) names.push_back(known.name);
    return model.error(
        fmt::format("no model '{}' under models{}", worker.model, suggestion(worker.model, names)));
  }
  ISTHMUS_TRY(const Value url, fields.required("url"));
  ISTHMUS_TRY(worker.http, endpoint_of(url));
  for (const Worker& other : fleet.workers) {
    if (other.http == worker.http) {
      return url.error(fmt::format("worker '{}' has the same url {}", other.name, other.url()));
    }
  }
  ISTHMUS_TRY(worker.plane, fields.optional_text("plane"));
  ISTHMUS_TRY(worker.engine, fields.optional_text("engine"));
  return worker;
}

Result<kv::Qualification> record_of(const Value& value) {
  ISTHMUS_TRY(const Fields fields,
              Fields::of(value, {"prefill_recipe", "decode_recipe", "lineage", "wire_form", "decode_form",
                                 "kl_pair", "kl_engines", "prompts"}));
  kv::Qualification record;
  ISTHMUS_TRY(record.prefill_recipe, fields.required_text("prefill_recipe"));
  ISTHMUS_TRY(record.decode_recipe, fields.required_text("decode_recipe"));
  ISTHMUS_TRY(record.lineage, fields.required_text("lineage"));
  ISTHMUS_TRY(record.wire_form, fields.required_text("wire_form"));
  ISTHMUS_TRY(record.decode_form, fields.required_text("decode_form"));
  ISTHMUS_TRY(record.kl_pair, fields.required_number("kl_pair"));
  ISTHMUS_TRY(record.kl_engines, fields.required_number("kl_engines"));
  ISTHMUS_TRY(const Value prompts, fields.required("prompts"));
  constexpr std::uint32_t kPromptsMax = 1'000'000'000;
  ISTHMUS_TRY(record.prompts, count_of(prompts, kPromptsMax));
  return record;
}

// yaml-cpp throws; nothing of it leaves this function.
Result<YAML::Node> yaml_of(std::string_view text, std::string_view origin) {
  if (text.size() > kFileBytesMax) {
    return Error{Code::kExhausted, fmt::format("{} is larger than {} bytes", origin, kFileBytesMax)};
  }
  try {
    return YAML::Load(std::string(text));
  } catch (const YAML::Exception& failure) {
    return Error{Code::kMalformed,
                 fmt::format("{}:{}: not YAML: {}", origin, failure.mark.line + 1, failure.msg)};
  }
}

Status read_qualification(const Value& item, const std::string& folder, Fleet& fleet) {
  if (item.node.IsScalar()) {
    const std::filesystem::path path = std::filesystem::path(folder) / item.node.Scalar();
    auto text = read_text_file(path.string());
    if (!text.ok()) return Error{text.code(), item.error(text.error().detail).detail};
    ISTHMUS_TRY(const std::vector<kv::Qualification> records, parse_qualifications(*text, path.string()));
    fleet.qualifications.insert(fleet.qualifications.end(), records.begin(), records.end());
  } else {
    ISTHMUS_TRY(kv::Qualification record, record_of(item));
    fleet.qualifications.push_back(std::move(record));
  }
  if (fleet.qualifications.size() > kQualificationsMax) {
    return Error{Code::kExhausted,
                 item.error(fmt::format("more than {} records", kQualificationsMax)).detail};
  }
  return ok_status();
}

Result<std::string> file_of(const Value& value, const std::string& folder) {
  ISTHMUS_TRY(const std::string text, text_of(value));
  return (std::filesystem::path(folder) / text).string();
}

Result<net::TlsFiles> tls_of(const Value& value, const std::string& folder) {
  ISTHMUS_TRY(const Fields fields, Fields::of(value, {"certificate", "key", "authority"}));
  net::TlsFiles files;
  ISTHMUS_TRY(const Value certificate, fields.required("certificate"));
  ISTHMUS_TRY(files.certificate, file_of(certificate, folder));
  ISTHMUS_TRY(const Value key, fields.required("key"));
  ISTHMUS_TRY(files.key, file_of(key, folder));
  ISTHMUS_TRY(const Value authority, fields.required("authority"));
  ISTHMUS_TRY(files.authority, file_of(authority, folder));
  return files;
}

Result<std::string> key_file_of(const Value& value, const std::string& folder) {
  ISTHMUS_TRY(const std::string text, text_of(value));
  constexpr std::string_view kScheme = "file:";
  if (!text.starts_with(kScheme) || text.size() == kScheme.size()) {
    return value.error(fmt::format("'{}' must be file:PATH, a file with 64 hex digits", text.substr(0, 8)));
  }
  return (std::filesystem::path(folder) / text.substr(kScheme.size())).string();
}

Status read_models(const Value& value, Fleet& fleet) {
  ISTHMUS_TRY(const std::vector<Member> entries, members(value));
  if (entries.empty()) return value.error("at least one model is needed");
  if (entries.size() > kModelsMax) {
    return Error{Code::kExhausted, value.error(fmt::format("more than {} models", kModelsMax)).detail};
  }
  for (const Member& entry : entries) {
    ISTHMUS_TRY(Model model, model_of(entry));
    fleet.models.push_back(std::move(model));
  }
  return ok_status();
}

Status read_prices(const Value& value, const std::string& folder, Fleet& fleet) {
  ISTHMUS_TRY(const std::vector<Member> planes, members(value));
  if (planes.size() > kPlanesMax) {
    return Error{Code::kExhausted, value.error(fmt::format("more than {} planes", kPlanesMax)).detail};
  }
  for (const Member& plane : planes) {
    ISTHMUS_TRY(const std::string file, text_of(plane.value));
    auto text = read_text_file((std::filesystem::path(folder) / file).string());
    if (!text.ok()) return Error{text.code(), plane.value.error(text.error().detail).detail};
    auto prices = kv::Prices::parse(*text);
    if (!prices.ok()) {
      return plane.value.error(fmt::format("{}: {}", file, prices.error().detail));
    }
    fleet.prices.emplace(plane.key, *std::move(prices));
  }
  return ok_status();
}

Result<Fleet> fleet_of(const Value& root, const std::string& folder) {
  Fleet fleet;
  ISTHMUS_TRY(const Fields fields, Fields::of(root, {"fleet", "key", "tls", "dialer", "models", "workers",
                                                     "qualifications", "prices"}));
  ISTHMUS_TRY(const Value name_value, fields.required("fleet"));
  ISTHMUS_TRY(fleet.name, name_of(name_value));
  ISTHMUS_TRY(const Value key, fields.required("key"));
  ISTHMUS_TRY(fleet.key_file, key_file_of(key, folder));
  if (const Value* tls = fields.find("tls")) {
    ISTHMUS_TRY(fleet.tls, tls_of(*tls, folder));
  }
  if (const Value* dialer = fields.find("dialer")) {
    ISTHMUS_TRY(fleet.dialer,
                choice_of<Dialer>(*dialer, {{"decode", Dialer::kDecode}, {"prefill", Dialer::kPrefill}}));
  }
  ISTHMUS_TRY(const Value models, fields.required("models"));
  ISTHMUS_TRY(read_models(models, fleet));
  ISTHMUS_TRY(const Value workers, fields.required("workers"));
  ISTHMUS_TRY(const std::vector<Value> entries, items(workers, kWorkersMax));
  for (const Value& entry : entries) {
    ISTHMUS_TRY(Worker worker, worker_of(entry, fleet));
    fleet.workers.push_back(std::move(worker));
  }
  if (const Value* records = fields.find("qualifications")) {
    ISTHMUS_TRY(const std::vector<Value> files, items(*records, kQualificationsMax));
    for (const Value& item : files) ISTHMUS_TRY(read_qualification(item, folder, fleet));
  }
  if (const Value* prices = fields.find("prices")) ISTHMUS_TRY(read_prices(*prices, folder, fleet));
  return fleet;
}

// Parents before their values. Only what parse_fleet() has taken comes here, which is not deep.
void note_lines(const YAML::Node& node, const std::string& path,
                std::vector<std::pair<std::string, int>>& lines) {
  lines.emplace_back(path, node.Mark().line + 1);
  if (node.IsMap()) {
    for (const auto& entry : node) {
      const std::string& key = entry.first.Scalar();
      note_lines(entry.second, path.empty() ? key : fmt::format("{}.{}", path, key), lines);
    }
  } else if (node.IsSequence()) {
    for (std::size_t i = 0; i < node.size(); ++i) note_lines(node[i], fmt::format("{}[{}]", path, i), lines);
  }
}

}  // namespace

Source::Source(std::string_view text) {
  const auto root = yaml_of(text, "");
  if (root.ok()) note_lines(*root, "", lines_);
}

Result<Fleet> parse_fleet(std::string_view text, const std::string& folder, std::string_view origin) {
  ISTHMUS_TRY(const YAML::Node root, yaml_of(text, origin));
  return fleet_of({root, "", origin}, folder);
}

Result<std::vector<kv::Qualification>> parse_qualifications(std::string_view text, std::string_view origin) {
  ISTHMUS_TRY(const YAML::Node root, yaml_of(text, origin));
  const Value value{root, "", origin};
  std::vector<kv::Qualification> records;
  if (!root.IsSequence()) {
    ISTHMUS_TRY(kv::Qualification record, record_of(value));
    records.push_back(std::move(record));
    return records;
  }
  ISTHMUS_TRY(const std::vector<Value> entries, items(value, kQualificationsMax));
  for (const Value& entry : entries) {
    ISTHMUS_TRY(kv::Qualification record, record_of(entry));
    records.push_back(std::move(record));
  }
  return records;
}

}  // namespace isthmus::fleet
