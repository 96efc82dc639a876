// SPDX-License-Identifier: Apache-2.0
// Slow on purpose: no kernel of the transform's addressing is used, only its row conversions.
#include "engine/reference/store.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "base/check.h"
#include "engine/reference/representation.h"

namespace isthmus::engine {
namespace {

void put_bits(std::byte* base, std::uint64_t bit, std::uint32_t bits, std::uint32_t value) {
  std::byte* const at = base + bit / 8;
  if (bits == 4) {
    const auto old = std::to_integer<std::uint32_t>(*at);
    value = (old & (0xf0u >> (bit % 8))) | (value & 0xfu) << (bit % 8);
  }
  std::memcpy(at, &value, (bits + 7) / 8);
}

std::uint32_t get_bits(const std::byte* base, std::uint64_t bit, std::uint32_t bits) {
  std::uint32_t value = 0;
  std::memcpy(&value, base + bit / 8, (bits + 7) / 8);
  return bits == 4 ? value >> (bit % 8) & 0xfu : value;
}

}  // namespace

// Units that are free, in order.
class Store::Pool : public std::enable_shared_from_this<Store::Pool> {
 public:
  Pool(std::uint64_t units, bool must_be_consecutive)
      : is_free_(units, true), is_row_pool_(must_be_consecutive) {}

  std::uint64_t free() const {
    const std::lock_guard lock(mutex_);
    return static_cast<std::uint64_t>(std::count(is_free_.begin(), is_free_.end(), true));
  }

  Result<std::shared_ptr<const Units>> take(std::uint64_t count) {
    const std::lock_guard lock(mutex_);
    std::vector<std::uint32_t> found;
    for (std::uint32_t unit = 0; unit < is_free_.size() && found.size() < count; ++unit) {
      if (is_free_[unit]) {
        found.push_back(unit);
      } else if (is_row_pool_) {
        found.clear();
      }
    }
    if (found.size() < count)
      return Error{Code::kExhausted, fmt::format("{} units of {} are needed", count, is_free_.size())};
    // Neighbours in the sequence aren't neighbours in memory.
    if (!is_row_pool_)
      std::ranges::sort(found, {}, [](std::uint32_t unit) { return std::pair(unit % 3 != 1, unit); });
    for (const std::uint32_t unit : found) is_free_[unit] = false;
    return std::shared_ptr<const Units>(std::make_shared<Units>(
        std::move(found), [pool = shared_from_this()](const Units& units) { pool->give_back(units); }));
  }

 private:
  void give_back(const Units& units) {
    const std::lock_guard lock(mutex_);
    for (const std::uint32_t unit : units.units) is_free_[unit] = true;
  }

  mutable std::mutex mutex_;
  std::vector<bool> is_free_;
  bool is_row_pool_;
};

Result<std::unique_ptr<Store>> Store::make(const kv::Descriptor& descriptor,
                                           const ReferenceOptions& options) {
  std::unique_ptr<Store> store(new Store());
  const std::uint32_t block_tokens = descriptor.representation.front().block_tokens;
  store->is_paged_ = block_tokens != 0;
  store->unit_tokens_ = std::max(1u, block_tokens);
  store->extent_ = (options.kv_tokens + store->unit_tokens_ - 1) / store->unit_tokens_;
  if (store->extent_ == 0) return Error{Code::kInvalidArgument, "there is room for one token at least"};
  store->pool_ = std::make_shared<Pool>(store->extent_, !store->is_paged_);
  const std::vector<kv::LayerGroup> model = groups_of(options.shape);
  for (std::size_t g = 0; g < descriptor.groups.size(); ++g) {
    std::vector<Numbers>& numbers = store->numbers_.emplace_back();
    for (std::size_t c = 0; c < descriptor.groups[g].components.size(); ++c) {
      const kv::Component& component = descriptor.groups[g].components[c];
      const kv::DecodeForm& form = descriptor.representation[g].forms[c];
      const kv::WireComponent stored{form, component.value_transforms};
      const kv::WireComponent plain{
          {.component = component.name, .codes = kv::Format::kF32, .recipe = "nearest_even"},
          model[g].components[c].value_transforms};
      const auto shape = transform::ComponentShape::of(descriptor.groups[g], c);
      ISTHMUS_TRY(auto to, transform::RowConverter::make(plain, stored, shape));
      ISTHMUS_TRY(auto from, transform::RowConverter::make(stored, plain, shape));
      numbers.push_back({component.dim, form.granule_tokens, std::move(to), std::move(from), {}});
    }
  }
  for (const kv::RankBox& box : descriptor.partition) ISTHMUS_TRY(store->add_shard(descriptor, box));
  return store;
}

Status Store::add_shard(const kv::Descriptor& descriptor, const kv::RankBox& box) {
  ISTHMUS_TRY(const kv::Layout layout, descriptor.layout(box.group, box.rank));
  Shard& shard = shards_.emplace_back();
  shard.box = box;
  const kv::LayerGroup& group = descriptor.groups[box.group];
  for (std::size_t c = 0; c < group.components.size(); ++c) {
    const kv::DecodeForm& form = descriptor.representation[box.group].forms[c];
    ISTHMUS_TRY(auto forms, transform::form_parts(form, group.components[c].dim));
    std::vector<Part>& parts = shard.components.emplace_back();
    for (transform::FormPart& one : forms) {
      ISTHMUS_TRY(const kv::PartLayout* part, layout.part(one.part));
      parts.push_back({*part, layout.region(part->region), std::move(one)});
    }
  }
  for (const kv::RegionLayout& region : layout.regions()) {
    const std::uint32_t layers = region.per_layer ? box.layer_end - box.layer_begin : 1;
    for (std::uint32_t layer = 0; layer < layers; ++layer) {
      auto& memory = shard.memory.emplace_back(layout.region_bytes(region.name, extent_));
      shard.regions.push_back({region.name, layer, memory.data(), memory.size(), extent_});
      bytes_ += memory.size();
    }
  }
  return ok_status();
}

Result<std::shared_ptr<const Units>> Store::take(std::uint64_t tokens) {
  return pool_->take((tokens + unit_tokens_ - 1) / unit_tokens_);
}

std::uint64_t Store::free_units() const {
  return pool_->free();
}

std::uint32_t Store::group_tokens(const RowPlace& place) const {
  return numbers_.at(place.group).at(place.component).group_tokens;
}

// Every rank has its own order of blocks.
std::uint32_t Store::physical(const Shard& shard, std::uint32_t unit) const {
  if (!is_paged_) return unit;
  return static_cast<std::uint32_t>((std::uint64_t{unit} + shard.box.rank) % extent_);
}

std::vector<Store::Shard*> Store::replicas(const RowPlace& place) {
  std::vector<Shard*> found;
  for (Shard& shard : shards_) {
    const kv::RankBox& box = shard.box;
    if (box.group == place.group && box.layer_begin <= place.layer && place.layer < box.layer_end &&
        box.head_begin <= place.head && place.head < box.head_end) {
      found.push_back(&shard);
    }
  }
  ISTHMUS_CHECK(!found.empty());
  return found;
}

template <typename Each>
void Store::walk(Shard& shard, const RowPlace& place, const Units& units, kv::TokenRange positions,
                 Each each) {
  const std::vector<Part>& parts = shard.components[place.component];
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const Part& part = parts[p];
    const std::uint32_t layer = place.layer - shard.box.layer_begin;
    const auto memory = std::ranges::find_if(shard.regions, [&](const kv::RegionMemory& one) {
      return one.region == part.region.name && one.layer == (part.region.per_layer ? layer : 0);
    });
    const std::uint32_t granule = part.form.granule_tokens;
    std::uint64_t group = 0;
    for (std::uint64_t at = positions.begin; at < positions.end; at += granule, ++group) {
      const std::uint32_t unit = physical(shard, units.units.at(at / unit_tokens_));
      for (std::uint32_t u = 0; u < part.form.units; ++u) {
        const kv::ElementIndex index{.layer = part.region.per_layer ? 0 : layer,
                                     .block = unit,
                                     .slot = at % unit_tokens_,
                                     .token = unit,
                                     .head = place.head - shard.box.head_begin,
                                     .dim = std::uint64_t{u} * part.form.granule};
        const std::uint32_t bits = kv::bits(part.form.format);
        each(p, group * part.form.group_bytes * 8 + std::uint64_t{u} * bits, memory->base,
             kv::bit_offset(part.layout, index, extent_), bits);
      }
    }
  }
}

void Store::resize_arrays(Numbers& numbers, const RowPlace& place, std::uint64_t rows) const {
  const auto shard =
      std::ranges::find_if(shards_, [&](const Shard& one) { return one.box.group == place.group; });
  const std::vector<Part>& parts = shard->components[place.component];
  numbers.arrays.resize(parts.size());
  for (std::size_t p = 0; p < parts.size(); ++p) numbers.arrays[p].resize(parts[p].form.tile_bytes(rows));
}

transform::RowArrays Store::arrays(Numbers& numbers) const {
  const auto at = [&](std::size_t part) {
    return part < numbers.arrays.size() ? numbers.arrays[part].data() : nullptr;
  };
  return {at(0), at(1), at(2)};
}

void Store::write(const RowPlace& place, const Units& units, std::uint64_t first,
                  std::span<const float> rows) {
  Numbers& numbers = this->numbers(place);
  const std::uint64_t count = rows.size() / numbers.dim;
  resize_arrays(numbers, place, count);
  transform::ConversionCounts counts;
  const Status stored = numbers.store.convert(count, transform::ConstRowArrays(std::as_bytes(rows).data()),
                                              arrays(numbers), {place.layer, place.head}, counts);
  ISTHMUS_CHECK(stored.ok());  // The model's values are finite.
  for (Shard* shard : replicas(place)) {
    walk(*shard, place, units, {first, first + count},
         [&](std::size_t part, std::uint64_t array_bit, std::byte* base, std::uint64_t bit,
             std::uint32_t bits) {
           put_bits(base, bit, bits, get_bits(numbers.arrays[part].data(), array_bit, bits));
         });
  }
}

void Store::read(const RowPlace& place, const Units& units, kv::TokenRange positions, std::uint32_t reader,
                 std::vector<float>& rows) {
  Numbers& numbers = this->numbers(place);
  const std::uint64_t begin = positions.begin / numbers.group_tokens * numbers.group_tokens;
  const std::uint64_t count = positions.end - begin;
  resize_arrays(numbers, place, count);
  const std::vector<Shard*> all = replicas(place);
  walk(*all[reader % all.size()], place, units, {begin, positions.end},
       [&](std::size_t part, std::uint64_t array_bit, const std::byte* base, std::uint64_t bit,
           std::uint32_t bits) {
         put_bits(numbers.arrays[part].data(), array_bit, bits, get_bits(base, bit, bits));
       });
  rows.resize(count * numbers.dim);
  transform::ConversionCounts counts;
  const Status loaded =
      numbers.load.convert(count, arrays(numbers), {std::as_writable_bytes(std::span(rows)).data()},
                           {place.layer, place.head}, counts);
  ISTHMUS_CHECK(loaded.ok());
  rows.erase(rows.begin(),
             rows.begin() + static_cast<std::ptrdiff_t>((positions.begin - begin) * numbers.dim));
}

std::vector<transform::RankMemory> Store::bindings(const Units& units, kv::TokenRange range) const {
  std::map<std::uint32_t, transform::RankMemory> ranks;
  for (const Shard& shard : shards_) {
    transform::RankMemory& rank = ranks[shard.box.rank];
    rank.rank = shard.box.rank;
    rank.groups.resize(numbers_.size());
    kv::Binding& binding = rank.groups[shard.box.group];
    binding.memory = shard.regions;
    binding.valid = range;
    if (is_paged_) {
      for (const std::uint32_t unit : units.units) binding.blocks.push_back(physical(shard, unit));
    } else {
      binding.first_row = units.units.front();
    }
  }
  std::vector<transform::RankMemory> made;
  for (auto& [number, rank] : ranks) made.push_back(std::move(rank));
  return made;
}

}  // namespace isthmus::engine
