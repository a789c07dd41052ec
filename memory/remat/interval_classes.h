#pragma once
// Classes of intervals of a chain that are equal in every number that the chain solver reads, so that it solves each
// class once.

#include <cstddef>
#include <cstdint>
#include <vector>

#include <thimble/memory/remat/chain.h>

namespace thimble::remat {

class IntervalClasses {
 public:
  /// Stages a..b; is_pinned: a_a stays after this interval, because stage a - 1 was recorded and reads it.
  struct Interval {
    std::size_t a = 0, b = 0;
    bool is_pinned = false;

    std::size_t length() const noexcept { return b - a + 1; }
  };

  explicit IntervalClasses(const Chain& chain);

  /// The class of an interval.
  std::uint32_t of(std::size_t a, std::size_t b, bool is_pinned) const {
    return class_of_[((is_pinned && has_pinned_ ? 1 : 0) * size_ + a) * size_ + b];
  }

  /// One interval of each class, by rising length, so that parts of an interval come before it.
  const std::vector<Interval>& representatives() const noexcept { return representatives_; }

  /// One way to record, by its place among a stage's options sorted by span. Intervals of a class agree on the places
  /// of options that fit into them, but not always on the indices.
  struct Record {
    std::uint32_t place, option, span;
  };

  /// Options of a stage that no other option of equal span dominates, by rising span.
  const std::vector<Record>& records(std::size_t stage) const { return records_[stage]; }
  /// The index of the option at a place.
  std::uint32_t option_at(std::size_t stage, std::size_t place) const { return by_span_[stage][place]; }

  /// Number of splits, summed over the classes: the work of solving, in pairs of parts. Options that span several
  /// stages count as splits. With few splits, only splits with is_few_split() count.
  std::int64_t split_count(bool has_few_splits) const noexcept;

  /// Whether one of two parts has 2^k stages.
  static bool is_few_split(std::size_t first, std::size_t second) noexcept {
    return (first & (first - 1)) == 0 || (second & (second - 1)) == 0;
  }

  /// Options of the interval's first stage that span several stages and fit into it.
  std::size_t long_records(const Interval& interval) const;

 private:
  void sort_options(const Chain& chain);
  void number_ends(const Chain& chain);
  void number_intervals(const Chain& chain);

  std::size_t size_;
  bool has_pinned_ = false;  // pinned intervals differ from others only if some option gives its input up
  std::size_t longest_span_ = 1;
  // [b][min(l, longest_span_) - 1]: the kind of stage b at the end of an interval of l stages. Stages of one kind have
  // equal numbers, and so do the options that end with them and fit into the interval.
  std::vector<std::vector<std::uint32_t>> end_kinds_;
  std::vector<std::vector<std::uint32_t>> by_span_;  // option at each place, per stage
  std::vector<std::vector<Record>> records_;
  std::vector<std::uint32_t> class_of_;
  std::vector<Interval> representatives_;
};

}  // namespace thimble::remat
