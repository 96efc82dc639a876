// SPDX-License-Identifier: Apache-2.0
// The module isthmus._core: what the C++ library does, in Python's types. Documented in isthmus/__init__.py.
#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "failure.h"
#include "kv/catalogue.h"
#include "kv/choose.h"
#include "kv/descriptor.h"
#include "kv/negotiate.h"
#include "kv/prices.h"
#include "memory.h"
#include "transform/plan.h"
#include "transform/program.h"
#include "transform/ranks.h"
#include "transform/redistribute.h"
#include "wire/descriptor_codec.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace isthmus::python {

void fail(Error error) {
  throw Failure(std::move(error));
}

namespace {

using Range = std::pair<std::uint64_t, std::uint64_t>;

kv::TokenRange range_of(const Range& range) {
  return {range.first, range.second};
}

kv::Descriptor describe(const std::string& storage, const kv::PlainShape& shape,
                        std::optional<std::uint32_t> block_tokens, const transform::Degrees& ranks) {
  kv::Descriptor descriptor = unwrap(kv::plain_descriptor(*unwrap(kv::find_storage(storage)), shape));
  if (block_tokens) descriptor.representation.front().block_tokens = *block_tokens;
  unwrap(transform::split_ranks(descriptor, ranks));
  unwrap(descriptor.validate());
  return descriptor;
}

kv::Policy policy_of(const std::string& exactness, std::uint32_t roundings_max) {
  kv::Policy policy;
  policy.roundings_max = roundings_max;
  if (exactness == "lossless") {
    policy.exactness = kv::Exactness::kLossless;
  } else if (exactness == "bounded") {
    policy.exactness = kv::Exactness::kBounded;
  } else if (exactness == "unqualified") {
    policy.exactness = kv::Exactness::kUnqualified;
  } else {
    fail({Code::kInvalidArgument, "exactness is lossless, bounded or unqualified, not " + exactness});
  }
  return policy;
}

std::vector<transform::RankMemory> memories(const std::vector<const Memory*>& all) {
  std::vector<transform::RankMemory> made;
  for (const Memory* one : all) made.push_back(one->memory());
  return made;
}

// A plan with the ends that it was made for.
struct PlannedMove {
  kv::Descriptor source, target;
  std::shared_ptr<const transform::Plan> plan;
};

PlannedMove make_plan(const kv::Descriptor& source, const kv::Descriptor& target, const kv::Verdict& verdict,
                      const Range& tokens, const kv::Choice* choice) {
  kv::Verdict inputs = verdict;
  if (choice != nullptr) inputs.wire = choice->wire;
  return {source, target,
          std::make_shared<const transform::Plan>(
              unwrap(transform::Plan::make(source, target, inputs, range_of(tokens))))};
}

transform::Moved run(const PlannedMove& move, const std::vector<const Memory*>& from,
                     const std::vector<const Memory*>& to) {
  const auto source = memories(from), target = memories(to);
  const nb::gil_scoped_release others_run;
  return unwrap(transform::redistribute(
      {.plan = move.plan, .source = move.source, .target = move.target, .from = source, .to = target}));
}

// Root over the tiles that a state holds, read from the first rank that has each.
Digest128 digest_of(const kv::Descriptor& descriptor, const std::vector<const Memory*>& from,
                    const Range& tokens) {
  const auto memory = memories(from);
  const nb::gil_scoped_release others_run;
  const kv::Verdict verdict = kv::negotiate(descriptor, descriptor, {});
  const auto plan = std::make_shared<const transform::Plan>(
      unwrap(transform::Plan::make(descriptor, descriptor, verdict, range_of(tokens))));
  std::map<std::uint32_t, transform::Packer> packers;
  transform::TileRoot root;
  std::vector<std::byte> body(plan->body_bytes_max());
  for (const transform::Chunk& chunk : plan->chunks()) {
    const std::uint32_t rank =
        unwrap(transform::routes_of(chunk, descriptor, descriptor)).front().source_rank;
    auto packer = packers.find(rank);
    if (packer == packers.end())
      packer = packers.emplace(rank, unwrap(transform::Packer::make(plan, descriptor, rank))).first;
    const auto at = std::ranges::find(memory, rank, &transform::RankMemory::rank);
    if (at == memory.end())
      fail({Code::kInvalidArgument, fmt::format("no memory of rank {} is given", rank)});
    std::vector<Digest128> tiles(chunk.tile_count());
    unwrap(packer->second.pack(chunk, at->groups.at(chunk.group), std::span(body).first(chunk.body_bytes),
                               tiles));
    for (std::size_t i = 0; i < tiles.size(); ++i) root.add(plan->tile_key(chunk, i), tiles[i]);
  }
  return root.root();
}

void add_errors(nb::module_& module) {
  static nb::object error_type;
  error_type = nb::steal(PyErr_NewExceptionWithDoc(
      "isthmus.Error", "A typed failure; `code` is one of the names in spec/errors.md.", PyExc_RuntimeError,
      nullptr));
  module.attr("Error") = error_type;
  nb::register_exception_translator([](const std::exception_ptr& raised, void*) {
    try {
      std::rethrow_exception(raised);
    } catch (const Failure& failure) {
      nb::object made = error_type(failure.what());
      made.attr("code") = std::string(name(failure.error().code));
      PyErr_SetObject(error_type.ptr(), made.ptr());
    }
  });
  // The type outlives the interpreter's last module otherwise.
  nb::module_::import_("atexit").attr("register")(nb::cpp_function([] { error_type.reset(); }));
}

void add_storages(nb::module_& module) {
  nb::class_<kv::Storage>(
      module, "Storage",
      "How one engine keeps its state: a row of the catalogue. block_tokens is 0 for rows.")
      .def_ro("name", &kv::Storage::name)
      .def_ro("engine", &kv::Storage::engine)
      .def_ro("version", &kv::Storage::version)
      .def_ro("source", &kv::Storage::source)
      .def_ro("layout_text", &kv::Storage::layout_text)
      .def_ro("block_tokens", &kv::Storage::block_tokens)
      .def_prop_ro("forms", [](const kv::Storage& storage) {
        std::vector<std::string> texts;
        for (const kv::DecodeForm& form : storage.forms) texts.push_back(form.text());
        return texts;
      });
  module.def("catalogue", [] { return kv::catalogue(); }, "All storages that are known.");
  nb::class_<kv::RegionLayout>(module, "Region",
                               "One contiguous memory of a layout, for each layer or for all.")
      .def_ro("name", &kv::RegionLayout::name)
      .def_ro("per_layer", &kv::RegionLayout::per_layer)
      .def_prop_ro("is_paged",
                   [](const kv::RegionLayout& region) { return region.open_axis == kv::Axis::kBlock; });
  nb::class_<kv::Layout>(module, "Layout", "Where elements lie in one rank's regions of one layer group.")
      .def_prop_ro("canonical_text", &kv::Layout::canonical_text)
      .def_prop_ro("regions", &kv::Layout::regions)
      .def_prop_ro("layers", [](const kv::Layout& layout) { return layout.extents().layers; })
      .def(
          "region_bytes",
          [](const kv::Layout& layout, const std::string& region, std::uint64_t extent) {
            const bool is_there =
                std::ranges::any_of(layout.regions(), [&](const auto& one) { return one.name == region; });
            if (!is_there) fail({Code::kNotFound, "no region " + region});
            return layout.region_bytes(region, extent);
          },
          "region"_a, "extent"_a,
          "Bytes of one layer's region with so many blocks or rows. Error: not_found.");
}

std::vector<std::uint32_t> ranks_of(const kv::Descriptor& descriptor) {
  std::vector<std::uint32_t> ranks;
  for (const kv::RankBox& box : descriptor.partition) {
    if (std::ranges::find(ranks, box.rank) == ranks.end()) ranks.push_back(box.rank);
  }
  std::ranges::sort(ranks);
  return ranks;
}

void add_descriptor(nb::module_& module) {
  nb::class_<kv::Descriptor>(module, "Descriptor",
                             "What the bytes of a state mean, without addresses. Immutable; valid.")
      .def_static(
          "from_bytes",
          [](const nb::bytes& message) {
            const auto* first = static_cast<const std::byte*>(message.data());
            kv::Descriptor read = unwrap(wire::decode_descriptor(std::span(first, message.size())));
            unwrap(read.validate());
            return read;
          },
          "message"_a,
          "From a message isthmus.v1.Descriptor, as a worker or a .kvs file has it. Errors: malformed, "
          "unsupported,\n"
          "invalid_argument.")
      .def(
          "to_bytes",
          [](const kv::Descriptor& descriptor) {
            const std::vector<std::byte> bytes = unwrap(wire::encode_descriptor(descriptor));
            return nb::bytes(bytes.data(), bytes.size());
          },
          "The message; not canonical, so never compared or digested: that is what digest is for.")
      .def_prop_ro("canonical_text", &kv::Descriptor::canonical_text)
      .def_prop_ro("digest", [](const kv::Descriptor& descriptor) { return descriptor.digest().hex(); })
      .def_prop_ro("group_count", [](const kv::Descriptor& descriptor) { return descriptor.groups.size(); })
      .def(
          "block_tokens",
          [](const kv::Descriptor& descriptor, std::size_t group) {
            return descriptor.representation.at(group).block_tokens;
          },
          "group"_a = 0)
      .def(
          "has_token_axis",
          [](const kv::Descriptor& descriptor, std::size_t group) {
            return descriptor.groups.at(group).attention != kv::AttentionKind::kRecurrent;
          },
          "group"_a = 0, "False for a state that stands for all tokens up to one exact position.")
      .def(
          "tokens_below",
          [](const kv::Descriptor& descriptor, std::uint64_t position, std::uint32_t group,
             std::uint32_t rank) {
            for (const kv::RankBox& box : descriptor.partition) {
              if (box.group == group && box.rank == rank) return std::optional(box.tokens_below(position));
            }
            return std::optional<std::uint64_t>();
          },
          "position"_a, "group"_a = 0, "rank"_a = 0,
          "How many positions below this one the rank has of the group; None if it holds nothing of it. "
          "Blocks, slots\n"
          "and rows of a rank follow these numbers.")
      .def_prop_ro("ranks", &ranks_of)
      .def(
          "layout",
          [](const kv::Descriptor& descriptor, std::uint32_t group, std::uint32_t rank) {
            return unwrap(descriptor.layout(group, rank));
          },
          "group"_a = 0, "rank"_a = 0, "Error: not_found if the rank holds nothing of the group.")
      .def(
          "diff",
          [](const kv::Descriptor& a, const kv::Descriptor& b) {
            std::vector<std::tuple<std::string, std::string, std::string>> lines;
            for (const kv::Difference& one : kv::diff(a, b)) lines.emplace_back(one.path, one.a, one.b);
            return lines;
          },
          "other"_a, "(path, value here, value there) of each line that differs.");
}

void add_describe(nb::module_& module) {
  module.def(
      "describe",
      [](const std::string& storage, std::uint32_t layers, std::uint32_t heads, std::uint32_t dim,
         std::optional<std::uint32_t> block_tokens, std::uint32_t tensor_ranks, std::uint32_t pipeline_ranks,
         std::uint32_t context_ranks, std::uint32_t context_run) {
        return describe(storage, {.layers = layers, .heads = heads, .dim = dim}, block_tokens,
                        {tensor_ranks, pipeline_ranks, context_ranks, context_run});
      },
      "storage"_a, nb::kw_only(), "layers"_a, "heads"_a, "dim"_a, "block_tokens"_a = nb::none(),
      "tensor_ranks"_a = 1, "pipeline_ranks"_a = 1, "context_ranks"_a = 1, "context_run"_a = 0,
      "A descriptor of one group of plain attention as a storage of the catalogue keeps it.\n\n"
      "heads: KV heads; dim: elements of a head's row; block_tokens: the storage's usual ones if None, must "
      "be\n"
      "None for rows. Heads are shared over tensor ranks (copied where there are fewer), layers over "
      "pipeline\n"
      "ranks, positions over context ranks in turn, context_run tokens at a time; rank = (pipeline · "
      "context_ranks\n"
      "+ context) · tensor_ranks + tensor. Error: not_found (storage), invalid_argument.");
}

void add_verdict(nb::module_& module) {
  nb::class_<kv::Reason>(module, "Reason", "A difference: path, both values, and a sentence for people.")
      .def_ro("path", &kv::Reason::path)
      .def_ro("source", &kv::Reason::source)
      .def_ro("target", &kv::Reason::target)
      .def_ro("text", &kv::Reason::text)
      .def("__repr__", [](const kv::Reason& reason) {
        return fmt::format("<{}: {} -> {}: {}>", reason.path, reason.source, reason.target, reason.text);
      });
  nb::class_<kv::Verdict>(
      module, "Verdict",
      "kind: reject, direct, redistribute, convert or redistribute+convert; wire: the numbers "
      "that cross unless a choice says otherwise.")
      .def_prop_ro("kind", [](const kv::Verdict& verdict) { return std::string(kv::name(verdict.kind)); })
      .def_ro("rejects", &kv::Verdict::rejects)
      .def_ro("redistributions", &kv::Verdict::redistributions)
      .def_ro("conversions", &kv::Verdict::conversions)
      .def_ro("warnings", &kv::Verdict::warnings)
      .def_ro("roundings", &kv::Verdict::roundings)
      .def_ro("exact", &kv::Verdict::exact)
      .def_prop_ro("wire", [](const kv::Verdict& verdict) { return verdict.wire.text(); });
  module.def(
      "negotiate",
      [](const kv::Descriptor& source, const kv::Descriptor& target, const std::string& exactness,
         std::uint32_t roundings_max) {
        return kv::negotiate(source, target, policy_of(exactness, roundings_max));
      },
      "source"_a, "target"_a, nb::kw_only(), "exactness"_a = "lossless", "roundings_max"_a = 1,
      "May two ends share a state, and what must change? Never raises for descriptors: a reject says why. "
      "exactness:\n"
      "lossless, bounded or unqualified.");
  module.def(
      "explain",
      [](const kv::Descriptor& source, const kv::Descriptor& target, const std::string& exactness,
         std::uint32_t roundings_max, const kv::Prices* prices) {
        return kv::explain(source, target, policy_of(exactness, roundings_max), prices);
      },
      "source"_a, "target"_a, nb::kw_only(), "exactness"_a = "lossless", "roundings_max"_a = 1,
      "prices"_a = nb::none(), "What `isthmus kv explain` prints.");
}

void add_choice(nb::module_& module) {
  nb::class_<kv::Prices>(module, "Prices", "A snapshot of rates and loads in whole numbers; immutable.")
      .def_static(
          "parse", [](const std::string& text) { return unwrap(kv::Prices::parse(text)); }, "text"_a,
          "Reads what text writes, and nothing else. Errors: malformed (naming the line), exhausted.")
      .def_static("reference", &kv::Prices::reference, "tokens"_a,
                  "Of one thread of the reference machine, and a link of 10 Gbit/s.")
      .def_prop_ro("text", &kv::Prices::text)
      .def_prop_ro("digest", [](const kv::Prices& prices) { return prices.digest().hex(); });
  nb::class_<kv::ChosenStep>(module, "Step", "One step of a component's way; price in nanoseconds.")
      .def_prop_ro("what", [](const kv::ChosenStep& step) { return std::string(step.what); })
      .def_prop_ro("where", [](const kv::ChosenStep& step) { return std::string(step.where); })
      .def_ro("bytes", &kv::ChosenStep::bytes)
      .def_ro("price", &kv::ChosenStep::price);
  nb::class_<kv::ComponentChoice>(module, "ComponentChoice", "How one component crosses.")
      .def_ro("group", &kv::ComponentChoice::group)
      .def_ro("component", &kv::ComponentChoice::component)
      .def_ro("way", &kv::ComponentChoice::way)
      .def_prop_ro("wire", [](const kv::ComponentChoice& choice) { return choice.wire.text(); })
      .def_ro("steps", &kv::ComponentChoice::steps)
      .def_ro("price", &kv::ComponentChoice::price);
  nb::class_<kv::Choice>(module, "Choice", "The cheapest way of each component; price in nanoseconds.")
      .def_prop_ro("wire", [](const kv::Choice& choice) { return choice.wire.text(); })
      .def_ro("components", &kv::Choice::components)
      .def_ro("price", &kv::Choice::price);
  module.def(
      "choose",
      [](const kv::Descriptor& source, const kv::Descriptor& target, const kv::Verdict& verdict,
         const kv::Prices& prices) { return unwrap(kv::choose(source, target, verdict, prices)); },
      "source"_a, "target"_a, "verdict"_a, "prices"_a,
      "Which numbers cross and where each step runs, by price; pure, so both ends choose alike. Errors:\n"
      "incompatible (the verdict rejects), unsupported (no place of the prices can run a step).");
}

void add_moves(nb::module_& module) {
  nb::class_<Memory>(
      module, "Memory", nb::dynamic_attr(),
      "One rank's arrays, bound group by group; keeps them alive. Error: not_found for a rank that the "
      "descriptor hasn't.")
      .def(nb::init<const kv::Descriptor&, std::uint32_t>(), "descriptor"_a, "rank"_a = 0)
      .def(
          "bind",
          [](Memory& memory, std::uint32_t group,
             const std::map<std::pair<std::string, std::uint32_t>, Array>& arrays, std::uint64_t extent,
             const Range& valid, std::vector<std::uint32_t> blocks, std::uint64_t first_row,
             std::uint64_t first_position) {
            memory.bind(group, arrays, extent,
                        {std::move(blocks), first_row, first_position, range_of(valid)});
          },
          "group"_a, "arrays"_a, nb::kw_only(), "extent"_a, "valid"_a,
          "blocks"_a = std::vector<std::uint32_t>{}, "first_row"_a = 0, "first_position"_a = 0,
          "Binds one layer group to arrays by (region, layer within the rank; 0 if not per layer): numpy, or "
          "whatever\n"
          "speaks DLPack or the buffer protocol, writable, C-contiguous, in CPU memory, of exactly\n"
          "layout.region_bytes(region, extent) bytes. Nothing is copied; the arrays are kept alive.\n\n"
          "extent: blocks or rows of each array. valid: positions [begin, end) that may be read or written. "
          "blocks:\n"
          "physical block of each entry of the table, empty for rows. Position p is entry (p - "
          "first_position) //\n"
          "block_tokens, or row first_row + p - first_position. Error: invalid_argument.");
  nb::class_<PlannedMove>(module, "Plan",
                          "What crosses, in which chunks; immutable. Both ends must get its digest.")
      .def_prop_ro("chunk_count", [](const PlannedMove& move) { return move.plan->chunk_count(); })
      .def_prop_ro("total_bytes", [](const PlannedMove& move) { return move.plan->total_bytes(); })
      .def_prop_ro("wire", [](const PlannedMove& move) { return move.plan->wire().text(); })
      .def_prop_ro("digest", [](const PlannedMove& move) { return move.plan->digest().hex(); });
  module.def(
      "plan", &make_plan, "source"_a, "target"_a, "verdict"_a, "tokens"_a, "choice"_a = nb::none(),
      "What crosses of positions [begin, end), cut into chunks and proven to cover; with a choice its "
      "numbers\n"
      "cross, else the verdict's. Errors: incompatible (the verdict rejects), invalid_argument, exhausted.");
  nb::class_<transform::Moved>(module, "Moved",
                               "What a run moved: chunks, bodies packed and placed, bytes, root digest.")
      .def_prop_ro("root", [](const transform::Moved& moved) { return moved.root.hex(); })
      .def_ro("chunks", &transform::Moved::chunks)
      .def_ro("packed", &transform::Moved::packed)
      .def_ro("placed", &transform::Moved::placed)
      .def_ro("wire_bytes", &transform::Moved::wire_bytes);
  module.def("run", &run, "plan"_a, "source"_a, "target"_a,
             "Moves the plan's tokens from memories of the source's ranks to memories of the target's, in "
             "place, and\n"
             "reads back what it placed; other Python threads run meanwhile. Errors: invalid_argument (a "
             "rank or block\n"
             "is missing), corrupt (naming the tile).");
  module.def(
      "digest",
      [](const kv::Descriptor& descriptor, const std::vector<const Memory*>& from, const Range& tokens) {
        return digest_of(descriptor, from, tokens).hex();
      },
      "descriptor"_a, "memories"_a, "tokens"_a,
      "32 hex digits over all tiles of positions [begin, end), as the memories hold them now: the same for "
      "one state\n"
      "in any layout, blocks, tensor or pipeline ranks.");
  module.def(
      "token_chain",
      [](const std::vector<std::int32_t>& tokens) {
        kv::TokenChain chain;
        for (const std::int32_t token : tokens) chain.append(token);
        return chain.digest().hex();
      },
      "tokens"_a, "32 hex digits that say which prefix a state belongs to; the same in every process.");
}

}  // namespace

NB_MODULE(_core, module) {
  add_errors(module);
  add_storages(module);
  add_descriptor(module);
  add_describe(module);
  add_verdict(module);
  add_choice(module);
  add_moves(module);
}

}  // namespace isthmus::python
