// Recurrent cells on CUDA devices: a thread for each unit.

#include <thimble/core/kernels/recurrent.h>
#include <thimble/core/kernels/shared/recurrent_cell.h>
#include <thimble/cuda/kernel/element.h>

namespace thimble::kernels {
namespace recurrent_cuda_detail {

using namespace cuda_kernels;

// A unit's elements among the gates of its row.
template <class T>
struct Gates {
  void* data;
  DType dtype;
  std::int64_t first, width;
  THIMBLE_DEVICE Gates(void* gates, DType of, std::int64_t count, std::int64_t unit, std::int64_t row_width)
      : data(gates),
        dtype(of),
        first(quotient(unit, row_width) * count * row_width + unit - quotient(unit, row_width) * row_width),
        width(row_width) {}
  THIMBLE_DEVICE T operator[](int gate) const { return load<T>(data, dtype, first + gate * width); }
  THIMBLE_DEVICE void set(int gate, T value) const { store<T>(data, dtype, first + gate * width, value); }
};

template <class T, bool is_backward>
struct Lstm {
  LstmStepArgs args;
  THIMBLE_DEVICE void operator()(std::int64_t i) const {
    const Gates<T> gates(args.gates, args.dtype, 4, i, args.width);
    const LstmUnit<T> unit(gates[0], gates[1], gates[2], gates[3]);
    const T before = static_cast<const T*>(args.before)[i];
    T& cell = static_cast<T*>(args.cell)[i];
    if constexpr (!is_backward) {
      cell = unit.cell(before);
      if (args.h) store<T>(args.h, args.dtype, i, unit.state(cell));
    } else {
      T& dc = static_cast<T*>(args.dc)[i];
      const T dh = load<T>(args.dy, args.dtype, i) + static_cast<const T*>(args.dh)[i];
      const auto d = unit.backward(before, cell, dh, dc);
      gates.set(0, d.i);
      gates.set(1, d.f);
      gates.set(2, d.g);
      gates.set(3, d.o);
      dc = d.before;
    }
  }
};

template <class T, bool is_backward>
struct Gru {
  GruStepArgs args;
  THIMBLE_DEVICE void operator()(std::int64_t i) const {
    const Gates<T> x(args.x_gates, args.dtype, 3, i, args.width), h(args.h_gates, args.dtype, 3, i, args.width);
    const GruUnit<T> unit(x[0], x[1], x[2], h[0], h[1], h[2]);
    const T before = load<T>(args.before, args.dtype, i);
    if constexpr (!is_backward) {
      store<T>(args.h, args.dtype, i, unit.state(before));
    } else {
      T& dh = static_cast<T*>(args.dh)[i];
      const auto d = unit.backward(before, h[2], load<T>(args.dy, args.dtype, i) + dh);
      x.set(0, d.r);
      x.set(1, d.z);
      x.set(2, d.n);
      h.set(0, d.r);
      h.set(1, d.z);
      h.set(2, d.h_n);
      dh = d.before;
    }
  }
};

template <template <class, bool> class Body, bool is_backward, class Args>
void for_units(const Args& args) {
  with_compute_type(args.dtype, [&]<class T>() { for_each_item(args.rows * args.width, Body<T, is_backward>{args}); });
}

constexpr RecurrentKernels table{for_units<Lstm, false, LstmStepArgs>, for_units<Lstm, true, LstmStepArgs>,
                                 for_units<Gru, false, GruStepArgs>, for_units<Gru, true, GruStepArgs>};

}  // namespace recurrent_cuda_detail

const RecurrentKernels* const recurrent_cuda = &recurrent_cuda_detail::table;

}  // namespace thimble::kernels
