// Attention on tensor cores, the gradient of q, of documents side by side.

#include <thimble/cuda/attention/attention_mma_query.h>

namespace thimble::cuda_kernels::attention_mma_detail {

template void launch_query_gradient<ByDocuments>(const GradCall&);

}  // namespace thimble::cuda_kernels::attention_mma_detail
