// Attention on tensor cores, forward, where sizes determine the visible keys.

#include <thimble/cuda/attention/attention_mma_forward.h>

namespace thimble::cuda_kernels::attention_mma_detail {

template void launch_forward<BySizes>(const kernels::AttentionArgs&);

}  // namespace thimble::cuda_kernels::attention_mma_detail
