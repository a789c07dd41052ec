#pragma once
// The matmul and convolution families' tables: what a device offers. The CPU's kernels are in gemm.h and conv.h.

#include <thimble/core/device.h>
#include <thimble/core/kernels/conv.h>
#include <thimble/core/kernels/gemm.h>

namespace thimble::kernels {

struct MatmulKernels {
  std::size_t (*gemm_workspace_bytes)(const GemmArgs&, int threads) noexcept = nullptr;
  void (*gemm)(const GemmArgs&, void* workspace, int threads) noexcept = nullptr;
  std::size_t (*conv_forward_bytes)(const ConvForwardArgs&, int threads) noexcept = nullptr;
  std::size_t (*conv_input_grad_bytes)(const ConvInputGradArgs&, int threads) noexcept = nullptr;
  std::size_t (*conv_weight_grad_bytes)(const ConvWeightGradArgs&, int threads) noexcept = nullptr;
  void (*conv_forward)(const ConvForwardArgs&, void* workspace, int threads) noexcept = nullptr;
  void (*conv_input_grad)(const ConvInputGradArgs&, void* workspace, int threads) noexcept = nullptr;
  void (*conv_weight_grad)(const ConvWeightGradArgs&, void* workspace, int threads) noexcept = nullptr;
  void (*column_sum)(const ColumnSumArgs&) noexcept = nullptr;
};

extern const MatmulKernels matmul_cpu;
extern const MatmulKernels* const matmul_cuda;  ///< null in a build without CUDA

/// Throws DeviceError when this build has no kernels for the device.
const MatmulKernels& matmul_kernels(Device device);

}  // namespace thimble::kernels
