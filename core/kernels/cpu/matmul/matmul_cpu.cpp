// The CPU's products: decides how to pack the operands and cut the product, which gemm_driver.h executes. Also the
// table of the matmul and convolution families.

#include <thimble/core/kernels/cpu/matmul/gemm.h>

#include <utility>

#include <thimble/core/kernels/cpu/base/units.h>
#include <thimble/core/kernels/cpu/matmul/gemm_bf16.h>
#include <thimble/core/kernels/cpu/matmul/gemm_driver.h>
#include <thimble/core/kernels/matmul.h>
#include <thimble/core/kernels/table_for.h>

namespace thimble::kernels {
namespace matmul_cpu_detail {

using namespace gemm_detail;

// Cycles to load an element into a microkernel or store it. Measured on 1024 x 1024 matrices in a third-level cache;
// they only rank tilings.
inline constexpr double in_place_cycles = 0.25;
inline constexpr double copy_left_rows_cycles = 0.4;
inline constexpr double copy_left_columns_cycles = 0.9;
inline constexpr double copy_right_cycles = 0.6;
inline constexpr double convert_cycles = 0.4;  // in addition
inline constexpr double gather_cycles = 3.0;
inline constexpr double store_row_cycles = 0.2;
inline constexpr double store_column_cycles = 1.0;

/// Stride of b's only row in an outer product: a whole number of cache lines of any type.
std::int64_t outer_row_stride(const GemmArgs& args) noexcept { return args.b_column_stride == 1 ? 64 : 1; }

/// C or, when `is_turned`, its transpose: C^T = op(B)^T op(A)^T has the same products in the same order.
struct Sides {
  MatrixView left;   // (m, k)
  MatrixView right;  // (k, n)
  RowMap rows;
  std::int64_t column_stride;
  bool is_turned;
};

Sides sides_of(const GemmArgs& args, bool is_turned) noexcept {
  Sides sides{{args.a, args.a_row_stride, args.a_column_stride, args.dtype},
              {args.b, args.b_row_stride, args.b_column_stride, args.dtype},
              {},
              args.c_column_stride,
              is_turned};
  sides.rows.pixel = args.c_row_stride;
  if (is_turned) {
    std::swap(sides.left, sides.right);
    std::swap(sides.left.row_stride, sides.left.column_stride);
    std::swap(sides.right.row_stride, sides.right.column_stride);
    std::swap(sides.rows.pixel, sides.column_stride);
  }
  return sides;
}

template <class T>
void describe(const GemmArgs& args, const Sides& sides, Problem& problem) noexcept {
  problem.m = sides.is_turned ? args.n : args.m;
  problem.n = sides.is_turned ? args.m : args.n;
  problem.k = args.k;
  problem.batch_rank = args.batch_rank;
  for (std::size_t i = 0; i < static_cast<std::size_t>(args.batch_rank); ++i) {
    const GemmBatchDim& dim = args.batch[i];
    problem.batch[i] = {dim.size, sides.is_turned ? dim.b : dim.a, sides.is_turned ? dim.a : dim.b, dim.c, dim.bias};
  }
  const double conversion = args.dtype == dtype_of<T> ? 0 : convert_cycles;
  const MatrixView& left = sides.left;
  const MatrixView& right = sides.right;
  const auto is_gathered = [](const MatrixView& view) { return view.row_stride != 1 && view.column_stride != 1; };
  const double copy_left_cycles = left.column_stride == 1 ? copy_left_rows_cycles : copy_left_columns_cycles;
  problem.left_cost = is_gathered(left)                            ? gather_cycles
                      : conversion == 0 && left.column_stride == 1 ? in_place_cycles
                                                                   : copy_left_cycles + conversion;
  // A stride of 0 is one row for all: it is packed like any row that is not in place.
  problem.has_right_rows =
      conversion == 0 && right.column_stride == 1 && right.row_stride != 0 && right.row_stride % line_elements<T> == 0;
  problem.sums_in_out = args.c_dtype == dtype_of<T> && sides.column_stride == 1 && !args.accumulate;
  problem.copies_left = conversion != 0 || left.column_stride != 1;
  problem.right_cost = is_gathered(right) ? gather_cycles : copy_right_cycles + conversion;
  problem.output_cost = sides.column_stride == 1 ? store_row_cycles
                        : sides.rows.pixel == 1  ? store_column_cycles
                                                 : gather_cycles;
}

/// All decisions of gemm and gemm_workspace_bytes.
template <class T>
struct Decision {
  Sides sides;
  Problem problem;
  Tiling tiling;
};

template <class T>
void decide(const GemmArgs& args, const MicroShape& micro, int threads, Decision<T>& decision) noexcept {
  decision.sides = sides_of(args, false);
  describe<T>(args, decision.sides, decision.problem);
  decision.tiling = choose_tiling(decision.problem, micro, threads);
  if (decision.tiling.cost == 0) return;
  // Transposing pays when it reads the left operand in place, stores rows, or pads less.
  const bool may_pay = decision.problem.left_cost > in_place_cycles ||
                       decision.problem.output_cost > store_row_cycles || args.m % micro.rows != 0 ||
                       args.n % micro.columns() != 0;
  if (!may_pay) return;
  Decision<T> turned;
  turned.sides = sides_of(args, true);
  describe<T>(args, turned.sides, turned.problem);
  turned.tiling = choose_tiling(turned.problem, micro, threads);
  if (turned.tiling.cost < decision.tiling.cost) decision = turned;
}

bool is_empty(const GemmArgs& args) noexcept {
  if (args.m == 0 || args.n == 0) return true;
  for (std::size_t i = 0; i < static_cast<std::size_t>(args.batch_rank); ++i) {
    if (args.batch[i].size == 0) return true;
  }
  return false;
}

/// Whether a product is small and read in place, in whole vectors (tiling_detail::whole_in_place): most calls on small
/// tensors are, and are not worth deciding twice.
template <class T>
bool is_small_in_place(const GemmArgs& args, const MicroShape& micro, int threads) noexcept {
  constexpr std::int64_t most = 256;
  return threads == 1 && args.m <= most && args.n <= most && args.k <= most && args.a_column_stride == 1 &&
         args.b_column_stride == 1 && args.c_column_stride == 1 && args.b_row_stride != 0 &&
         args.b_row_stride % line_elements<T> == 0 && args.n % micro.lanes == 0 && args.dtype == dtype_of<T>;
}

template <class T>
std::size_t workspace_of(const GemmArgs& args, int threads) noexcept {
  const MicroShape micro = micro_shape(microkernels<T>(isa()));
  if (is_small_in_place<T>(args, micro, threads)) return 0;
  Decision<T> decision;
  decide<T>(args, micro, threads, decision);
  const LeftMatrix<T> left(decision.sides.left);
  const std::int64_t rows = std::min(decision.tiling.left_rows, decision.problem.m);
  return workspace_bytes(decision.problem, decision.tiling, micro, left.scratch_elements(rows, micro.rows));
}

template <class T>
void compute(const GemmArgs& args, void* workspace, int threads) noexcept {
  const Isa set = isa();
  const Microkernels<T>& kernels = microkernels<T>(set);
  Decision<T> decision;
  decide<T>(args, micro_shape(kernels), threads, decision);
  Output<T> output;
  output.c = args.c;
  output.pre_activation = args.pre_activation;
  output.bias = args.bias;
  output.bias_along_rows = decision.sides.is_turned;
  output.accumulate = args.accumulate;
  output.activation = args.activation;
  output.dtype = args.c_dtype;
  output.alpha = static_cast<T>(args.alpha);
  output.rows = decision.sides.rows;
  output.column_stride = decision.sides.column_stride;
  const LeftMatrix<T> left(decision.sides.left);
  const RightMatrix<T> right(decision.sides.right, set);
  run<T>(decision.problem, decision.tiling, kernels, left, right, output, finish<T>(set), workspace);
}

/// Whether an outer product's strides along k, where it has one element, differ from the strides that outer_product()
/// sets, with which operands are read in place.
bool has_other_strides(const GemmArgs& args) noexcept {
  return args.k == 1 && (args.a_column_stride != 1 || args.b_row_stride != outer_row_stride(args));
}
GemmArgs outer_product(GemmArgs args) noexcept {
  args.a_column_stride = 1;
  args.b_row_stride = outer_row_stride(args);
  return args;
}

}  // namespace matmul_cpu_detail

std::size_t gemm_workspace_bytes(const GemmArgs& args, int threads) noexcept {
  using namespace matmul_cpu_detail;
  if (is_empty(args)) return 0;
  if (has_other_strides(args)) return gemm_workspace_bytes(outer_product(args), threads);
  if (args.dtype == DType::bf16 && bf16_unit(Product::gemm)) return bf16_workspace_bytes(args, threads);
  if (has_few_rows(args)) return few_rows_bytes(args, threads);
  if (is_direct(args, isa())) return 0;
  switch (compute_type(args.dtype)) {
    case ComputeType::f32:
      return workspace_of<float>(args, threads);
    case ComputeType::f64:
      return workspace_of<double>(args, threads);
    case ComputeType::i64:
      return workspace_of<std::int64_t>(args, threads);
  }
  return 0;
}

void gemm(const GemmArgs& args, void* workspace, int threads) noexcept {
  using namespace matmul_cpu_detail;
  if (is_empty(args)) return;
  if (has_other_strides(args)) return gemm(outer_product(args), workspace, threads);
  if (args.dtype == DType::bf16) {
    if (const auto unit = bf16_unit(Product::gemm)) return compute_bf16(args, workspace, threads, *unit);
  }
  if (has_few_rows(args)) return few_rows_gemm(args, workspace, threads);
  if (is_direct(args, isa())) return direct_gemm(args, threads);
  switch (compute_type(args.dtype)) {
    case ComputeType::f32:
      return compute<float>(args, workspace, threads);
    case ComputeType::f64:
      return compute<double>(args, workspace, threads);
    case ComputeType::i64:
      return compute<std::int64_t>(args, workspace, threads);
  }
}

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

const MatmulKernels& matmul_kernels(memory::Device device) {
  return table_for(device, "matmul", matmul_cpu, matmul_cuda, matmul_cuda_sizes);
}

}  // namespace thimble::kernels
