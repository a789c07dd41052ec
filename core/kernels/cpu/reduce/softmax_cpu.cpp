// Softmax on the CPU. A row of up to row_chunk elements is read once; longer ones are read again for each of the passes
// (largest, sum, result).

#include <algorithm>
#include <cmath>
#include <limits>

#include <thimble/core/kernels/cpu/base/compute.h>
#include <thimble/core/kernels/cpu/base/exp_below.h>
#include <thimble/core/kernels/cpu/base/variants.h>
#include <thimble/core/kernels/shared/strided.h>
#include <thimble/core/kernels/softmax.h>
#include <thimble/core/kernels/table_for.h>
#include <thimble/core/threads/parallel.h>

namespace thimble::kernels {
namespace softmax_detail {

constexpr std::int64_t grain_elements = 1 << 14;

std::int64_t row_grain(std::int64_t length) { return std::max<std::int64_t>(1, grain_elements / length); }

// The number of unmasked elements of a row.
template <class Args>
inline std::int64_t visible(const Args& args, std::int64_t row) {
  if (args.causal_queries == 0) return args.length;
  return args.length - args.causal_queries + row % args.causal_queries + 1;
}

template <class T>
inline void store_zeros(const RowResult& result, std::int64_t base, std::int64_t begin, std::int64_t end, T* buffer) {
  std::fill(buffer, buffer + std::min(row_chunk, end - begin), T(0));
  for (std::int64_t at = begin; at < end; at += row_chunk) {
    store_elements(buffer, result.data, result.dtype, base + at * result.step, result.step,
                   std::min(row_chunk, end - at));
  }
}

// scale x of n elements, in place or in `buffer`.
template <class T>
inline const T* read_scaled(const SoftmaxArgs& args, std::int64_t base, std::int64_t at, std::int64_t n, T* buffer) {
  const T* const x = read_elements(args.x, base + at * args.x.step, n, buffer);
  const T scale = static_cast<T>(args.scale);
  if (scale == 1) return x;
  for (std::int64_t i = 0; i < n; ++i) buffer[i] = x[i] * scale;
  return buffer;
}

template <class T, bool is_fused>
inline void forward_row(const SoftmaxArgs& args, std::int64_t x_base, std::int64_t y_base, std::int64_t count) {
  alignas(64) T room[row_chunk];
  alignas(64) T e[row_chunk];
  const bool is_one_chunk = count <= row_chunk, is_stored_directly = args.y.step == 1 && args.y.dtype == dtype_of<T>;
  const T* z = room;
  T largest = -std::numeric_limits<T>::infinity();
  for (std::int64_t at = 0; at < count; at += row_chunk) {
    const std::int64_t n = std::min(row_chunk, count - at);
    z = read_scaled(args, x_base, at, n, room);
    largest = row_max<is_fused>(z, n, largest);
  }
  double total = 0;
  for (std::int64_t at = 0; at < count; at += row_chunk) {
    const std::int64_t n = std::min(row_chunk, count - at);
    if (!is_one_chunk) z = read_scaled(args, x_base, at, n, room);
    const bool is_in_place = is_stored_directly && z != room;
    constexpr std::int64_t piece = 256, line = 64 / sizeof(T);
    for (std::int64_t begin = 0; begin < n; begin += piece) {  // while the same elements of the next row are fetched
      const std::int64_t end = std::min(n, begin + piece);
      for (std::int64_t i = begin; is_in_place && i < end; i += line) {
        __builtin_prefetch(z + i + args.length);
        __builtin_prefetch(static_cast<T*>(args.y.data) + y_base + at + i + args.length, 1);
      }
      for (std::int64_t i = begin; i < end; ++i) e[i] = exp_below<is_fused>(z[i] - largest);
    }
    total += row_sum_of<is_fused>(static_cast<const T*>(e), n);
  }
  const T inverse = static_cast<T>(1 / total), log_total = static_cast<T>(std::log(total));
  for (std::int64_t at = 0; at < count; at += row_chunk) {
    const std::int64_t n = std::min(row_chunk, count - at);
    T* const y = is_stored_directly ? static_cast<T*>(args.y.data) + y_base + at : room;
    if (!is_one_chunk) {
      z = read_scaled(args, x_base, at, n, room);
      if (!args.is_log) {
        for (std::int64_t i = 0; i < n; ++i) e[i] = exp_below<is_fused>(z[i] - largest);
      }
    }
    if (args.is_log) {
      for (std::int64_t i = 0; i < n; ++i) y[i] = (z[i] - largest) - log_total;
    } else {
      for (std::int64_t i = 0; i < n; ++i) y[i] = e[i] * inverse;
    }
    if (!is_stored_directly) {
      store_elements(room, args.y.data, args.y.dtype, y_base + at * args.y.step, args.y.step, n);
    }
  }
  store_zeros(args.y, y_base, count, args.length, room);
}

template <class T, bool is_fused>
struct ForwardRows {
  static void run(const SoftmaxArgs& args, std::int64_t begin, std::int64_t end) {
    const MergedStrides<2> rows(args.outer, {&args.x.strides, &args.y.strides});
    const std::int64_t x_step = rows.stride(0, rows.rank - 1), y_step = rows.stride(1, rows.rank - 1);
    std::int64_t row = begin;
    rows.for_each_run(begin, end, [&](const std::array<std::int64_t, 2>& base, std::int64_t run) {
      for (std::int64_t i = 0; i < run; ++i, ++row) {
        const std::int64_t count = visible(args, row), x_base = base[0] + i * x_step;
        forward_row<T, is_fused>(args, x_base, base[1] + i * y_step, count);
      }
    });
  }
};

template <class T>
void forward(const SoftmaxArgs& args) {
  parallel_for(args.outer.elements(), row_grain(args.length),
               [&](std::int64_t begin, std::int64_t end) { run_fused_variant<ForwardRows, T>(args, begin, end); });
}

template <class T, bool is_fused>
inline void backward_row(const SoftmaxBackwardArgs& args, const std::array<std::int64_t, 3>& base, std::int64_t count) {
  alignas(64) T y_room[row_chunk];
  alignas(64) T dy_room[row_chunk];
  alignas(64) T dx_room[row_chunk];
  const bool is_stored_directly = args.dx.step == 1 && args.dx.dtype == dtype_of<T>;
  const T *y = y_room, *dy = dy_room;
  const auto load_both = [&](std::int64_t at, std::int64_t n) {
    y = read_elements(args.y, base[0] + at * args.y.step, n, y_room);
    dy = read_elements(args.dy, base[1] + at * args.dy.step, n, dy_room);
  };
  double total = 0;
  for (std::int64_t at = 0; at < count; at += row_chunk) {
    const std::int64_t n = std::min(row_chunk, count - at);
    load_both(at, n);
    if (args.is_log) {
      total += row_sum_of<is_fused>(dy, n);
    } else {
      total += row_dot<is_fused>(dy, y, n);
    }
  }
  const T sum = static_cast<T>(total), scale = static_cast<T>(args.scale);
  for (std::int64_t at = 0; at < count; at += row_chunk) {
    const std::int64_t n = std::min(row_chunk, count - at);
    if (count > row_chunk) load_both(at, n);
    T* const dx = is_stored_directly ? static_cast<T*>(args.dx.data) + base[2] + at : dx_room;
    if (args.is_log) {
      for (std::int64_t i = 0; i < n; ++i) dx[i] = scale * (dy[i] - exp_below<is_fused>(y[i]) * sum);
    } else {
      for (std::int64_t i = 0; i < n; ++i) dx[i] = scale * (y[i] * (dy[i] - sum));
    }
    if (!is_stored_directly) {
      store_elements(dx, args.dx.data, args.dx.dtype, base[2] + at * args.dx.step, args.dx.step, n);
    }
  }
  store_zeros(args.dx, base[2], count, args.length, dx_room);
}

template <class T, bool is_fused>
struct BackwardRows {
  static void run(const SoftmaxBackwardArgs& args, std::int64_t begin, std::int64_t end) {
    const MergedStrides<3> rows(args.outer, {&args.y.strides, &args.dy.strides, &args.dx.strides});
    const int inner = rows.rank - 1;
    std::int64_t row = begin;
    rows.for_each_run(begin, end, [&](std::array<std::int64_t, 3> base, std::int64_t run) {
      for (std::int64_t i = 0; i < run; ++i, ++row) {
        backward_row<T, is_fused>(args, base, visible(args, row));
        for (int n = 0; n < 3; ++n) base[static_cast<std::size_t>(n)] += rows.stride(n, inner);
      }
    });
  }
};

template <class T>
void backward(const SoftmaxBackwardArgs& args) {
  parallel_for(args.outer.elements(), row_grain(args.length),
               [&](std::int64_t begin, std::int64_t end) { run_fused_variant<BackwardRows, T>(args, begin, end); });
}

void forward_any(const SoftmaxArgs& args) {
  return args.x.dtype == DType::f64 ? forward<double>(args) : forward<float>(args);
}

void backward_any(const SoftmaxBackwardArgs& args) {
  return args.y.dtype == DType::f64 ? backward<double>(args) : backward<float>(args);
}

}  // namespace softmax_detail

const SoftmaxKernels softmax_cpu{.forward = softmax_detail::forward_any, .backward = softmax_detail::backward_any};

const SoftmaxKernels& softmax_kernels(memory::Device device) {
  return table_for(device, "softmax", softmax_cpu, softmax_cuda);
}

}  // namespace thimble::kernels
