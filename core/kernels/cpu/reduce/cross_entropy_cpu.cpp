// Cross entropy on the CPU: two passes over a row of logits forward (largest, sum), one backward.

#include <algorithm>
#include <cmath>
#include <limits>

#include <thimble/core/kernels/cpu/base/compute.h>
#include <thimble/core/kernels/cpu/base/exp_below.h>
#include <thimble/core/kernels/cpu/base/variants.h>
#include <thimble/core/kernels/cross_entropy.h>
#include <thimble/core/kernels/shared/strided.h>
#include <thimble/core/kernels/table_for.h>
#include <thimble/core/threads/parallel.h>

namespace thimble::kernels {
namespace cross_entropy_detail {

constexpr std::int64_t grain_elements = 1 << 14;

inline std::int64_t target_of(const ClassTargets& targets, std::int64_t row) {
  return targets.dtype == DType::i32 ? static_cast<const std::int32_t*>(targets.data)[row]
                                     : static_cast<const std::int64_t*>(targets.data)[row];
}

bool is_class(const ClassTargets& targets, std::int64_t target) { return target >= 0 && target < targets.classes; }

std::int64_t find_bad_target(const ClassTargets& targets) {
  for (std::int64_t row = 0; row < targets.rows; ++row) {
    const std::int64_t target = target_of(targets, row);
    if (target != targets.ignore_index && !is_class(targets, target)) return row;
  }
  return -1;
}

std::int64_t count_rows(const ClassTargets& targets) {
  std::int64_t count = 0;
  for (std::int64_t row = 0; row < targets.rows; ++row)
    count += target_of(targets, row) != targets.ignore_index ? 1 : 0;
  return count;
}

// body(row, base) for rows [begin, end); `base` is the start of the row in each operand.
template <int N, class F>
inline void for_each_row(const MergedStrides<N>& rows, std::int64_t begin, std::int64_t end, F&& body) {
  std::int64_t row = begin;
  rows.for_each_run(begin, end, [&](std::array<std::int64_t, N> base, std::int64_t run) {
    for (std::int64_t i = 0; i < run; ++i, ++row) {
      body(row, base);
      for (int n = 0; n < N; ++n) base[static_cast<std::size_t>(n)] += rows.stride(n, rows.rank - 1);
    }
  });
}

// Elements [at, at + n) of a row of scores.
template <class T>
inline const T* read_scores(const RowOperand& scores, std::int64_t base, std::int64_t at, std::int64_t n, T* buffer) {
  return read_elements(scores, base + at * scores.step, n, buffer);
}

// The sum of e^(x - level) over a row.
template <class T, bool is_fused>
inline double relative_sum(const RowOperand& scores, std::int64_t classes, std::int64_t base, T level) {
  alignas(64) T room[row_chunk];
  alignas(64) T e[row_chunk];
  double total = 0;
  for (std::int64_t at = 0; at < classes; at += row_chunk) {
    const std::int64_t n = std::min(row_chunk, classes - at);
    const T* const x = read_scores(scores, base, at, n, room);
    for (std::int64_t i = 0; i < n; ++i) e[i] = exp_below<is_fused>(x[i] - level);
    total += row_sum_of<is_fused>(static_cast<const T*>(e), n);
  }
  return total;
}

// The largest of a row's scores x, and the sum of e^(x - largest).
struct ExponentialSum {
  double largest, sum;
};

template <class T, bool is_fused>
inline ExponentialSum exponential_sum(const RowOperand& scores, std::int64_t classes, std::int64_t base) {
  alignas(64) T room[row_chunk];
  T largest = -std::numeric_limits<T>::infinity();
  for (std::int64_t at = 0; at < classes; at += row_chunk) {
    const std::int64_t n = std::min(row_chunk, classes - at);
    largest = row_max<is_fused>(read_scores(scores, base, at, n, room), n, largest);
  }
  return {static_cast<double>(largest), relative_sum<T, is_fused>(scores, classes, base, largest)};
}

template <class T>
inline bool has_nan(const RowOperand& scores, std::int64_t classes, std::int64_t base) {
  alignas(64) T room[row_chunk];
  for (std::int64_t at = 0; at < classes; at += row_chunk) {
    const std::int64_t n = std::min(row_chunk, classes - at);
    const T* const x = read_scores(scores, base, at, n, room);
    if (std::any_of(x, x + n, [](T score) { return score != score; })) return true;
  }
  return false;
}

// sum of (largest - x) over a row.
template <class T>
inline double sum_below(const CrossEntropyArgs& args, std::int64_t base, double largest) {
  alignas(64) T room[row_chunk];
  double total = 0;
  for (std::int64_t at = 0; at < args.targets.classes; at += row_chunk) {
    const std::int64_t n = std::min(row_chunk, args.targets.classes - at);
    const T* const x = read_scores(args.scores, base, at, n, room);
    total += row_sum<T>(n, [&](std::int64_t i) { return static_cast<T>(largest) - x[i]; });
  }
  return total;
}

// The loss of a row, l = largest + log. Differences to the largest score come first, to keep digits beside huge scores.
template <class T>
inline double row_loss(const CrossEntropyArgs& args, std::int64_t row, std::int64_t base, double largest, double log) {
  const std::int64_t target = target_of(args.targets, row);
  if (target == args.targets.ignore_index) return 0;
  if (!is_class(args.targets, target)) return std::numeric_limits<double>::quiet_NaN();
  T room;
  const double below = largest - static_cast<double>(*read_scores(args.scores, base, target, 1, &room));
  double loss = log + (1 - args.smoothing) * below;
  if (args.smoothing > 0) {
    loss += args.smoothing / static_cast<double>(args.targets.classes) * sum_below<T>(args, base, largest);
  }
  return loss;
}

template <class T, bool is_fused>
struct ForwardRows {
  static void run(const CrossEntropyArgs& args, const MergedStrides<1>& rows, std::int64_t begin, std::int64_t end) {
    for_each_row(rows, begin, end, [&](std::int64_t row, const std::array<std::int64_t, 1>& base) {
      double largest = 0, log = 0;
      if (args.are_logits) {
        const ExponentialSum sum = exponential_sum<T, is_fused>(args.scores, args.targets.classes, base[0]);
        largest = sum.largest, log = std::log(sum.sum);
      }
      if (args.log_sums) static_cast<T*>(args.log_sums)[row] = static_cast<T>(largest + log);
      static_cast<T*>(args.losses)[row] = static_cast<T>(row_loss<T>(args, row, base[0], largest, log));
    });
  }
};

std::int64_t row_grain(const ClassTargets& targets) {
  return std::max<std::int64_t>(1, grain_elements / targets.classes);
}

// The rows' losses in blocks of row_chunk, one after the other.
template <class T>
void total_of(const LossTotalArgs& args) {
  const T* const losses = static_cast<const T*>(args.losses);
  double total = 0;
  for (std::int64_t at = 0; at < args.targets.rows; at += row_chunk) {
    total += row_sum<T>(std::min(row_chunk, args.targets.rows - at), [&](std::int64_t i) { return losses[at + i]; });
  }
  if (args.reduction == LossReduction::mean) total /= static_cast<double>(count_rows(args.targets));
  *static_cast<T*>(args.out) = static_cast<T>(total);
}

void total_any(const LossTotalArgs& args) {
  return args.dtype == DType::f64 ? total_of<double>(args) : total_of<float>(args);
}

template <class T>
void forward(const CrossEntropyArgs& args) {
  const MergedStrides<1> rows(args.outer, {&args.scores.strides});
  parallel_for(args.targets.rows, row_grain(args.targets), [&](std::int64_t begin, std::int64_t end) {
    run_fused_variant<ForwardRows, T>(args, rows, begin, end);
  });
  if (args.reduction == LossReduction::none) return;
  total_any({args.targets, dtype_of<T>, args.reduction, args.losses, args.out});
}

// True where rounding l makes e^(x - l) wrong by more than some 2^-14; false for infinity and NaN.
template <class T>
inline bool level_is_coarse(T l) {
  constexpr T limit = sizeof(T) == 4 ? T(1 << 10) : T(std::int64_t{1} << 39);
  const T size = std::fabs(l);
  return size > limit && size - size == T(0);
}

// False for a shard of the classes, where `batch` counts all classes.
inline bool are_whole_rows(const CrossEntropyBackwardArgs& args) {
  return args.batch.data == nullptr || args.batch.classes == args.targets.classes;
}

// One row's gradient, 0 in an ignored row; `g` is the gradient of the row's loss.
template <class T, bool is_fused>
inline void backward_row(const CrossEntropyBackwardArgs& args, std::int64_t row, std::int64_t from, std::int64_t to,
                         T g) {
  alignas(64) T room[row_chunk];
  alignas(64) T result[row_chunk];
  const bool is_stored_directly = args.dx.step == 1 && args.dx.dtype == dtype_of<T>;
  const std::int64_t classes = args.targets.classes, number = target_of(args.targets, row);
  const std::int64_t target = number - args.targets.first;  // its column
  const bool counts = number != args.targets.ignore_index;
  const T level = args.are_logits && args.log_sums ? static_cast<const T*>(args.log_sums)[row] : T(0);
  const double total = counts && are_whole_rows(args) && level_is_coarse(level)
                           ? relative_sum<T, is_fused>(args.scores, classes, from, level)
                           : 1;
  const T share = static_cast<T>(1 / total);
  const T everywhere = static_cast<T>(args.smoothing / static_cast<double>(classes));
  const T at_target = static_cast<T>(1 - args.smoothing);
  for (std::int64_t at = 0; at < classes; at += row_chunk) {
    const std::int64_t n = std::min(row_chunk, classes - at);
    T* const dx = is_stored_directly ? static_cast<T*>(args.dx.data) + to + at : result;
    if (!counts) {
      std::fill(dx, dx + n, T(0));
    } else {
      const bool has_target = target >= at && target < at + n;
      if (args.are_logits) {
        const T* const x = read_scores(args.scores, from, at, n, room);
        const T score = has_target ? x[target - at] : T(0);  // dx may alias x
        for (std::int64_t i = 0; i < n; ++i) dx[i] = (exp_below<is_fused>(x[i] - level) * share - everywhere) * g;
        if (has_target) dx[target - at] = ((exp_below<is_fused>(score - level) * share - everywhere) - at_target) * g;
      } else {
        std::fill(dx, dx + n, -everywhere * g);
        if (has_target) dx[target - at] = (-everywhere - at_target) * g;
      }
    }
    if (!is_stored_directly) {
      store_elements(dx, args.dx.data, args.dx.dtype, to + at * args.dx.step, args.dx.step, n);
    }
  }
}

template <class T, bool is_fused>
struct BackwardRows {
  static void run(const CrossEntropyBackwardArgs& args, const MergedStrides<2>& rows, double divisor,
                  std::int64_t begin, std::int64_t end) {
    const T* const dy = static_cast<const T*>(args.dy);
    for_each_row(rows, begin, end, [&](std::int64_t row, const std::array<std::int64_t, 2>& base) {
      const T g =
          args.reduction == LossReduction::none ? dy[row] : static_cast<T>(static_cast<double>(dy[0]) / divisor);
      backward_row<T, is_fused>(args, row, base[0], base[1], g);
    });
  }
};

template <class T>
void backward(const CrossEntropyBackwardArgs& args) {
  const MergedStrides<2> rows(args.outer,
                              {args.are_logits ? &args.scores.strides : &args.dx.strides, &args.dx.strides});
  const ClassTargets& batch = args.batch.data ? args.batch : args.targets;
  const double divisor = args.reduction == LossReduction::mean ? static_cast<double>(count_rows(batch)) : 1;
  parallel_for(args.targets.rows, row_grain(args.targets), [&](std::int64_t begin, std::int64_t end) {
    run_fused_variant<BackwardRows, T>(args, rows, divisor, begin, end);
  });
}

template <class T, bool is_fused>
struct PartRows {
  static void run(const ClassPartArgs& args, const MergedStrides<1>& rows, std::int64_t begin, std::int64_t end) {
    const ClassTargets& targets = args.targets;
    for_each_row(rows, begin, end, [&](std::int64_t row, const std::array<std::int64_t, 1>& base) {
      const ExponentialSum sum = exponential_sum<T, is_fused>(args.scores, targets.classes, base[0]);
      // With only -infinity all terms are 0. NaN is not the largest, but the sum of e^(NaN + infinity).
      const bool has_largest = sum.largest != -std::numeric_limits<double>::infinity();
      const bool is_empty = !has_largest && !has_nan<T>(args.scores, targets.classes, base[0]);
      const std::int64_t number = target_of(targets, row), target = number - targets.first;
      T room, score = 0;
      if (number != targets.ignore_index && is_class(targets, target)) {
        score = *read_scores(args.scores, base[0], target, 1, &room);
      }
      args.out[row] = sum.largest;
      args.out[targets.rows + row] = is_empty ? 0 : sum.sum;
      args.out[2 * targets.rows + row] = static_cast<double>(score);
    });
  }
};

template <class T>
void part_rows(const ClassPartArgs& args) {
  const MergedStrides<1> rows(args.outer, {&args.scores.strides});
  parallel_for(args.targets.rows, row_grain(args.targets),
               [&](std::int64_t begin, std::int64_t end) { run_fused_variant<PartRows, T>(args, rows, begin, end); });
}

void class_part(const ClassPartArgs& args) {
  return args.scores.dtype == DType::f64 ? part_rows<double>(args) : part_rows<float>(args);
}

template <class T>
void sum_parts(const ClassPartsArgs& args) {
  const std::int64_t rows = args.targets.rows;
  parallel_for(rows, grain_elements / 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const auto of = [&](std::int64_t part, std::int64_t which) { return args.in[(3 * part + which) * rows + row]; };
      double largest = of(0, 0), total = 0, score = 0;
      for (std::int64_t p = 1; p < args.parts; ++p) largest = larger(largest, of(p, 0));
      for (std::int64_t p = 0; p < args.parts; ++p) {
        total += of(p, 1) * std::exp(of(p, 0) - largest);
        score += of(p, 2);
      }
      const double log = std::log(total), level = largest + log;
      const std::int64_t target = target_of(args.targets, row);
      double loss = 0;
      if (target != args.targets.ignore_index) {
        loss = is_class(args.targets, target) ? (largest - score) + log : std::numeric_limits<double>::quiet_NaN();
      }
      static_cast<T*>(args.log_sums)[row] = static_cast<T>(level);
      static_cast<T*>(args.losses)[row] = static_cast<T>(loss);
    }
  });
}

void class_parts(const ClassPartsArgs& args) {
  return args.dtype == DType::f64 ? sum_parts<double>(args) : sum_parts<float>(args);
}

template <class T>
struct LogProbabilityRows {
  static void run(const LogProbabilityArgs& args, const MergedStrides<2>& rows, std::int64_t begin, std::int64_t end) {
    alignas(64) T room[row_chunk];
    alignas(64) T result[row_chunk];
    for_each_row(rows, begin, end, [&](std::int64_t row, const std::array<std::int64_t, 2>& base) {
      const T level = static_cast<const T*>(args.log_sums)[row];
      for (std::int64_t at = 0; at < args.classes; at += row_chunk) {
        const std::int64_t n = std::min(row_chunk, args.classes - at);
        const T* const x = read_scores(args.scores, base[0], at, n, room);
        for (std::int64_t i = 0; i < n; ++i) result[i] = x[i] - level;
        store_elements(result, args.out.data, args.out.dtype, base[1] + at * args.out.step, args.out.step, n);
      }
    });
  }
};

template <class T>
void write_log_probabilities(const LogProbabilityArgs& args) {
  const MergedStrides<2> rows(args.outer, {&args.scores.strides, &args.out.strides});
  const std::int64_t grain = std::max<std::int64_t>(1, grain_elements / args.classes);
  parallel_for(args.rows, grain, [&](std::int64_t begin, std::int64_t end) {
    run_variant<LogProbabilityRows<T>>(args, rows, begin, end);
  });
}

void log_probabilities(const LogProbabilityArgs& args) {
  if (args.scores.dtype == DType::f64) return write_log_probabilities<double>(args);
  write_log_probabilities<float>(args);
}

void forward_any(const CrossEntropyArgs& args) {
  return args.scores.dtype == DType::f64 ? forward<double>(args) : forward<float>(args);
}

void backward_any(const CrossEntropyBackwardArgs& args) {
  return args.dx.dtype == DType::f64 ? backward<double>(args) : backward<float>(args);
}

}  // namespace cross_entropy_detail

const CrossEntropyKernels cross_entropy_cpu{
    .find_bad_target = cross_entropy_detail::find_bad_target,
    .forward = cross_entropy_detail::forward_any,
    .backward = cross_entropy_detail::backward_any,
    .total = cross_entropy_detail::total_any,
    .class_part = cross_entropy_detail::class_part,
    .class_parts = cross_entropy_detail::class_parts,
    .log_probabilities = cross_entropy_detail::log_probabilities,
};

const CrossEntropyKernels& cross_entropy_kernels(memory::Device device) {
  return table_for(device, "cross_entropy", cross_entropy_cpu, cross_entropy_cuda);
}

}  // namespace thimble::kernels
