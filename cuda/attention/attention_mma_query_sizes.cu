// Attention on tensor cores, the gradient of q, where sizes alone say what is seen.

#include <thimble/cuda/attention/attention_mma_query.h>

namespace thimble::cuda_kernels::attention_mma_detail {

template void launch_query_gradient<BySizes>(const GradCall&);

}  // namespace thimble::cuda_kernels::attention_mma_detail
