// SPDX-License-Identifier: Apache-2.0
// Which instruction set the plugin's matrix products and elementwise kernels use, chosen and read back.
#pragma once

#include <memory>
#include <openvino/core/model.hpp>
#include <string>

#include "base/status.h"

namespace isthmus::engine::openvino {

// "native" leaves the choice to the plugin (and to ONEDNN_MAX_CPU_ISA, if it is set); "avx512" keeps it from
// AMX and 16-bit products, "avx2" from AVX-512 too. The plugin reads a choice once a process, at its first
// use, so this comes before any other call of OpenVINO; check_instruction_set() says whether it was in time.
// Attention and norms have kernels of their own, which take no choice. Errors: invalid_argument (no such
// name), unsupported (not on this processor, or not in this engine).
Status choose_instruction_set(const std::string& name);
// `runtime`: the compiled model's graph. Errors: incompatible, if its kernels don't use the set called
// `name`.
Status check_instruction_set(const std::string& name, const ov::Model& runtime);

}  // namespace isthmus::engine::openvino
