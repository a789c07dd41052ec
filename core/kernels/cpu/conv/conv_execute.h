#pragma once
// Shared by the three convolutions as matmuls: sizes of a group, costs, and the call itself.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <thimble/core/kernels/conv.h>
#include <thimble/core/kernels/cpu/base/compute.h>
#include <thimble/core/kernels/cpu/conv/conv_driver.h>
#include <thimble/core/kernels/cpu/conv/conv_operand.h>
#include <thimble/core/kernels/cpu/conv/conv_winograd.h>
#include <thimble/core/kernels/cpu/matmul/gemm_driver.h>

namespace thimble::kernels::conv_detail {

using gemm_detail::Finish;
using gemm_detail::LeftMatrix;
using gemm_detail::Microkernels;
using gemm_detail::MicroShape;
using gemm_detail::Output;
using gemm_detail::OutputTile;
using gemm_detail::Panels;
using gemm_detail::Problem;
using gemm_detail::RightMatrix;
using gemm_detail::Tiling;

// Cycles to load an element into a microkernel or store it, as in matmul_cpu.cpp.
inline constexpr double in_place_cycles = 0.25;
inline constexpr double copy_cycles = 0.6;
inline constexpr double copy_left_cycles = 0.9;
inline constexpr double window_cycles = 0.6;
inline constexpr double convert_cycles = 0.4;  // on top
inline constexpr double store_cycles = 0.2;
inline constexpr double store_turned_cycles = 1;

/// Either adds up the workspace that matmuls need, or computes them with it.
template <class T>
class Executor {
 public:
  explicit Executor(int threads) noexcept : threads_(threads) {}
  Executor(int threads, void* workspace) noexcept : threads_(threads), workspace_(workspace), is_running_(true) {}

  /// `finish` stores a finished microtile; defaults to the matmul's.
  void operator()(const Problem& problem, const LeftOperand<T>& left, const RightOperand<T>& right,
                  const Output<T>& output, Finish<T> finish = nullptr) noexcept {
    if (problem.m == 0 || problem.n == 0) return;
    const Microkernels<T>& kernels = gemm_detail::microkernels<T>(isa());
    const MicroShape micro = micro_shape(kernels);
    const Tiling tiling = choose_tiling(problem, micro, threads_);
    if (is_running_) {
      if (finish == nullptr) finish = gemm_detail::finish<T>(isa());
      gemm_detail::run<T>(problem, tiling, kernels, left, right, output, finish, workspace_);
      return;
    }
    const std::int64_t left_elements = left.scratch_elements(std::min(tiling.left_rows, problem.m), kernels.rows);
    bytes_ = std::max(bytes_, gemm_detail::workspace_bytes(problem, tiling, micro, left_elements));
  }
  /// The same with pixels as rows, leaving padding out. The output's rows are pixel_rows().
  void operator()(const Problem& problem, const PixelWindow& left, const RightOperand<T>& right,
                  const Output<T>& output) noexcept {
    if (problem.m == 0 || problem.n == 0) return;
    const Microkernels<T>& kernels = gemm_detail::microkernels<T>(isa());
    const MicroShape micro = micro_shape(kernels);
    const Tiling tiling = choose_tiling(problem, micro, threads_);
    if (is_running_) {
      run_pixels<T>(problem, tiling, kernels, left, right, output, gemm_detail::finish<T>(isa()), workspace_);
      return;
    }
    bytes_ = std::max(bytes_, pixels_workspace_bytes(problem, tiling, micro));
  }
  /// A 3x3 correlation by Winograd's algorithm.
  void operator()(const Correlation& correlation, const Output<float>& output) noexcept {
    if (is_running_) return run_winograd(correlation, output, workspace_, threads_);
    bytes_ = std::max(bytes_, winograd_workspace_bytes(correlation, threads_));
  }
  void operator()(const ConvWeightGradArgs& args) noexcept {
    if (is_running_) return run_winograd(args, workspace_, threads_);
    bytes_ = std::max(bytes_, winograd_workspace_bytes(args, threads_));
  }
  bool is_running() const noexcept { return is_running_; }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  int threads_;
  void* workspace_ = nullptr;
  bool is_running_ = false;
  std::size_t bytes_ = 0;
};

/// Sizes of one group.
struct Group {
  std::int64_t channels;  // of x
  std::int64_t filters;
  std::int64_t filter_elements;  // KH * KW * channels

  explicit Group(const ConvShape& s) noexcept
      : channels(s.channels / s.groups),
        filters(s.filters / s.groups),
        filter_elements(s.kernel_h * s.kernel_w * channels) {}
  std::int64_t weights() const noexcept { return filters * filter_elements; }
};

/// One tap on every pixel: the image is the matrix.
inline bool is_pointwise(const ConvShape& s) noexcept {
  return s.kernel_h == 1 && s.kernel_w == 1 && s.stride_h == 1 && s.stride_w == 1 && s.pad_top == 0 &&
         s.pad_bottom == 0 && s.pad_left == 0 && s.pad_right == 0;
}

inline ConvWindow input_window(const ConvShape& s, const void* x, DType dtype) noexcept {
  return {x,
          dtype,
          s.channels,
          s.channels / s.groups,
          {s.out_height(), s.height, s.stride_h, -s.pad_top, s.dilation_h, s.kernel_h},
          {s.out_width(), s.width, s.stride_w, -s.pad_left, s.dilation_w, s.kernel_w}};
}

inline std::int64_t out_pixels(const ConvShape& s) noexcept { return s.images * s.out_height() * s.out_width(); }

/// Extra cycles to convert an element of `dtype` to T.
template <class T>
double conversion_cycles(DType dtype) noexcept {
  return dtype == dtype_of<T> ? 0 : convert_cycles;
}

template <class T>
Output<T> output_to(void* c, DType dtype) noexcept {
  Output<T> output;
  output.c = c;
  output.dtype = dtype;
  return output;
}

inline void add_groups(Problem& problem, const ConvShape& s, std::int64_t left, std::int64_t right, std::int64_t out,
                       std::int64_t bias) noexcept {
  if (s.groups == 1) return;
  problem.batch_rank = 1;
  problem.batch[0] = {s.groups, left, right, out, bias};
}

/// With a window as left operand, in place if possible.
template <class T>
void multiply_window(Problem& problem, const ConvWindow& window, const RightOperand<T>& right, const Output<T>& output,
                     Executor<T>& execute, Finish<T> finish = nullptr) noexcept {
  if (LeftWindowInPlace<T>::can_read(window)) {
    problem.left_cost = in_place_cycles + conversion_cycles<T>(window.dtype);
    execute(problem, LeftWindowInPlace<T>(window), right, output, finish);
  } else {
    problem.copies_left = true;
    problem.left_cost = window_cycles + conversion_cycles<T>(window.dtype);
    execute(problem, LeftWindow<T>(window), right, output, finish);
  }
}

// The three computations; Executor decides whether they run.
template <class T>
void multiply(const ConvForwardArgs& args, Executor<T>& execute) noexcept;
template <class T>
void multiply(const ConvInputGradArgs& args, Executor<T>& execute) noexcept;
template <class T>
void multiply(const ConvWeightGradArgs& args, Executor<T>& execute) noexcept;

}  // namespace thimble::kernels::conv_detail
