#pragma once
// One entry of the CUDA table of optimizer.h, in a file of its own.

#include <span>

#include <thimble/core/kernels/optimizer.h>

namespace thimble::kernels {

void adafactor_on_cuda(std::span<const AdafactorArgs> list);

}  // namespace thimble::kernels
