// SPDX-License-Identifier: Apache-2.0
// Every row of the catalogue against a closed formula written by hand, element by element.
#include "kv/catalogue.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kv/sample.h"

namespace isthmus::kv {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr std::uint64_t kOpen = 5;  // Blocks or rows of each region.

// l layer, b block, s slot, t row, h head, d element; L layers, N blocks or rows, B slots, H heads, D
// elements of the component's row, K of k's, V of v's.
struct At {
  std::uint64_t l, b, s, t, h, d, L, N, B, H, D, K, V;
};

// Bits from the region's base, one formula a part.
using Formulas = std::map<std::string, std::function<std::uint64_t(const At&)>>;

std::uint64_t byte(std::uint64_t bytes) {
  return bytes * 8;
}

Formulas both(const std::function<std::uint64_t(const At&)>& formula) {
  return {{"k", formula}, {"v", formula}};
}

Formulas side(std::uint64_t scale, std::uint64_t zero, const std::function<std::uint64_t(const At&)>& record,
              const std::function<std::uint64_t(const At&)>& codes) {
  Formulas out;
  for (const char* part : {"k", "v"}) {
    out[part] = codes;
    out[std::string(part) + ".s"] = [=](const At& a) { return byte(record(a) + scale); };
    out[std::string(part) + ".z"] = [=](const At& a) { return byte(record(a) + zero); };
  }
  return out;
}

Formulas rows(std::uint64_t element) {
  return both([=](const At& a) { return byte(((a.t * a.H + a.h) * a.D + a.d) * element); });
}

Formulas v_transposed(std::uint64_t element) {
  Formulas out = rows(element);
  out["v"] = [=](const At& a) { return byte(((a.h * a.D + a.d) * a.N + a.t) * element); };
  return out;
}

Formulas hnd(std::uint64_t element) {
  return both([=](const At& a) { return byte((((a.b * a.H + a.h) * a.B + a.s) * a.D + a.d) * element); });
}

Formulas nhd(std::uint64_t element) {
  return both([=](const At& a) { return byte((((a.b * a.B + a.s) * a.H + a.h) * a.D + a.d) * element); });
}

// Two planes of one block, k's first; `inside` is the element's index in its plane.
Formulas planes(const std::function<std::uint64_t(const At&)>& k,
                const std::function<std::uint64_t(const At&)>& v) {
  const auto at = [](const At& a, std::uint64_t plane, std::uint64_t inside) {
    const std::uint64_t rows = a.B * a.H;
    return byte((a.b * rows * (a.K + a.V) + plane * rows * a.K + inside) * 2);
  };
  return {{"k", [=](const At& a) { return at(a, 0, k(a)); }},
          {"v", [=](const At& a) { return at(a, 1, v(a)); }}};
}

// One head's k region, then its v region.
Formulas head_planes(const std::function<std::uint64_t(const At&)>& k,
                     const std::function<std::uint64_t(const At&)>& v, std::uint64_t element = 2) {
  const auto at = [=](const At& a, std::uint64_t plane, std::uint64_t inside) {
    return byte((((a.b * a.H + a.h) * (a.K + a.V) + plane * a.K) * a.B + inside) * element);
  };
  return {{"k", [=](const At& a) { return at(a, 0, k(a)); }},
          {"v", [=](const At& a) { return at(a, 1, v(a)); }}};
}

std::uint64_t record(const At& a) {
  return (a.b * a.H + a.h) * a.B + a.s;
}

void add_embedded(std::map<std::string, Formulas>& all) {
  all["llamacpp:f16"] = all["llamacpp:bf16"] = rows(2);
  all["llamacpp:f32"] = rows(4);
  all["llamacpp:f16_v_transposed"] = all["llamacpp:bf16_v_transposed"] = v_transposed(2);
  all["llamacpp:f32_v_transposed"] = v_transposed(4);
  all["llamacpp:q8_0"] = side(
      0, 0, [](const At& a) { return ((a.t * a.H + a.h) * a.D + a.d) / 32 * 34; },
      [](const At& a) { return byte(((a.t * a.H + a.h) * a.D + a.d) / 32 * 34 + 2 + a.d % 32); });
  all["llamacpp:q8_0_unrotated"] = all["llamacpp:q8_0"];
  all["llamacpp:q8_0_v_q4_0"] = all["llamacpp:q8_0"];
  const auto block = [](const At& a) { return ((a.t * a.H + a.h) * a.D + a.d) / 32 * 18; };
  all["llamacpp:q8_0_v_q4_0"]["v.s"] = [=](const At& a) { return byte(block(a)); };
  all["llamacpp:q8_0_v_q4_0"]["v"] = [=](const At& a) {
    return byte(block(a) + 2 + a.d % 16) + (a.d % 32 < 16 ? 0 : 4);
  };
  all["openvino:f32"] = hnd(4);
  all["openvino:f16"] = all["openvino:bf16"] = hnd(2);
  all["openvino:stateful_f32"] = both([](const At& a) { return byte(((a.h * a.N + a.t) * a.D + a.d) * 4); });
  all["openvino:u8"] = side(
      0, 4, [=](const At& a) { return record(a) * (8 + a.D); },
      [=](const At& a) { return byte(record(a) * (8 + a.D) + 8 + a.d); });
  all["openvino:u4"] = side(
      0, 4, [=](const At& a) { return record(a) * (8 + a.D / 2); },
      [=](const At& a) { return byte(record(a) * (8 + a.D / 2) + 8 + a.d / 2) + (a.d % 2 == 0 ? 4 : 0); });
  all["openvino:u8_channel"] = all["openvino:u8"];
  const auto channel = [](const At& a) { return (a.b * a.H + a.h) * (8 * a.D + a.B * a.D); };
  all["openvino:u8_channel"]["k.s"] = [=](const At& a) { return byte(channel(a) + 4 * a.d); };
  all["openvino:u8_channel"]["k.z"] = [=](const At& a) { return byte(channel(a) + 4 * a.D + 4 * a.d); };
  all["openvino:u8_channel"]["k"] = [=](const At& a) { return byte(channel(a) + 8 * a.D + a.s * a.D + a.d); };
}

void add_paged(std::map<std::string, Formulas>& all) {
  all["vllm:flash_nhd"] = all["sglang:page"] = nhd(2);
  all["vllm:flash_hnd"] = hnd(2);
  const auto slot_dim = [](const At& a) { return a.s * a.D + a.d; };
  all["vllm:packed_k_then_v"] = head_planes(slot_dim, slot_dim);
  all["vllm:packed_per_token"] = {
      {"k", [=](const At& a) { return byte((record(a) * (a.K + a.V) + a.d) * 2); }},
      {"v", [=](const At& a) { return byte((record(a) * (a.K + a.V) + a.K + a.d) * 2); }}};
  const auto dim_slot = [](const At& a) { return a.d * a.B + a.s; };
  all["vllm:cpu_vec"] = head_planes(dim_slot, slot_dim);
  all["vllm:cpu_vec_fp8"] = head_planes(dim_slot, slot_dim, 1);
  // Tiles of 16 slots, 32 pairs of elements each 32 apart; v: 16 elements, pairs of slots.
  const auto amx_k = [](const At& a) { return a.s / 16 * 16 * a.D + a.d / 2 * 32 + a.s % 16 * 2 + a.d % 2; };
  const auto amx_v = [](const At& a) { return a.d / 16 * 16 * a.B + a.s / 2 * 32 + a.d % 16 * 2 + a.s % 2; };
  all["vllm:cpu_amx"] = head_planes(amx_k, amx_v);
  all["vllm:cpu_amx_fp8"] = head_planes(amx_k, amx_v, 1);
  const auto paged_x = [](std::uint64_t x) {
    const std::uint64_t element = 16 / x;
    return Formulas{
        {"k",
         [=](const At& a) {
           return byte(((((a.b * a.H + a.h) * (a.D / x) + a.d / x) * a.B + a.s) * x + a.d % x) * element);
         }},
        {"v", [=](const At& a) { return byte((((a.b * a.H + a.h) * a.D + a.d) * a.B + a.s) * element); }}};
  };
  all["vllm:paged_x"] = paged_x(8);
  all["vllm:paged_x_f32"] = paged_x(4);
  all["vllm:paged_x_fp8"] = paged_x(16);
  all["vllm:flash_nhd_fp8"] = all["vllm:flash_nhd_fp8_fnuz"] = nhd(1);
  const auto in_page = [](const At& a, std::uint64_t plane) {
    return byte(a.b * 32768 + (plane * a.B * a.H * a.K + (a.s * a.H + a.h) * a.D + a.d) * 2);
  };
  all["vllm:padded_page"] = {{"k", [=](const At& a) { return in_page(a, 0); }},
                             {"v", [=](const At& a) { return in_page(a, 1); }}};
  const auto nhd_plane = [](const At& a) { return (a.s * a.H + a.h) * a.D + a.d; };
  const auto hnd_plane = [](const At& a) { return (a.h * a.B + a.s) * a.D + a.d; };
  all["flashinfer:nhd"] = planes(nhd_plane, nhd_plane);
  all["flashinfer:hnd"] = planes(hnd_plane, hnd_plane);
  const auto pooled = [=](const At& a, std::uint64_t plane) {
    return byte((((a.b * a.L + a.l) * (a.K + a.V) + plane * a.K) * a.B * a.H + hnd_plane(a)) * 2);
  };
  all["tensorrt_llm:paged"] = {{"k", [=](const At& a) { return pooled(a, 0); }},
                               {"v", [=](const At& a) { return pooled(a, 1); }}};
}

// DeepSeek V4's blocks: records of 576 bytes, scales of 8 bytes a token, up to a multiple of 576.
std::uint64_t v4_block(const At& a) {
  return a.b * ((a.B * 584 + 575) / 576 * 576);
}

void add_others(std::map<std::string, Formulas>& all) {
  const auto nz = [](const At& a, std::uint64_t c0) {
    const std::uint64_t hd = a.h * a.D + a.d;
    return byte(((a.b * (a.H * a.D / c0) + hd / c0) * a.B * c0 + a.s * c0 + hd % c0) * 2);
  };
  all["ascend:nz"] = both([=](const At& a) { return nz(a, 16); });
  all["ascend:mla_nz"] = {{"latent", [=](const At& a) { return nz(a, 16); }},
                          {"rope", [=](const At& a) { return nz(a, 16); }}};
  Formulas apart = nhd(1);
  for (const char* part : {"k.s", "v.s"}) {
    apart[part] = [](const At& a) { return byte(((a.b * a.B + a.s) * a.H + a.h) * 4); };
  }
  all["vllm:i8_scales_apart"] = apart;
  const auto token = [](const At& a) { return a.b * a.B + a.s; };
  all["vllm:mla_bf16"] = {{"latent", [=](const At& a) { return byte((token(a) * 576 + a.d) * 2); }},
                          {"rope", [=](const At& a) { return byte((token(a) * 576 + 512 + a.d) * 2); }}};
  all["vllm:mla_fp8_656"] = {
      {"latent", [=](const At& a) { return byte(token(a) * 656 + a.d); }},
      {"latent.s", [=](const At& a) { return byte(token(a) * 656 + 512 + a.d / 128 * 4); }},
      {"rope", [=](const At& a) { return byte(token(a) * 656 + 528 + a.d * 2); }}};
  all["vllm:mla_fp8_584"] = {
      {"latent", [](const At& a) { return byte(v4_block(a) + a.s * 576 + a.d); }},
      {"rope", [](const At& a) { return byte(v4_block(a) + a.s * 576 + 448 + a.d * 2); }},
      {"latent.s", [](const At& a) { return byte(v4_block(a) + a.B * 576 + a.s * 8 + a.d / 64); }}};
  all["vllm:index_k_fp8"] = {
      {"index_k", [](const At& a) { return byte(a.b * a.B * 132 + a.s * 128 + a.d); }},
      {"index_k.s", [](const At& a) { return byte(a.b * a.B * 132 + a.B * 128 + a.s * 4); }}};
}

std::map<std::string, Formulas> make_formulas() {
  std::map<std::string, Formulas> all;
  add_embedded(all);
  add_paged(all);
  add_others(all);
  return all;
}

const std::map<std::string, Formulas>& formulas() {
  static const std::map<std::string, Formulas> kAll = make_formulas();
  return kAll;
}

std::vector<std::string> storage_names() {
  std::vector<std::string> names;
  for (const Storage& storage : catalogue()) names.push_back(storage.name);
  return names;
}

// One row of the catalogue as one model's; the last two have k and v of unlike sizes.
struct Row {
  std::string storage;
  sample::Shape shape;
};

std::vector<Row> rows_of_all_shapes() {
  std::vector<Row> rows;
  for (const Storage& storage : catalogue()) {
    rows.push_back({storage.name, {}});
    if (storage.forms.front().component != "k") continue;
    rows.push_back({storage.name, {.heads = 2, .k_dim = 192, .v_dim = 128}});
    rows.push_back({storage.name, {.heads = 1, .k_dim = 32, .v_dim = 96}});
  }
  return rows;
}

class EachStorage : public ::testing::TestWithParam<Row> {
 protected:
  static Descriptor described() { return sample::descriptor(GetParam().storage, GetParam().shape); }
  // Calls `visit` for each element (or unit) of a part.
  static void for_each_element(const Descriptor& descriptor, const PartLayout& part,
                               const std::function<void(const ElementIndex&)>& visit) {
    const std::string component = part.part.substr(0, part.part.find('.'));
    const std::uint32_t block = descriptor.representation[0].block_tokens;
    for (const Component& one : descriptor.groups[0].components) {
      if (one.name != component) continue;
      ElementIndex i;
      for (i.layer = 0; i.layer < sample::kLayers; ++i.layer) {
        for (std::uint64_t open = 0; open < kOpen; ++open) {
          i.block = i.token = open;
          for (i.slot = 0; i.slot < (block == 0 ? 1 : block); ++i.slot) {
            for (i.head = 0; i.head < one.heads; ++i.head) {
              for (i.dim = 0; i.dim < one.dim; ++i.dim) visit(i);
            }
          }
        }
      }
    }
  }
};

TEST_P(EachStorage, LiesWhereItsClosedFormulaSays) {
  const Descriptor descriptor = described();
  const auto layout = descriptor.layout(0, 0);
  ASSERT_TRUE(layout.ok()) << layout.error().text();
  ASSERT_TRUE(formulas().contains(GetParam().storage));
  for (const PartLayout& part : layout->parts()) {
    ASSERT_TRUE(formulas().at(GetParam().storage).contains(part.part)) << part.part;
    const auto& formula = formulas().at(GetParam().storage).at(part.part);
    const auto& extent = layout->extents().components.at(part.part.substr(0, part.part.find('.')));
    std::uint64_t wrong = 0;
    for_each_element(descriptor, part, [&](const ElementIndex& i) {
      const At at{.l = i.layer,
                  .b = i.block,
                  .s = i.slot,
                  .t = i.token,
                  .h = i.head,
                  .d = i.dim,
                  .L = sample::kLayers,
                  .N = kOpen,
                  .B = layout->extents().block_tokens,
                  .H = extent.heads,
                  .D = extent.dim,
                  .K = GetParam().shape.k_dim,
                  .V = GetParam().shape.v_dim};
      wrong += bit_offset(part, i, kOpen) == formula(at) ? 0U : 1U;
    });
    EXPECT_EQ(wrong, 0U) << part.text();
  }
}

TEST_P(EachStorage, PlacesEveryUnitApartAndInsideItsRegion) {
  const Descriptor descriptor = described();
  const auto layout = descriptor.layout(0, 0);
  ASSERT_TRUE(layout.ok()) << layout.error().text();
  std::map<std::pair<std::string, std::uint64_t>, std::vector<bool>> used;
  for (const PartLayout& part : layout->parts()) {
    const bool per_layer = layout->region(part.region).per_layer;
    const std::uint64_t bytes = layout->region_bytes(part.region, kOpen);
    std::uint64_t collisions = 0;
    for_each_element(descriptor, part, [&](const ElementIndex& i) {
      const bool is_first = i.dim % part.dim_granule == 0 && i.slot % part.token_granule == 0 &&
                            i.head % part.head_granule == 0;
      if (!is_first) return;
      std::vector<bool>& map = used[{part.region, per_layer ? i.layer : 0}];
      map.resize(bytes * 8);
      const std::uint64_t begin = bit_offset(part, i, kOpen);
      ASSERT_LE(begin + bits(part.format), bytes * 8);
      for (std::uint64_t bit = begin; bit < begin + bits(part.format); ++bit) {
        collisions += map[bit] ? 1U : 0U;
        map[bit] = true;
      }
    });
    EXPECT_EQ(collisions, 0U) << part.text();
  }
}

TEST_P(EachStorage, MakesAValidDescriptor) {
  const Descriptor descriptor = described();
  const Status status = descriptor.validate();
  EXPECT_TRUE(status.ok()) << status.error().text();
  const Storage& storage = *find_storage(GetParam().storage).value();
  EXPECT_FALSE(storage.engine.empty() || storage.version.empty() || storage.source.empty());
}

// `text` without its word `at`, or with that word twice.
std::string edited(const std::vector<std::string>& words, std::size_t at, bool is_twice) {
  std::string out;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i == at && !is_twice) continue;
    out += words[i] + " ";
    if (i == at) out += words[i] + " ";
  }
  return out;
}

// Every factor of a closed axis left out or written twice is refused, and the error names part and axis.
TEST_P(EachStorage, AWrongFactorIsRefusedByPartAndAxis) {
  const Descriptor honest = described();
  std::vector<std::string> words;
  std::string word;
  for (const char c : honest.representation[0].layout_text) {
    if (c == '\n') word += c;
    if (c == ' ' || c == '\n') {
      if (!word.empty()) words.push_back(std::exchange(word, ""));
    } else {
      word += c;
    }
  }
  words.push_back(word);
  std::uint64_t tried = 0;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string axis =
        words[i].substr(words[i][0] == '~' ? 1 : 0).substr(0, words[i].find_first_of("/%", 1));
    const bool is_closed = axis.starts_with("dim") || axis.starts_with("slot") || axis.starts_with("head") ||
                           axis.starts_with("hd") || axis == "layer";
    if (!is_closed || (i > 0 && words[i - 1] == "per")) continue;
    for (const bool is_twice : {false, true}) {
      Descriptor wrong = honest;
      wrong.representation[0].layout_text = edited(words, i, is_twice);
      // A factor of extent 1 says nothing.
      if (wrong.canonical_text() == honest.canonical_text()) continue;
      const Status status = wrong.validate();
      ASSERT_FALSE(status.ok()) << wrong.representation[0].layout_text;
      EXPECT_THAT(status.error().detail, ContainsRegex("part [a-z_.]+, axis (layer|blk|slot|head|dim)"))
          << wrong.representation[0].layout_text;
      ++tried;
    }
  }
  EXPECT_GT(tried, 2U);
}

INSTANTIATE_TEST_SUITE_P(Catalogue, EachStorage, ::testing::ValuesIn(rows_of_all_shapes()),
                         [](const auto& each) {
                           const Row& row = each.param;
                           std::string name = fmt::format("{}_{}x{}_{}", row.storage, row.shape.heads,
                                                          row.shape.k_dim, row.shape.v_dim);
                           for (char& c : name)
                             c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
                           return name;
                         });

TEST(Catalogue, NamesAreUniqueAndEachHasAFormula) {
  const auto names = storage_names();
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
  EXPECT_EQ(formulas().size(), names.size());
}

TEST(Catalogue, AnUnknownStorageIsNotFoundAndTheKnownOnesAreListed) {
  const auto storage = find_storage("llamacpp:q9");
  EXPECT_EQ(storage.code(), Code::kNotFound);
  EXPECT_THAT(storage.error().detail, HasSubstr("\"llamacpp:q9\""));
  EXPECT_THAT(storage.error().detail, HasSubstr("openvino:u8"));
}

TEST(Catalogue, AStorageOfOtherComponentsIsRefused) {
  const Storage& storage = *find_storage("llamacpp:f16").value();
  LayerGroup group = sample::group_for(storage);
  group.components[1].name = "latent";
  EXPECT_THAT(represent(storage, group).error().text(),
              HasSubstr("incompatible: storage llamacpp:f16 has no component latent"));
  group.components.pop_back();
  EXPECT_THAT(represent(storage, group).error().text(),
              HasSubstr("holds 2 components, the layer group has 1"));
}

TEST(Catalogue, StaticScalesMustComeFromTheCheckpoint) {
  const Storage& storage = *find_storage("vllm:cpu_amx_fp8").value();
  EXPECT_THAT(represent(storage, sample::group_for(storage)).error().text(),
              HasSubstr("storage vllm:cpu_amx_fp8 needs static scales of k, and there are none"));
  const auto stored = represent(storage, sample::group_for(storage), {{"k", {0.5F}}, {"v", {0.25F}}});
  EXPECT_EQ(stored->representation.forms[1].static_scales, std::vector<float>{0.25F});
}

TEST(Catalogue, AWholeRowGranuleBecomesTheRowsSize) {
  const Storage& storage = *find_storage("openvino:u8").value();
  EXPECT_EQ(represent(storage, sample::group_for(storage))->representation.forms[0].granule_dim,
            sample::kDim);
}

// K and V after `storage` has stored rows of `dim` elements.
std::pair<std::vector<std::string>, std::vector<std::string>> transforms(const char* storage,
                                                                         std::uint32_t dim) {
  const Storage& row = *find_storage(storage).value();
  LayerGroup group = sample::group_for(row);
  for (Component& component : group.components) component.dim = dim;
  const std::vector<Component> stored = represent(row, group)->group.components;
  return {stored[0].value_transforms, stored[1].value_transforms};
}

TEST(Catalogue, LlamaRotatesQuantisedRowsByTheLargestPowerOfTwoForKAndBy64ForV) {
  using Words = std::vector<std::string>;
  for (const char* storage : {"llamacpp:q8_0", "llamacpp:q8_0_v_q4_0"}) {
    for (const auto& [dim, k] : std::map<std::uint32_t, Words>{{64, {"rope:interleaved", "hadamard:64"}},
                                                               {128, {"rope:interleaved", "hadamard:128"}},
                                                               {192, {"rope:interleaved", "hadamard:64"}},
                                                               {256, {"rope:interleaved", "hadamard:256"}}}) {
      EXPECT_EQ(transforms(storage, dim), std::pair(k, Words{"hadamard:64"})) << storage << " " << dim;
    }
    for (const std::uint32_t dim : {32U, 80U, 96U, 112U}) {
      EXPECT_EQ(transforms(storage, dim), std::pair(Words{"rope:interleaved"}, Words{})) << dim;
    }
  }
  for (const char* storage : {"llamacpp:f16", "llamacpp:bf16_v_transposed", "llamacpp:q8_0_unrotated",
                              "openvino:u8", "openvino:u8_channel", "vllm:cpu_vec"}) {
    EXPECT_EQ(transforms(storage, 128), std::pair(Words{"rope:interleaved"}, Words{})) << storage;
  }
}

TEST(Catalogue, OpenvinoRecordsHaveEightBytesBeforeTheCodes) {
  const auto layout = sample::descriptor("openvino:u8").layout(0, 0);
  EXPECT_EQ(layout->region_bytes("K", 7), 7U * sample::kHeads * 32 * (8 + sample::kDim));
}

}  // namespace
}  // namespace isthmus::kv
