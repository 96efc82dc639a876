// SPDX-License-Identifier: Apache-2.0
// See kv_commands.h.
#include "cli/kv_commands.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "cli/options.h"
#include "cli/print.h"
#include "http/json.h"
#include "kv/catalogue.h"
#include "kvs/compare.h"
#include "kvs/file.h"
#include "kvs/state.h"

namespace isthmus::cli {
namespace {

int fail(std::string_view command, const Error& error, int exit_code = kExitCannotStart) {
  note_line(fmt::format("isthmus kv {}: {}", command, error.text()));
  return exit_code;
}

// Damage is a finding; a file that isn't there is not.
int exit_of(const Error& error) {
  if (error.code == Code::kIncompatible) return kExitRejected;
  return error.code == Code::kCorrupt || error.code == Code::kMalformed ? kExitFindings : kExitCannotStart;
}

// A line a second for people, while something is long.
kvs::Progress progress_of(std::string command) {
  return [command = std::move(command), last = now()](std::uint32_t done, std::uint32_t of) mutable {
    if (now() - last < std::chrono::seconds(1)) return;
    last = now();
    note_line(fmt::format("isthmus kv {}: chunk {} of {}", command, done, of));
  };
}

Result<kvs::Reader> open(const std::string& path) {
  ISTHMUS_TRY(const kvs::InputFile file, kvs::open_input(path));
  return kvs::Reader::open(file.read, file.size);
}

Result<kvs::State> load(const std::string& path, const char* command) {
  ISTHMUS_TRY(kvs::Reader reader, open(path));
  return kvs::load(reader, progress_of(fmt::format("{}: reading", command)));
}

Result<Digest128> save(const kvs::State& state, const KvCommand& values, const char* command) {
  ISTHMUS_TRY(kvs::OutputFile file, kvs::OutputFile::create(values.output));
  ISTHMUS_TRY(const Digest128 root, kvs::save(state, file.writer(), values.compression,
                                              progress_of(fmt::format("{}: writing", command))));
  ISTHMUS_TRY(file.close());
  return root;
}

std::string degrees_text(const kv::Descriptor& descriptor) {
  std::vector<std::uint32_t> ranks;
  for (const kv::RankBox& box : descriptor.partition) ranks.push_back(box.rank);
  std::sort(ranks.begin(), ranks.end());
  const auto count = std::unique(ranks.begin(), ranks.end()) - ranks.begin();
  return fmt::format("{} rank{}", count, count == 1 ? "" : "s");
}

json::Value manifest_json(const kvs::Reader& reader) {
  const kvs::Manifest& manifest = reader.manifest();
  json::Object lines;
  for (const auto& [path, value] : manifest.descriptor.canonical_lines()) lines.emplace_back(path, value);
  return json::object({{"tokens", json::Array{manifest.tokens.begin, manifest.tokens.end}},
                       {"chain", manifest.chain ? json::Value(manifest.chain->hex()) : json::Value()},
                       {"note", manifest.note},
                       {"chunks", reader.plan()->chunk_count()},
                       {"bytes", reader.plan()->total_bytes()},
                       {"compressed", reader.is_compressed()},
                       {"plan", reader.plan()->digest().hex()},
                       {"descriptor_digest", manifest.descriptor.digest().hex()},
                       {"descriptor", std::move(lines)}});
}

std::string manifest_text(const kvs::Reader& reader, const std::string& path) {
  const kvs::Manifest& manifest = reader.manifest();
  std::string text =
      fmt::format("{}: tokens [{}, {}), {} on {}, {} chunks, {:.1f} MiB\n", path, manifest.tokens.begin,
                  manifest.tokens.end,
                  manifest.tokens.size() == 1 ? "1 token" : fmt::format("{} tokens", manifest.tokens.size()),
                  degrees_text(manifest.descriptor), reader.plan()->chunk_count(),
                  static_cast<double>(reader.plan()->total_bytes()) / (1 << 20));
  if (reader.is_compressed()) text += "  chunks       compressed by zstd where that is smaller\n";
  text += fmt::format("  token chain  {}\n", manifest.chain ? manifest.chain->hex() : "not known");
  if (!manifest.note.empty()) text += fmt::format("  note         {}\n", manifest.note);
  text += fmt::format("  plan         {}\n  descriptor   {}\n", reader.plan()->digest().hex(),
                      manifest.descriptor.digest().hex());
  for (const auto& [name, value] : manifest.descriptor.canonical_lines())
    text += fmt::format("    {} = {}\n", name, value);
  return text;
}

// `counts` of a conversion, null for a sample.
int written(const char* command, const Result<Digest128>& root, const KvCommand& values,
            const kvs::State& state, const transform::ConversionCounts* counts) {
  if (!root.ok()) return fail(command, root.error(), exit_of(root.error()));
  if (values.json) {
    json::Object line{{"file", values.output},
                      {"root", root->hex()},
                      {"descriptor_digest", state.manifest.descriptor.digest().hex()}};
    if (counts != nullptr) {
      line.emplace_back("saturated", counts->saturated);
      line.emplace_back("non_finite", counts->non_finite);
    }
    print_line(json::Value(std::move(line)).dump());
    return kExitOk;
  }
  print_line(fmt::format("{}: {}, tokens [{}, {}), {}; root {}", values.output, values.storage,
                         state.manifest.tokens.begin, state.manifest.tokens.end,
                         degrees_text(state.manifest.descriptor), root->hex()));
  if (counts != nullptr)
    print_line(fmt::format("values clamped: {}, not finite and replaced: {}", counts->saturated,
                           counts->non_finite));
  return kExitOk;
}

// One group of plain attention, or of the latents that the storage holds.
Result<kv::Descriptor> sample_descriptor(const KvCommand& command, const kv::Storage& storage) {
  ISTHMUS_TRY(kv::Descriptor made,
              kv::plain_descriptor(storage, {command.layers, command.heads, command.dim}));
  if (command.block_tokens != 0 && made.representation[0].block_tokens != 0)
    made.representation[0].block_tokens = command.block_tokens;
  ISTHMUS_TRY(transform::split_ranks(made, command.degrees));
  ISTHMUS_TRY(made.validate());
  return made;
}

int run_sample(const KvCommand& command) {
  const auto make = [&]() -> Result<kvs::State> {
    ISTHMUS_TRY(const kv::Storage* storage, kv::find_storage(command.storage));
    kvs::Manifest manifest;
    ISTHMUS_TRY(manifest.descriptor, sample_descriptor(command, *storage));
    manifest.tokens = command.tokens;
    manifest.note = fmt::format("isthmus kv sample, seed {}", command.seed);
    return kvs::sample(std::move(manifest), command.seed);
  };
  const auto state = make();
  if (!state.ok()) return fail("sample", state.error());
  return written("sample", save(*state, command, "sample"), command, *state, nullptr);
}

// The state's descriptor as the command's storage keeps it. Errors: invalid_argument for scales that the
// storage has no use for, not_found for ones that it lacks, and those of kvs::stored_as.
Result<kv::Descriptor> wanted_descriptor(const KvCommand& command, const kv::Descriptor& from,
                                         const kv::Storage& storage) {
  const auto is_static = [](const kv::DecodeForm& form) {
    return form.operation == kv::DecodeOperation::kStaticScaled;
  };
  for (const auto& [component, scales] : command.static_scales) {
    const auto form = std::ranges::find(storage.forms, component, &kv::DecodeForm::component);
    if (form != storage.forms.end() && is_static(*form)) continue;
    return Error{
        Code::kInvalidArgument,
        fmt::format("--static-scale: {} stores no static scale of \"{:.64}\"", storage.name, component)};
  }
  auto to = kvs::stored_as(from, storage, command.block_tokens, command.degrees, command.static_scales);
  if (to.code() != Code::kNotFound) return to;
  return Error{Code::kNotFound,
               fmt::format("{}; give the checkpoint's, as --static-scale k=0.02,v=0.03", to.error().detail)};
}

int run_convert(const KvCommand& command) {
  const auto make = [&]() -> Result<kvs::Converted> {
    ISTHMUS_TRY(const kv::Storage* storage, kv::find_storage(command.storage));
    ISTHMUS_TRY(const kvs::State from, load(command.input, "convert"));
    ISTHMUS_TRY(const kv::Descriptor to, wanted_descriptor(command, from.manifest.descriptor, *storage));
    kv::Policy policy;
    policy.exactness = command.exactness;
    policy.non_finite = command.non_finite;
    return kvs::convert(from, to, policy, command.threads, progress_of("convert"));
  };
  const auto made = make();
  if (!made.ok()) return fail("convert", made.error(), exit_of(made.error()));
  return written("convert", save(made->state, command, "convert"), command, made->state, &made->counts);
}

int run_verify(const KvCommand& command) {
  const auto read = [&]() -> Result<std::pair<Digest128, std::uint32_t>> {
    ISTHMUS_TRY(kvs::Reader reader, open(command.input));
    kvs::Progress progress = progress_of("verify");
    while (reader.next_index() < reader.plan()->chunk_count()) {
      ISTHMUS_TRY(reader.next());
      progress(reader.next_index(), reader.plan()->chunk_count());
    }
    ISTHMUS_TRY(const Digest128 root, reader.finish());
    return std::pair{root, reader.next_index()};
  };
  const auto result = read();
  if (command.json) {
    print_line(json::object({{"file", command.input},
                             {"ok", result.ok()},
                             {"root", result.ok() ? json::Value(result->first.hex()) : json::Value()},
                             {"error", result.ok() ? json::Value() : json::Value(result.error().text())}})
                   .dump());
    return result.ok() ? kExitOk : exit_of(result.error());
  }
  if (!result.ok()) return fail("verify", result.error(), exit_of(result.error()));
  print_line(
      fmt::format("{}: whole; {} chunks, root {}", command.input, result->second, result->first.hex()));
  return kExitOk;
}

json::Value comparison_json(const kvs::Comparison& found) {
  json::Array descriptors, tiles, numbers;
  for (const kv::Difference& line : found.descriptors)
    descriptors.push_back(json::object({{"path", line.path}, {"a", line.a}, {"b", line.b}}));
  for (const std::string& tile : found.first_tiles) tiles.emplace_back(tile);
  for (const kvs::NumberDifference& one : found.numbers) {
    numbers.push_back(json::object({{"group", one.group},
                                    {"component", one.component},
                                    {"max", one.max},
                                    {"rms", one.rms},
                                    {"where", one.where},
                                    {"layers", json::array_of(one.layers)},
                                    {"layer_rms", json::array_of(one.layer_rms)}}));
  }
  return json::object(
      {{"same_state", found.is_same_state()},
       {"same_tokens", found.same_tokens},
       {"same_numbers", found.same_numbers},
       {"descriptor", std::move(descriptors)},
       {"tiles_equal", found.tiles_equal},
       {"tiles_different", found.tiles_different},
       {"tiles_only_a", found.tiles_only_a},
       {"tiles_only_b", found.tiles_only_b},
       {"first_tiles", std::move(tiles)},
       {"numbers", std::move(numbers)},
       {"not_compared", found.not_compared.empty() ? json::Value() : json::Value(found.not_compared)}});
}

std::string comparison_text(const kvs::Comparison& found) {
  std::string text = found.is_same_state() ? "the same state\n" : "";
  if (!found.descriptors.empty()) text += "descriptors differ:\n";
  for (const kv::Difference& line : found.descriptors)
    text += fmt::format("  {}\n    a: {}\n    b: {}\n", line.path, line.a, line.b);
  if (!found.same_tokens) text += "token ranges differ\n";
  if (found.same_numbers) {
    text += fmt::format("tiles: {} equal, {} different, {} only in a, {} only in b\n", found.tiles_equal,
                        found.tiles_different, found.tiles_only_a, found.tiles_only_b);
    for (const std::string& tile : found.first_tiles) text += fmt::format("  {}\n", tile);
  } else if (found.not_compared.empty()) {
    text += "numbers are stored in unlike ways, so tiles aren't compared\n";
  }
  for (const kvs::NumberDifference& one : found.numbers) {
    text += fmt::format("group {}, {}: largest difference {:.4g}{}{}, rms {:.3g} of the first's", one.group,
                        one.component, one.max, one.where.empty() ? "" : " at ", one.where, one.rms);
    const std::size_t worst = one.worst_layer();
    text +=
        one.rms > 0 ? fmt::format(", {:.3g} in layer {}\n", one.layer_rms[worst], one.layers[worst]) : "\n";
  }
  if (!found.not_compared.empty()) text += fmt::format("values aren't compared: {}\n", found.not_compared);
  return text;
}

int run_diff(const KvCommand& command) {
  auto a = open(command.input), b = open(command.other);
  for (const auto* file : {&a, &b}) {
    if (!file->ok()) return fail("diff", file->error(), exit_of(file->error()));
  }
  const auto found = kvs::compare(*a, *b, progress_of("diff"));
  if (!found.ok()) return fail("diff", found.error(), exit_of(found.error()));
  print(command.json ? comparison_json(*found).dump() + "\n" : comparison_text(*found));
  return found->is_same_state() ? kExitOk : kExitFindings;
}

json::Value storage_json(const kv::Storage& storage) {
  json::Array forms;
  for (const kv::DecodeForm& form : storage.forms)
    forms.push_back(json::object({{"form", form.text()}, {"recipe", form.recipe}}));
  return json::object({{"name", storage.name},
                       {"engine", storage.engine},
                       {"version", storage.version},
                       {"source", storage.source},
                       {"block_tokens", storage.block_tokens},
                       {"layout", storage.layout_text},
                       {"forms", std::move(forms)}});
}

std::string storage_text(const kv::Storage& storage) {
  std::string text = fmt::format(
      "{}  ({} {}; {})\n", storage.name, storage.engine, storage.version,
      storage.block_tokens == 0 ? std::string("rows") : fmt::format("blocks of {}", storage.block_tokens));
  text += fmt::format("  {}\n", storage.source);
  std::string layout = storage.layout_text;
  for (std::size_t at = 0; (at = layout.find('\n', at)) != std::string::npos; at += 3)
    layout.replace(at, 1, "\n  ");
  text += fmt::format("  {}\n", layout);
  for (const kv::DecodeForm& form : storage.forms)
    text += fmt::format("  {}  by {}\n", form.text(), form.recipe);
  return text;
}

int run_catalogue(const KvCommand& command) {
  std::vector<const kv::Storage*> shown;
  if (command.storage.empty()) {
    for (const kv::Storage& storage : kv::catalogue()) shown.push_back(&storage);
  } else {
    const auto found = kv::find_storage(command.storage);
    if (!found.ok()) return fail("catalogue", found.error());
    shown.push_back(*found);
  }
  json::Array all;
  std::string text;
  for (const kv::Storage* storage : shown) {
    all.push_back(storage_json(*storage));
    text += storage_text(*storage);
  }
  print(command.json ? json::Value(std::move(all)).dump() + "\n" : text);
  return kExitOk;
}

}  // namespace

bool is_kvs_file(const std::string& text) {
  return text.ends_with(".kvs");
}

Result<kv::Descriptor> descriptor_of_file(const std::string& path) {
  ISTHMUS_TRY(const kvs::Reader reader, open(path));
  return reader.manifest().descriptor;
}

int run_inspect_file(const std::string& path, bool json) {
  const auto reader = open(path);
  if (!reader.ok()) return fail("inspect", reader.error(), exit_of(reader.error()));
  print(json ? manifest_json(*reader).dump() + "\n" : manifest_text(*reader, path));
  return kExitOk;
}

int run_kv(const KvCommand& command) {
  switch (command.what) {
    case KvCommand::What::kSample:
      return run_sample(command);
    case KvCommand::What::kConvert:
      return run_convert(command);
    case KvCommand::What::kVerify:
      return run_verify(command);
    case KvCommand::What::kDiff:
      return run_diff(command);
    case KvCommand::What::kCatalogue:
      break;
  }
  return run_catalogue(command);
}

}  // namespace isthmus::cli
