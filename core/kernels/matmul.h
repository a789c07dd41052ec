#pragma once
// The tables of a device's matmul and convolution kernels. The CPU's kernels are in gemm.h and conv.h.

#include <thimble/core/device.h>
#include <thimble/core/kernels/conv.h>
#include <thimble/core/kernels/cpu/matmul/gemm.h>

namespace thimble::kernels {

/// Launches may throw DeviceError; the CPU's never do.
struct MatmulKernels {
  std::size_t (*gemm_workspace_bytes)(const GemmArgs&, int threads) noexcept = nullptr;
  void (*gemm)(const GemmArgs&, void* workspace, int threads) = nullptr;
  std::size_t (*conv_forward_bytes)(const ConvForwardArgs&, int threads) noexcept = nullptr;
  std::size_t (*conv_input_grad_bytes)(const ConvInputGradArgs&, int threads) noexcept = nullptr;
  std::size_t (*conv_weight_grad_bytes)(const ConvWeightGradArgs&, int threads) noexcept = nullptr;
  void (*conv_forward)(const ConvForwardArgs&, void* workspace, int threads) = nullptr;
  void (*conv_input_grad)(const ConvInputGradArgs&, void* workspace, int threads) = nullptr;
  void (*conv_weight_grad)(const ConvWeightGradArgs&, void* workspace, int threads) = nullptr;
  void (*column_sum)(const ColumnSumArgs&) = nullptr;
};

extern const MatmulKernels matmul_cpu;
extern const MatmulKernels* const matmul_cuda;  ///< null in a build without CUDA

/// The sizes of matmul_cuda's workspaces without its kernels, in every build, because a dry run needs them.
extern const MatmulKernels matmul_cuda_sizes;

/// Throws DeviceError when this build has no kernels for the device. A dry device has the sizes of the real one; its
/// kernels are not called.
const MatmulKernels& matmul_kernels(memory::Device device);

}  // namespace thimble::kernels
