// Softmax on CUDA devices: a team for each row, which is read once for the largest, once for the sum, once for the
// result. A thread sums its elements in the compute type, the team in f64.

#include <cmath>

#include <thimble/core/kernels/softmax.h>
#include <thimble/core/numbers/math.h>
#include <thimble/cuda/kernel/element.h>

namespace thimble::kernels {
namespace softmax_cuda_detail {

using namespace cuda_kernels;

// A row operand without its strides over rows, which are in a Walk.
struct Row {
  const void* data;
  DType dtype;
  std::int64_t step;
  template <class T>
  THIMBLE_DEVICE T at(std::int64_t base, std::int64_t i) const {
    return load<T>(data, dtype, base + i * step);
  }
};
struct RowTo {
  void* data;
  DType dtype;
  std::int64_t step;
  template <class T>
  THIMBLE_DEVICE void set(std::int64_t base, std::int64_t i, T value) const {
    store<T>(data, dtype, base + i * step, value);
  }
};

// How many elements of a row are not masked.
THIMBLE_DEVICE inline std::int64_t visible(std::int64_t length, std::int64_t causal_queries, std::int64_t row) {
  return causal_queries == 0 ? length : length - causal_queries + row % causal_queries + 1;
}

template <class T>
struct Forward {
  static constexpr int threads = 256;
  Walk<2> rows;
  std::int64_t length, causal_queries;
  Row x;
  RowTo y;
  T scale;
  bool is_log;

  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t row) const {
    std::int64_t base[2];
    rows.locate(row, base);
    const std::int64_t count = visible(length, causal_queries, row);
    T largest = -static_cast<T>(INFINITY);
    for (std::int64_t i = team.rank(); i < count; i += Team::size) {
      largest = larger_of(largest, x.at<T>(base[0], i) * scale);
    }
    largest = team.max(largest);
    T own = 0;
    for (std::int64_t i = team.rank(); i < count; i += Team::size)
      own += math::exp(x.at<T>(base[0], i) * scale - largest);
    const double total = team.sum(static_cast<double>(own));
    const T inverse = static_cast<T>(1 / total), log_total = static_cast<T>(std::log(total));
    for (std::int64_t i = team.rank(); i < length; i += Team::size) {
      if (i >= count) {
        y.set(base[1], i, T(0));
        continue;
      }
      const T z = x.at<T>(base[0], i) * scale - largest;
      y.set(base[1], i, is_log ? z - log_total : math::exp(z) * inverse);
    }
  }
};

template <class T>
struct Backward {
  static constexpr int threads = 256;
  Walk<3> rows;
  std::int64_t length, causal_queries;
  Row y, dy;
  RowTo dx;
  T scale;
  bool is_log;

  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t row) const {
    std::int64_t base[3];
    rows.locate(row, base);
    const std::int64_t count = visible(length, causal_queries, row);
    T own = 0;
    for (std::int64_t i = team.rank(); i < count; i += Team::size) {
      const T g = dy.at<T>(base[1], i);
      own += is_log ? g : g * y.at<T>(base[0], i);
    }
    const T sum = static_cast<T>(team.sum(static_cast<double>(own)));
    for (std::int64_t i = team.rank(); i < length; i += Team::size) {
      if (i >= count) {
        dx.set(base[2], i, T(0));
        continue;
      }
      const T g = dy.at<T>(base[1], i), p = y.at<T>(base[0], i);
      dx.set(base[2], i, scale * (is_log ? g - math::exp(p) * sum : p * (g - sum)));
    }
  }
};

void forward(const SoftmaxArgs& args) {
  with_compute_type(args.x.dtype, [&]<class T>() {
    for_each_team(args.outer.elements(), Forward<T>{Walk<2>(args.outer, {&args.x.strides, &args.y.strides}),
                                                    args.length,
                                                    args.causal_queries,
                                                    {args.x.data, args.x.dtype, args.x.step},
                                                    {args.y.data, args.y.dtype, args.y.step},
                                                    static_cast<T>(args.scale),
                                                    args.is_log});
  });
}

void backward(const SoftmaxBackwardArgs& args) {
  with_compute_type(args.y.dtype, [&]<class T>() {
    for_each_team(args.outer.elements(),
                  Backward<T>{Walk<3>(args.outer, {&args.y.strides, &args.dy.strides, &args.dx.strides}),
                              args.length,
                              args.causal_queries,
                              {args.y.data, args.y.dtype, args.y.step},
                              {args.dy.data, args.dy.dtype, args.dy.step},
                              {args.dx.data, args.dx.dtype, args.dx.step},
                              static_cast<T>(args.scale),
                              args.is_log});
  });
}

constexpr SoftmaxKernels table{forward, backward};

}  // namespace softmax_cuda_detail

const SoftmaxKernels* const softmax_cuda = &softmax_cuda_detail::table;

}  // namespace thimble::kernels
