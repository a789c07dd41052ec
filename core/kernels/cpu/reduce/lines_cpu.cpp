// Running sums, products, sorting and drawing along lines, on the CPU.

#include <algorithm>
#include <numeric>
#include <type_traits>

#include <thimble/core/kernels/cpu/base/compute.h>
#include <thimble/core/kernels/lines.h>
#include <thimble/core/kernels/shared/line_math.h>
#include <thimble/core/kernels/table_for.h>
#include <thimble/core/threads/parallel.h>

namespace thimble::kernels {
namespace lines_detail {

constexpr std::int64_t tile = 256;
constexpr std::int64_t grain_elements = 1 << 14;

// Elements are read and written as double or std::int64_t, which hold every value of the dtypes that compute in them.
template <class F>
void with_wide_type(DType dtype, F&& f) {
  is_floating(dtype) ? f.template operator()<double>() : f.template operator()<std::int64_t>();
}

// Calls body(first, n, j_step) for the tiles of neighbouring lines, in parallel: element j of line i < n of a tile is
// at first + i + j inner. With inner 1 a tile is one line.
template <class F>
void for_each_tile(const LineShape& s, F&& body) {
  const std::int64_t tiles = (s.inner + tile - 1) / tile, elements = s.length * std::min(tile, s.inner);
  const std::int64_t grain = std::max<std::int64_t>(1, grain_elements / std::max<std::int64_t>(1, elements));
  parallel_for(s.outer * tiles, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t at = begin; at < end; ++at) {
      const std::int64_t inside = at % tiles * tile;
      body(at / tiles, inside, std::min(tile, s.inner - inside));
    }
  });
}

// A line whose elements are neighbours, chunk by chunk.
template <class T>
void cumsum_line(const CumSumArgs& args, DType out_dtype, std::int64_t outer) {
  alignas(64) T values[tile];
  T sum = 0;
  const std::int64_t length = args.shape.length, first = outer * length;
  for (std::int64_t done = 0; done < length; done += tile) {
    const std::int64_t n = std::min(tile, length - done);
    const std::int64_t at = args.is_reverse ? length - done - n : done;
    load_elements(args.in, args.dtype, first + at, 1, values, n);
    for (std::int64_t k = 0; k < n; ++k) {
      T& value = values[args.is_reverse ? n - 1 - k : k];
      sum += value;
      value = sum;
    }
    store_elements(values, args.out, out_dtype, first + at, n);
  }
}

template <class T>
void cumsum_of(const CumSumArgs& args) {
  const LineShape& s = args.shape;
  const DType out_dtype = is_floating(args.dtype) ? args.dtype : DType::i64;
  for_each_tile(s, [&](std::int64_t outer, std::int64_t inside, std::int64_t n) {
    if (s.inner == 1) return cumsum_line<T>(args, out_dtype, outer);
    alignas(64) T sums[tile], values[tile];
    std::fill(sums, sums + n, T(0));
    for (std::int64_t k = 0; k < s.length; ++k) {
      const std::int64_t j = args.is_reverse ? s.length - 1 - k : k, at = (outer * s.length + j) * s.inner + inside;
      load_elements(args.in, args.dtype, at, 1, values, n);
      for (std::int64_t i = 0; i < n; ++i) sums[i] += values[i];
      store_elements(sums, args.out, out_dtype, at, n);
    }
  });
}

void cumsum(const CumSumArgs& args) {
  with_wide_type(args.dtype, [&]<class T>() { cumsum_of<T>(args); });
}

// The factors of n neighbouring lines.
template <class T>
void take_lines(const void* x, DType dtype, const LineShape& s, std::int64_t outer, std::int64_t inside, std::int64_t n,
                Factors<T>* factors) {
  alignas(64) T values[tile];
  if (s.inner == 1) {
    for (std::int64_t j = 0; j < s.length; j += tile) {
      const std::int64_t some = std::min(tile, s.length - j);
      load_elements(x, dtype, outer * s.length + j, 1, values, some);
      for (std::int64_t k = 0; k < some; ++k) factors[0].take(values[k]);
    }
    return;
  }
  for (std::int64_t j = 0; j < s.length; ++j) {
    load_elements(x, dtype, (outer * s.length + j) * s.inner + inside, 1, values, n);
    for (std::int64_t i = 0; i < n; ++i) factors[i].take(values[i]);
  }
}

void prod(const ProdArgs& args) {
  const LineShape& s = args.shape;
  with_wide_type(args.dtype, [&]<class T>() {
    for_each_tile(s, [&](std::int64_t outer, std::int64_t inside, std::int64_t n) {
      Factors<T> factors[tile];
      take_lines(args.x, args.dtype, s, outer, inside, n, factors);
      alignas(64) T products[tile];
      for (std::int64_t i = 0; i < n; ++i) products[i] = factors[i].all();
      store_elements(products, args.y, is_floating(args.dtype) ? args.dtype : DType::i64, outer * s.inner + inside, n);
    });
  });
}

void prod_backward(const ProdGradArgs& args) {
  const LineShape& s = args.shape;
  for_each_tile(s, [&](std::int64_t outer, std::int64_t inside, std::int64_t n) {
    Factors<double> factors[tile];
    take_lines(args.x, args.dtype, s, outer, inside, n, factors);
    alignas(64) double dy[tile], values[tile];
    load_elements(args.dy, args.dtype, outer * s.inner + inside, 1, dy, n);
    const std::int64_t some = s.inner == 1 ? tile : 1;  // elements of a line at a time
    for (std::int64_t j = 0; j < s.length; j += some) {
      const std::int64_t at = (outer * s.length + j) * s.inner + inside;
      const std::int64_t count = s.inner == 1 ? std::min(some, s.length - j) : n;
      load_elements(args.x, args.dtype, at, 1, values, count);
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t line = s.inner == 1 ? 0 : i;
        values[i] = dy[line] * factors[line].without(values[i]);
      }
      store_elements(values, args.dx, args.dtype, at, count);
    }
  });
}

template <class S>
void sort_row(const SortArgs& args, std::int64_t row) {
  using Value = std::conditional_t<std::is_integral_v<S>, std::int64_t,
                                   std::conditional_t<std::is_same_v<S, double>, double, float>>;
  const S* const x = static_cast<const S*>(args.x) + row * args.length;
  std::int32_t* const order = args.order + row * args.count;
  const auto before = [&](std::int32_t i, std::int32_t j) {
    return comes_before(static_cast<Value>(x[i]), i, static_cast<Value>(x[j]), j, args.is_descending);
  };
  std::iota(order, order + args.count, 0);
  if (args.count == args.length) return std::sort(order, order + args.count, before);
  // The heap's front is the last of the chosen elements.
  std::make_heap(order, order + args.count, before);
  for (std::int64_t j = args.count; j < args.length; ++j) {
    const auto place = static_cast<std::int32_t>(j);
    if (!before(place, order[0])) continue;
    std::pop_heap(order, order + args.count, before);
    order[args.count - 1] = place;
    std::push_heap(order, order + args.count, before);
  }
  std::sort_heap(order, order + args.count, before);
}

void sort(const SortArgs& args) {
  if (args.count == 0) return;
  const std::int64_t grain = std::max<std::int64_t>(1, grain_elements / 8 / args.length);
  visit(args.dtype, [&]<class S>() {
    parallel_for(args.rows, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) sort_row<S>(args, row);
    });
  });
}

void choose(const ChooseArgs& args) {
  parallel_for(args.rows * args.count, 256, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      args.places[i] = chosen_place(args.sums + i / args.count * args.length, args.length, args.points[i]);
    }
  });
}

}  // namespace lines_detail

const LineKernels line_cpu{
    .cumsum = lines_detail::cumsum,
    .prod = lines_detail::prod,
    .prod_backward = lines_detail::prod_backward,
    .sort = lines_detail::sort,
    .choose = lines_detail::choose,
};

const LineKernels& line_kernels(memory::Device device) { return table_for(device, "line", line_cpu, line_cuda); }

}  // namespace thimble::kernels
