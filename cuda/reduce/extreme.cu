// Largest and smallest elements, and their indices, on CUDA devices.

#include <thimble/core/kernels/reduce.h>
#include <thimble/cuda/kernel/element.h>
#include <thimble/cuda/reduce/reduce.h>

namespace thimble::cuda_kernels {
namespace extreme_cuda_detail {

using kernels::ExtremeArgs;
using kernels::PlaceArgs;

// The result of some elements: 8 bytes of value and 8 of index.
template <class T>
struct Best {
  alignas(8) T value;
  std::int64_t place;  // -1 for none
};

// b replaces a: NaN wins over all, and of equals (and NaNs) the first one.
template <class T>
THIMBLE_DEVICE inline bool beats(const Best<T>& b, const Best<T>& a, bool is_max) {
  if (b.place < 0) return false;
  if (a.place < 0) return true;
  const bool b_is_nan = b.value != b.value, a_is_nan = a.value != a.value;
  if (b_is_nan != a_is_nan) return b_is_nan;
  if (!b_is_nan && b.value != a.value) return is_max ? b.value > a.value : b.value < a.value;
  return b.place < a.place;
}

struct Results {
  void* values;
  DType values_dtype;
  void* places;
  DType places_dtype;
};

template <class T>
THIMBLE_DEVICE inline void finish(const Results& to, std::int64_t output, const Best<T>& best) {
  if (to.values) store<T>(to.values, to.values_dtype, output, best.value);
  if (to.places) store<std::int64_t>(to.places, to.places_dtype, output, best.place);
}

template <class T>
struct FindStretch {
  static constexpr int threads = 256;
  Walk<1> kept, reduced;
  const void* in;
  DType dtype;
  ReduceGrid grid;
  bool is_max;
  Results to;
  Best<T>* partial;

  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t job) const {
    const ReduceJobPlace place = grid.place(job);
    const int columns = grid.columns, lanes = Team::size / columns;
    const Shared<Best<T>> shared = team.template shared<Best<T>>();  // (lanes, columns)
    const int column = team.rank() % columns, lane = team.rank() / columns;
    const std::int64_t output = place.output + column;
    const bool is_there = column < place.count;
    std::int64_t base[1] = {0};
    if (is_there) kept.locate(output, base);
    Best<T> best{T(0), -1};
    for (std::int64_t r = place.begin + lane; is_there && r < place.end; r += lanes) {
      std::int64_t at[1];
      reduced.locate(r, at);
      const Best<T> next{load<T>(in, dtype, base[0] + at[0]), r};
      if (beats(next, best, is_max)) best = next;
    }
    shared[lane * columns + column] = best;
    team.sync();
    if (lane != 0 || !is_there) return;
    for (int l = 1; l < lanes; ++l) {
      const Best<T> next = shared[l * columns + column];
      if (beats(next, best, is_max)) best = next;
    }
    if (grid.stretches == 1) {
      finish(to, output, best);
    } else {
      partial[place.stretch * grid.outputs + output] = best;
    }
  }
};

template <class T>
struct JoinStretches {
  std::int64_t outputs, stretches;
  bool is_max;
  Results to;
  const Best<T>* partial;
  THIMBLE_DEVICE void operator()(std::int64_t output) const {
    Best<T> best = partial[output];
    for (std::int64_t s = 1; s < stretches; ++s) {
      const Best<T> next = partial[s * outputs + output];
      if (beats(next, best, is_max)) best = next;
    }
    finish(to, output, best);
  }
};

template <class T>
void extreme(const ExtremeArgs& args) {
  static_assert(sizeof(Best<T>) == 2 * sizeof(double));
  const Walk<1> kept(args.kept, {&args.in.kept_strides}), reduced(args.reduced, {&args.in.reduced_strides});
  const ReduceGrid grid =
      reduce_grid(args.kept, args.reduced, kept.strides[0][kept.rank - 1], kept.sizes[kept.rank - 1]);
  const Results to{args.values, args.values_dtype, args.places, args.places_dtype};
  auto* const partial = reinterpret_cast<Best<T>*>(args.partial);
  for_each_team(grid.jobs(), FindStretch<T>{kept, reduced, args.in.data, args.in.dtype, grid, args.is_max, to, partial},
                FindStretch<T>::threads * sizeof(Best<T>));
  if (grid.stretches == 1) return;
  for_each_item(grid.outputs, JoinStretches<T>{grid.outputs, grid.stretches, args.is_max, to, partial});
}

template <class Word>
struct Place {
  Walk<2> kept;
  int reduced_rank;
  std::int64_t reduced_sizes[max_rank], reduced_strides[max_rank];
  const void* places;
  DType places_dtype;
  const Word* dy;
  Word* out;
  THIMBLE_DEVICE void operator()(std::int64_t output) const {
    std::int64_t base[2];
    kept.locate(output, base);
    std::int64_t rest = load<std::int64_t>(places, places_dtype, output);
    std::int64_t to = base[1];
    for (int axis = reduced_rank - 1; axis >= 0; --axis) {
      to += rest % reduced_sizes[axis] * reduced_strides[axis];
      rest /= reduced_sizes[axis];
    }
    out[to] = dy[base[0]];
  }
};

template <class Word>
void place_words(const PlaceArgs& args) {
  Place<Word> body{Walk<2>(args.kept, {&args.dy_strides, &args.out_kept_strides}),
                   args.reduced.rank(),
                   {},
                   {},
                   args.places,
                   args.places_dtype,
                   static_cast<const Word*>(args.dy),
                   static_cast<Word*>(args.out)};
  for (int axis = 0; axis < args.reduced.rank(); ++axis) {
    body.reduced_sizes[axis] = args.reduced[axis];
    body.reduced_strides[axis] = args.out_reduced_strides[axis];
  }
  for_each_item(args.kept.elements(), body);
}

}  // namespace extreme_cuda_detail

void reduce_extreme(const kernels::ExtremeArgs& args) {
  if (args.kept.elements() == 0) return;
  switch (compute_type(args.in.dtype)) {
    case ComputeType::f32:
      return extreme_cuda_detail::extreme<float>(args);
    case ComputeType::f64:
      return extreme_cuda_detail::extreme<double>(args);
    case ComputeType::i64:
      return extreme_cuda_detail::extreme<std::int64_t>(args);
  }
}

void reduce_place(const kernels::PlaceArgs& args) {
  switch (size_of(args.dtype)) {
    case 1:
      return extreme_cuda_detail::place_words<std::uint8_t>(args);
    case 2:
      return extreme_cuda_detail::place_words<std::uint16_t>(args);
    case 4:
      return extreme_cuda_detail::place_words<std::uint32_t>(args);
    default:
      return extreme_cuda_detail::place_words<std::uint64_t>(args);
  }
}

}  // namespace thimble::cuda_kernels
