// Attention on tensor cores, the gradient of q, with a given mask.

#include <thimble/cuda/attention/attention_mma_query.h>

namespace thimble::cuda_kernels::attention_mma_detail {

template void launch_query_gradient<ByMask>(const GradCall&);

}  // namespace thimble::cuda_kernels::attention_mma_detail
