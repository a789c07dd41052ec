#pragma once
// One entry of the CUDA table of optimizer8.h, in a file of its own.

#include <thimble/core/kernels/optimizer8.h>

namespace thimble::kernels {

void adafactor_on_cuda(const AdafactorArgs& args);

}  // namespace thimble::kernels
