// SPDX-License-Identifier: Apache-2.0
// Forwards everything, hooks first.
#include "support/tapped_engine.h"

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace isthmus::support {
namespace {

// A copy of an exported state's memory: the engine's own can't be written.
class CopiedKv final : public engine::ExportedKv {
 public:
  explicit CopiedKv(const engine::ExportedKv& from)
      : bindings_(from.bindings().begin(), from.bindings().end()) {
    for (kv::Binding& binding : bindings_) {
      for (kv::RegionMemory& region : binding.memory) {
        memory_.emplace_back(region.base, region.base + region.bytes);
        region.base = memory_.back().data();
        bytes_ += region.bytes;
      }
    }
  }
  std::span<const kv::Binding> bindings() const override { return bindings_; }
  std::uint64_t bytes() const override { return bytes_; }

 private:
  std::vector<kv::Binding> bindings_;
  std::vector<std::vector<std::byte>> memory_;
  std::uint64_t bytes_ = 0;
};

class TappedEngine final : public engine::Engine,
                           public engine::KvSource,
                           public engine::KvSink,
                           public engine::PrefixKeeper {
 public:
  TappedEngine(std::unique_ptr<engine::Engine> engine, EngineTap tap)
      : engine_(std::move(engine)), tap_(std::move(tap)), descriptor_(engine_->descriptor()) {
    if (tap_.alter_descriptor) tap_.alter_descriptor(descriptor_);
  }

  const engine::EngineInfo& info() const override { return engine_->info(); }
  const kv::Descriptor& descriptor() const override { return descriptor_; }
  engine::EngineUsage usage() const override { return engine_->usage(); }
  Result<engine::SequenceId> open(std::uint64_t tokens_max) override { return engine_->open(tokens_max); }
  void close(engine::SequenceId sequence) override { engine_->close(sequence); }
  std::uint64_t length(engine::SequenceId sequence) const override { return engine_->length(sequence); }
  Result<engine::StepOutput> step(std::span<const engine::StepItem> items) override {
    if (tap_.before_step) ISTHMUS_TRY(tap_.before_step(items));
    return engine_->step(items);
  }
  engine::KvSource* kv_source() override {
    return engine_->kv_source() == nullptr || !tap_.on_export ? engine_->kv_source() : this;
  }
  engine::KvSink* kv_sink() override { return engine_->kv_sink() == nullptr ? nullptr : this; }
  engine::Parking* parking() override { return engine_->parking(); }
  engine::Speculation* speculation() override { return engine_->speculation(); }
  engine::PrefixKeeper* prefix_keeper() override {
    return tap_.keeps_prefixes ? this : engine_->prefix_keeper();
  }
  Result<engine::SequenceId> open_known(std::uint64_t tokens_max, std::span<const engine::TokenId>,
                                        const std::optional<std::string>&) override {
    return engine_->open(tokens_max);
  }
  std::unique_ptr<engine::HeldPrefix> hold_arrived(const engine::ArrivingState&) override { return nullptr; }
  Result<engine::SequenceId> open_arriving(std::uint64_t tokens_max, const engine::ArrivingState&,
                                           std::uint64_t) override {
    return engine_->open(tokens_max);
  }

  Result<std::unique_ptr<engine::ExportedKv>> export_range(engine::SequenceId sequence,
                                                           kv::TokenRange range) override {
    ISTHMUS_TRY(const auto exported, engine_->kv_source()->export_range(sequence, range));
    auto copied = std::make_unique<CopiedKv>(*exported);
    for (const kv::Binding& binding : copied->bindings()) tap_.on_export(binding);
    return Result<std::unique_ptr<engine::ExportedKv>>(std::move(copied));
  }
  Result<std::vector<kv::Binding>> bind(engine::SequenceId sequence, kv::TokenRange range) override {
    Result<std::vector<kv::Binding>> bound = engine_->kv_sink()->bind(sequence, range);
    for (std::size_t group = 0; bound.ok() && tap_.on_bind && group < bound->size(); ++group)
      tap_.on_bind((*bound)[group]);
    return bound;
  }
  Status adopt(engine::SequenceId sequence, kv::TokenRange range) override {
    return engine_->kv_sink()->adopt(sequence, range);
  }

 private:
  std::unique_ptr<engine::Engine> engine_;
  EngineTap tap_;
  kv::Descriptor descriptor_;
};

}  // namespace

std::unique_ptr<engine::Engine> tap(std::unique_ptr<engine::Engine> engine, EngineTap tap) {
  return std::make_unique<TappedEngine>(std::move(engine), std::move(tap));
}

}  // namespace isthmus::support
