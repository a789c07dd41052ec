#pragma once
// The kernel family of lines: running sums, products, sorting and drawing along one axis of a dense tensor.

#include <cstdint>

#include <thimble/core/device.h>
#include <thimble/core/dtype.h>

namespace thimble::kernels {

/// Lines of `length` elements: element j of line (o, i) is element (o length + j) inner + i of a dense tensor.
struct LineShape {
  std::int64_t outer = 0, length = 0, inner = 1;
  std::int64_t lines() const noexcept { return outer * inner; }
};

/// Floating elements are summed and multiplied in f64 and rounded once, integers in i64. `out` has in's floating dtype,
/// or is i64.
struct CumSumArgs {
  LineShape shape;
  DType dtype = DType::f32;  ///< of in
  const void* in = nullptr;
  void* out = nullptr;      ///< out[j] = sum of in[i], i <= j; may be `in` if the dtypes agree
  bool is_reverse = false;  ///< the sum of i >= j
};

/// y = the product of each line, 1 for an empty one.
struct ProdArgs {
  LineShape shape;
  DType dtype = DType::f32;  ///< of x
  const void* x = nullptr;
  void* y = nullptr;  ///< (outer, inner)
};

/// dx[j] = dy times the product of the line's other elements.
struct ProdGradArgs {
  LineShape shape;
  DType dtype = DType::f32;  ///< floating
  const void* x = nullptr;
  const void* dy = nullptr;  ///< (outer, inner)
  void* dx = nullptr;        ///< may be x
};

/// order[r] = the places of the first `count` elements of row r in sorted order. Equal elements keep their order, and
/// NaN is larger than all. x (rows, length) and order (rows, count) are dense.
struct SortArgs {
  std::int64_t rows = 0, length = 0, count = 0;
  DType dtype = DType::f32;
  bool is_descending = false;
  const void* x = nullptr;
  std::int32_t* order = nullptr;
  std::int32_t* workspace = nullptr;  ///< sort_workspace_elements(...)
};
/// i32 elements, on CUDA devices only: two orders, between which runs are merged.
constexpr std::int64_t sort_workspace_elements(memory::Device device, std::int64_t rows, std::int64_t length) noexcept {
  return device.is_cuda() ? 2 * rows * length : 0;
}

/// places[r, s] = the first j with sums[r, j] > point[r, s] sums[r, length - 1]: the class that a point in [0, 1)
/// picks, never one that adds nothing to the running sums (rows, length). All arrays are dense; length > 0.
struct ChooseArgs {
  std::int64_t rows = 0, length = 0, count = 0;
  const double* sums = nullptr;
  const double* points = nullptr;  ///< (rows, count)
  std::int64_t* places = nullptr;
};

struct LineKernels {
  void (*cumsum)(const CumSumArgs&) = nullptr;
  void (*prod)(const ProdArgs&) = nullptr;
  void (*prod_backward)(const ProdGradArgs&) = nullptr;
  void (*sort)(const SortArgs&) = nullptr;
  void (*choose)(const ChooseArgs&) = nullptr;
};

extern const LineKernels line_cpu;
extern const LineKernels* const line_cuda;  ///< null in a build without CUDA

/// Throws DeviceError when this build has no kernels for the device.
const LineKernels& line_kernels(memory::Device device);

}  // namespace thimble::kernels
