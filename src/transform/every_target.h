// SPDX-License-Identifier: Apache-2.0
// Tests that run on each instruction set of this machine that kernels are compiled for.
#pragma once

#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <cstdint>
#include <string>

namespace isthmus::transform {

class EveryTarget : public testing::TestWithParam<std::int64_t> {
 protected:
  EveryTarget() { choose(GetParam()); }
  ~EveryTarget() override { choose(0); }  // All again.

 private:
  static void choose(std::int64_t targets) {
    hwy::SetSupportedTargetsForTest(targets);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

inline auto every_target() {
  return testing::ValuesIn(hwy::SupportedAndGeneratedTargets());
}
inline std::string target_name(const testing::TestParamInfo<std::int64_t>& info) {
  return hwy::TargetName(info.param);
}

}  // namespace isthmus::transform
