// SPDX-License-Identifier: Apache-2.0
// The files of vector kernels, each of which fills its part of the set.
#pragma once

#include "transform/kernels/rows_kernels.h"

namespace isthmus::transform::kernels {

void use_vector_decoders(KernelSet& set);
void use_vector_encoders(KernelSet& set);

}  // namespace isthmus::transform::kernels
