#pragma once
// The members of norm_cuda that are in separate files.

#include <thimble/core/kernels/norm.h>

namespace thimble::cuda_kernels {

void row_norm_forward(const kernels::RowNormArgs& args);
void row_norm_backward(const kernels::RowNormGradArgs& args);
void channel_norm_forward(const kernels::ChannelNormArgs& args);
void channel_norm_backward(const kernels::ChannelNormGradArgs& args);
void running_statistics(const kernels::RunningStatisticsArgs& args);

}  // namespace thimble::cuda_kernels
