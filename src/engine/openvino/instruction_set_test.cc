// SPDX-License-Identifier: Apache-2.0
// The choice of an instruction set takes effect, or is refused. Each case is a process of its own, since
// OpenVINO reads a choice once a process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>

#include "base/digest.h"
#include "engine/openvino/openvino.h"
#include "engine/openvino/test_engine.h"

namespace isthmus::engine::openvino {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

Result<std::unique_ptr<Engine>> make(const std::string& isa) {
  return make_openvino({.gguf_path = model_path(), .kv_type = "f32", .kv_tokens = 128, .isa = isa});
}

// "logits" and their digest, or why not.
std::string run_prompt(const std::string& isa) {
  const auto engine = make(isa);
  if (!engine.ok()) return engine.error().text();
  std::vector<TokenId> prompt;
  for (TokenId i = 0; i < 70; ++i) prompt.push_back(300 + i * 7919 % 40000);
  const StepItem item{.sequence = *(*engine)->open(100), .tokens = prompt, .logits = 1};
  const auto output = (*engine)->step({&item, 1});
  if (!output.ok()) return output.error().text();
  return "logits " + digest128(std::as_bytes(output->logits)).hex();
}

// What `text` returns in a child process.
std::string in_a_process(const std::function<std::string()>& text) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const std::string said = text();
    const bool is_written = ::write(ends[1], said.data(), said.size()) == static_cast<ssize_t>(said.size());
    ::_exit(is_written ? 0 : 1);
  }
  ::close(ends[1]);
  std::string said;
  char buffer[512];
  for (ssize_t got = 0; (got = ::read(ends[0], buffer, sizeof buffer)) > 0;) said.append(buffer, got);
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << said;
  return said;
}

bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
}

TEST(InstructionSet, Avx2GivesOtherLastBitsThanAvx512AndRepeatably) {
  const auto with = [](const char* isa) { return in_a_process([isa] { return run_prompt(isa); }); };
  const std::string avx2 = with("avx2");
  EXPECT_THAT(avx2, StartsWith("logits "));
  EXPECT_EQ(with("avx2"), avx2);
  if (!has_avx512()) GTEST_SKIP() << "this processor has no AVX-512: its half is not run";
  const std::string avx512 = with("avx512");
  EXPECT_THAT(avx512, StartsWith("logits "));
  EXPECT_NE(avx512, avx2);
}

TEST(InstructionSet, ASecondChoiceInOneProcessIsRefused) {
  if (!has_avx512()) GTEST_SKIP() << "one choice only on this processor";
  const std::string second = in_a_process([] {
    const auto first = make("native");
    return first.ok() ? run_prompt("avx2") : first.error().text();
  });
  EXPECT_THAT(second, HasSubstr("incompatible"));
  EXPECT_THAT(second, HasSubstr("OpenVINO takes one choice a process"));
}

}  // namespace
}  // namespace isthmus::engine::openvino
