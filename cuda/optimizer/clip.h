#pragma once
// The members of optimizer_cuda that clip gradients.

#include <span>

#include <thimble/core/kernels/optimizer.h>

namespace thimble::kernels {

void square_sums_on_cuda(std::span<const SquareSumArgs> list);
void clip_on_cuda(const ClipNorm& norm, std::span<const ClipArgs> list);

}  // namespace thimble::kernels
