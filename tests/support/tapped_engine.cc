// SPDX-License-Identifier: Apache-2.0
// Forwards everything, hooks first.
#include "support/tapped_engine.h"

#include <utility>

namespace isthmus::support {
namespace {

class TappedEngine final : public engine::Engine, public engine::KvSink {
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
  engine::KvSource* kv_source() override { return engine_->kv_source(); }
  engine::KvSink* kv_sink() override { return engine_->kv_sink() == nullptr ? nullptr : this; }

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
