// Attention on tensor cores, the gradients of k and v, of documents side by side.

#include <thimble/cuda/attention/attention_mma_key.h>

namespace thimble::cuda_kernels::attention_mma_detail {

template void launch_key_gradients<ByDocuments>(const GradCall&);

}  // namespace thimble::cuda_kernels::attention_mma_detail
