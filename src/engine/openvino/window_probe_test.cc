// SPDX-License-Identifier: Apache-2.0
// The window probe: a window that the operation has passes, in each KV type; one of another length, or none,
// is seen.
#include "engine/openvino/window_probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "engine/openvino/test_engine.h"

namespace isthmus::engine::openvino {
namespace {

using ::testing::HasSubstr;

Window of(std::uint64_t tokens) {
  return {.tokens = tokens, .period = 6, .rope_theta = 1e4};
}

std::unique_ptr<PagedModel> load(const std::string& kv_type, const Window& window) {
  return *PagedModel::load({.gguf_path = model_path(), .window = window, .kv_type = kv_type, .threads = 1});
}

TEST(WindowProbe, AWindowThatAttentionHasPassesInEachKvType) {
  for (const std::string kv_type : {"f32", "f16", "u8", "u8_channel", "u4"}) {
    const Status status = probe_window(*load(kv_type, of(24)), of(24));
    EXPECT_TRUE(status.ok()) << kv_type << ": " << status.error().text();
  }
}

TEST(WindowProbe, WindowsOfRealModelsPass) {
  for (const std::uint64_t tokens : {1u, 512u, 1024u}) {
    const Status status = probe_window(*load("u8", of(tokens)), of(tokens));
    EXPECT_TRUE(status.ok()) << tokens << ": " << status.error().text();
  }
}

TEST(WindowProbe, AnotherOrNoneIsSeen) {
  for (const std::uint64_t tokens : {511u, 513u, 0u}) {
    const Status status = probe_window(*load("f16", of(tokens)), of(512));
    EXPECT_EQ(status.code(), Code::kIncompatible) << tokens;
    EXPECT_THAT(status.error().detail, HasSubstr("with a window of 512 should be")) << tokens;
  }
}

TEST(WindowProbe, WithoutALocalLayerNothingIsLookedAt) {
  EXPECT_TRUE(probe_window(*load("f32", {}), {}).ok());
}

}  // namespace
}  // namespace isthmus::engine::openvino
