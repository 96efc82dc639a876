// SPDX-License-Identifier: Apache-2.0
// The KV types that a llama.cpp context can be made with here, by name.
#pragma once

#include <ggml.h>

#include <string>
#include <string_view>

#include "base/status.h"

namespace isthmus::engine::llamacpp {

struct KvType {
  std::string_view name;  // Its storage is "llamacpp:" + name.
  ggml_type k = GGML_TYPE_F16, v = GGML_TYPE_F16;
  // Without it V lies transposed, which block formats can't.
  bool flash_attention = true;
  // Whether llama.cpp may rotate what it stores in a block format.
  bool rotate = true;
};

// unsupported, with the list, for a name that isn't there.
Result<KvType> find_kv_type(std::string_view name);

}  // namespace isthmus::engine::llamacpp
