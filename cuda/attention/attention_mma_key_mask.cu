// Attention on tensor cores, the gradients of k and v, with a mask that is brought along.

#include <thimble/cuda/attention/attention_mma_key.h>

namespace thimble::cuda_kernels::attention_mma_detail {

template void launch_key_gradients<ByMask>(const GradCall&);

}  // namespace thimble::cuda_kernels::attention_mma_detail
