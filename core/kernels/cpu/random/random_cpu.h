#pragma once
// The members of random_cpu that are in separate files.

#include <thimble/core/kernels/random.h>

namespace thimble::kernels {

void dropout_on_cpu(const DropoutArgs& args);
void apply_mask_on_cpu(const MaskArgs& args);

}  // namespace thimble::kernels
