#pragma once
// Shared by the CPU files of the normalisation family.

#include <cstdint>

#include <thimble/core/kernels/norm.h>
#include <thimble/core/kernels/shared/moments.h>

namespace thimble::kernels {

void row_norm_forward_cpu(const RowNormArgs& args);
void row_norm_backward_cpu(const RowNormGradArgs& args);
void channel_norm_forward_cpu(const ChannelNormArgs& args);
void channel_norm_backward_cpu(const ChannelNormGradArgs& args);
void running_statistics_cpu(const RunningStatisticsArgs& args);

}  // namespace thimble::kernels
