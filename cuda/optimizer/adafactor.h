#pragma once
// CUDA Adafactor kernels.

#include <span>

#include <thimble/core/kernels/optimizer.h>

namespace thimble::kernels {

void adafactor_on_cuda(std::span<const AdafactorArgs> list);

}  // namespace thimble::kernels
