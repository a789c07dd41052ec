// The CPU's entries of the matmul and convolution families.

#include <thimble/core/kernels/matmul.h>
#include <thimble/core/kernels/table_for.h>

namespace thimble::kernels {

const MatmulKernels matmul_cpu{
    .gemm_workspace_bytes = gemm_workspace_bytes,
    .gemm = gemm,
    .conv_forward_bytes = conv_workspace_bytes,
    .conv_input_grad_bytes = conv_workspace_bytes,
    .conv_weight_grad_bytes = conv_workspace_bytes,
    .conv_forward = conv_forward,
    .conv_input_grad = conv_input_grad,
    .conv_weight_grad = conv_weight_grad,
    .column_sum = column_sum,
};

const MatmulKernels& matmul_kernels(Device device) {
  return table_for(device, "matmul", matmul_cpu, matmul_cuda, matmul_cuda_sizes);
}

}  // namespace thimble::kernels
