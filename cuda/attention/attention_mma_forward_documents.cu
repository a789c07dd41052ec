// Attention on tensor cores, forward, of documents side by side.

#include <thimble/cuda/attention/attention_mma_forward.h>

namespace thimble::cuda_kernels::attention_mma_detail {

template void launch_forward<ByDocuments>(const kernels::AttentionArgs&);

}  // namespace thimble::cuda_kernels::attention_mma_detail
