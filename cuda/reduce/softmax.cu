// Softmax on CUDA devices: a warp or a team for each row, which is read in words, once for the largest and the sum,
// once for the result. A thread sums its elements in the compute type, relative to its largest so far; all of them in
// f64.

#include <cmath>

#include <thimble/core/kernels/softmax.h>
#include <thimble/cuda/kernel/element.h>
#include <thimble/cuda/reduce/exponential_sum.h>

namespace thimble::kernels {
namespace softmax_cuda_detail {

using namespace cuda_kernels;

// How many elements of a row are not masked.
THIMBLE_DEVICE inline std::int64_t visible(std::int64_t length, std::int64_t causal_queries, std::int64_t row) {
  return causal_queries == 0 ? length : length - causal_queries + row % causal_queries + 1;
}

// Zeros from element `seen` on.
template <class T, int count>
THIMBLE_DEVICE inline void mask_behind(std::int64_t seen, T (&values)[count]) {
  if (seen >= count) return;
  THIMBLE_UNROLL
  for (int e = 0; e < count; ++e) values[e] = e < seen ? values[e] : T(0);
}

template <class S, bool is_dense>
struct Forward {
  using T = Wide<S>;
  static constexpr int count = word_elements<S>;
  Walk<2> rows;
  std::int64_t length, causal_queries;
  const S* x;
  S* y;
  std::int64_t steps[2];
  T scale;
  bool is_log;

  template <class Threads>
  THIMBLE_DEVICE void operator()(Threads& threads, std::int64_t row) const {
    std::int64_t base[2];
    rows.locate(row, base);
    const S* const from = x + base[0];
    const std::int64_t seen = visible(length, causal_queries, row);
    ExponentialSum<T> own;
    const auto add = [&](const auto& reader) {
      for_each_word<count>(threads, seen, [&](std::int64_t w, auto n) {
        T values[count];
        reader.read(w, values);
        THIMBLE_UNROLL
        for (int e = 0; e < count; ++e) values[e] *= scale;
        own.add(values, n);
      });
    };
    if constexpr (is_dense) {
      add(RowReader<S>(from, seen));
    } else {
      add(StridedReader<S>(from, seen, steps[0]));
    }
    const T largest = threads.max(own.largest);
    const double total = threads.sum(static_cast<double>(own.relative_to(largest)));
    const T inverse = T(1) / static_cast<T>(total), log_total = is_log ? static_cast<T>(std::log(total)) : T(0);
    const auto result = [&](std::int64_t begin, T(&values)[1][count]) {
      THIMBLE_UNROLL
      for (int e = 0; e < count; ++e) values[0][e] = values[0][e] * scale - largest;
      if (is_log) {
        THIMBLE_UNROLL
        for (int e = 0; e < count; ++e) values[0][e] -= log_total;
      } else {
        THIMBLE_UNROLL
        for (int e = 0; e < count; ++e) values[0][e] = quick_exp(values[0][e]) * inverse;
      }
      mask_behind(seen - begin, values[0]);
    };
    if constexpr (is_dense) {
      map_row<1>(threads, {from}, y + base[1], length, result);
    } else {
      map_strided_row<1>(threads, {from}, y + base[1], steps, length, result);
    }
  }
};

template <class S, bool is_dense>
struct Backward {
  using T = Wide<S>;
  static constexpr int count = word_elements<S>;
  Walk<3> rows;
  std::int64_t length, causal_queries;
  const S* y;
  const S* dy;
  S* dx;
  std::int64_t steps[3];
  T scale;
  bool is_log;

  template <class Threads>
  THIMBLE_DEVICE void operator()(Threads& threads, std::int64_t row) const {
    std::int64_t base[3];
    rows.locate(row, base);
    const std::int64_t seen = visible(length, causal_queries, row);
    const S *const of_y = y + base[0], *const of_dy = dy + base[1];
    T own = 0;
    const auto add = [&](const auto& y_reader, const auto& dy_reader) {
      for_each_word<count>(threads, seen, [&](std::int64_t w, auto n) {
        T g[count], p[count];
        dy_reader.read(w, g);
        if (!is_log) y_reader.read(w, p);
        THIMBLE_UNROLL
        for (int e = 0; e < count; ++e) {
          if (e < n) own = is_log ? own + g[e] : multiply_add(g[e], p[e], own);
        }
      });
    };
    if constexpr (is_dense) {
      add(RowReader<S>(of_y, seen), RowReader<S>(of_dy, seen));
    } else {
      add(StridedReader<S>(of_y, seen, steps[0]), StridedReader<S>(of_dy, seen, steps[1]));
    }
    const T sum = static_cast<T>(threads.sum(static_cast<double>(own)));
    const auto result = [&](std::int64_t begin, T(&values)[2][count]) {
      if (is_log) {
        THIMBLE_UNROLL
        for (int e = 0; e < count; ++e) values[0][e] = scale * (values[1][e] - quick_exp(values[0][e]) * sum);
      } else {
        THIMBLE_UNROLL
        for (int e = 0; e < count; ++e) values[0][e] = scale * (values[0][e] * (values[1][e] - sum));
      }
      mask_behind(seen - begin, values[0]);
    };
    if constexpr (is_dense) {
      map_row<2>(threads, {of_y, of_dy}, dx + base[2], length, result);
    } else {
      map_strided_row<2>(threads, {of_y, of_dy}, dx + base[2], steps, length, result);
    }
  }
};

void forward(const SoftmaxArgs& args) {
  with_rows(args.x.dtype, args.x.step == 1 && args.y.step == 1, [&]<class S, bool is_dense>() {
    for_each_row_in_words<S>(args.outer.elements(), args.length,
                             Forward<S, is_dense>{Walk<2>(args.outer, {&args.x.strides, &args.y.strides}),
                                                  args.length,
                                                  args.causal_queries,
                                                  static_cast<const S*>(args.x.data),
                                                  static_cast<S*>(args.y.data),
                                                  {args.x.step, args.y.step},
                                                  static_cast<Wide<S>>(args.scale),
                                                  args.is_log});
  });
}

void backward(const SoftmaxBackwardArgs& args) {
  const bool is_dense = args.y.step == 1 && args.dy.step == 1 && args.dx.step == 1;
  with_rows(args.y.dtype, is_dense, [&]<class S, bool dense>() {
    for_each_row_in_words<S>(
        args.outer.elements(), args.length,
        Backward<S, dense>{Walk<3>(args.outer, {&args.y.strides, &args.dy.strides, &args.dx.strides}),
                           args.length,
                           args.causal_queries,
                           static_cast<const S*>(args.y.data),
                           static_cast<const S*>(args.dy.data),
                           static_cast<S*>(args.dx.data),
                           {args.y.step, args.dy.step, args.dx.step},
                           static_cast<Wide<S>>(args.scale),
                           args.is_log});
  });
}

constexpr SoftmaxKernels table{forward, backward};

}  // namespace softmax_cuda_detail

const SoftmaxKernels* const softmax_cuda = &softmax_cuda_detail::table;

}  // namespace thimble::kernels
