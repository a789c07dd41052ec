// Sums over any axes on CUDA devices, in the order of reduce.h: the bits equal the CPU's kernels.
//
// A team reduces one range of one output, or of up to 32 neighbouring outputs with contiguous elements. Its threads
// form a grid of columns (outputs) and lanes; lane l sums block l of every round, one element after the other, and the
// first lane adds the blocks' sums in order. Plain sums of f32, f16 and bf16 read words, along the outputs or along the
// summed elements, if all of these begin at multiples of a word.

#include <algorithm>
#include <cmath>
#include <cstdint>

#include <thimble/core/kernels/functors/reduction_functors.h>
#include <thimble/core/kernels/reduce.h>
#include <thimble/core/numbers/math.h>
#include <thimble/cuda/kernel/element.h>
#include <thimble/cuda/kernel/kernel.h>
#include <thimble/cuda/reduce/ordered_sum.h>

namespace thimble::cuda_kernels {

// ---- Division of reductions into teams, and the members of the table in separate files.

/// Outputs [output, output + count) and elements [begin, end) of their reductions.
struct ReduceJobPlace {
  std::int64_t output, count, stretch, begin, end;
};

/// A job is one range of one output, or of up to `columns` neighbours on the innermost kept axis if these are
/// contiguous in memory.
struct ReduceGrid {
  std::int64_t outputs, length, stretches, inner, groups;  ///< groups of columns in a row of `inner` outputs
  int columns;

  std::int64_t jobs() const { return outputs / inner * groups * stretches; }
  THIMBLE_DEVICE ReduceJobPlace place(std::int64_t job) const {
    const std::int64_t which = job / stretches, stretch = job % stretches;
    const std::int64_t row = which / groups, first = which % groups * columns;
    const std::int64_t begin = stretch * kernels::reduce_stretch, end = begin + kernels::reduce_stretch;
    return {row * inner + first, inner - first < columns ? inner - first : columns, stretch, begin,
            end < length ? end : length};
  }
};

/// `stride` and `inner` belong to the innermost kept axis.
inline ReduceGrid reduce_grid(const Shape& kept, const Shape& reduced, std::int64_t stride, std::int64_t inner) {
  ReduceGrid grid;
  grid.outputs = kept.elements();
  grid.length = reduced.elements();
  grid.stretches = std::max<std::int64_t>(1, (grid.length + kernels::reduce_stretch - 1) / kernels::reduce_stretch);
  grid.columns = stride == 1 && inner > 1 ? 32 : 1;
  grid.inner = grid.columns == 1 ? 1 : inner;
  grid.groups = (grid.inner + grid.columns - 1) / grid.columns;
  return grid;
}

void reduce_extreme(const kernels::ExtremeArgs& args);
void reduce_place(const kernels::PlaceArgs& args);

}  // namespace thimble::cuda_kernels

namespace thimble::kernels {

namespace reduce_cuda_detail {

using namespace cuda_kernels;

// i64 sums must stay exact, so totals have a separate type.
template <class T>
using Total = std::conditional_t<std::is_same_v<T, std::int64_t>, std::int64_t, double>;

template <class T>
THIMBLE_DEVICE inline T finite_or_zero(T c) {
  return c - c == T(0) ? c : T(0);
}

struct Operand {
  const void* data;
  DType dtype;
};

template <class T, ReduceMap Map>
THIMBLE_DEVICE inline void finish(const Operand& other, double divisor, void* out, DType out_dtype, std::int64_t output,
                                  Total<T> total) {
  if constexpr (Map == ReduceMap::exp_difference) {
    const T c = static_cast<const T*>(other.data)[output];
    total = static_cast<double>(finite_or_zero(c)) + std::log(total);
  } else if constexpr (!std::is_same_v<T, std::int64_t>) {
    total /= divisor;
  }
  if constexpr (std::is_same_v<T, std::int64_t>) {
    store<std::int64_t>(out, out_dtype, output, total);
  } else {
    store_total(out, out_dtype, output, total);
  }
}

template <class T, ReduceMap Map>
struct SumStretch {
  static constexpr int threads = 256;
  Walk<2> kept, reduced;
  Operand in, other;
  ReduceGrid grid;
  double parameter, divisor;
  void* out;
  DType out_dtype;
  Total<T>* partial;

  THIMBLE_DEVICE static T read(const Operand& from, std::int64_t at) {
    if constexpr (Map == ReduceMap::product || Map == ReduceMap::squared_difference) {
      return load_any<T>(from.data, from.dtype, at);  // of any floating dtype
    } else {
      return load<T>(from.data, from.dtype, at);
    }
  }
  THIMBLE_DEVICE T value(std::int64_t in_base, std::int64_t other_base, std::int64_t r) const {
    std::int64_t at[2];
    reduced.locate(r, at);
    const T x = read(in, in_base + at[0]);
    if constexpr (Map == ReduceMap::value) {
      return x;
    } else {
      const T c = read(other, other_base + at[1]);
      if constexpr (Map == ReduceMap::exp_difference) {
        return math::exp(x - finite_or_zero(c));
      } else {
        return ops::pair_functor<Map>(parameter).fwd(x, c);
      }
    }
  }

  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t job) const {
    const ReduceJobPlace place = grid.place(job);
    const int columns = grid.columns, lanes = Team::size / columns;
    const Shared<Total<T>> sums = team.template shared<Total<T>>();  // (lanes, columns)
    const int column = team.rank() % columns, lane = team.rank() / columns;
    const std::int64_t output = place.output + column;
    const bool is_there = column < place.count;
    std::int64_t base[2] = {0, 0};
    if (is_there) kept.locate(output, base);
    Total<T> total = 0;
    for (std::int64_t round = place.begin; round < place.end; round += lanes * reduce_block) {
      const std::int64_t begin = round + lane * reduce_block;
      if (is_there && begin < place.end) {
        const std::int64_t end = begin + reduce_block < place.end ? begin + reduce_block : place.end;
        T sum = 0;
        for (std::int64_t r = begin; r < end; ++r) sum += value(base[0], base[1], r);
        sums[lane * columns + column] = static_cast<Total<T>>(sum);
      }
      team.sync();
      if (lane == 0 && is_there) {
        for (int l = 0; l < lanes && round + l * reduce_block < place.end; ++l) total += sums[l * columns + column];
      }
      team.sync();
    }
    if (lane != 0 || !is_there) return;
    if (grid.stretches == 1) {
      finish<T, Map>(other, divisor, out, out_dtype, output, total);
    } else {
      partial[place.stretch * grid.outputs + output] = total;
    }
  }
};

// Finishes f32 sums.
struct SumEnd {
  ReduceGrid grid;
  double divisor;
  void* out;
  DType out_dtype;
  double* partial;
  THIMBLE_DEVICE void put(const ReduceJobPlace& place, int column, double total) const {
    const std::int64_t output = place.output + column;
    if (grid.stretches == 1) {
      finish<float, ReduceMap::value>({}, divisor, out, out_dtype, output, total);
    } else {
      partial[place.stretch * grid.outputs + output] = total;
    }
  }
};

// Words along the outputs: a thread sums four of them.
template <class S>
struct SumColumns {
  static constexpr int threads = 256, columns = 16, words = columns / columns_together;
  Walk<1> kept;
  std::int64_t stride;
  const S* in;
  SumEnd end;

  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t job) const {
    constexpr int lanes = Team::size / words;
    const ReduceJobPlace place = end.grid.place(job);
    const Shared<float> sums = team.template shared<float>();  // (lanes, columns)
    const int lane = team.rank() / words, column = team.rank() % words * columns_together;
    std::int64_t base[1] = {0};
    if (column < place.count) kept.locate(place.output + column, base);
    double total = 0;
    for (std::int64_t round = place.begin; round < place.end; round += lanes * reduce_block) {
      const std::int64_t begin = round + lane * reduce_block, left = place.end - begin;
      if (column < place.count && left > 0) {
        const Words<float, columns_together> own =
            sum_of_rows(in + base[0] + begin * stride, left < reduce_block ? left : reduce_block, stride);
        THIMBLE_UNROLL
        for (int e = 0; e < columns_together; ++e) sums[lane * columns + column + e] = own.values[e];
      }
      team.sync();
      if (team.rank() < place.count) {
        for (int l = 0; l < lanes && round + l * reduce_block < place.end; ++l) {
          total += static_cast<double>(sums[l * columns + team.rank()]);
        }
      }
      team.sync();
    }
    if (team.rank() < place.count) end.put(place, team.rank(), total);
  }
};

// Words along the summed elements.
template <class S>
struct SumRow {
  static constexpr int threads = 64, count = word_elements<S>;
  Walk<1> kept;
  const S* in;
  SumEnd end;

  THIMBLE_DEVICE static float block_sum(const S* from, std::int64_t elements) {
    float sum = 0;
    const auto add = [&](const Words<S, count>& word) {
      THIMBLE_UNROLL
      for (int e = 0; e < count; ++e) sum += widened(word.values[e]);
    };
    if (elements == reduce_block) {
      THIMBLE_UNROLL
      for (int i = 0; i < static_cast<int>(reduce_block); i += count) add(words_at<count>(from, i));
    } else {
      for (std::int64_t i = 0; i < elements; i += count) add(words_at<count>(from, i));
    }
    return sum;
  }
  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t job) const {
    const ReduceJobPlace place = end.grid.place(job);
    const Shared<float> sums = team.template shared<float>();  // (lanes)
    std::int64_t base[1];
    kept.locate(place.output, base);
    double total = 0;
    for (std::int64_t round = place.begin; round < place.end; round += Team::size * reduce_block) {
      const std::int64_t begin = round + team.rank() * reduce_block, left = place.end - begin;
      if (left > 0) sums[team.rank()] = block_sum(in + base[0] + begin, left < reduce_block ? left : reduce_block);
      team.sync();
      for (int l = 0; team.rank() == 0 && l < Team::size && round + l * reduce_block < place.end; ++l) {
        total += static_cast<double>(sums[l]);
      }
      team.sync();
    }
    if (team.rank() == 0) end.put(place, 0, total);
  }
};

template <class T, ReduceMap Map>
struct AddStretches {
  Operand other;
  std::int64_t outputs, stretches;
  double divisor;
  void* out;
  DType out_dtype;
  const Total<T>* partial;
  THIMBLE_DEVICE void operator()(std::int64_t output) const {
    const Total<T> total = sum_in_order(Total<T>(0), partial + output, stretches, outputs);
    finish<T, Map>(other, divisor, out, out_dtype, output, total);
  }
};

// Sums in words where possible; else returns false.
bool sum_words(const ReduceArgs& args, const Walk<2>& kept, const Walk<2>& reduced, const ReduceGrid& grid) {
  if (reduced.rank != 1 || args.reduced.elements() == 0 || !are_aligned({args.in.data})) return false;
  const Walk<1> places(args.kept, {&args.in.kept_strides});
  const std::int64_t step = reduced.strides[0][0];
  // Whether all strides over outputs, except the innermost one, are whole numbers of words.
  const auto begins_words = [&](std::int64_t count, int axes) {
    bool is_whole = true;
    for (int axis = 0; axis < axes; ++axis) is_whole = is_whole && kept.strides[0][axis] % count == 0;
    return is_whole;
  };
  bool is_done = false;
  with_word_dtype(args.in.dtype, [&]<class S>() {
    const S* const in = static_cast<const S*>(args.in.data);
    SumEnd end{grid, args.divisor, args.out, args.out_dtype, args.partial};
    if (grid.columns > 1 && grid.inner % columns_together == 0 && step % columns_together == 0 &&
        begins_words(columns_together, kept.rank - 1)) {
      end.grid.columns = SumColumns<S>::columns;
      end.grid.groups = (grid.inner + SumColumns<S>::columns - 1) / SumColumns<S>::columns;
      for_each_team(end.grid.jobs(), SumColumns<S>{places, step, in, end},
                    SumColumns<S>::threads * columns_together * sizeof(float));
      is_done = true;
    } else if (grid.columns == 1 && step == 1 && grid.length % SumRow<S>::count == 0 &&
               begins_words(SumRow<S>::count, kept.rank)) {
      for_each_team(grid.jobs(), SumRow<S>{places, in, end}, SumRow<S>::threads * sizeof(float));
      is_done = true;
    }
  });
  return is_done;
}

template <class T, ReduceMap Map>
void sum_mapped(const ReduceArgs& args) {
  const Shape& other_kept = Map == ReduceMap::value ? args.in.kept_strides : args.other.kept_strides;
  const Shape& other_reduced = Map == ReduceMap::value ? args.in.reduced_strides : args.other.reduced_strides;
  const Walk<2> kept(args.kept, {&args.in.kept_strides, &other_kept});
  const Walk<2> reduced(args.reduced, {&args.in.reduced_strides, &other_reduced});
  const ReduceGrid grid =
      reduce_grid(args.kept, args.reduced, kept.strides[0][kept.rank - 1], kept.sizes[kept.rank - 1]);
  const Operand in{args.in.data, args.in.dtype}, other{args.other.data, args.other.dtype};
  auto* const partial = reinterpret_cast<Total<T>*>(args.partial);
  bool is_done = false;
  if constexpr (std::is_same_v<T, float> && Map == ReduceMap::value) is_done = sum_words(args, kept, reduced, grid);
  if (!is_done) {
    for_each_team(grid.jobs(),
                  SumStretch<T, Map>{kept, reduced, in, other, grid, args.parameter, args.divisor, args.out,
                                     args.out_dtype, partial},
                  SumStretch<T, Map>::threads * sizeof(Total<T>));
  }
  if (grid.stretches == 1) return;
  for_each_item(grid.outputs, AddStretches<T, Map>{other, grid.outputs, grid.stretches, args.divisor, args.out,
                                                   args.out_dtype, partial});
}

template <class T>
void sum_typed(const ReduceArgs& args) {
  switch (args.map) {
    case ReduceMap::value:
      return sum_mapped<T, ReduceMap::value>(args);
    case ReduceMap::squared_difference:
      return sum_mapped<double, ReduceMap::squared_difference>(args);
    case ReduceMap::product:
      return sum_mapped<double, ReduceMap::product>(args);
    case ReduceMap::exp_difference:
      return sum_mapped<T, ReduceMap::exp_difference>(args);
    case ReduceMap::absolute_difference:
      return sum_mapped<T, ReduceMap::absolute_difference>(args);
    case ReduceMap::huber:
      return sum_mapped<T, ReduceMap::huber>(args);
    case ReduceMap::bce_with_logits:
      return sum_mapped<T, ReduceMap::bce_with_logits>(args);
    case ReduceMap::kl_divergence:
      return sum_mapped<T, ReduceMap::kl_divergence>(args);
  }
}

void sum(const ReduceArgs& args) {
  if (args.kept.elements() == 0) return;
  switch (compute_type(args.in.dtype)) {
    case ComputeType::f32:
      return sum_typed<float>(args);
    case ComputeType::f64:
      return sum_typed<double>(args);
    case ComputeType::i64:
      return sum_mapped<std::int64_t, ReduceMap::value>(args);
  }
}

constexpr ReduceKernels table{sum, cuda_kernels::reduce_extreme, cuda_kernels::reduce_place};

}  // namespace reduce_cuda_detail

const ReduceKernels* const reduce_cuda = &reduce_cuda_detail::table;

}  // namespace thimble::kernels

namespace thimble::cuda_kernels {

// ---- Largest and smallest elements, and their indices, on CUDA devices.

namespace extreme_cuda_detail {

using kernels::ExtremeArgs;
using kernels::PlaceArgs;

// The best of some elements: 8 bytes of value and 8 of index.
template <class T>
struct Best {
  alignas(8) T value;
  std::int64_t place;  // -1 for none
};

// Whether b replaces a: NaN beats all numbers; among equals (and NaNs) the first one wins.
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
