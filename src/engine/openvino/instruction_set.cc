// SPDX-License-Identifier: Apache-2.0
// The choice is an environment variable of oneDNN, and its effect is visible in the names of compiled
// kernels.
#include "engine/openvino/instruction_set.h"

#include <fmt/format.h>

#include <cstdlib>
#include <string_view>

namespace isthmus::engine::openvino {
namespace {

constexpr const char* kVariable = "ONEDNN_MAX_CPU_ISA";

bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

Error lacks(const std::string& name) {
  return {Code::kUnsupported, fmt::format("instruction set {}: this processor doesn't have it", name)};
}

}  // namespace

Status choose_instruction_set(const std::string& name) {
  if (name == "native") return ok_status();
  if (name == "portable") {
    return Error{
        Code::kUnsupported,
        "instruction set portable: below AVX2 OpenVINO's attention doesn't run on its own caches; use avx2, "
        "avx512 or native"};
  }
  if (name == "avx512") {
    if (!has_avx512()) return lacks(name);
    ::setenv(kVariable, "AVX512_CORE", 1);
    return ok_status();
  }
  if (name == "avx2") {
    if (!__builtin_cpu_supports("avx2")) return lacks(name);
    ::setenv(kVariable, "AVX2", 1);
    return ok_status();
  }
  return Error{Code::kInvalidArgument,
               fmt::format("instruction set \"{}\" isn't one of native, avx512, avx2", name)};
}

Status check_instruction_set(const std::string& name, const ov::Model& runtime) {
  if (name == "native") return ok_status();
  std::size_t found = 0;
  for (const auto& node : runtime.get_ops()) {
    const auto& facts = node->get_rt_info();
    const auto layer = facts.find("layerType"), kernel = facts.find("primitiveType");
    if (layer == facts.end() || kernel == facts.end() || layer->second.as<std::string>() != "Eltwise")
      continue;
    const std::string text = kernel->second.as<std::string>();
    if (!text.starts_with("jit_")) continue;
    if (!text.starts_with(fmt::format("jit_{}_", name))) {
      return Error{
          Code::kIncompatible,
          fmt::format("instruction set {}: kernel {} runs; OpenVINO takes one choice a process, and another "
                      "was made before",
                      name, text)};
    }
    ++found;
  }
  if (found > 0) return ok_status();
  return Error{Code::kIncompatible,
               fmt::format("instruction set {}: no compiled kernel says which one it uses", name)};
}

}  // namespace isthmus::engine::openvino
