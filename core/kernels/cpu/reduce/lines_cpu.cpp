// Running sums, products, sorting and drawing along lines, on the CPU.

#include <algorithm>
#include <numeric>
#include <type_traits>

#include <thimble/core/kernels/cpu/base/compute.h>
#include <thimble/core/kernels/cpu/base/variants.h>
#include <thimble/core/kernels/cpu/matmul/gemm_operand.h>
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

// Calls body(outer, inside, n) for the tiles of n neighbouring lines, in parallel: element j of line i < n of a tile is
// at (outer length + j) inner + inside + i.
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

// Calls body.operator()<lines>(outer) for all lines, whose elements are neighbours, in parallel: for eight at a time,
// and for the rest one by one. An element of a line waits for the one before it, so several lines advance together.
template <class F>
void for_each_group(const LineShape& s, F&& body) {
  constexpr std::int64_t lines = 8;
  const std::int64_t grain = std::max(lines, grain_elements / std::max<std::int64_t>(1, s.length));
  parallel_for(s.outer, grain, [&](std::int64_t at, std::int64_t end) {
    for (; at + lines <= end; at += lines) body.template operator()<lines>(at);
    for (; at < end; ++at) body.template operator()<1>(at);
  });
}

// Calls body(first, n, values, pitch) for chunks [first, first + n) of the lines from `outer` on, element k of line i
// being values[i * pitch + k].
template <class T, std::int64_t lines, class F>
void for_each_chunk(const void* x, DType dtype, const LineShape& s, std::int64_t outer, bool is_reverse, F&& body) {
  constexpr std::int64_t most_pitch = tile + 8;  // elements 4 KiB apart would wait for each other
  const std::int64_t pitch = s.length < tile ? s.length : most_pitch;
  alignas(64) T values[lines * most_pitch];
  for (std::int64_t done = 0; done < s.length; done += tile) {
    const std::int64_t n = std::min(tile, s.length - done), first = is_reverse ? s.length - done - n : done;
    load_rows(x, dtype, outer * s.length + first, s.length, lines, n, values, pitch);
    body(first, n, values, pitch);
  }
}

// Sums of f32 lines, which are transposed for it.
template <std::int64_t lines>
struct CumSumSideBySide {
  static void run(const CumSumArgs& args, std::int64_t outer) {
    const std::int64_t length = args.shape.length, start = outer * length;
    const auto turn = gemm_detail::transpose<float>(isa());
    alignas(64) float values[lines * tile];
    double sums[lines] = {};
    for (std::int64_t done = 0; done < length; done += tile) {
      const std::int64_t n = std::min(tile, length - done), first = args.is_reverse ? length - done - n : done;
      turn(static_cast<const float*>(args.in) + start + first, length, int{lines}, static_cast<int>(n), values, lines);
      for (std::int64_t k = 0; k < n; ++k) {
        float* const at = values + (args.is_reverse ? n - 1 - k : k) * lines;
        for (std::int64_t i = 0; i < lines; ++i) sums[i] += static_cast<double>(at[i]);
        for (std::int64_t i = 0; i < lines; ++i) at[i] = static_cast<float>(sums[i]);
      }
      turn(values, lines, static_cast<int>(n), int{lines}, static_cast<float*>(args.out) + start + first, length);
    }
  }
};

template <class T, std::int64_t lines>
void cumsum_lines(const CumSumArgs& args, DType out_dtype, std::int64_t outer) {
  const LineShape& s = args.shape;
  if (args.dtype == DType::f32) return run_variant<CumSumSideBySide<lines>>(args, outer);
  T sums[lines] = {};
  for_each_chunk<T, lines>(args.in, args.dtype, s, outer, args.is_reverse,
                           [&](std::int64_t first, std::int64_t n, T* values, std::int64_t pitch) {
                             for (std::int64_t k = 0; k < n; ++k) {
                               const std::int64_t place = args.is_reverse ? n - 1 - k : k;
                               for (std::int64_t i = 0; i < lines; ++i)
                                 values[i * pitch + place] = sums[i] += values[i * pitch + place];
                             }
                             store_rows(values, pitch, args.out, out_dtype, outer * s.length + first, s.length, lines,
                                        n);
                           });
}

template <class T>
void cumsum_of(const CumSumArgs& args) {
  const LineShape& s = args.shape;
  const DType out_dtype = is_floating(args.dtype) ? args.dtype : DType::i64;
  if (s.inner == 1) {
    return for_each_group(s, [&]<std::int64_t lines>(std::int64_t at) { cumsum_lines<T, lines>(args, out_dtype, at); });
  }
  for_each_tile(s, [&](std::int64_t outer, std::int64_t inside, std::int64_t n) {
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

// The factors of lines whose elements are neighbours, from line `outer` on.
template <class T, std::int64_t lines>
void take_lines(const void* x, DType dtype, const LineShape& s, std::int64_t outer, Factors<T>* factors) {
  for_each_chunk<T, lines>(
      x, dtype, s, outer, false, [&](std::int64_t, std::int64_t n, const T* values, std::int64_t pitch) {
        T products[lines];
        for (std::int64_t i = 0; i < lines; ++i) products[i] = factors[i].product;
        for (std::int64_t k = 0; k < n; ++k) {
          for (std::int64_t i = 0; i < lines; ++i) products[i] *= values[i * pitch + k];
        }
        for (std::int64_t i = 0; i < lines; ++i) {
          if (products[i] != T(0) && products[i] - products[i] == T(0)) {  // no factor is zero, infinite or NaN
            factors[i].product = products[i];
          } else {
            for (std::int64_t k = 0; k < n; ++k) factors[i].take(values[i * pitch + k]);
          }
        }
      });
}
// The factors of n neighbouring lines.
template <class T>
void take_tile(const void* x, DType dtype, const LineShape& s, std::int64_t outer, std::int64_t inside, std::int64_t n,
               Factors<T>* factors) {
  alignas(64) T values[tile];
  for (std::int64_t j = 0; j < s.length; ++j) {
    load_elements(x, dtype, (outer * s.length + j) * s.inner + inside, 1, values, n);
    for (std::int64_t i = 0; i < n; ++i) factors[i].take(values[i]);
  }
}

template <class T>
void prod_of(const ProdArgs& args) {
  const LineShape& s = args.shape;
  const auto store = [&](const Factors<T>* factors, std::int64_t at, std::int64_t n) {
    alignas(64) T products[tile];
    for (std::int64_t i = 0; i < n; ++i) products[i] = factors[i].all();
    store_elements(products, args.y, is_floating(args.dtype) ? args.dtype : DType::i64, at, n);
  };
  if (s.inner == 1) {
    return for_each_group(s, [&]<std::int64_t lines>(std::int64_t outer) {
      Factors<T> factors[lines];
      take_lines<T, lines>(args.x, args.dtype, s, outer, factors);
      store(factors, outer, lines);
    });
  }
  for_each_tile(s, [&](std::int64_t outer, std::int64_t inside, std::int64_t n) {
    Factors<T> factors[tile];
    take_tile(args.x, args.dtype, s, outer, inside, n, factors);
    store(factors, outer * s.inner + inside, n);
  });
}

void prod(const ProdArgs& args) {
  with_wide_type(args.dtype, [&]<class T>() { prod_of<T>(args); });
}

void prod_backward(const ProdGradArgs& args) {
  const LineShape& s = args.shape;
  if (s.inner == 1) {
    return for_each_group(s, [&]<std::int64_t lines>(std::int64_t outer) {
      Factors<double> factors[lines];
      take_lines<double, lines>(args.x, args.dtype, s, outer, factors);
      double dy[lines];
      load_elements(args.dy, args.dtype, outer, 1, dy, lines);
      for_each_chunk<double, lines>(args.x, args.dtype, s, outer, false,
                                    [&](std::int64_t first, std::int64_t n, double* values, std::int64_t pitch) {
                                      for (std::int64_t i = 0; i < lines; ++i) {
                                        double* const line = values + i * pitch;
                                        if (factors[i].zeros + factors[i].infinities == 0) {
                                          for (std::int64_t k = 0; k < n; ++k)
                                            line[k] = dy[i] * (factors[i].product / line[k]);
                                        } else {
                                          for (std::int64_t k = 0; k < n; ++k)
                                            line[k] = dy[i] * factors[i].without(line[k]);
                                        }
                                      }
                                      store_rows(values, pitch, args.dx, args.dtype, outer * s.length + first, s.length,
                                                 lines, n);
                                    });
    });
  }
  for_each_tile(s, [&](std::int64_t outer, std::int64_t inside, std::int64_t n) {
    Factors<double> factors[tile];
    take_tile(args.x, args.dtype, s, outer, inside, n, factors);
    alignas(64) double dy[tile], values[tile];
    load_elements(args.dy, args.dtype, outer * s.inner + inside, 1, dy, n);
    for (std::int64_t j = 0; j < s.length; ++j) {
      const std::int64_t at = (outer * s.length + j) * s.inner + inside;
      load_elements(args.x, args.dtype, at, 1, values, n);
      for (std::int64_t i = 0; i < n; ++i) values[i] = dy[i] * factors[i].without(values[i]);
      store_elements(values, args.dx, args.dtype, at, n);
    }
  });
}

template <class S>
void sort_row(const SortArgs& args, std::int64_t row) {
  using Value = std::conditional_t<std::is_integral_v<S>, std::int64_t,
                                   std::conditional_t<std::is_same_v<S, double>, double, float>>;
  const S* const x = static_cast<const S*>(args.x) + row * args.length;
  std::int32_t* const order = args.order + row * args.count;
  constexpr std::int64_t most = 4096;
  if (std::is_same_v<Value, float> && args.count == args.length && args.length > 0 && args.length <= most) {
    // Integers in the order of the values, and of the places where they are equal: sorting them follows no address.
    std::uint64_t keys[most];
    for (std::int64_t j = 0; j < args.length; ++j) {
      const auto value = static_cast<float>(x[j]);
      const auto bits = bit_cast<std::uint32_t>(value + 0.0f);  // one zero
      std::uint32_t key = bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
      if (value != value) key = 0xFFFFFFFFu;
      keys[j] = std::uint64_t{args.is_descending ? ~key : key} << 32 | static_cast<std::uint64_t>(j);
    }
    std::sort(keys, keys + args.length);
    for (std::int64_t j = 0; j < args.length; ++j) order[j] = static_cast<std::int32_t>(keys[j] & 0xFFFFFFFFu);
    return;
  }
  const auto before = [&](std::int32_t i, std::int32_t j) {
    return comes_before(static_cast<Value>(x[i]), i, static_cast<Value>(x[j]), j, args.is_descending);
  };
  std::iota(order, order + args.count, 0);
  if (args.count == args.length) return std::sort(order, order + args.count, before);
  // The heap's front is the last of the chosen elements.
  std::make_heap(order, order + args.count, before);
  for (std::int64_t j = args.count; j < args.length; ++j) {
    const auto place = static_cast<std::int32_t>(j);
    const S value = x[j], last = x[order[0]];  // of equal values the earlier one stays; NaN is neither
    if (args.is_descending ? value <= last : value >= last) continue;
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
