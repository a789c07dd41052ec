// Adafactor on CUDA devices: one launch per phase for many parameters; a thread takes eight neighbours of a row at a
// time. Sums have the CPU's order, so the bits equal the CPU's: a thread runs the eight lanes of a tile as parallel
// chains of additions, tile by tile and row by row, and then adds the lanes in order. If a parameter's rows do not
// begin at words of 16 bytes, the eight are read one by one.

#include <cmath>

#include <thimble/core/kernels/shared/update_rule.h>
#include <thimble/cuda/kernel/element.h>
#include <thimble/cuda/kernel/kernel.h>
#include <thimble/cuda/kernel/step_argument.h>
#include <thimble/cuda/optimizer/parameter.h>

namespace thimble::kernels {
namespace adafactor_cuda_detail {

using namespace cuda_kernels;

constexpr std::int64_t tile = AdafactorArgs::tile, shares = AdafactorArgs::shares, stretch = AdafactorArgs::stretch;
constexpr int lanes = AdafactorArgs::lanes;
constexpr int team_threads = 256;
constexpr std::int64_t most_tiles = 256;  // a team sums at a time, from at most as many rows
constexpr std::size_t shared_bytes = (most_tiles * lanes + most_tiles) * sizeof(double);
constexpr std::int64_t column_tile = 32;         // columns per team
constexpr std::int64_t elements_of_team = 4096;  // per team, in phases that treat elements separately

// Sums of each parameter, passed between the kernels of one update, which run in the order of one stream.
struct Totals {
  double parameter_sums[shares], update_sums[shares];
  float row_mean, clipping, step_length;
};
THIMBLE_DEVICE_GLOBAL Totals all_totals[FactoredTable::most];

// Values that change from step to step.
struct Step {
  AdafactorRule rule;
  RandomSite site;
};

// The parameters of a launch, and their common values.
struct List {
  ParameterKind kind;
  DType gradient_dtype;
  bool scales_by_parameter;
  StepArgument<Step> step;
  FactoredTable table;
};

// A parameter, and a team's part of it.
struct Problem {
  std::int64_t n, rows, columns, unit;  // unit: the team's index in this parameter
  Parameter p;
  const void* g;
  DType gradient_dtype;
  float *row_moment, *column_moment, *first;
  const AdafactorRule& rule;
  Totals& totals;
  bool has_words;  // in all arrays, eights from a multiple of 8 in a row on are words of 16 bytes

  THIMBLE_DEVICE Problem(const List& list, int index, std::int64_t team)
      : n(list.table.entries[index].n),
        rows(n > 0 ? n / list.table.entries[index].columns : 0),
        columns(list.table.entries[index].columns),
        unit(list.table.unit_of(team, index)),
        p(list.kind, list.table.entries[index].p, list.table.entries[index].extra, list.step.get().site),
        g(list.table.entries[index].g),
        gradient_dtype(list.gradient_dtype),
        row_moment(list.table.entries[index].row_moment),
        column_moment(list.table.entries[index].column_moment),
        first(list.table.entries[index].momentum),
        rule(list.step.get().rule),
        totals(all_totals[index]),
        has_words((rows == 1 || columns % 8 == 0) && is_word(p.place, p.dtype) && is_word(g, gradient_dtype) &&
                  is_word(p.extra, DType::f32) && is_word(column_moment, DType::f32) && is_word(first, DType::f32)) {}
  THIMBLE_DEVICE Problem(const List& list, std::int64_t team) : Problem(list, list.table.index_of(team), team) {}

  THIMBLE_DEVICE static bool is_word(const void* data, DType dtype) {
    return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 &&
           (dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16);
  }
  THIMBLE_DEVICE std::int64_t row_of(std::int64_t i) const {
    if (((i | columns) >> 32) != 0) return i / columns;  // 64-bit divisions are slow
    return static_cast<std::uint32_t>(i) / static_cast<std::uint32_t>(columns);
  }

  /// Values of eight neighbours from `column` of a row on; only `count` exist, the others are arbitrary.
  THIMBLE_DEVICE void parameters(std::int64_t row, std::int64_t column, int count, Eights& values) const {
    const std::int64_t i = row * columns + column;
    has_words ? p.get_eights(i, n, values) : p.get_singly(i, count, values);
  }
  THIMBLE_DEVICE void gradients(std::int64_t row, std::int64_t column, int count, Eights& values) const {
    const std::int64_t i = row * columns + column;
    read(g, gradient_dtype, i, n, count, values);
    THIMBLE_UNROLL
    for (int e = 0; e < 8; ++e) values[e] *= rule.factor;
  }
  /// The update before clipping.
  THIMBLE_DEVICE void updates(std::int64_t row, std::int64_t column, int count, Eights& values) const {
    gradients(row, column, count, values);
    const float of_row = row_moment ? row_moment[row] / totals.row_mean : 1.0f;
    const std::int64_t at = row_moment ? column : row * columns + column;
    Eights moments;
    read(column_moment, DType::f32, at, row_moment ? columns : n, count, moments);
    THIMBLE_UNROLL
    for (int e = 0; e < 8; ++e) {
      const float product = of_row * moments[e];
      values[e] = values[e] / (product < AdafactorRule::small_product ? std::sqrt(of_row) * std::sqrt(moments[e])
                                                                      : std::sqrt(product));
    }
  }
  THIMBLE_DEVICE void read(const void* data, DType dtype, std::int64_t at, std::int64_t end, int count,
                           Eights& values) const {
    has_words ? read_eights(data, dtype, at, end, values) : read_singly(data, dtype, at, count, values);
  }
  /// Writes the first `count` of eight second moments that are not factored.
  THIMBLE_DEVICE void write_moments(std::int64_t at, int count, const Eights& values) const {
    if (has_words) return put_eights(column_moment, at, n, narrowed<float>(values));
    THIMBLE_UNROLL
    for (int e = 0; e < 8; ++e) {
      if (e < count) column_moment[at + e] = values[e];
    }
  }
  THIMBLE_DEVICE std::int64_t share() const { return (rows + shares - 1) / shares; }
  /// The team's range of elements, in phases that treat elements separately.
  THIMBLE_DEVICE std::int64_t begin() const { return unit * elements_of_team; }
  THIMBLE_DEVICE std::int64_t end() const { return begin() + elements_of_team < n ? begin() + elements_of_team : n; }
};

THIMBLE_DEVICE inline int at_most_eight(std::int64_t count) { return count < 8 ? static_cast<int>(count) : 8; }

// For rows [begin, end), sums the squares of the values from read(row, column, count, Eights&), plus `more` each, in
// the order of tiles and lanes. Completes a batch of rows before the next; calls batch_done(first row, rows, sums).
template <class Team, class Read, class Done>
THIMBLE_DEVICE void sum_rows(Team& team, std::int64_t begin, std::int64_t end, std::int64_t columns, double more,
                             const Read& read, const Done& batch_done) {
  const std::int64_t tiles = (columns + tile - 1) / tile;
  const std::int64_t batch = tiles < most_tiles ? most_tiles / tiles : 1;
  const Shared<double> sums = team.template shared<double>(), row_sums = sums + most_tiles * lanes;
  for (std::int64_t row = begin; row < end; row += batch) {
    const std::int64_t n = end - row < batch ? end - row : batch;
    for (std::int64_t r = team.rank(); r < n; r += Team::size) row_sums[r] = 0;
    for (std::int64_t from = 0; from < tiles; from += most_tiles) {
      const int count = static_cast<int>(tiles - from < most_tiles ? tiles - from : most_tiles);
      for (int i = team.rank(); i < static_cast<int>(n) * count; i += Team::size) {
        const std::int64_t first = (from + i % count) * tile;
        const std::int64_t stop = first + tile < columns ? first + tile : columns;
        double chains[lanes] = {};
        for (std::int64_t c = first; c < stop; c += lanes) {
          const int there = at_most_eight(stop - c);
          Eights x;
          read(row + i / count, c, there, x);
          THIMBLE_UNROLL
          for (int e = 0; e < lanes; ++e) {
            if (e < there) chains[e] += AdafactorRule::square(x[e], more);
          }
        }
        THIMBLE_UNROLL
        for (int e = 0; e < lanes; ++e) sums[i * lanes + e] = chains[e];
      }
      team.sync();
      for (std::int64_t r = team.rank(); r < n; r += Team::size) {
        for (std::int64_t i = 0; i < count * lanes; ++i) row_sums[r] += sums[r * count * lanes + i];
      }
      team.sync();
    }
    batch_done(row, n, row_sums);
    team.sync();  // the next batch overwrites the sums
  }
}

// Sums each share's rows: of parameters, or of updates before clipping.
template <bool of_updates>
struct ShareSums {
  static constexpr int threads = team_threads;
  List list;
  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t number) const {
    const Problem problem(list, number);
    const std::int64_t share = problem.unit;
    const std::int64_t begin = share * problem.share();
    const std::int64_t end = begin + problem.share() < problem.rows ? begin + problem.share() : problem.rows;
    double total = 0;  // on the first thread
    sum_rows(
        team, begin, end, problem.columns, 0.0,
        [&](std::int64_t row, std::int64_t column, int count, Eights& x) {
          of_updates ? problem.updates(row, column, count, x) : problem.parameters(row, column, count, x);
        },
        [&](std::int64_t, std::int64_t n, const Shared<double>& sums) {
          for (std::int64_t r = 0; team.rank() == 0 && r < n; ++r) total += sums[r];
        });
    Totals& totals = problem.totals;
    if (team.rank() == 0) (of_updates ? totals.update_sums : totals.parameter_sums)[share] = total;
  }
};

// The second moments of a batch of rows.
struct RowMoments {
  static constexpr int threads = team_threads;
  static constexpr std::int64_t batch = 32;  // many teams, each with work for its threads
  List list;
  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t number) const {
    const Problem problem(list, number);
    const AdafactorRule rule = problem.rule;
    const std::int64_t begin = problem.unit * batch, end = begin + batch < problem.rows ? begin + batch : problem.rows;
    sum_rows(
        team, begin, end, problem.columns, rule.epsilon1,
        [&](std::int64_t row, std::int64_t column, int count, Eights& x) { problem.gradients(row, column, count, x); },
        [&](std::int64_t row, std::int64_t n, const Shared<double>& sums) {
          for (std::int64_t r = team.rank(); r < n; r += Team::size) {
            float& moment = problem.row_moment[row + r];
            moment = rule.moment(moment, sums[r] / static_cast<double>(problem.columns));
          }
        });
  }
};

// Second moments of 32 columns, eight per thread: `groups` ranges of rows in parallel, added in order.
struct ColumnMoments {
  static constexpr int threads = team_threads;
  static constexpr int width = static_cast<int>(column_tile) / lanes, groups = threads / width;
  static constexpr std::size_t bytes = groups * column_tile * sizeof(double);
  List list;
  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t number) const {
    const Problem problem(list, number);
    const AdafactorRule rule = problem.rule;
    const int rank = team.rank(), group = rank / width;
    const std::int64_t first = problem.unit * column_tile, column = first + rank % width * lanes;
    const int there = column < problem.columns ? at_most_eight(problem.columns - column) : 0;
    const Shared<double> sums = team.template shared<double>();  // (groups, column_tile)
    double total = 0;                                            // a column's, on the first threads
    for (std::int64_t begin = 0; begin < problem.rows; begin += groups * stretch) {
      const std::int64_t row = begin + group * stretch;
      const std::int64_t row_end = row + stretch < problem.rows ? row + stretch : problem.rows;
      double chains[lanes] = {};
      for (std::int64_t r = row; r < row_end && there > 0; ++r) {
        Eights x;
        problem.gradients(r, column, there, x);
        THIMBLE_UNROLL
        for (int e = 0; e < lanes; ++e) chains[e] += AdafactorRule::square(x[e], rule.epsilon1);
      }
      THIMBLE_UNROLL
      for (int e = 0; e < lanes; ++e) sums[lanes * rank + e] = chains[e];
      team.sync();
      for (int g = 0; rank < column_tile && g < groups; ++g) total += sums[g * column_tile + rank];
      team.sync();
    }
    if (rank >= column_tile || first + rank >= problem.columns) return;
    float& moment = problem.column_moment[first + rank];
    moment = rule.moment(moment, total / static_cast<double>(problem.rows));
  }
};

// The mean of the rows' moments, summed in shares.
struct RowMean {
  static constexpr int threads = static_cast<int>(shares);
  List list;
  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t number) const {
    const Problem problem(list, number);
    const Shared<double> sums = team.template shared<double>();
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
    problem.totals.row_mean = static_cast<float>(total / static_cast<double>(problem.rows));
  }
};

// Second moments of a parameter that is not factored.
struct ElementMoments {
  static constexpr int threads = team_threads;
  List list;
  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t number) const {
    const Problem problem(list, number);
    const AdafactorRule rule = problem.rule;
    for (std::int64_t i = problem.begin() + 8 * team.rank(); i < problem.end(); i += 8 * Team::size) {
      const int there = at_most_eight(problem.n - i);
      Eights x, moments;
      problem.gradients(0, i, there, x);
      problem.read(problem.column_moment, DType::f32, i, problem.n, there, moments);
      THIMBLE_UNROLL
      for (int e = 0; e < 8; ++e) moments[e] = rule.moment(moments[e], AdafactorRule::square(x[e], rule.epsilon1));
      problem.write_moments(i, there, moments);
    }
  }
};

// Computes the values that all elements of the update share.
struct FindLength {
  List list;
  THIMBLE_DEVICE static double mean(const Problem& problem, const double* sums) {
    double total = 0;
    for (std::int64_t s = 0; s < shares; ++s) total += sums[s];
    return total / (static_cast<double>(problem.rows) * static_cast<double>(problem.columns));
  }
  THIMBLE_DEVICE void operator()(std::int64_t index) const {
    const Problem problem(list, static_cast<int>(index), 0);
    if (problem.n == 0) return;
    Totals& totals = problem.totals;
    totals.clipping = problem.rule.clipping(mean(problem, totals.update_sums));
    totals.step_length = problem.rule.length(list.scales_by_parameter ? mean(problem, totals.parameter_sums) : 0.0);
  }
};

struct Update {
  static constexpr int threads = team_threads;
  List list;
  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t number) const {
    const Problem problem(list, number);
    const AdafactorRule rule = problem.rule;
    const float clipping = problem.totals.clipping, step_length = problem.totals.step_length;
    const auto direction = [&](float u, float& momentum) {
      if (!problem.first) return u * clipping;
      momentum = rule.momentum(momentum, u, clipping);
      return momentum;
    };
    if (!problem.has_words) {  // eight neighbours may span two rows
      for (std::int64_t i = problem.begin() + team.rank(); i < problem.end(); i += Team::size) {
        const std::int64_t row = problem.row_of(i);
        Eights u;
        problem.updates(row, i - row * problem.columns, 1, u);
        float momentum = problem.first ? problem.first[i] : 0;
        problem.p.set<float>(i, rule.updated(problem.p.get<float>(i), step_length, direction(u[0], momentum)));
        if (problem.first) problem.first[i] = momentum;
      }
      return;
    }
    for (std::int64_t i = problem.begin() + 8 * team.rank(); i < problem.end(); i += 8 * Team::size) {
      const std::int64_t row = problem.row_of(i);
      Eights u, p, momentum{};
      problem.updates(row, i - row * problem.columns, 8, u);
      problem.p.get_eights(i, problem.n, p);
      if (problem.first) read_eights(problem.first, DType::f32, i, problem.n, momentum);
      THIMBLE_UNROLL
      for (int e = 0; e < 8; ++e) p[e] = rule.updated(p[e], step_length, direction(u[e], momentum[e]));
      if (problem.first) write_eights(problem.first, DType::f32, i, problem.n, momentum);
      problem.p.set_eights(i, problem.n, p);
    }
  }
};

std::int64_t in_parts(std::int64_t n, std::int64_t part) { return (n + part - 1) / part; }

// The list with teams_of(entry) teams for each entry that has elements.
template <class TeamsOf>
List with_teams(const List& list, const TeamsOf& teams_of) {
  List phase = list;
  phase.table.teams = 0;
  for (int i = 0; i < phase.table.count; ++i) {
    const FactoredEntry& entry = phase.table.entries[i];
    phase.table.begins[i] = phase.table.teams;
    if (entry.n > 0) phase.table.teams += static_cast<std::uint32_t>(teams_of(entry));
  }
  return phase;
}

// Launches a phase, unless no entry has teams.
template <class Body, class TeamsOf>
void run_phase(const List& list, std::size_t shared_bytes, const TeamsOf& teams_of) {
  static_assert(sizeof(Body) <= most_argument_bytes);
  const List phase = with_teams(list, teams_of);
  for_each_team(phase.table.teams, Body{phase}, shared_bytes);
}

void run_phases(const AdafactorArgs& args, const FactoredTable& table) {
  const auto make = [](const AdafactorArgs& now) { return Step{AdafactorRule(now), now.narrow.site}; };
  const List list{ParameterKind(args), args.gradient_dtype, args.scales_by_parameter, step_argument(args, make), table};
  const auto of_shares = [](const FactoredEntry&) { return shares; };
  const auto of_factored = [](auto&& teams_of) {
    return [teams_of](const FactoredEntry& e) { return e.row_moment ? teams_of(e) : 0; };
  };
  if (args.scales_by_parameter) run_phase<ShareSums<false>>(list, shared_bytes, of_shares);
  run_phase<RowMoments>(list, shared_bytes, of_factored([](const FactoredEntry& e) {
                          return in_parts(e.n / e.columns, RowMoments::batch);
                        }));
  run_phase<ColumnMoments>(list, ColumnMoments::bytes,
                           of_factored([](const FactoredEntry& e) { return in_parts(e.columns, column_tile); }));
  run_phase<RowMean>(list, static_cast<std::size_t>(shares) * sizeof(double),
                     of_factored([](const FactoredEntry&) { return std::int64_t{1}; }));
  run_phase<ElementMoments>(
      list, 0, [](const FactoredEntry& e) { return e.row_moment ? std::int64_t{0} : in_parts(e.n, elements_of_team); });
  run_phase<ShareSums<true>>(list, shared_bytes, of_shares);
  for_each_item(table.count, FindLength{list});
  run_phase<Update>(list, 0, [](const FactoredEntry& e) { return in_parts(e.n, elements_of_team); });
}

// Upper bound of the teams of any phase.
std::int64_t most_teams_of(const AdafactorArgs& a) {
  const std::int64_t n = a.rows * a.columns;
  return n > 0 ? in_parts(n, RowMoments::batch) + shares : 0;
}

}  // namespace adafactor_cuda_detail

void adafactor_on_cuda(std::span<const AdafactorArgs> list) {
  const std::lock_guard together(cuda_kernels::launches_together);
  cuda_kernels::for_each_table(list, adafactor_cuda_detail::most_teams_of, adafactor_cuda_detail::run_phases);
}

}  // namespace thimble::kernels
