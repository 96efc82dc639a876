// SPDX-License-Identifier: Apache-2.0
// AMX is a kind of weight buffer for ggml; vectors are fixed when it is compiled.
#include "engine/llamacpp/instruction_set.h"

#include <fmt/format.h>
#include <ggml-backend.h>
#include <ggml-cpu.h>

#include <bit>
#include <string_view>

#include "engine/llamacpp/library.h"

namespace isthmus::engine::llamacpp {
namespace {

// Does ggml offer AMX buffers? It does if it was built with AMX and the kernel lets this process have it.
bool has_amx() {
  start_library();
  ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  if (cpu == nullptr) return false;
  void* found = ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(cpu),
                                                  "ggml_backend_dev_get_extra_bufts");
  const auto extra_buffers = std::bit_cast<ggml_backend_dev_get_extra_bufts_t>(found);
  if (extra_buffers == nullptr) return false;
  for (const auto* type = extra_buffers(cpu); type != nullptr && *type != nullptr; ++type) {
    if (std::string_view(ggml_backend_buft_name(*type)) == "AMX") return true;
  }
  return false;
}

std::string vectors() {
  if (ggml_cpu_has_avx512() != 0) return "avx512";
  return ggml_cpu_has_avx2() != 0 ? "avx2" : "sse";
}

}  // namespace

Result<InstructionSet> find_instruction_set(const std::string& choice) {
  const bool amx = has_amx();
  if (choice == "native") return InstructionSet{.name = amx ? "amx" : vectors(), .repack = true};
  // Without AMX there is nothing to keep away: the same as native then.
  if (choice == "avx512" && vectors() == "avx512") return InstructionSet{.name = "avx512", .repack = !amx};
  if (choice != "avx512" && choice != "avx2" && choice != "portable") {
    return Error{Code::kInvalidArgument,
                 fmt::format("llamacpp: instruction set \"{:.64}\"; native or avx512", choice)};
  }
  return Error{
      Code::kUnsupported,
      fmt::format("llamacpp: instruction set {}: ggml is built for this processor alone; native{} can "
                  "be had (it is {} here)",
                  choice, vectors() == "avx512" ? " and avx512" : "", amx ? "amx" : vectors())};
}

}  // namespace isthmus::engine::llamacpp
