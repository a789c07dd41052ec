// Attention on tensor cores, forward, with a given mask.

#include <thimble/cuda/attention/attention_mma_forward.h>

namespace thimble::cuda_kernels::attention_mma_detail {

template void launch_forward<ByMask>(const kernels::AttentionArgs&);

}  // namespace thimble::cuda_kernels::attention_mma_detail
