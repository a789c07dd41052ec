#pragma once
// The convolutions of matmul_cuda, in a separate file.

#include <thimble/core/kernels/conv.h>

namespace thimble::cuda_kernels {

void conv_forward(const kernels::ConvForwardArgs& args, void* workspace, int threads);
void conv_input_grad(const kernels::ConvInputGradArgs& args, void* workspace, int threads);
void conv_weight_grad(const kernels::ConvWeightGradArgs& args, void* workspace, int threads);

}  // namespace thimble::cuda_kernels
