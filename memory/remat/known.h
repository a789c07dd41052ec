#pragma once
// Schedules from the literature, for chains whose stages are taken as equal. All of them record with option 0;
// with_options() chooses others.
//
// Terms
//   slot         place for one activation that a re-run can start from, the chain's input included
//   repetition   r: how often a stage is run forward at most before it is recorded

#include <cstddef>
#include <cstdint>
#include <span>

#include <thimble/memory/remat/schedule.h>

namespace thimble::remat {

/// Records every stage in one visit: no recomputation but that inside of an option. Throws ValueError when n is 0, as
/// do the others below.
ScheduleTree keep_all(std::size_t n);

/// Records stage i with options[i]: selective recomputation, each stage by its own option.
ScheduleTree selective(std::span<const std::uint32_t> options);

/// The plan with stage i recorded with options[i]. Throws PlanError when the plan has a stage beyond them.
ScheduleTree with_options(ScheduleTree plan, std::span<const std::uint32_t> options);

/// Segments of k stages, dropped all but the last: the activations between them stay, and each segment is run a second
/// time. Holds n / k + k stages' worth (Chen et al. 2016, section 4.1). Throws ValueError when k is 0.
ScheduleTree every_kth(std::size_t n, std::size_t k);

/// every_kth with k = ceil(sqrt(n)): 2 sqrt(n) stages' worth for at most one more forward.
ScheduleTree square_root(std::size_t n);

/// Drops the first half, records the rest in the same way, and so again on every re-run: about log2(n) activations held
/// and n log2(n) / 2 forwards beyond recording (Chen et al. 2016, section 4.3, with two parts on each level).
ScheduleTree recursive_halves(std::size_t n);

/// The binomial schedule of Griewank & Walther 2000 (Revolve): with `slots` activations held at once, the least number
/// of forwards, which is revolve_forward_count(n, slots). One stage is recorded at a time. Throws ValueError when slots
/// is 0.
ScheduleTree binomial(std::size_t n, std::size_t slots);

/// C(n, k), saturating at largest_total.
std::int64_t binomial_coefficient(std::int64_t n, std::int64_t k);

/// The least r with n <= C(slots + r, slots): the repetitions that n stages need.
std::int64_t revolve_repetitions(std::size_t n, std::size_t slots);

/// t(n, slots) = r n - C(slots + r, r - 1), r = revolve_repetitions: forwards that record nothing (Griewank & Walther
/// 2000, proposition 1). Every stage is recorded once besides, so n + t forwards run in all.
std::int64_t revolve_forward_count(std::size_t n, std::size_t slots);

}  // namespace thimble::remat
