// Softmax on CUDA devices: a warp or a team takes a row and reads it in words. Forward holds a row of up to 64 elements
// per thread in registers and reads it once. It reads a longer row twice: first for the largest and the sum, relative
// to the largest so far, then for the result. A thread sums its elements in the compute type; the threads' sums are
// added in f64.

#include <cmath>

#include <thimble/core/kernels/softmax.h>
#include <thimble/cuda/kernel/element.h>
#include <thimble/cuda/reduce/exponential_sum.h>

namespace thimble::kernels {
namespace softmax_cuda_detail {

using namespace cuda_kernels;

// The number of unmasked elements of a row.
THIMBLE_DEVICE inline std::int64_t visible(std::int64_t length, std::int64_t causal_queries, std::int64_t row) {
  return causal_queries == 0 ? length : length - causal_queries + row % causal_queries + 1;
}

// Words of a row that a thread holds in registers; 0 for 8-bit elements.
template <class S>
inline constexpr int held_words = sizeof(S) == 1 ? 0 : 8;

template <class S, bool is_dense>
struct ForwardRows {
  using T = Wide<S>;
  static constexpr int count = word_elements<S>;
  Walk<2> rows;
  std::int64_t length, causal_queries;
  const S* x;
  S* y;
  std::int64_t steps[2];
  T scale;
  bool is_log;

  template <bool is_held, class Threads>
  THIMBLE_DEVICE void run(Threads& threads, std::int64_t row) const {
    std::int64_t base[2];
    rows.locate(row, base);
    const S* const from = x + base[0];
    S* const to = y + base[1];
    const std::int64_t seen = visible(length, causal_queries, row);
    if constexpr (is_dense) {
      run_with<is_held>(threads, RowReader<S>(from, seen), from, to, seen);
    } else {
      run_with<is_held>(threads, StridedReader<S>(from, seen, steps[0]), from, to, seen);
    }
  }

  template <bool is_held, class Threads, class Reader>
  THIMBLE_DEVICE void run_with(Threads& threads, const Reader& reader, const S* from, S* to, std::int64_t seen) const {
    if constexpr (is_held) {
      run_held(threads, reader, from, to, static_cast<int>(seen), static_cast<int>(length));
    } else {
      ExponentialSum<S> own;
      for_each_part<count>(threads, seen, [&](std::int64_t w, int n) {
        T values[count];
        read(reader, w, n, values);
        own.add(values);
      });
      const T largest = threads.max(own.largest);
      write_again(threads, from, to, seen, largest, threads.sum(static_cast<double>(own.relative_to(largest))));
    }
  }

  // Word w with n visible elements; the others are -infinity.
  template <class Reader>
  THIMBLE_DEVICE void read(const Reader& reader, std::int64_t w, std::int64_t n, T (&values)[count]) const {
    reader.read(w, values);
    THIMBLE_UNROLL
    for (int e = 0; e < count; ++e) values[e] *= scale;
    fill_behind(n, -static_cast<T>(INFINITY), values);
  }

  template <class Threads, class Reader>
  THIMBLE_DEVICE void run_held(Threads& threads, const Reader& reader, const S* from, S* to, int seen, int end) const {
    constexpr int most = held_words<S>;
    T held[most][count];
    T own_largest = -static_cast<T>(INFINITY), own = 0;
    const int rank = threads.rank();
    THIMBLE_UNROLL
    for (int k = 0; k < most; ++k) {
      const int w = rank + k * Threads::size;
      if (w * count >= seen) continue;
      read(reader, w, seen - w * count, held[k]);
      THIMBLE_UNROLL
      for (int e = 0; e < count; ++e) own_largest = std::fmax(own_largest, held[k][e]);
    }
    const T largest = threads.max(own_largest), shift = shift_of(largest);
    THIMBLE_UNROLL
    for (int k = 0; k < most; ++k) {
      if ((rank + k * Threads::size) * count >= seen) continue;
      THIMBLE_UNROLL
      for (int e = 0; e < count; ++e) {
        const T difference = held[k][e] - shift, power = exp_of<S>(difference);
        own += power;
        held[k][e] = is_log ? difference : power;
      }
    }
    const double total = threads.sum(static_cast<double>(own));
    if constexpr (is_dense) {
      if (reinterpret_cast<std::uintptr_t>(to) % 16 != 0) return write_again(threads, from, to, seen, largest, total);
    }
    const T inverse = T(1) / static_cast<T>(total), log_total = is_log ? static_cast<T>(std::log(total)) : T(0);
    THIMBLE_UNROLL
    for (int k = 0; k < most; ++k) {
      const int begin = (rank + k * Threads::size) * count;
      if (begin >= end) continue;
      THIMBLE_UNROLL
      for (int e = 0; e < count; ++e) held[k][e] = is_log ? held[k][e] - log_total : held[k][e] * inverse;
      fill_behind(seen - begin, T(0), held[k]);
      write(to, begin, end, held[k]);
    }
  }

  THIMBLE_DEVICE void write(S* to, int begin, int end, const T (&values)[count]) const {
    const Words<S, count> words = narrowed<S>(values);
    if (is_dense && begin + count <= end) return put_words(to, begin, words);
    THIMBLE_UNROLL
    for (int e = 0; e < count; ++e) {
      if (begin + e < end) to[(begin + e) * (is_dense ? 1 : steps[1])] = words.values[e];
    }
  }

  // Reads a row again and writes its result.
  template <class Threads>
  THIMBLE_DEVICE void write_again(const Threads& threads, const S* from, S* to, std::int64_t seen, T largest,
                                  double total) const {
    const T inverse = T(1) / static_cast<T>(total), log_total = is_log ? static_cast<T>(std::log(total)) : T(0);
    const auto result = [&](std::int64_t begin, T(&values)[1][count]) {
      THIMBLE_UNROLL
      for (int e = 0; e < count; ++e) values[0][e] = values[0][e] * scale - largest;
      if (is_log) {
        THIMBLE_UNROLL
        for (int e = 0; e < count; ++e) values[0][e] -= log_total;
      } else {
        THIMBLE_UNROLL
        for (int e = 0; e < count; ++e) values[0][e] = exp_of<S>(values[0][e]) * inverse;
      }
      fill_behind(seen - begin, T(0), values[0]);
    };
    if constexpr (is_dense) {
      map_row<1>(threads, {from}, to, length, result);
    } else {
      map_strided_row<1>(threads, {from}, to, steps, length, result);
    }
  }
};

// Forward of rows that fit in registers, and of longer ones.
template <class S, bool is_dense>
struct Forward {
  ForwardRows<S, is_dense> rows;
  template <class Threads>
  THIMBLE_DEVICE void operator()(Threads& threads, std::int64_t row) const {
    rows.template run<true>(threads, row);
  }
};
template <class S, bool is_dense>
struct LongForward {
  ForwardRows<S, is_dense> rows;
  template <class Threads>
  THIMBLE_DEVICE void operator()(Threads& threads, std::int64_t row) const {
    rows.template run<false>(threads, row);
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
      for_each_part<count>(threads, seen, [&](std::int64_t w, int n) {
        T g[count], p[count];
        dy_reader.read(w, g);
        fill_behind(n, T(0), g);
        if (is_log) {
          THIMBLE_UNROLL
          for (int e = 0; e < count; ++e) own += g[e];
          return;
        }
        y_reader.read(w, p);
        fill_behind(n, T(0), p);
        THIMBLE_UNROLL
        for (int e = 0; e < count; ++e) own = multiply_add(g[e], p[e], own);
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
        for (int e = 0; e < count; ++e) values[0][e] = scale * (values[1][e] - exp_of<S>(values[0][e]) * sum);
      } else {
        THIMBLE_UNROLL
        for (int e = 0; e < count; ++e) values[0][e] = scale * (values[0][e] * (values[1][e] - sum));
      }
      fill_behind(seen - begin, T(0), values[0]);
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
    const ForwardRows<S, is_dense> rows{Walk<2>(args.outer, {&args.x.strides, &args.y.strides}),
                                        args.length,
                                        args.causal_queries,
                                        static_cast<const S*>(args.x.data),
                                        static_cast<S*>(args.y.data),
                                        {args.x.step, args.y.step},
                                        static_cast<Wide<S>>(args.scale),
                                        args.is_log};
    const std::int64_t n = args.outer.elements();
    using Long = LongForward<S, is_dense>;
    if constexpr (sizeof(S) == 1) {
      for_each_row_in_words<S>(n, args.length, Long{rows});
    } else if (args.length <= TeamRows<Long>::threads * held_words<S> * word_elements<S>) {
      for_each_row_in_words<S>(n, args.length, Forward<S, is_dense>{rows});
    } else {
      for_each_team(n, TeamRows<Long>{Long{rows}});
    }
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
