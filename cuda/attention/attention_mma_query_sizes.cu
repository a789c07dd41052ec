// Attention on tensor cores, the gradient of q, where sizes determine the visible keys.

#include <thimble/cuda/attention/attention_mma_query.h>

namespace thimble::cuda_kernels::attention_mma_detail {

template void launch_query_gradient<BySizes>(const GradCall&);

}  // namespace thimble::cuda_kernels::attention_mma_detail
