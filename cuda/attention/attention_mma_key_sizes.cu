// Attention on tensor cores, the gradients of k and v, where sizes determine the visible keys.

#include <thimble/cuda/attention/attention_mma_key.h>

namespace thimble::cuda_kernels::attention_mma_detail {

template void launch_key_gradients<BySizes>(const GradCall&);

}  // namespace thimble::cuda_kernels::attention_mma_detail
