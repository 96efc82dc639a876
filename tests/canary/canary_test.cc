// SPDX-License-Identifier: Apache-2.0
// One honest decode worker, and prefill workers that agree with themselves but not with the model.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "crossing/damage.h"
#include "crossing/measure.h"
#include "doctor/pair.h"
#include "net/loop.h"
#include "support/state_view.h"
#include "support/tapped_engine.h"
#include "worker/embedded/engines.h"
#include "worker/worker.h"

namespace isthmus {
namespace {

// A model file whose bytes a test has changed.
class OtherModel {
 public:
  OtherModel() {
    std::ifstream file(crossing::model_path(), std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(file), {});
  }
  ~OtherModel() { std::filesystem::remove(path_); }
  OtherModel(const OtherModel&) = delete;
  OtherModel& operator=(const OtherModel&) = delete;

  void set_rope_base(float base) {
    constexpr std::string_view kKey = "llama.rope.freq_base";
    const std::size_t at = bytes_.find(kKey);
    ASSERT_NE(at, std::string::npos);
    std::memcpy(&bytes_[at + kKey.size() + sizeof(std::uint32_t)], &base, sizeof base);  // Behind its type.
  }
  // Both have two digits. Tensors of one layer get the other's name, and the other way round.
  void swap_layers(int a, int b) {
    const std::string from = "blk." + std::to_string(a) + ".", to = "blk." + std::to_string(b) + ".";
    const std::size_t end = bytes_.rfind("blk.") + 64;
    int renamed = 0;
    for (std::size_t at = bytes_.find("blk."); at < end; at = bytes_.find("blk.", at + 1)) {
      const std::string_view name(&bytes_[at], from.size());
      if (name != from && name != to) continue;
      std::memcpy(&bytes_[at], name == from ? to.data() : from.data(), from.size());
      ++renamed;
    }
    ASSERT_GE(renamed, 2 * 9);
  }
  const std::string& write() {
    path_ = testing::TempDir() + "canary_other_model_" + std::to_string(::getpid()) + ".gguf";
    std::ofstream(path_, std::ios::binary).write(bytes_.data(), static_cast<std::streamsize>(bytes_.size()));
    return path_;
  }

 private:
  std::string bytes_, path_;
};

// The real one, of which two tokens have changed places.
class OtherTokenizer final : public engine::Tokenizer {
 public:
  explicit OtherTokenizer(std::shared_ptr<const engine::Tokenizer> real) : real_(std::move(real)) {}
  Result<std::vector<engine::TokenId>> encode(std::string_view text, bool add_special,
                                              bool parse_special) const override {
    ISTHMUS_TRY(auto tokens, real_->encode(text, add_special, parse_special));
    std::ranges::replace(tokens, tokens[1], tokens[0]);
    return tokens;
  }
  std::string piece(engine::TokenId token, bool special) const override {
    return real_->piece(token, special);
  }
  bool is_end_of_generation(engine::TokenId token) const override {
    return real_->is_end_of_generation(token);
  }
  std::uint32_t vocabulary() const override { return real_->vocabulary(); }
  Result<std::string> apply_chat_template(std::span<const engine::ChatMessage> messages) const override {
    return real_->apply_chat_template(messages);
  }
  std::string digest() const override { return real_->digest(); }

 private:
  std::shared_ptr<const engine::Tokenizer> real_;
};

struct Plan {
  crossing::Form form;
  std::string model = crossing::model_path();
  bool has_other_tokenizer = false;
  // Writes what others get of its state.
  std::function<void(const kv::Descriptor&, const kv::Binding&)> lie{};
};

// Two workers and the thread that serves them.
class Scene {
 public:
  Scene(const Plan& prefill, const Plan& decode)
      : honest_(*worker::make_engine(options(decode))), identity_(honest_->descriptor().identity) {
    start("d", decode, std::move(honest_));
    start("p", prefill, *worker::make_engine(options(prefill)));
    thread_ = std::thread([this] { loop_.run(); });
  }
  ~Scene() {
    loop_.post([this] {
      workers_.clear();
      loop_.stop();
    });
    thread_.join();
  }
  Scene(const Scene&) = delete;
  Scene& operator=(const Scene&) = delete;

  doctor::PairReport check() const {
    const auto report = doctor::check_pair({.prefill = endpoints_[1], .decode = endpoints_[0], .prompt = ""});
    if (report.ok()) return *report;
    ADD_FAILURE() << report.error().text();
    return {};
  }

 private:
  static worker::WorkerOptions options(const Plan& plan) {
    worker::WorkerOptions options;
    options.engine = plan.form.engine;
    options.kv_type = plan.form.kv_type;
    options.model_path = plan.model;
    options.kv_tokens = 1024;
    options.sequences_max = 2;
    return options;
  }

  void start(const std::string& name, const Plan& plan, std::unique_ptr<engine::Engine> engine) {
    // Whatever it computes with, it says that it serves the decode worker's model: the lie to be found.
    support::EngineTap tap;
    tap.alter_descriptor = [this](kv::Descriptor& descriptor) { descriptor.identity = identity_; };
    if (plan.lie) {
      tap.on_export = [lie = plan.lie, descriptor = engine->descriptor()](const kv::Binding& binding) {
        lie(descriptor, binding);
      };
    }
    std::shared_ptr<const engine::Tokenizer> tokenizer = *worker::make_tokenizer(crossing::model_path());
    if (plan.has_other_tokenizer) tokenizer = std::make_shared<OtherTokenizer>(tokenizer);
    handoff::AgentOptions agent;
    agent.name = name;
    agent.policy = crossing::kUnqualified;
    auto worker = worker::Worker::start(loop_, {.engine = support::tap(std::move(engine), std::move(tap)),
                                                .tokenizer = std::move(tokenizer),
                                                .listen = {"127.0.0.1", 0},
                                                .service = {.served_model = "test"},
                                                .engine_limits = {},
                                                .tls = nullptr,
                                                .agent = std::move(agent)});
    ASSERT_TRUE(worker.ok()) << worker.error().text();
    endpoints_.push_back((*worker)->endpoint());
    workers_.push_back(*std::move(worker));
  }

  net::Loop loop_;
  std::unique_ptr<engine::Engine> honest_;  // Until its worker has it.
  kv::Identity identity_;
  std::vector<std::unique_ptr<worker::Worker>> workers_;
  std::vector<net::Endpoint> endpoints_;
  std::thread thread_;
};

const crossing::Form kF16{"llamacpp", "f16"};

doctor::PairReport check(const Plan& prefill, const Plan& decode) {
  return Scene(prefill, decode).check();
}

void expect_fault(const doctor::PairReport& report, std::string_view part) {
  EXPECT_FALSE(report.passed);
  EXPECT_TRUE(std::ranges::any_of(report.faults, [&](const std::string& fault) {
    return fault.find(part) != std::string::npos;
  })) << report.text({});
  std::printf("%s", report.text({}).c_str());
}

using Honest = testing::TestWithParam<std::pair<crossing::Form, crossing::Form>>;

TEST_P(Honest, Passes) {
  const auto& [prefill, decode] = GetParam();
  const doctor::PairReport report = check({.form = prefill}, {.form = decode});
  EXPECT_TRUE(report.passed) << report.text({});
  std::printf("%s", report.text({}).c_str());
}

INSTANTIATE_TEST_SUITE_P(
    Pairs, Honest,
    testing::Values(std::pair<crossing::Form, crossing::Form>{{"llamacpp", "f16"}, {"llamacpp", "f16"}},
                    std::pair<crossing::Form, crossing::Form>{{"llamacpp", "f16"}, {"openvino", "u8"}},
                    std::pair<crossing::Form, crossing::Form>{{"openvino", "f32"}, {"llamacpp", "q8_0"}},
                    std::pair<crossing::Form, crossing::Form>{{"openvino", "u4"},
                                                              {"llamacpp", "q8_0_v_q4_0"}}),
    [](const auto& pair) {
      return pair.param.first.engine + "_" + pair.param.first.kv_type + "_to_" + pair.param.second.engine +
             "_" + pair.param.second.kv_type;
    });

TEST(Lies, AnotherRopeBase) {
  OtherModel model;
  model.set_rope_base(10'000.0f);  // SmolLM2's is 100,000.
  expect_fault(check({.form = kF16, .model = model.write()}, {.form = kF16}), "k differs in 30 of 30 layers");
}

TEST(Lies, WeightsOfAnotherModelOfTheSameShape) {
  OtherModel model;
  for (int layer = 10; layer < 29; ++layer) model.swap_layers(layer, layer + 1);
  expect_fault(check({.form = kF16, .model = model.write()}, {.form = kF16}), "v differs in 20 of 30 layers");
}

TEST(Lies, OneLayerForAnother) {
  const auto swap = [](const kv::Descriptor& descriptor, const kv::Binding& binding) {
    const support::StateView state(descriptor, binding);
    state.each_row([&](std::uint32_t layer, std::uint64_t position, std::uint32_t head) {
      if (layer != 7) return;
      for (const char* part : {"k", "v"}) {
        for (std::uint32_t d = 0; d < state.dim(); ++d) {
          std::swap_ranges(state.at(part, layer, position, head, d),
                           state.at(part, layer, position, head, d) + state.bytes(part),
                           state.at(part, layer + 1, position, head, d));
        }
      }
    });
  };
  expect_fault(check({.form = kF16, .lie = swap}, {.form = kF16}), "v differs in 2 of 30 layers");
}

TEST(Lies, KeysForValues) {
  const auto swap = [](const kv::Descriptor& descriptor, const kv::Binding& binding) {
    for (const crossing::Damage& damage : crossing::damages(descriptor)) {
      if (damage.name == "K and V swapped") damage.apply(descriptor, binding);
    }
  };
  expect_fault(check({.form = kF16, .lie = swap}, {.form = kF16}), "k differs in 30 of 30 layers");
}

TEST(Lies, AScaleAppliedTwice) {
  // What stands for x·s·s where x·s is meant.
  const auto scaled = [](const kv::Descriptor& descriptor, const kv::Binding& binding) {
    constexpr float kScale = 0.5f;
    const support::StateView state(descriptor, binding);
    state.each_row([&](std::uint32_t layer, std::uint64_t position, std::uint32_t head) {
      std::vector<float> row = state.read_row("k", layer, position, head);
      for (float& x : row) x *= kScale;
      state.write_row("k", layer, position, head, row);
    });
  };
  expect_fault(check({.form = kF16, .lie = scaled}, {.form = kF16}), "k differs in 30 of 30 layers");
}

TEST(Lies, AnotherTokenizer) {
  expect_fault(check({.form = kF16, .has_other_tokenizer = true}, {.form = kF16}),
               "tokenize unlike: token 1");
}

}  // namespace
}  // namespace isthmus
