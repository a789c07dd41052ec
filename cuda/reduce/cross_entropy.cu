// Cross entropy on CUDA devices: a team takes a row and reads it in words, once in each direction. Does not check for
// bad targets, which would stall the device: a row whose target is no class gets the loss NaN, and a gradient without
// the target's term.

#include <cmath>

#include <thimble/core/kernels/cross_entropy.h>
#include <thimble/cuda/kernel/element.h>
#include <thimble/cuda/reduce/exponential_sum.h>

namespace thimble::kernels {
namespace cross_entropy_cuda_detail {

using namespace cuda_kernels;

// Counted rows of the batch whose gradient is computed. Kernels of one stream write and read it in order.
THIMBLE_DEVICE_GLOBAL double rows_that_count;

struct Targets {
  const void* data;
  DType dtype;
  std::int64_t rows, classes, ignore_index, first;
  explicit Targets(const ClassTargets& t)
      : data(t.data), dtype(t.dtype), rows(t.rows), classes(t.classes), ignore_index(t.ignore_index), first(t.first) {}
  THIMBLE_DEVICE std::int64_t at(std::int64_t row) const { return load_index(data, dtype, row); }
  THIMBLE_DEVICE bool is_class(std::int64_t target) const { return target >= 0 && target < classes; }
};

template <class S, bool is_dense>
struct Forward {
  using T = Wide<S>;
  static constexpr int threads = 256, count = word_elements<S>;
  Walk<1> rows;
  const S* scores;
  std::int64_t step;
  bool are_logits;
  Targets targets;
  double smoothing;
  T* log_sums;
  T* losses;

  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t row) const {
    std::int64_t base[1];
    rows.locate(row, base);
    const S* const from = scores + base[0];
    ExponentialSum<S> own;
    T plain = 0;
    const auto add = [&](const auto& reader) {
      for_each_part<count>(team, targets.classes, [&](std::int64_t w, int n) {
        T values[count];
        reader.read(w, values);
        if (smoothing > 0) {
          THIMBLE_UNROLL
          for (int e = 0; e < count; ++e) plain += e < n ? values[e] : T(0);
        }
        if (!are_logits) return;
        fill_behind(n, -static_cast<T>(INFINITY), values);
        own.add(values);
      });
    };
    if (are_logits || smoothing > 0) {
      if constexpr (is_dense) {
        add(RowReader<S>(from, targets.classes));
      } else {
        add(StridedReader<S>(from, targets.classes, step));
      }
    }
    double total = 1, plain_sum = 0;
    T largest = 0;
    if (are_logits) {
      largest = team.max(own.largest);
      total = team.sum(static_cast<double>(own.relative_to(largest)));
    }
    if (smoothing > 0) plain_sum = team.sum(static_cast<double>(plain));
    if (team.rank() != 0) return;
    const double level = static_cast<double>(largest) + std::log(total);
    const std::int64_t target = targets.at(row);
    double loss = 0;
    if (target != targets.ignore_index) {
      if (targets.is_class(target)) {
        const double score = static_cast<double>(widened(from[target * step]));
        loss =
            smoothing > 0 ? level - (1 - smoothing) * score : (static_cast<double>(largest) - score) + std::log(total);
        if (smoothing > 0) loss -= smoothing / static_cast<double>(targets.classes) * plain_sum;
      } else {
        loss = NAN;
      }
    }
    if (log_sums) log_sums[row] = static_cast<T>(level);
    losses[row] = static_cast<T>(loss);
  }
};

// One team finds the number of counted rows and, with losses, the total.
template <class T>
struct Total {
  static constexpr int threads = 1024;
  Targets targets;
  bool is_mean;
  const T* losses;
  T* out;
  double* count_to;

  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t) const {
    double own = 0, own_count = 0;
    for (std::int64_t row = team.rank(); row < targets.rows; row += Team::size) {
      if (losses) own += static_cast<double>(losses[row]);
      own_count += targets.at(row) != targets.ignore_index ? 1 : 0;
    }
    const double count = team.sum(own_count), total = team.sum(own);
    if (team.rank() != 0) return;
    if (out) *out = static_cast<T>(is_mean ? total / count : total);
    if (count_to) *count_to = count;
  }
};

// True if rounding l makes e^(x - l) wrong by more than about 2^-14; false for infinity and NaN.
template <class T>
THIMBLE_DEVICE inline bool level_is_coarse(T l) {
  constexpr T limit = sizeof(T) == 4 ? T(1 << 10) : T(std::int64_t{1} << 39);
  const T size = std::fabs(l);
  return size > limit && size - size == T(0);
}

template <class S, bool is_dense>
struct Backward {
  using T = Wide<S>;
  static constexpr int threads = 256, count = word_elements<S>;
  Walk<2> rows;
  const S* scores;  // null unless they are logits
  Targets targets;
  double smoothing;
  LossReduction reduction;
  const T* log_sums;
  const T* dy;
  S* dx;
  std::int64_t steps[2];
  bool is_whole_row;  // false for a shard of the classes; the batch has all classes

  /// The sum of e^(x - level) over a row.
  template <class Team>
  THIMBLE_DEVICE T relative_sum(Team& team, const S* row, T level) const {
    T own = 0;
    for (std::int64_t c = team.rank(); c < targets.classes; c += Team::size) {
      own += exp_of<S>(widened(row[c * steps[0]]) - level);
    }
    return static_cast<T>(team.sum(static_cast<double>(own)));
  }

  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t row) const {
    std::int64_t base[2];
    rows.locate(row, base);
    const std::int64_t target = targets.at(row);
    const bool counts = target != targets.ignore_index;
    const T level = scores && log_sums ? log_sums[row] : T(0);
    T share = 1;
    if (counts && is_whole_row && level_is_coarse(level)) share = T(1) / relative_sum(team, scores + base[0], level);
    const T everywhere = static_cast<T>(smoothing / static_cast<double>(targets.classes));
    const T at_target = static_cast<T>(1 - smoothing);
    T g = reduction == LossReduction::none ? dy[row] : dy[0];
    if (reduction == LossReduction::mean) g = static_cast<T>(static_cast<double>(g) / rows_that_count);
    const auto result = [&](std::int64_t begin, T(&values)[1][count]) {
      if (!counts) return fill_behind(0, T(0), values[0]);
      if (scores) {
        THIMBLE_UNROLL
        for (int e = 0; e < count; ++e) values[0][e] = exp_of<S>(values[0][e] - level) * share - everywhere;
      } else {
        THIMBLE_UNROLL
        for (int e = 0; e < count; ++e) values[0][e] = -everywhere;
      }
      const std::int64_t from_here = target - targets.first - begin;
      if (from_here >= 0 && from_here < count) {
        const int place = static_cast<int>(from_here);
        THIMBLE_UNROLL
        for (int e = 0; e < count; ++e) values[0][e] = e == place ? values[0][e] - at_target : values[0][e];
      }
      THIMBLE_UNROLL
      for (int e = 0; e < count; ++e) values[0][e] *= g;
    };
    const S* const from = scores ? scores + base[0] : nullptr;
    if constexpr (is_dense) {
      map_row<1>(team, {from}, dx + base[1], targets.classes, result);
    } else {
      map_strided_row<1>(team, {from}, dx + base[1], steps, targets.classes, result);
    }
  }
};

template <class T>
void total_of(const LossTotalArgs& args) {
  for_each_team(1, Total<T>{Targets(args.targets), args.reduction == LossReduction::mean,
                            static_cast<const T*>(args.losses), static_cast<T*>(args.out), nullptr});
}

void total(const LossTotalArgs& args) {
  with_compute_type(args.dtype, [&]<class T>() { total_of<T>(args); });
}

void forward(const CrossEntropyArgs& args) {
  with_rows(args.scores.dtype, args.scores.step == 1, [&]<class S, bool is_dense>() {
    using T = Wide<S>;
    for_each_team(
        args.targets.rows,
        Forward<S, is_dense>{Walk<1>(args.outer, {&args.scores.strides}), static_cast<const S*>(args.scores.data),
                             args.scores.step, args.are_logits, Targets(args.targets), args.smoothing,
                             static_cast<T*>(args.log_sums), static_cast<T*>(args.losses)});
    if (args.reduction == LossReduction::none) return;
    total_of<T>({args.targets, dtype_of<T>, args.reduction, args.losses, args.out});
  });
}

// Destination of the count of rows.
struct Count {
  static constexpr int threads = Total<float>::threads;
  Targets targets;
  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t i) const {
    Total<float>{targets, true, nullptr, nullptr, &rows_that_count}(team, i);
  }
};

void backward(const CrossEntropyBackwardArgs& args) {
  if (args.reduction == LossReduction::mean) {
    for_each_team(1, Count{Targets(args.batch.data ? args.batch : args.targets)});
  }
  const bool is_dense = args.dx.step == 1 && (!args.are_logits || args.scores.step == 1);
  with_rows(args.dx.dtype, is_dense, [&]<class S, bool dense>() {
    using T = Wide<S>;
    const Shape& strides = args.are_logits ? args.scores.strides : args.dx.strides;
    for_each_team(args.targets.rows,
                  Backward<S, dense>{Walk<2>(args.outer, {&strides, &args.dx.strides}),
                                     args.are_logits ? static_cast<const S*>(args.scores.data) : nullptr,
                                     Targets(args.targets),
                                     args.smoothing,
                                     args.reduction,
                                     static_cast<const T*>(args.log_sums),
                                     static_cast<const T*>(args.dy),
                                     static_cast<S*>(args.dx.data),
                                     {args.scores.step, args.dx.step},
                                     args.batch.data == nullptr || args.batch.classes == args.targets.classes});
  });
}

template <class S, bool is_dense>
struct Part {
  using T = Wide<S>;
  static constexpr int threads = 256, count = word_elements<S>;
  Walk<1> rows;
  const S* scores;
  std::int64_t step;
  Targets targets;
  double* out;

  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t row) const {
    std::int64_t base[1];
    rows.locate(row, base);
    const S* const from = scores + base[0];
    ExponentialSum<S> own;
    const auto add = [&](const auto& reader) {
      for_each_part<count>(team, targets.classes, [&](std::int64_t w, int n) {
        T values[count];
        reader.read(w, values);
        fill_behind(n, -static_cast<T>(INFINITY), values);
        own.add(values);
      });
    };
    if constexpr (is_dense) {
      add(RowReader<S>(from, targets.classes));
    } else {
      add(StridedReader<S>(from, targets.classes, step));
    }
    const T largest = team.max(own.largest);
    const double total = team.sum(static_cast<double>(own.relative_to(largest)));
    if (team.rank() != 0) return;
    const std::int64_t number = targets.at(row), target = number - targets.first;
    const bool is_here = number != targets.ignore_index && targets.is_class(target);
    out[row] = static_cast<double>(largest);
    out[targets.rows + row] = total;
    out[2 * targets.rows + row] = is_here ? static_cast<double>(widened(from[target * step])) : 0.0;
  }
};

void class_part(const ClassPartArgs& args) {
  with_rows(args.scores.dtype, args.scores.step == 1, [&]<class S, bool is_dense>() {
    for_each_team(args.targets.rows, Part<S, is_dense>{Walk<1>(args.outer, {&args.scores.strides}),
                                                       static_cast<const S*>(args.scores.data), args.scores.step,
                                                       Targets(args.targets), args.out});
  });
}

template <class T>
struct Parts {
  Targets targets;
  std::int64_t parts;
  const double* in;
  T* log_sums;
  T* losses;

  THIMBLE_DEVICE double of(std::int64_t part, std::int64_t which, std::int64_t row) const {
    return in[(3 * part + which) * targets.rows + row];
  }
  THIMBLE_DEVICE void operator()(std::int64_t row) const {
    double largest = of(0, 0, row), total = 0, score = 0;
    for (std::int64_t p = 1; p < parts; ++p) largest = larger_of(largest, of(p, 0, row));
    for (std::int64_t p = 0; p < parts; ++p) {
      total += of(p, 1, row) * std::exp(of(p, 0, row) - largest);
      score += of(p, 2, row);
    }
    const double level = largest + std::log(total);
    const std::int64_t target = targets.at(row);
    const bool counts = target != targets.ignore_index;
    log_sums[row] = static_cast<T>(level);
    losses[row] = !counts ? T(0) : targets.is_class(target) ? static_cast<T>(level - score) : static_cast<T>(NAN);
  }
};

void class_parts(const ClassPartsArgs& args) {
  with_compute_type(args.dtype, [&]<class T>() {
    for_each_item(args.targets.rows, Parts<T>{Targets(args.targets), args.parts, args.in,
                                              static_cast<T*>(args.log_sums), static_cast<T*>(args.losses)});
  });
}

template <class S, bool is_dense>
struct LogProbabilities {
  using T = Wide<S>;
  static constexpr int threads = 256, count = word_elements<S>;
  Walk<2> rows;
  std::int64_t classes;
  const S* scores;
  const T* log_sums;
  S* out;
  std::int64_t steps[2];

  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t row) const {
    std::int64_t base[2];
    rows.locate(row, base);
    const T level = log_sums[row];
    const auto result = [&](std::int64_t, T(&values)[1][count]) {
      THIMBLE_UNROLL
      for (int e = 0; e < count; ++e) values[0][e] -= level;
    };
    if constexpr (is_dense) {
      map_row<1>(team, {scores + base[0]}, out + base[1], classes, result);
    } else {
      map_strided_row<1>(team, {scores + base[0]}, out + base[1], steps, classes, result);
    }
  }
};

void log_probabilities(const LogProbabilityArgs& args) {
  with_rows(args.scores.dtype, args.scores.step == 1 && args.out.step == 1, [&]<class S, bool is_dense>() {
    using T = Wide<S>;
    for_each_team(args.rows,
                  LogProbabilities<S, is_dense>{Walk<2>(args.outer, {&args.scores.strides, &args.out.strides}),
                                                args.classes,
                                                static_cast<const S*>(args.scores.data),
                                                static_cast<const T*>(args.log_sums),
                                                static_cast<S*>(args.out.data),
                                                {args.scores.step, args.out.step}});
  });
}

constexpr CrossEntropyKernels table{nullptr, forward, backward, total, class_part, class_parts, log_probabilities};

}  // namespace cross_entropy_cuda_detail

const CrossEntropyKernels* const cross_entropy_cuda = &cross_entropy_cuda_detail::table;

}  // namespace thimble::kernels
