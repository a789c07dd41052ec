// Cross entropy on CUDA devices: a team for each row. Targets are not asked for bad ones, which would stall the device:
// a row whose target is no class gets the loss NaN, and its gradient is that of no target.

#include <cmath>

#include <thimble/core/kernels/cross_entropy.h>
#include <thimble/core/numbers/math.h>
#include <thimble/cuda/kernel/element.h>

namespace thimble::kernels {
namespace cross_entropy_cuda_detail {

using namespace cuda_kernels;

// Rows that count, of the batch whose gradient is made: written and read by kernels of one stream, in order.
THIMBLE_DEVICE_GLOBAL double rows_that_count;

struct Scores {
  const void* data;
  DType dtype;
  std::int64_t step;
};

struct Targets {
  const void* data;
  DType dtype;
  std::int64_t rows, classes, ignore_index;
  explicit Targets(const ClassTargets& t)
      : data(t.data), dtype(t.dtype), rows(t.rows), classes(t.classes), ignore_index(t.ignore_index) {}
  THIMBLE_DEVICE std::int64_t at(std::int64_t row) const { return load_index(data, dtype, row); }
  THIMBLE_DEVICE bool is_class(std::int64_t target) const { return target >= 0 && target < classes; }
};

template <class T>
struct Forward {
  static constexpr int threads = 256;
  Walk<1> rows;
  Scores scores;
  bool are_logits;
  Targets targets;
  double smoothing;
  T* log_sums;
  T* losses;

  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t row) const {
    std::int64_t base[1];
    rows.locate(row, base);
    const auto score = [&](std::int64_t c) { return load<T>(scores.data, scores.dtype, base[0] + c * scores.step); };
    double level = 0, plain_sum = 0;
    if (are_logits) {
      T largest = -static_cast<T>(INFINITY);
      for (std::int64_t c = team.rank(); c < targets.classes; c += Team::size) largest = larger_of(largest, score(c));
      largest = team.max(largest);
      T own = 0;
      for (std::int64_t c = team.rank(); c < targets.classes; c += Team::size) own += math::exp(score(c) - largest);
      level = static_cast<double>(largest) + std::log(team.sum(static_cast<double>(own)));
    }
    if (smoothing > 0) {
      T own = 0;
      for (std::int64_t c = team.rank(); c < targets.classes; c += Team::size) own += score(c);
      plain_sum = team.sum(static_cast<double>(own));
    }
    if (team.rank() != 0) return;
    const std::int64_t target = targets.at(row);
    double loss = 0;
    if (target != targets.ignore_index) {
      if (targets.is_class(target)) {
        loss = level - (1 - smoothing) * static_cast<double>(score(target));
        if (smoothing > 0) loss -= smoothing / static_cast<double>(targets.classes) * plain_sum;
      } else {
        loss = NAN;
      }
    }
    if (log_sums) log_sums[row] = static_cast<T>(level);
    losses[row] = static_cast<T>(loss);
  }
};

// One team: the number of rows that count, and (with losses) the total.
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

template <class T>
struct Backward {
  static constexpr int threads = 256;
  Walk<2> rows;
  Scores scores;
  bool are_logits;
  Targets targets;
  double smoothing;
  LossReduction reduction;
  const T* log_sums;
  const T* dy;
  void* dx;
  DType dx_dtype;
  std::int64_t dx_step;

  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t row) const {
    std::int64_t base[2];
    rows.locate(row, base);
    const std::int64_t target = targets.at(row);
    const bool counts = target != targets.ignore_index;
    const T level = are_logits ? log_sums[row] : T(0);
    const T everywhere = static_cast<T>(smoothing / static_cast<double>(targets.classes));
    const T at_target = static_cast<T>(1 - smoothing);
    T g = reduction == LossReduction::none ? dy[row] : dy[0];
    if (reduction == LossReduction::mean) g = static_cast<T>(static_cast<double>(g) / rows_that_count);
    for (std::int64_t c = team.rank(); c < targets.classes; c += Team::size) {
      T x = 0;
      if (counts) {
        x = are_logits ? math::exp(load<T>(scores.data, scores.dtype, base[0] + c * scores.step) - level) - everywhere
                       : -everywhere;
        if (c == target) x -= at_target;
        x *= g;
      }
      store<T>(dx, dx_dtype, base[1] + c * dx_step, x);
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
  with_compute_type(args.scores.dtype, [&]<class T>() {
    for_each_team(args.targets.rows, Forward<T>{Walk<1>(args.outer, {&args.scores.strides}),
                                                {args.scores.data, args.scores.dtype, args.scores.step},
                                                args.are_logits,
                                                Targets(args.targets),
                                                args.smoothing,
                                                static_cast<T*>(args.log_sums),
                                                static_cast<T*>(args.losses)});
    if (args.reduction == LossReduction::none) return;
    total_of<T>({args.targets, dtype_of<T>, args.reduction, args.losses, args.out});
  });
}

// Where the count of rows goes.
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
  with_compute_type(args.dx.dtype, [&]<class T>() {
    const Shape& strides = args.are_logits ? args.scores.strides : args.dx.strides;
    for_each_team(args.targets.rows, Backward<T>{Walk<2>(args.outer, {&strides, &args.dx.strides}),
                                                 {args.scores.data, args.scores.dtype, args.scores.step},
                                                 args.are_logits,
                                                 Targets(args.targets),
                                                 args.smoothing,
                                                 args.reduction,
                                                 static_cast<const T*>(args.log_sums),
                                                 static_cast<const T*>(args.dy),
                                                 args.dx.data,
                                                 args.dx.dtype,
                                                 args.dx.step});
  });
}

constexpr CrossEntropyKernels table{nullptr, forward, backward, total};

}  // namespace cross_entropy_cuda_detail

const CrossEntropyKernels* const cross_entropy_cuda = &cross_entropy_cuda_detail::table;

}  // namespace thimble::kernels
