// Recurrent cells on the CPU: rows in parallel, units in vectors.

#include <algorithm>

#include <thimble/core/kernels/cpu/base/compute.h>
#include <thimble/core/kernels/cpu/base/variants.h>
#include <thimble/core/kernels/recurrent.h>
#include <thimble/core/kernels/shared/recurrent_cell.h>
#include <thimble/core/kernels/table_for.h>
#include <thimble/core/threads/parallel.h>

namespace thimble::kernels {
namespace recurrent_detail {

constexpr std::int64_t tile = 128;

// Units [first, first + n) of a row.
struct Units {
  std::int64_t row, first, n;
};

template <class T>
void load_gates(const void* gates, DType dtype, std::int64_t count, std::int64_t width, const Units& u, T (*to)[tile]) {
  for (std::int64_t g = 0; g < count; ++g) {
    load_elements(gates, dtype, (u.row * count + g) * width + u.first, 1, to[g], u.n);
  }
}

template <class T>
void store_gates(const T (*from)[tile], void* gates, DType dtype, std::int64_t count, std::int64_t width,
                 const Units& u) {
  for (std::int64_t g = 0; g < count; ++g) {
    store_elements(from[g], gates, dtype, (u.row * count + g) * width + u.first, u.n);
  }
}

template <class T>
struct Lstm {
  static void run(const LstmStepArgs& args, const Units& u) {
    alignas(64) T gates[4][tile], states[tile];
    load_gates(args.gates, args.dtype, 4, args.width, u, gates);
    const std::int64_t at = u.row * args.width + u.first;
    const T* const before = static_cast<const T*>(args.before) + at;
    T* const cell = static_cast<T*>(args.cell) + at;
    for (std::int64_t k = 0; k < u.n; ++k) {
      const LstmUnit<T> unit(gates[0][k], gates[1][k], gates[2][k], gates[3][k]);
      cell[k] = unit.cell(before[k]);
      states[k] = unit.state(cell[k]);
    }
    if (args.h) store_elements(states, args.h, args.dtype, at, u.n);
  }
};

template <class T>
struct LstmBackward {
  static void run(const LstmStepArgs& args, const Units& u) {
    alignas(64) T gates[4][tile], dy[tile];
    load_gates(args.gates, args.dtype, 4, args.width, u, gates);
    const std::int64_t at = u.row * args.width + u.first;
    load_elements(args.dy, args.dtype, at, 1, dy, u.n);
    const T* const before = static_cast<const T*>(args.before) + at;
    const T* const cell = static_cast<const T*>(args.cell) + at;
    const T* const dh = static_cast<const T*>(args.dh) + at;
    T* const dc = static_cast<T*>(args.dc) + at;
    for (std::int64_t k = 0; k < u.n; ++k) {
      const LstmUnit<T> unit(gates[0][k], gates[1][k], gates[2][k], gates[3][k]);
      const auto d = unit.backward(before[k], cell[k], dy[k] + dh[k], dc[k]);
      gates[0][k] = d.i, gates[1][k] = d.f, gates[2][k] = d.g, gates[3][k] = d.o;
      dc[k] = d.before;
    }
    store_gates(gates, args.gates, args.dtype, 4, args.width, u);
  }
};

template <class T>
struct Gru {
  static void run(const GruStepArgs& args, const Units& u) {
    alignas(64) T x[3][tile], h[3][tile], states[tile];
    load_gates(args.x_gates, args.dtype, 3, args.width, u, x);
    load_gates(args.h_gates, args.dtype, 3, args.width, u, h);
    const std::int64_t at = u.row * args.width + u.first;
    load_elements(args.before, args.dtype, at, 1, states, u.n);
    for (std::int64_t k = 0; k < u.n; ++k) {
      const GruUnit<T> unit(x[0][k], x[1][k], x[2][k], h[0][k], h[1][k], h[2][k]);
      states[k] = unit.state(states[k]);
    }
    store_elements(states, args.h, args.dtype, at, u.n);
  }
};

template <class T>
struct GruBackward {
  static void run(const GruStepArgs& args, const Units& u) {
    alignas(64) T x[3][tile], h[3][tile], before[tile], dy[tile];
    load_gates(args.x_gates, args.dtype, 3, args.width, u, x);
    load_gates(args.h_gates, args.dtype, 3, args.width, u, h);
    const std::int64_t at = u.row * args.width + u.first;
    load_elements(args.before, args.dtype, at, 1, before, u.n);
    load_elements(args.dy, args.dtype, at, 1, dy, u.n);
    T* const dh = static_cast<T*>(args.dh) + at;
    for (std::int64_t k = 0; k < u.n; ++k) {
      const GruUnit<T> unit(x[0][k], x[1][k], x[2][k], h[0][k], h[1][k], h[2][k]);
      const auto d = unit.backward(before[k], h[2][k], dy[k] + dh[k]);
      x[0][k] = h[0][k] = d.r, x[1][k] = h[1][k] = d.z, x[2][k] = d.n, h[2][k] = d.h_n;
      dh[k] = d.before;
    }
    store_gates(x, args.x_gates, args.dtype, 3, args.width, u);
    store_gates(h, args.h_gates, args.dtype, 3, args.width, u);
  }
};

template <template <class> class Body, class Args>
void for_units(const Args& args) {
  const std::int64_t tiles = (args.width + tile - 1) / tile;
  parallel_for(args.rows * tiles, 8, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t at = begin; at < end; ++at) {
      const std::int64_t first = at % tiles * tile;
      const Units units{at / tiles, first, std::min(tile, args.width - first)};
      args.dtype == DType::f64 ? run_variant<Body<double>>(args, units) : run_variant<Body<float>>(args, units);
    }
  });
}

}  // namespace recurrent_detail

const RecurrentKernels recurrent_cpu{
    .lstm = recurrent_detail::for_units<recurrent_detail::Lstm, LstmStepArgs>,
    .lstm_backward = recurrent_detail::for_units<recurrent_detail::LstmBackward, LstmStepArgs>,
    .gru = recurrent_detail::for_units<recurrent_detail::Gru, GruStepArgs>,
    .gru_backward = recurrent_detail::for_units<recurrent_detail::GruBackward, GruStepArgs>,
};

const RecurrentKernels& recurrent_kernels(memory::Device device) {
  return table_for(device, "recurrent", recurrent_cpu, recurrent_cuda);
}

}  // namespace thimble::kernels
