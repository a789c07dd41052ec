// The CPU's entries of the matmul and convolution families.

#include <thimble/core/error.h>
#include <thimble/core/kernels/matmul.h>

namespace thimble::kernels {

const MatmulKernels matmul_cpu{gemm_workspace_bytes,
                               gemm,
                               conv_workspace_bytes,
                               conv_workspace_bytes,
                               conv_workspace_bytes,
                               conv_forward,
                               conv_input_grad,
                               conv_weight_grad,
                               column_sum};

const MatmulKernels& matmul_kernels(Device device) {
  if (device.is_cpu()) return matmul_cpu;
  if (device.is_dry) return matmul_cuda_sizes;
  if (!matmul_cuda) throw DeviceError("matmul: " + to_string(device) + " is not in this build");
  return *matmul_cuda;
}

}  // namespace thimble::kernels
