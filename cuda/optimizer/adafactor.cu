// Adafactor on CUDA devices: a launch for each phase of many parameters. Sums have the CPU's order, so the bits are its
// own: the eight lanes of a tile are chains of additions that run side by side, tile by tile and row by row, and are
// then added in order.

#include <cmath>

#include <thimble/core/kernels/shared/update_rule.h>
#include <thimble/cuda/kernel/element.h>
#include <thimble/cuda/kernel/launches_together.h>
#include <thimble/cuda/optimizer/adafactor.h>
#include <thimble/cuda/optimizer/parameter.h>
#include <thimble/cuda/optimizer/update_list.h>
#include <thimble/cuda/runtime/step_argument.h>

namespace thimble::kernels {
namespace adafactor_cuda_detail {

using namespace cuda_kernels;

constexpr std::int64_t tile = AdafactorArgs::tile, shares = AdafactorArgs::shares, stretch = AdafactorArgs::stretch;
constexpr int lanes = AdafactorArgs::lanes;
constexpr int team_threads = 256;
constexpr std::int64_t most_chains = 1024;               // whose sums a team has at a time
constexpr std::int64_t most_rows = most_chains / lanes;  // that they belong to
constexpr std::size_t shared_bytes = (most_chains + most_rows) * sizeof(double);
constexpr std::int64_t column_tile = 32;         // columns of a team
constexpr std::int64_t elements_of_team = 4096;  // where each is by itself

// Of each parameter of a launch, between the kernels of one update, which run in the order of one stream.
struct Totals {
  double parameter_sums[shares], update_sums[shares];
  float row_mean, clipping, step_length;
};
THIMBLE_DEVICE_GLOBAL Totals all_totals[FactoredTable::most];

// What changes from step to step.
struct Step {
  AdafactorRule rule;
  RandomSite site;
};

// The parameters of a launch, and what they share.
struct List {
  ParameterKind kind;
  DType gradient_dtype;
  bool scales_by_parameter;
  StepArgument<Step> step;
  FactoredTable table;
};

// One of them, and what of it a team does.
struct Problem {
  std::int64_t n, rows, columns, unit;  // unit: number of the team among its own
  Parameter p;
  const void* g;
  DType gradient_dtype;
  float *row_moment, *column_moment, *first;
  const AdafactorRule& rule;
  Totals& totals;

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
        totals(all_totals[index]) {}
  THIMBLE_DEVICE Problem(const List& list, std::int64_t team) : Problem(list, list.table.index_of(team), team) {}

  THIMBLE_DEVICE float parameter(std::int64_t i) const { return p.get<float>(i); }
  THIMBLE_DEVICE float gradient(std::int64_t i) const { return load<float>(g, gradient_dtype, i) * rule.factor; }
  /// The update before it is clipped.
  THIMBLE_DEVICE float update(std::int64_t row, std::int64_t column) const {
    const std::int64_t i = row * columns + column;
    const float of_row = row_moment ? row_moment[row] / totals.row_mean : 1.0f;
    const float v = of_row * column_moment[row_moment ? column : i];
    return gradient(i) / std::sqrt(v);
  }
  THIMBLE_DEVICE std::int64_t share() const { return (rows + shares - 1) / shares; }
  /// The elements of a team, where it has a stretch of them.
  THIMBLE_DEVICE std::int64_t begin() const { return unit * elements_of_team; }
  THIMBLE_DEVICE std::int64_t end() const { return begin() + elements_of_team < n ? begin() + elements_of_team : n; }
};

// done(row, sum) for each of the rows [begin, end), on the thread that has its sum: square(row, column) in the order of
// tiles and lanes. All rows of a batch are done before the next one is begun; batch_done(rows of it, their sums).
template <class Team, class Square, class Done>
THIMBLE_DEVICE void sum_rows(Team& team, std::int64_t begin, std::int64_t end, std::int64_t columns,
                             const Square& square, const Done& batch_done) {
  const std::int64_t chains = (columns + tile - 1) / tile * lanes;
  const std::int64_t batch = chains < most_chains ? most_chains / chains : 1;
  const Shared<double> sums = team.template shared<double>(), row_sums = sums + most_chains;
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
  List list;
  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t number) const {
    const Problem problem(list, number);
    const Square square{};
    const std::int64_t share = problem.unit;
    const std::int64_t begin = share * problem.share();
    const std::int64_t end = begin + problem.share() < problem.rows ? begin + problem.share() : problem.rows;
    double total = 0;  // the first thread's
    sum_rows(
        team, begin, end, problem.columns,
        [&](std::int64_t row, std::int64_t column) { return square(problem, row, column); },
        [&](std::int64_t, std::int64_t n, const Shared<double>& sums) {
          for (std::int64_t r = 0; team.rank() == 0 && r < n; ++r) total += sums[r];
        });
    if (team.rank() == 0) Square::sums(problem.totals)[share] = total;
  }
};

struct ParameterSquare {
  THIMBLE_DEVICE static double* sums(Totals& totals) { return totals.parameter_sums; }
  THIMBLE_DEVICE double operator()(const Problem& problem, std::int64_t row, std::int64_t column) const {
    return AdafactorRule::square(problem.parameter(row * problem.columns + column), 0);
  }
};

struct UpdateSquare {
  THIMBLE_DEVICE static double* sums(Totals& totals) { return totals.update_sums; }
  THIMBLE_DEVICE double operator()(const Problem& problem, std::int64_t row, std::int64_t column) const {
    return AdafactorRule::square(problem.update(row, column), 0);
  }
};

// The second moments of a batch of rows.
struct RowMoments {
  static constexpr int threads = team_threads;
  static constexpr std::int64_t batch = 8;  // many teams, each with work for its threads
  List list;
  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t number) const {
    const Problem problem(list, number);
    const AdafactorRule rule = problem.rule;
    const std::int64_t begin = problem.unit * batch, end = begin + batch < problem.rows ? begin + batch : problem.rows;
    sum_rows(
        team, begin, end, problem.columns,
        [&](std::int64_t row, std::int64_t column) {
          return AdafactorRule::square(problem.gradient(row * problem.columns + column), rule.epsilon1);
        },
        [&](std::int64_t row, std::int64_t n, const Shared<double>& sums) {
          for (std::int64_t r = team.rank(); r < n; r += Team::size) {
            float& moment = problem.row_moment[row + r];
            moment = rule.moment(moment, sums[r] / static_cast<double>(problem.columns));
          }
        });
  }
};

// Those of 32 columns: `groups` stretches of rows side by side, which are added in order.
struct ColumnMoments {
  static constexpr int threads = team_threads;
  static constexpr std::size_t bytes = team_threads * sizeof(double);
  List list;
  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t number) const {
    constexpr int width = static_cast<int>(column_tile), groups = Team::size / width;
    const Problem problem(list, number);
    const AdafactorRule rule = problem.rule;
    const int lane = team.rank() % width, group = team.rank() / width;
    const std::int64_t first = problem.unit * column_tile;
    const bool is_there = first + lane < problem.columns;
    const Shared<double> sums = team.template shared<double>();  // (groups, width)
    double total = 0;                                            // of the first group's threads
    for (std::int64_t begin = 0; begin < problem.rows; begin += groups * stretch) {
      const std::int64_t row = begin + group * stretch, row_end = row + stretch;
      double sum = 0;
      for (std::int64_t r = row; r < row_end && r < problem.rows && is_there; ++r) {
        sum += AdafactorRule::square(problem.gradient(r * problem.columns + first + lane), rule.epsilon1);
      }
      sums[team.rank()] = sum;
      team.sync();
      for (int g = 0; group == 0 && g < groups; ++g) total += sums[g * width + lane];
      team.sync();
    }
    if (group != 0 || !is_there) return;
    float& moment = problem.column_moment[first + lane];
    moment = rule.moment(moment, total / static_cast<double>(problem.rows));
  }
};

// The mean of the rows' moments, in shares.
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
    for (std::int64_t i = problem.begin() + team.rank(); i < problem.end(); i += Team::size) {
      float& moment = problem.column_moment[i];
      moment = rule.moment(moment, AdafactorRule::square(problem.gradient(i), rule.epsilon1));
    }
  }
};

// What all elements of the update share.
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
    for (std::int64_t i = problem.begin() + team.rank(); i < problem.end(); i += Team::size) {
      const std::int64_t row = i / problem.columns;
      const float u = problem.update(row, i - row * problem.columns);
      float direction = u * clipping;
      if (problem.first) problem.first[i] = direction = rule.momentum(problem.first[i], u, clipping);
      problem.p.set<float>(i, rule.updated(problem.parameter(i), step_length, direction));
    }
  }
};

std::int64_t in_parts(std::int64_t n, std::int64_t part) { return (n + part - 1) / part; }

// The list with teams_of(entry) teams for each that has elements.
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

// A launch of a phase, of none where no entry has teams.
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
  if (args.scales_by_parameter) run_phase<ShareSums<ParameterSquare>>(list, shared_bytes, of_shares);
  run_phase<RowMoments>(list, shared_bytes, of_factored([](const FactoredEntry& e) {
                          return in_parts(e.n / e.columns, RowMoments::batch);
                        }));
  run_phase<ColumnMoments>(list, ColumnMoments::bytes,
                           of_factored([](const FactoredEntry& e) { return in_parts(e.columns, column_tile); }));
  run_phase<RowMean>(list, static_cast<std::size_t>(shares) * sizeof(double),
                     of_factored([](const FactoredEntry&) { return std::int64_t{1}; }));
  run_phase<ElementMoments>(
      list, 0, [](const FactoredEntry& e) { return e.row_moment ? std::int64_t{0} : in_parts(e.n, elements_of_team); });
  run_phase<ShareSums<UpdateSquare>>(list, shared_bytes, of_shares);
  for_each_item(table.count, FindLength{list});
  run_phase<Update>(list, 0, [](const FactoredEntry& e) { return in_parts(e.n, elements_of_team); });
}

// Teams of any phase, at most.
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
