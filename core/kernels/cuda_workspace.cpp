#include <thimble/core/kernels/cuda_workspace.h>

#include <algorithm>

namespace thimble::kernels {
namespace cuda_workspace_detail {

bool is_library_dtype(DType dtype) { return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16; }

// A matrix whose rows, or columns, are dense and do not overlap.
bool is_plain_matrix(std::int64_t rows, std::int64_t columns, std::int64_t row_stride, std::int64_t column_stride) {
  return (column_stride == 1 && (row_stride >= columns || rows == 1)) ||
         (row_stride == 1 && (column_stride >= rows || columns == 1));
}

std::size_t capped(double bytes, std::size_t most) {
  return static_cast<std::size_t>(std::min(bytes, static_cast<double>(most))) & ~std::size_t{255};
}

std::size_t conv_bytes(const ConvShape& s, DType dtype, DType out_dtype) {
  if (!is_library_conv(s, dtype, out_dtype)) return 0;
  const double x = static_cast<double>(s.images * s.height * s.width) * static_cast<double>(s.channels);
  const double y = static_cast<double>(s.images * s.out_height() * s.out_width()) * static_cast<double>(s.filters);
  const double weight = static_cast<double>(s.filters * s.kernel_h * s.kernel_w * (s.channels / s.groups));
  return capped(4 * (x + y + weight) + 255, max_conv_workspace_bytes);
}

bool has_tensor_core_kernels(const AttentionProblem& p) {
  return p.width % 16 == 0 && p.width >= 16 && p.width <= widest_tensor_core_attention(p.dtype);
}

}  // namespace cuda_workspace_detail

bool is_library_gemm(const GemmArgs& args) noexcept {
  using namespace cuda_workspace_detail;
  if (!is_library_dtype(args.dtype) || args.batch_rank > 1) return false;
  if (args.c_dtype != args.dtype && args.c_dtype != DType::f32) return false;
  if (args.m == 0 || args.n == 0 || args.k == 0) return false;
  const bool has_gelu = args.activation == Activation::gelu_tanh || args.activation == Activation::gelu_erf;
  if (args.pre_activation != nullptr && !has_gelu) return false;
  if (args.activation != Activation::none && args.accumulate) return false;
  if (args.batch_rank == 1) {
    const GemmBatchDim& dim = args.batch[0];
    if (dim.a < 0 || dim.b < 0 || dim.c <= 0 || dim.bias != 0) return false;
  }
  return is_plain_matrix(args.m, args.k, args.a_row_stride, args.a_column_stride) &&
         is_plain_matrix(args.k, args.n, args.b_row_stride, args.b_column_stride) && args.c_column_stride == 1 &&
         (args.c_row_stride >= args.n || args.m == 1);
}

std::size_t cuda_gemm_workspace_bytes(const GemmArgs& args, int) noexcept {
  if (!is_library_gemm(args)) return 0;
  const auto matrices = static_cast<double>(args.batch_rank == 1 ? args.batch[0].size : 1);
  const double elements = static_cast<double>(args.m) * static_cast<double>(args.n) * matrices;
  return cuda_workspace_detail::capped(16 * elements + 255, max_gemm_workspace_bytes);
}

bool is_library_fp8_gemm(const Fp8GemmArgs& args) noexcept {
  constexpr std::int64_t multiple = 16;
  if (args.m == 0 || args.n == 0 || args.k == 0 || args.n % multiple != 0 || args.k % multiple != 0) return false;
  if (args.a_row_stride % multiple != 0 || args.b_row_stride % multiple != 0) return false;  // bytes
  if (args.c_row_stride * static_cast<std::int64_t>(size_of(args.c_dtype)) % multiple != 0) return false;
  if (args.a_dtype == DType::f8e5m2 && args.b_dtype == DType::f8e5m2) return false;
  // cuBLASLt's rule is a multiple of 4; for 1 x 128 scales on its right side (our left) it takes multiples of 8.
  if (args.in_blocks && args.m % 8 != 0) return false;
  return cuda_workspace_detail::is_library_dtype(args.c_dtype);
}

std::size_t cuda_fp8_gemm_workspace_bytes(const Fp8GemmArgs& args) noexcept {
  if (!is_library_fp8_gemm(args)) return 0;
  const double elements = static_cast<double>(args.m) * static_cast<double>(args.n);
  return cuda_workspace_detail::capped(16 * elements + 255, max_gemm_workspace_bytes);
}

bool is_library_conv(const ConvShape& shape, DType dtype, DType out_dtype) noexcept {
  return cuda_workspace_detail::is_library_dtype(dtype) && out_dtype == dtype && shape.pad_top == shape.pad_bottom &&
         shape.pad_left == shape.pad_right && shape.images > 0 && shape.channels > 0 && shape.filters > 0 &&
         shape.out_height() > 0 && shape.out_width() > 0;
}

std::size_t cuda_conv_forward_bytes(const ConvForwardArgs& args, int) noexcept {
  return cuda_workspace_detail::conv_bytes(args.shape, args.dtype, args.out_dtype);
}

std::size_t cuda_conv_input_grad_bytes(const ConvInputGradArgs& args, int) noexcept {
  return cuda_workspace_detail::conv_bytes(args.shape, args.dtype, args.out_dtype);
}

std::size_t cuda_conv_weight_grad_bytes(const ConvWeightGradArgs& args, int) noexcept {
  return cuda_workspace_detail::conv_bytes(args.shape, args.dtype, args.out_dtype);
}

bool is_tensor_core_attention(const AttentionProblem& p) noexcept {
  return cuda_workspace_detail::has_tensor_core_kernels(p) && (p.dtype != DType::f32 || p.allows_tf32);
}

std::size_t tensor_core_attention_delta_bytes(const AttentionProblem& p) noexcept {
  return (static_cast<std::size_t>(p.batch * p.heads * p.queries) * sizeof(float) + 63) / 64 * 64;
}

std::size_t cuda_attention_forward_bytes(const AttentionProblem&, int) noexcept { return 0; }

std::size_t cuda_attention_backward_bytes(const AttentionProblem& p, int) noexcept {
  const auto elements = static_cast<std::size_t>(p.batch * p.queries * p.heads * p.width);
  if (cuda_workspace_detail::has_tensor_core_kernels(p)) {
    return tensor_core_attention_delta_bytes(p) + elements * size_of(p.dtype);
  }
  return elements * (p.dtype == DType::f64 ? sizeof(double) : sizeof(float));
}

const MatmulKernels matmul_cuda_sizes{
    .gemm_workspace_bytes = cuda_gemm_workspace_bytes,
    .conv_forward_bytes = cuda_conv_forward_bytes,
    .conv_input_grad_bytes = cuda_conv_input_grad_bytes,
    .conv_weight_grad_bytes = cuda_conv_weight_grad_bytes,
};

const Fp8Kernels fp8_cuda_sizes{.gemm_workspace_bytes = cuda_fp8_gemm_workspace_bytes};

const AttentionKernels attention_cuda_sizes{
    .forward_bytes = cuda_attention_forward_bytes,
    .backward_bytes = cuda_attention_backward_bytes,
};

}  // namespace thimble::kernels
