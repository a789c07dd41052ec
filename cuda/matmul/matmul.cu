// Matrix products on CUDA devices: by cuBLASLt if it supports the product, else by tiles in the order of the CPU's
// kernels. Also the table of the family.

#include <thimble/core/kernels/cuda_workspace.h>
#include <thimble/core/kernels/matmul.h>
#include <thimble/cuda/matmul/product.h>
#include <thimble/cuda/reduce/ordered_sum.h>
#include <thimble/cuda/runtime/library.h>

namespace thimble::cuda_kernels {
namespace matmul_cuda_detail {

// Activates the elements in 16 bytes.
template <class S>
struct ActivateWords {
  static constexpr int count = word_elements<S>;
  const S* stored;
  S* c;
  kernels::Activation activation;
  template <class Op>
  THIMBLE_DEVICE static void apply(const Op& op, float (&values)[count]) {
    THIMBLE_UNROLL
    for (int e = 0; e < count; ++e) values[e] = static_cast<float>(op.fwd(QuickNumber<S>(values[e])));
  }
  THIMBLE_DEVICE void operator()(std::int64_t i) const {
    const Words<S, count> words = words_at<count>(stored, i * count);
    float values[count];
    THIMBLE_UNROLL
    for (int e = 0; e < count; ++e) values[e] = widened(words.values[e]);
    if (activation == kernels::Activation::relu) {
      apply(ops::Relu{}, values);
    } else if (activation == kernels::Activation::gelu_tanh) {
      apply(ops::GeluTanh{}, values);
    } else {
      apply(ops::GeluErf{}, values);
    }
    put_words(c, i * count, narrowed<S>(values));
  }
};
}  // namespace matmul_cuda_detail

bool activate_words(kernels::Activation activation, const void* stored, void* c, DType dtype, std::int64_t elements) {
  bool is_done = false;
  if (!are_aligned({stored, c})) return false;
  with_word_dtype(dtype, [&]<class S>() {
    if (elements % word_elements<S> != 0) return;
    for_each_item(elements / word_elements<S>,
                  matmul_cuda_detail::ActivateWords<S>{static_cast<const S*>(stored), static_cast<S*>(c), activation});
    is_done = true;
  });
  return is_done;
}

}  // namespace thimble::cuda_kernels

namespace thimble::kernels {
namespace matmul_cuda_detail {

using namespace cuda_kernels;

// Locates matrix `number` of the batch in each operand.
struct Batch {
  int rank;
  std::int64_t sizes[max_gemm_batch_rank];
  std::int64_t strides[4][max_gemm_batch_rank];  // a, b, c, bias
  explicit Batch(const GemmArgs& args) : rank(args.batch_rank) {
    for (int i = 0; i < rank; ++i) {
      const GemmBatchDim& dim = args.batch[static_cast<std::size_t>(i)];
      sizes[i] = dim.size;
      strides[0][i] = dim.a;
      strides[1][i] = dim.b;
      strides[2][i] = dim.c;
      strides[3][i] = dim.bias;
    }
  }
  std::int64_t matrices() const {
    std::int64_t count = 1;
    for (int i = 0; i < rank; ++i) count *= sizes[i];
    return count;
  }
  THIMBLE_DEVICE std::int64_t offset(int operand, std::int64_t number) const {
    std::int64_t offset = 0;
    for (int i = rank - 1; i >= 0; --i) {
      offset += number % sizes[i] * strides[operand][i];
      number /= sizes[i];
    }
    return offset;
  }
};

struct Matrix {
  Batch batch;
  int operand;
  const void* data;
  DType dtype;
  std::int64_t row_stride, column_stride;
  template <class T>
  THIMBLE_DEVICE T at(std::int64_t matrix, std::int64_t i, std::int64_t j) const {
    return load<T>(data, dtype, batch.offset(operand, matrix) + i * row_stride + j * column_stride);
  }
};

template <class T>
struct Result {
  Batch batch;
  void* c;
  DType dtype;
  std::int64_t row_stride, column_stride;
  T alpha;
  bool accumulate;
  const void* bias;
  Activation activation;
  void* pre_activation;
  THIMBLE_DEVICE void store(std::int64_t matrix, std::int64_t i, std::int64_t j, T sum) const {
    const std::int64_t at = batch.offset(2, matrix) + i * row_stride + j * column_stride;
    T value = multiply_alpha(sum);
    if (bias) value = add(value, load_any<T>(bias, dtype, batch.offset(3, matrix) + j));
    if (pre_activation) store_any<T>(pre_activation, dtype, at, value);
    value = activate(activation, value, dtype);
    if (accumulate) value = add(value, load_any<T>(c, dtype, at));
    store_any<T>(c, dtype, at, value);
  }
  THIMBLE_DEVICE T multiply_alpha(T sum) const {
    if constexpr (std::is_same_v<T, std::int64_t>) {
      return multiply_add(alpha, sum, T(0));
    } else {
      return alpha * sum;
    }
  }
  THIMBLE_DEVICE static T add(T a, T b) {
    if constexpr (std::is_same_v<T, std::int64_t>) {
      return multiply_add(T(1), a, b);
    } else {
      return a + b;
    }
  }
};

template <class T>
void multiply_typed(const GemmArgs& args) {
  const Batch batch(args);
  cuda_kernels::multiply<T>(
      batch.matrices(), args.m, args.n, args.k,
      Matrix{batch, 0, args.a, args.dtype, args.a_row_stride, args.a_column_stride},
      Matrix{batch, 1, args.b, args.dtype, args.b_row_stride, args.b_column_stride},
      Result<T>{batch, args.c, args.c_dtype, args.c_row_stride, args.c_column_stride, static_cast<T>(args.alpha),
                args.accumulate, args.bias, args.activation, args.pre_activation});
}

// Applies the activation to the library's stored, rounded result, so the bits do not depend on whether the input is
// kept. (The library's relu does not specify NaN.)
struct Activate {
  Batch batch;
  std::int64_t m, n, row_stride;
  const void* stored;
  void* c;
  DType dtype;
  Activation activation;
  THIMBLE_DEVICE void operator()(std::int64_t e) const {
    const std::int64_t i = e / n % m, at = batch.offset(2, e / n / m) + i * row_stride + e % n;
    store_any<float>(c, dtype, at, activate(activation, load_any<float>(stored, dtype, at), dtype));
  }
};

void apply_activation(const GemmArgs& args, const void* stored) {
  const Batch batch(args);
  const std::int64_t elements = batch.matrices() * args.m * args.n;
  const bool is_dense = batch.matrices() == 1 && (args.m == 1 || args.c_row_stride == args.n);
  if (is_dense && activate_words(args.activation, stored, args.c, args.c_dtype, elements)) return;
  for_each_item(elements,
                Activate{batch, args.m, args.n, args.c_row_stride, stored, args.c, args.c_dtype, args.activation});
}

bool by_library(const GemmArgs& args, void* workspace, int threads) {
  if (!is_library_gemm(args)) return false;
  const std::size_t bytes = cuda_gemm_workspace_bytes(args, threads);
  GemmArgs plain = args;
  plain.activation = Activation::none;
  plain.pre_activation = nullptr;
  if (args.activation != Activation::none && args.pre_activation) plain.c = args.pre_activation;
  if (!gpu::booked(&LibraryUse::cublaslt, args, gpu::library_gemm(plain, workspace, bytes))) return false;
  if (args.activation != Activation::none) apply_activation(args, plain.c);
  return true;
}

void gemm(const GemmArgs& args, void* workspace, int threads) {
  if (by_library(args, workspace, threads)) return;
  switch (compute_type(args.dtype)) {
    case ComputeType::f32:
      return multiply_typed<float>(args);
    case ComputeType::f64:
      return multiply_typed<double>(args);
    case ComputeType::i64:
      return multiply_typed<std::int64_t>(args);
  }
}

// Sums over rows: blocks of 256 in ascending order, added in ascending order. First the blocks' sums, then a thread for
// each column adds them.
template <class T>
struct BlockSums {
  std::int64_t rows, width;
  const void* in;
  DType dtype;
  T* partial;  // (blocks, width)
  THIMBLE_DEVICE void operator()(std::int64_t i) const {
    const std::int64_t block = i / width, column = i - block * width, begin = block * column_sum_block;
    const std::int64_t end = begin + column_sum_block < rows ? begin + column_sum_block : rows;
    T sum = 0;
    for (std::int64_t row = begin; row < end; ++row) sum += load<T>(in, dtype, row * width + column);
    partial[i] = sum;
  }
};

// BlockSums for four neighbouring columns.
template <class S>
struct BlockSumsOfWords {
  std::int64_t rows, words;  // words of a row
  const S* in;
  float* partial;
  THIMBLE_DEVICE void operator()(std::int64_t i) const {
    const std::int64_t block = i / words, begin = block * column_sum_block;
    const std::int64_t left = rows - begin, width = words * columns_together;
    const S* const from = in + begin * width + (i - block * words) * columns_together;
    put_words(partial, i * columns_together,
              sum_of_rows(from, left < column_sum_block ? left : column_sum_block, width));
  }
};

template <class T>
struct AddBlocks {
  std::int64_t blocks, width;
  const T* partial;
  void* out;
  DType out_dtype;
  bool accumulate;
  THIMBLE_DEVICE void operator()(std::int64_t column) const {
    T total = sum_in_order(T(0), partial + column, blocks, width);
    if (accumulate) total += load_any<T>(out, out_dtype, column);
    store_any<T>(out, out_dtype, column, total);
  }
};

void column_sum(const ColumnSumArgs& args) {
  const std::int64_t blocks = (args.rows + column_sum_block - 1) / column_sum_block;
  bool is_done = false;
  if (args.columns % columns_together == 0 && are_aligned({args.in, args.partial})) {
    const std::int64_t words = args.columns / columns_together;
    is_done = with_word_dtype(args.dtype, [&]<class S>() {
      for_each_item(blocks * words, BlockSumsOfWords<S>{args.rows, words, static_cast<const S*>(args.in),
                                                        static_cast<float*>(args.partial)});
    });
  }
  with_compute_type(args.dtype, [&]<class T>() {
    T* const partial = static_cast<T*>(args.partial);
    if (!is_done) {
      for_each_item(blocks * args.columns, BlockSums<T>{args.rows, args.columns, args.in, args.dtype, partial});
    }
    for_each_item(args.columns, AddBlocks<T>{blocks, args.columns, partial, args.out, args.out_dtype, args.accumulate});
  });
}

constexpr MatmulKernels table{cuda_gemm_workspace_bytes,
                              gemm,
                              cuda_conv_forward_bytes,
                              cuda_conv_input_grad_bytes,
                              cuda_conv_weight_grad_bytes,
                              cuda_kernels::conv_forward,
                              cuda_kernels::conv_input_grad,
                              cuda_kernels::conv_weight_grad,
                              column_sum};

}  // namespace matmul_cuda_detail

const MatmulKernels* const matmul_cuda = &matmul_cuda_detail::table;

}  // namespace thimble::kernels
