// Running sums, products, sorting and drawing along lines, on CUDA devices.

#include <thimble/core/kernels/lines.h>
#include <thimble/core/kernels/shared/line_math.h>
#include <thimble/cuda/kernel/element.h>

namespace thimble::kernels {
namespace lines_cuda_detail {

using namespace cuda_kernels;

// Computes in double or std::int64_t, as the CPU does.
template <class F>
void with_wide_type(DType dtype, F&& f) {
  is_floating(dtype) ? f.template operator()<double>() : f.template operator()<std::int64_t>();
}

struct Line {
  LineShape s;
  THIMBLE_DEVICE std::int64_t first(std::int64_t line) const {
    return line / s.inner * s.length * s.inner + line % s.inner;
  }
};

template <class T>
struct CumSum {
  Line line;
  CumSumArgs args;
  DType out_dtype;
  THIMBLE_DEVICE std::int64_t place(std::int64_t k) const { return args.is_reverse ? line.s.length - 1 - k : k; }
  /// Adds elements [begin, end), counted in the direction of the sum, to `sum`, and stores the sums if asked to.
  THIMBLE_DEVICE T add(std::int64_t first, std::int64_t begin, std::int64_t end, T sum, bool stores) const {
    for (std::int64_t k = begin; k < end; ++k) {
      const std::int64_t at = first + place(k) * line.s.inner;
      sum += load_any<T>(args.in, args.dtype, at);
      if (stores) store_any<T>(args.out, out_dtype, at, sum);
    }
    return sum;
  }
  THIMBLE_DEVICE void operator()(std::int64_t i) const { add(line.first(i), 0, line.s.length, T(0), true); }
};

// CumSum of a long line: each thread of a team takes a range.
template <class T>
struct CumSumOfTeam {
  static constexpr int threads = 256;
  CumSum<T> sums;
  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t i) const {
    const Shared<T> of_ranges = team.template shared<T>();
    const std::int64_t length = sums.line.s.length, share = (length + Team::size - 1) / Team::size;
    const std::int64_t from = team.rank() * share, begin = from < length ? from : length;
    const std::int64_t end = begin + share < length ? begin + share : length, first = sums.line.first(i);
    of_ranges[team.rank()] = sums.add(first, begin, end, T(0), false);
    team.sync();
    T before = 0;
    for (int t = 0; t < team.rank(); ++t) before += of_ranges[t];
    sums.add(first, begin, end, before, true);
  }
};

constexpr std::int64_t long_line = 1024;

void cumsum(const CumSumArgs& args) {
  with_wide_type(args.dtype, [&]<class T>() {
    const CumSum<T> sums{{args.shape}, args, is_floating(args.dtype) ? args.dtype : DType::i64};
    if (args.shape.length < long_line) return for_each_item(args.shape.lines(), sums);
    for_each_team(args.shape.lines(), CumSumOfTeam<T>{sums}, CumSumOfTeam<T>::threads * sizeof(T));
  });
}

template <class T>
THIMBLE_DEVICE inline Factors<T> factors_of(const void* x, DType dtype, const Line& line, std::int64_t i) {
  Factors<T> factors;
  const std::int64_t first = line.first(i);
  for (std::int64_t j = 0; j < line.s.length; ++j) {
    factors.take(load_any<T>(x, dtype, first + j * line.s.inner));
  }
  return factors;
}

template <class T>
struct Prod {
  Line line;
  ProdArgs args;
  THIMBLE_DEVICE void operator()(std::int64_t i) const {
    store_any<T>(args.y, is_floating(args.dtype) ? args.dtype : DType::i64, i,
                 factors_of<T>(args.x, args.dtype, line, i).all());
  }
};

void prod(const ProdArgs& args) {
  with_wide_type(args.dtype, [&]<class T>() { for_each_item(args.shape.lines(), Prod<T>{{args.shape}, args}); });
}

struct ProdGradient {
  Line line;
  ProdGradArgs args;
  THIMBLE_DEVICE void operator()(std::int64_t i) const {
    const Factors<double> factors = factors_of<double>(args.x, args.dtype, line, i);
    const double dy = load_wide(args.dy, args.dtype, i);
    for (std::int64_t j = 0; j < line.s.length; ++j) {
      const std::int64_t at = line.first(i) + j * line.s.inner;
      store_total(args.dx, args.dtype, at, dy * factors.without(load_wide(args.x, args.dtype, at)));
    }
  }
};

void prod_backward(const ProdGradArgs& args) { for_each_item(args.shape.lines(), ProdGradient{{args.shape}, args}); }

// A step of a merge sort, from sorted runs of `width` places to runs of twice the length. Each place counts the places
// of the neighbouring run that come before it.
template <class T>
struct MergeRuns {
  std::int64_t length, width;
  DType dtype;
  bool is_descending;
  const void* x;
  const std::int32_t* from;  // null: the places in their order
  std::int32_t* to;
  THIMBLE_DEVICE std::int32_t place(std::int64_t row, std::int64_t at) const {
    return from ? from[row * length + at] : static_cast<std::int32_t>(at);
  }
  THIMBLE_DEVICE void operator()(std::int64_t i) const {
    const std::int64_t row = quotient(i, length), at = i - row * length, run = at / width;
    const std::int64_t pair = run / 2 * 2 * width, other = run % 2 == 0 ? pair + width : pair;
    const std::int32_t own = place(row, at);
    const T value = load_any<T>(x, dtype, row * length + own);
    std::int64_t low = other < length ? other : length, high = other + width < length ? other + width : length;
    const std::int64_t begin = low;
    while (low < high) {
      const std::int64_t middle = low + (high - low) / 2;
      const std::int32_t there = place(row, middle);
      if (comes_before(load_any<T>(x, dtype, row * length + there), there, value, own, is_descending)) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    to[row * length + pair + (at - run * width) + (low - begin)] = own;
  }
};

struct TakeFirst {
  std::int64_t length, count;
  const std::int32_t* from;  // null: the places in their order
  std::int32_t* to;
  THIMBLE_DEVICE void operator()(std::int64_t i) const {
    const std::int64_t row = quotient(i, count), at = i - row * count;
    to[i] = from ? from[row * length + at] : static_cast<std::int32_t>(at);
  }
};

template <class T>
void sort_of(const SortArgs& args) {
  const std::int64_t all = args.rows * args.length;
  const std::int32_t* from = nullptr;
  std::int32_t* to = args.workspace;
  for (std::int64_t width = 1; width < args.length; width *= 2) {
    for_each_item(all, MergeRuns<T>{args.length, width, args.dtype, args.is_descending, args.x, from, to});
    from = to;
    to = to == args.workspace ? args.workspace + all : args.workspace;
  }
  for_each_item(args.rows * args.count, TakeFirst{args.length, args.count, from, args.order});
}

void sort(const SortArgs& args) {
  if (!is_floating(args.dtype)) return sort_of<std::int64_t>(args);
  with_compute_type(args.dtype, [&]<class T>() { sort_of<T>(args); });
}

struct Choose {
  ChooseArgs args;
  THIMBLE_DEVICE void operator()(std::int64_t i) const {
    args.places[i] = chosen_place(args.sums + i / args.count * args.length, args.length, args.points[i]);
  }
};

void choose(const ChooseArgs& args) { for_each_item(args.rows * args.count, Choose{args}); }

constexpr LineKernels table{cumsum, prod, prod_backward, sort, choose};

}  // namespace lines_cuda_detail

const LineKernels* const line_cuda = &lines_cuda_detail::table;

}  // namespace thimble::kernels
