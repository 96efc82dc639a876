// SPDX-License-Identifier: Apache-2.0
// `isthmus kv` on files and the catalogue: from values to exit codes.
#pragma once

#include <cstdint>
#include <string>

#include "kv/catalogue.h"
#include "kv/descriptor.h"
#include "kv/negotiate.h"
#include "kvs/manifest.h"
#include "transform/ranks.h"

namespace isthmus::cli {

struct KvCommand {
  enum class What : std::uint8_t { kSample, kConvert, kVerify, kDiff, kCatalogue } what = What::kVerify;
  std::string input, other;  // Files; `other` is diff's second one.
  std::string output;        // Of sample and convert.
  std::string storage;       // What sample makes and convert makes of it; catalogue: one of them, "" for all.
  std::uint32_t block_tokens = 0;  // 0: the storage's usual block.
  transform::Degrees degrees;
  kv::Exactness exactness = kv::Exactness::kBounded;
  kv::NonFinite non_finite = kv::NonFinite::kRefuse;
  kv::StaticScales static_scales;  // Of convert's storage; by component.
  std::uint32_t threads = 1;       // That convert.
  kvs::Compression compression = kvs::Compression::kNone;
  std::uint32_t layers = 2, heads = 2, dim = 64;  // Of a sample, and what follows.
  kv::TokenRange tokens{0, 300};
  std::uint64_t seed = 1;
  bool json = false;
};

int run_kv(const KvCommand& command);
// `kv inspect FILE`.
int run_inspect_file(const std::string& path, bool json);
// The descriptor of a file's manifest.
Result<kv::Descriptor> descriptor_of_file(const std::string& path);
// True for what is a file and not a worker's URL or a storage's name.
bool is_kvs_file(const std::string& text);

}  // namespace isthmus::cli
