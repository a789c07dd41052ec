// The oracle of matmul_cpu.cpp: the definition of GemmArgs, literally.

#include <thimble/core/kernels/cpu/matmul/gemm.h>

#include <type_traits>

#include <thimble/core/kernels/cpu/base/compute.h>
#include <thimble/core/kernels/shared/reference_value.h>

namespace thimble::kernels {
namespace gemm_reference_detail {

/// Integers sum unsigned, wrapping around.
template <class T>
using Sum = typename std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>, std::type_identity<T>>::type;

/// The sum over p of a[i, p] b[p, j], for operands of type S.
template <class T, class S>
Sum<T> dot(const GemmArgs& args, std::int64_t a_first, std::int64_t b_first) noexcept {
  Sum<T> sum = 0;
  for (std::int64_t p = 0; p < args.k; ++p) {
    sum += static_cast<Sum<T>>(reference_value<T, S>(args.a, a_first + p * args.a_column_stride)) *
           static_cast<Sum<T>>(reference_value<T, S>(args.b, b_first + p * args.b_row_stride));
  }
  return sum;
}

template <class T>
void multiply(const GemmArgs& args, std::int64_t a0, std::int64_t b0, std::int64_t c0, std::int64_t bias0) noexcept {
  const auto dot_product =
      visit(args.dtype, []<class S>() -> Sum<T> (*)(const GemmArgs&, std::int64_t, std::int64_t) { return dot<T, S>; });
  const auto read = [&](const void* base, std::int64_t at) {
    T value;
    load_elements(base, args.c_dtype, at, 1, &value, 1);
    return static_cast<Sum<T>>(value);
  };
  for (std::int64_t i = 0; i < args.m; ++i) {
    for (std::int64_t j = 0; j < args.n; ++j) {
      Sum<T> sum = dot_product(args, a0 + i * args.a_row_stride, b0 + j * args.b_column_stride);
      sum *= static_cast<Sum<T>>(static_cast<T>(args.alpha));
      if (args.bias != nullptr) sum += read(args.bias, bias0 + j);
      const std::int64_t at = c0 + i * args.c_row_stride + j * args.c_column_stride;
      T value = static_cast<T>(sum);
      if (args.pre_activation != nullptr) store_elements(&value, args.pre_activation, args.c_dtype, at, 1);
      value = reference_activation(args.activation, value);
      if (args.accumulate) value = static_cast<T>(static_cast<Sum<T>>(value) + read(args.c, at));
      store_elements(&value, args.c, args.c_dtype, at, 1);
    }
  }
}

}  // namespace gemm_reference_detail

void gemm_reference(const GemmArgs& args) noexcept {
  std::int64_t matrices = 1;
  for (std::size_t i = 0; i < static_cast<std::size_t>(args.batch_rank); ++i) matrices *= args.batch[i].size;
  for (std::int64_t matrix = 0; matrix < matrices; ++matrix) {
    std::int64_t rest = matrix, a = 0, b = 0, c = 0, bias = 0;
    for (std::size_t i = static_cast<std::size_t>(args.batch_rank); i-- > 0;) {
      const GemmBatchDim& dim = args.batch[i];
      const std::int64_t at = rest % dim.size;
      rest /= dim.size;
      a += at * dim.a;
      b += at * dim.b;
      c += at * dim.c;
      bias += at * dim.bias;
    }
    if (compute_type(args.dtype) == ComputeType::i64) {
      gemm_reference_detail::multiply<std::int64_t>(args, a, b, c, bias);
    } else {
      gemm_reference_detail::multiply<double>(args, a, b, c, bias);
    }
  }
}

}  // namespace thimble::kernels
