// SPDX-License-Identifier: Apache-2.0
// Rope of neighbouring pairs in fewer operations. For this component's OpenVINO translation units only (heavy
// header).
#pragma once

#include <cstddef>
#include <openvino/core/model.hpp>

namespace isthmus::engine::openvino {

// Rope is x * cos + turned(x) * sin, where turned() makes (a, b) of neighbours (-b, a). The front end cuts
// rows apart for it, changes signs and joins them again: a tenth of a prefill's time, as no pass of the
// plugin recognises it. Here a product with a constant matrix of 0, 1 and -1 makes the same values, to the
// bit. What is built otherwise stays as it is. How many were found.
std::size_t rotate_pairs_by_product(ov::Model& model);

}  // namespace isthmus::engine::openvino
