// SPDX-License-Identifier: Apache-2.0
// Which instructions ggml multiplies matrices with, chosen among those that its build has.
#pragma once

#include <string>

#include "base/status.h"

namespace isthmus::engine::llamacpp {

struct InstructionSet {
  std::string name;  // What runs: "amx", "avx512", "avx2", "sse".
  // Weights may be laid out anew for wider instructions than vectors.
  bool repack = true;
};

// "native": all that the build has. "avx512": its vectors only, with AMX left alone. Other results in the
// last bits, which is what unlike processors give. Errors: unsupported, with what can be had, for a set that
// this build hasn't or can't be kept to ("portable", "avx2": ggml is built once, for the processor it was
// built on); invalid_argument for no such name.
Result<InstructionSet> find_instruction_set(const std::string& choice);

}  // namespace isthmus::engine::llamacpp
