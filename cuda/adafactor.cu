// Adafactor on CUDA devices. Sums have the CPU's order, so the bits are its own: the eight lanes of a tile are chains
// of additions that run side by side, tile by tile and row by row, and are then added in order.

#include <cmath>

#include <thimble/core/kernels/update_rule.h>
#include <thimble/cuda/adafactor.h>
#include <thimble/cuda/element.h>
#include <thimble/cuda/live.h>

namespace thimble::kernels {
namespace adafactor_cuda_detail {

using namespace cuda_kernels;

constexpr std::int64_t tile = AdafactorArgs::tile, shares = AdafactorArgs::shares, stretch = AdafactorArgs::stretch;
constexpr int lanes = AdafactorArgs::lanes;
constexpr int team_threads = 256;
constexpr std::int64_t most_chains = 1024;               // whose sums a team has at a time
constexpr std::int64_t most_rows = most_chains / lanes;  // that they belong to
constexpr std::size_t shared_bytes = (most_chains + most_rows) * sizeof(double);
constexpr std::int64_t column_tile = 32;  // columns of a team

// Between the kernels of one update, which run in the order of one stream.
THIMBLE_DEVICE_GLOBAL double parameter_sums[shares], update_sums[shares];
THIMBLE_DEVICE_GLOBAL float row_mean, clipping, step_length;

struct Problem {
  std::int64_t rows, columns;
  void* p;
  DType dtype;
  const void* g;
  DType gradient_dtype;
  float *row_moment, *column_moment, *first;
  bool scales_by_parameter;
  Live<AdafactorRule> rule;

  explicit Problem(const AdafactorArgs& a)
      : rows(a.rows),
        columns(a.columns),
        p(a.parameter),
        dtype(a.dtype),
        g(a.gradient),
        gradient_dtype(a.gradient_dtype),
        row_moment(a.row_moment),
        column_moment(a.column_moment),
        first(a.momentum),
        scales_by_parameter(a.scales_by_parameter),
        rule(live(a, [](const AdafactorArgs& now) { return AdafactorRule(now); })) {}

  THIMBLE_DEVICE float parameter(std::int64_t i) const { return load<float>(p, dtype, i); }
  THIMBLE_DEVICE float gradient(std::int64_t i) const { return load<float>(g, gradient_dtype, i) * rule.get().factor; }
  /// The update before it is clipped.
  THIMBLE_DEVICE float update(std::int64_t row, std::int64_t column) const {
    const std::int64_t i = row * columns + column;
    const float of_row = row_moment ? row_moment[row] / row_mean : 1.0f;
    const float v = of_row * column_moment[row_moment ? column : i];
    return gradient(i) / std::sqrt(v);
  }
  THIMBLE_DEVICE std::int64_t share() const { return (rows + shares - 1) / shares; }
};

// done(row, sum) for each of the rows [begin, end), on the thread that has its sum: square(row, column) in the order of
// tiles and lanes. All rows of a batch are done before the next one is begun; batch_done(rows of it, their sums).
template <class Team, class Square, class Done>
THIMBLE_DEVICE void sum_rows(Team& team, std::int64_t begin, std::int64_t end, std::int64_t columns,
                             const Square& square, const Done& batch_done) {
  const std::int64_t chains = (columns + tile - 1) / tile * lanes;
  const std::int64_t batch = chains < most_chains ? most_chains / chains : 1;
  auto* const sums = team.template shared<double>();
  double* const row_sums = sums + most_chains;
  for (std::int64_t row = begin; row < end; row += batch) {
    const std::int64_t n = end - row < batch ? end - row : batch;
    for (std::int64_t r = team.rank(); r < n; r += Team::size) row_sums[r] = 0;
    for (std::int64_t from = 0; from < chains; from += most_chains) {
      const std::int64_t count = chains - from < most_chains ? chains - from : most_chains;
      for (std::int64_t i = team.rank(); i < n * count; i += Team::size) {
        const std::int64_t chain = from + i % count, first = chain / lanes * tile;
        const std::int64_t stop = first + tile < columns ? first + tile : columns;
        double sum = 0;
        for (std::int64_t c = first + chain % lanes; c < stop; c += lanes) sum += square(row + i / count, c);
        sums[i] = sum;
      }
      team.sync();
      for (std::int64_t r = team.rank(); r < n; r += Team::size) {
        for (std::int64_t i = 0; i < count; ++i) row_sums[r] += sums[r * count + i];
      }
      team.sync();
    }
    batch_done(row, n, row_sums);
    team.sync();  // the next batch takes their place
  }
}

// The sum over the rows of each share.
template <class Square>
struct ShareSums {
  static constexpr int threads = team_threads;
  Problem problem;
  Square square;
  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t share) const {
    const std::int64_t begin = share * problem.share();
    const std::int64_t end = begin + problem.share() < problem.rows ? begin + problem.share() : problem.rows;
    double total = 0;  // the first thread's
    sum_rows(
        team, begin, end, problem.columns,
        [&](std::int64_t row, std::int64_t column) { return square(problem, row, column); },
        [&](std::int64_t, std::int64_t n, const double* sums) {
          for (std::int64_t r = 0; team.rank() == 0 && r < n; ++r) total += sums[r];
        });
    if (team.rank() == 0) Square::sums()[share] = total;
  }
};

struct ParameterSquare {
  THIMBLE_DEVICE static double* sums() { return parameter_sums; }
  THIMBLE_DEVICE double operator()(const Problem& problem, std::int64_t row, std::int64_t column) const {
    return AdafactorRule::square(problem.parameter(row * problem.columns + column), 0);
  }
};

struct UpdateSquare {
  THIMBLE_DEVICE static double* sums() { return update_sums; }
  THIMBLE_DEVICE double operator()(const Problem& problem, std::int64_t row, std::int64_t column) const {
    return AdafactorRule::square(problem.update(row, column), 0);
  }
};

// The second moments of a batch of rows.
struct RowMoments {
  static constexpr int threads = team_threads;
  Problem problem;
  std::int64_t batch;
  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t unit) const {
    const AdafactorRule rule = problem.rule.get();
    const std::int64_t begin = unit * batch, end = begin + batch < problem.rows ? begin + batch : problem.rows;
    sum_rows(
        team, begin, end, problem.columns,
        [&](std::int64_t row, std::int64_t column) {
          return AdafactorRule::square(problem.gradient(row * problem.columns + column), rule.epsilon1);
        },
        [&](std::int64_t row, std::int64_t n, const double* sums) {
          for (std::int64_t r = team.rank(); r < n; r += Team::size) {
            float& moment = problem.row_moment[row + r];
            moment = rule.moment(moment, sums[r] / static_cast<double>(problem.columns));
          }
        });
  }
};

// Those of 32 columns: `Team::size / width` stretches of rows side by side, which are added in order.
struct ColumnMoments {
  static constexpr int threads = team_threads;
  static constexpr std::size_t bytes = (team_threads + column_tile) * sizeof(double);
  Problem problem;
  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t unit) const {
    constexpr int width = Team::size < column_tile ? Team::size : static_cast<int>(column_tile);
    constexpr int groups = Team::size / width;
    const AdafactorRule rule = problem.rule.get();
    const int lane = team.rank() % width, group = team.rank() / width;
    const std::int64_t first = unit * column_tile;
    auto* const totals = team.template shared<double>();  // (32)
    double* const sums = totals + column_tile;            // (groups, 32)
    for (std::int64_t c = lane; group == 0 && c < column_tile; c += width) totals[c] = 0;
    for (std::int64_t begin = 0; begin < problem.rows; begin += groups * stretch) {
      const std::int64_t row = begin + group * stretch, row_end = row + stretch;
      for (std::int64_t c = lane; c < column_tile; c += width) {
        double sum = 0;
        for (std::int64_t r = row; r < row_end && r < problem.rows && first + c < problem.columns; ++r) {
          sum += AdafactorRule::square(problem.gradient(r * problem.columns + first + c), rule.epsilon1);
        }
        sums[group * column_tile + c] = sum;
      }
      team.sync();
      for (std::int64_t c = lane; group == 0 && c < column_tile; c += width) {
        for (int g = 0; g < groups; ++g) totals[c] += sums[g * column_tile + c];
      }
      team.sync();
    }
    for (std::int64_t c = lane; group == 0 && c < column_tile && first + c < problem.columns; c += width) {
      float& moment = problem.column_moment[first + c];
      moment = rule.moment(moment, totals[c] / static_cast<double>(problem.rows));
    }
  }
};

// The mean of the rows' moments, in shares.
struct RowMean {
  static constexpr int threads = static_cast<int>(shares);
  Problem problem;
  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t) const {
    auto* const sums = team.template shared<double>();
    for (std::int64_t s = team.rank(); s < shares; s += Team::size) {
      const std::int64_t begin = s * problem.share();
      double sum = 0;
      for (std::int64_t row = begin; row < begin + problem.share() && row < problem.rows; ++row) {
        sum += static_cast<double>(problem.row_moment[row]);
      }
      sums[s] = sum;
    }
    team.sync();
    if (team.rank() != 0) return;
    double total = 0;
    for (std::int64_t s = 0; s < shares; ++s) total += sums[s];
    row_mean = static_cast<float>(total / static_cast<double>(problem.rows));
  }
};

// Second moments of a parameter that is not factored.
struct ElementMoments {
  Problem problem;
  THIMBLE_DEVICE void operator()(std::int64_t i) const {
    const AdafactorRule rule = problem.rule.get();
    float& moment = problem.column_moment[i];
    moment = rule.moment(moment, AdafactorRule::square(problem.gradient(i), rule.epsilon1));
  }
};

// What all elements of the update share.
struct FindLength {
  Problem problem;
  THIMBLE_DEVICE double mean(const double* sums) const {
    double total = 0;
    for (std::int64_t s = 0; s < shares; ++s) total += sums[s];
    return total / (static_cast<double>(problem.rows) * static_cast<double>(problem.columns));
  }
  THIMBLE_DEVICE void operator()(std::int64_t) const {
    const AdafactorRule rule = problem.rule.get();
    clipping = rule.clipping(mean(update_sums));
    step_length = rule.length(problem.scales_by_parameter ? mean(parameter_sums) : 0.0);
  }
};

struct Update {
  Problem problem;
  THIMBLE_DEVICE void operator()(std::int64_t i) const {
    const AdafactorRule rule = problem.rule.get();
    const std::int64_t row = i / problem.columns;
    const float u = problem.update(row, i - row * problem.columns);
    float direction = u * clipping;
    if (problem.first) problem.first[i] = direction = rule.momentum(problem.first[i], u, clipping);
    store<float>(problem.p, problem.dtype, i, rule.updated(problem.parameter(i), step_length, direction));
  }
};

}  // namespace adafactor_cuda_detail

void adafactor_on_cuda(const AdafactorArgs& args) {
  using namespace adafactor_cuda_detail;
  const std::int64_t n = args.rows * args.columns;
  if (n == 0) return;
  const Problem problem(args);
  if (args.scales_by_parameter) {
    for_each_team(shares, ShareSums<ParameterSquare>{problem, {}}, shared_bytes);
  }
  if (args.row_moment) {
    const std::int64_t batch = 8;  // rows of a team: many teams, each with work for its threads
    for_each_team((args.rows + batch - 1) / batch, RowMoments{problem, batch}, shared_bytes);
    for_each_team((args.columns + column_tile - 1) / column_tile, ColumnMoments{problem}, ColumnMoments::bytes);
    for_each_team(1, RowMean{problem}, static_cast<std::size_t>(shares) * sizeof(double));
  } else {
    for_each_item(n, ElementMoments{problem});
  }
  for_each_team(shares, ShareSums<UpdateSquare>{problem, {}}, shared_bytes);
  for_each_item(1, FindLength{problem});
  for_each_item(n, Update{problem});
}

}  // namespace thimble::kernels
