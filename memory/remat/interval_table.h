#pragma once
// The table of the chain solver (frontier.h): for every interval of stages, least time as a step function of bytes.
//
// Invariants
// - From one breakpoint of a step function to the next, bytes rise and times fall, both strictly. The first breakpoint
//   has the fewest bytes with which the interval can run.
// - Bytes count beyond the bytes held when the visit of the interval begins.
// - A shared tensor from before the interval counts as freed after the visit's last backward that reads it. If a stage
//   before the interval holds it longer, the schedule's bytes are too low by this tensor.
// - Intervals are solved by rising length, so both parts of a split are solved before the whole.
//
// Example: two equal stages that keep 2 bytes, with activations and gradients of 1 byte and forwards and backwards of
// time 1. The whole chain's step function is (5 bytes, time 5), which drops stage 0 and runs it again, and (7 bytes,
// time 4), which records both.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <thimble/memory/remat/chain.h>
#include <thimble/memory/remat/interval_classes.h>
#include <thimble/memory/remat/schedule.h>

namespace thimble::remat {

namespace interval_table_detail {
struct Walk;
}

class IntervalTable {
 public:
  /// From `bytes` up to the next breakpoint, `time` is the least time. Choice -1 - p records with the first stage's
  /// option at place p (IntervalClasses::Record), choice j > 0 drops the first j stages.
  struct Breakpoint {
    Bytes bytes;
    Time time;
    std::int32_t choice;
  };

  /// Limits on breakpoints and splits.
  struct Thinning {
    /// Breakpoints per interval, >= 1; the first is always exact.
    std::size_t limit = std::size_t{1} << 40;
    /// Thin to a lower bound. By default every breakpoint that remains can be reached.
    bool is_below = false;
    /// Drop only 2^k stages, or all but 2^k, unless another number needs fewer bytes than all of these. For limits that
    /// would be small otherwise: the finer breakpoints gain more than the splits lose.
    bool has_few_splits = false;
    /// Give up once the forecast of visited breakpoints passes this; 0 never gives up.
    std::int64_t work = 0;
  };

  /// Solves every class. Chain and classes must outlive the table.
  IntervalTable(const Chain& chain, const IntervalClasses& classes, const Thinning& thinning);

  /// Thinning::work was exceeded: call nothing else.
  bool is_abandoned() const noexcept { return is_abandoned_; }

  /// The step function of the whole chain, in bytes beyond the chain's input.
  std::span<const Breakpoint> whole() const { return of(0, chain_->size() - 1, false); }

  /// The plan behind the last breakpoint within `bytes` (beyond the chain's input), which must exist.
  ScheduleTree plan(Bytes bytes) const;

 private:
  using Interval = IntervalClasses::Interval;

  /// One way to treat an interval: `time` plus one or two tables, each read at the bytes at hand less its shift.
  struct Candidate {
    std::int32_t choice = 0;
    Time time = 0;
    Bytes least = 0;  // largest need of its forwards and its backward
    std::span<const Breakpoint> first, second;
    Bytes first_shift = 0, second_shift = 0;
  };
  struct Range {
    std::size_t begin, size;
  };
  /// Bytes of shared tensors in an interval (a, b), by k - a.
  struct SharedBytes {
    std::vector<Bytes> read;     // made in a..k-1, read in k..b
    std::vector<Bytes> made;     // made in a..k-1, read in k or later, after b too
    std::vector<Bytes> output;   // made in k
    std::vector<Bytes> is_over;  // made before a, read in k..b, but not in a..k-1
  };

  std::span<const Breakpoint> of(std::size_t a, std::size_t b, bool is_pinned) const {
    const Range& range = ranges_[classes_->of(a, b, is_pinned)];
    return {pool_.data() + range.begin, range.size};
  }
  Bytes outer_gradient(std::size_t b) const { return b + 1 < chain_->size() ? chain_->gradient_bytes(b + 1) : 0; }
  void find_shared(const Interval& interval, SharedBytes& bytes) const;
  Bytes drop_shift(std::size_t a, std::size_t j, const SharedBytes& shared) const;
  Bytes recompute_shift(std::size_t a, std::size_t j, std::size_t b, const SharedBytes& shared) const;
  Bytes record_shift(const Interval& interval, const Option& option, const SharedBytes& shared) const;
  Bytes kept_bytes(const Option& option) const;
  /// Gradients of shared tensors that cross the boundary before stage i.
  Bytes shared_gradients(std::size_t i) const { return crossing_gradients(i, i); }
  /// Gradients of shared tensors that cross every boundary from the one before a to the one before e.
  Bytes crossing_gradients(std::size_t a, std::size_t e) const {
    return crossing_gradients_.empty() ? 0 : crossing_gradients_[a * (chain_->size() + 1) + e];
  }

  void solve(const Interval& interval);
  double forecast(std::size_t length) const;
  void consider_records(const Interval& interval);
  void consider_drops(const Interval& interval);
  void consider(const Candidate& candidate);
  void merge(interval_table_detail::Walk walk, const Candidate& candidate);
  void thin(std::size_t limit);

  const Chain* chain_;
  const IntervalClasses* classes_;
  Thinning thinning_;
  bool is_abandoned_ = false;
  std::vector<Bytes> parameter_sums_;      // gradients of the parameters of the stages before i
  std::vector<Bytes> crossing_gradients_;  // by pairs of boundaries; empty without shared tensors
  SharedBytes shared_;                     // of the current interval
  std::vector<Range> ranges_;              // by class
  std::vector<Breakpoint> pool_;
  std::vector<Breakpoint> best_, merged_;  // of the current interval
};

}  // namespace thimble::remat
