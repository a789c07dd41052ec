// Kernel families without a CUDA side so far: who asks for them gets a DeviceError.

#include <thimble/core/kernels/optimizer8.h>
#include <thimble/core/kernels/quantize.h>

namespace thimble::kernels {

const Optimizer8Kernels* const optimizer8_cuda = nullptr;
const QuantizeKernels* const quantize_cuda = nullptr;

}  // namespace thimble::kernels
