#include <algorithm>
#include <limits>

#include <thimble/memory/remat/interval_table.h>

namespace thimble::remat {

namespace interval_table_detail {

using Points = std::span<const IntervalTable::Breakpoint>;

/// The last breakpoint within `bytes`; the end when there is none.
Points::iterator last_within(Points points, Bytes bytes) {
  const auto after = std::upper_bound(points.begin(), points.end(), bytes,
                                      [](Bytes value, const auto& point) { return value < point.bytes; });
  return after == points.begin() ? points.end() : after - 1;
}

constexpr Bytes never = std::numeric_limits<Bytes>::max();

}  // namespace interval_table_detail

IntervalTable::IntervalTable(const Chain& chain, const IntervalClasses& classes, std::size_t limit, Thinning thinning)
    : chain_(&chain), classes_(&classes), limit_(std::max<std::size_t>(limit, 1)), thinning_(thinning) {
  parameter_sums_.assign(1, 0);
  for (const Stage& stage : chain.stages) {
    parameter_sums_.push_back(parameter_sums_.back() + stage.parameter_gradient_bytes);
  }
  ranges_.reserve(classes.representatives().size());
  for (const Interval& interval : classes.representatives()) solve(interval);
}

// When a segment is run again, d_j and the parameters' gradients of the stages after it have come, d_{b+1} has gone.
Bytes IntervalTable::rerun_shift(std::size_t j, std::size_t b) const {
  return chain_->gradient_bytes(j) - outer_gradient(b) + parameter_sums_[b + 1] - parameter_sums_[j];
}

// What recording stage a adds to what is held while the stages after it have their visit.
Bytes IntervalTable::record_shift(const Interval& interval, const Option& option) const {
  const bool gives_input_up = !option.keeps_input && !interval.is_pinned;
  return option.kept_bytes + chain_->activation_bytes(interval.a + 1) -
         (gives_input_up ? chain_->activation_bytes(interval.a) : 0);
}

void IntervalTable::solve(const Interval& interval) {
  best_.clear();
  consider_records(interval);
  consider_drops(interval);
  thin(limit_);
  ranges_.push_back({pool_.size(), best_.size()});
  pool_.insert(pool_.end(), best_.begin(), best_.end());
  largest_ = std::max(largest_, best_.size());
}

void IntervalTable::consider_records(const Interval& interval) {
  const auto [a, b, is_pinned] = interval;
  const Stage& stage = chain_->stages[a];
  const Bytes made = chain_->gradient_bytes(a) + stage.parameter_gradient_bytes;
  for (const std::uint32_t o : classes_->options(a)) {
    const Option& option = stage.options[o];
    Candidate candidate;
    candidate.choice = -1 - static_cast<std::int32_t>(o);
    candidate.time = option.forward_time + option.recompute_time + option.backward_time;
    candidate.first_shift = record_shift(interval, option);
    const Bytes forward = option.kept_bytes + stage.output_bytes + option.forward_peak_bytes;
    const Bytes held = candidate.first_shift - (option.keeps_output ? 0 : stage.output_bytes) +
                       stage.output_gradient_bytes - outer_gradient(b) + parameter_sums_[b + 1] -
                       parameter_sums_[a + 1];
    const Bytes backward = held + std::max(option.recompute_peak_bytes, made + option.backward_peak_bytes);
    candidate.least = std::max(forward, backward);
    if (a < b) candidate.first = of(a + 1, b, option.keeps_output);
    consider(candidate);
  }
}

void IntervalTable::consider_drops(const Interval& interval) {
  const auto [a, b, is_pinned] = interval;
  Candidate candidate;
  for (std::size_t j = a + 1; j <= b; ++j) {
    const Stage& passed = chain_->stages[j - 1];
    candidate.choice = static_cast<std::int32_t>(j - a);
    candidate.time += passed.forward_time;
    // Beyond a_a: the input of the stage that is passed, its output, its temporaries.
    candidate.least = std::max(candidate.least, (j - 1 > a ? chain_->activation_bytes(j - 1) : 0) +
                                                    passed.output_bytes + passed.forward_peak_bytes);
    candidate.first = of(j, b, false);
    candidate.first_shift = passed.output_bytes;
    candidate.second = of(a, j - 1, is_pinned);
    candidate.second_shift = rerun_shift(j, b);
    consider(candidate);
  }
}

void IntervalTable::consider(const Candidate& candidate) {
  Bytes begin = std::max<Bytes>(candidate.least, 0);
  Time fastest = candidate.time;
  if (!candidate.first.empty()) {
    begin = std::max(begin, candidate.first.front().bytes + candidate.first_shift);
    fastest += candidate.first.back().time;
  }
  if (!candidate.second.empty()) {
    begin = std::max(begin, candidate.second.front().bytes + candidate.second_shift);
    fastest += candidate.second.back().time;
  }
  const auto rival = interval_table_detail::last_within(best_, begin);
  if (rival != interval_table_detail::Points(best_).end() && rival->time <= fastest) return;
  add_up(candidate, begin);
  merge();
}

/// The candidate as a step function, into sum_.
void IntervalTable::add_up(const Candidate& candidate, Bytes begin) {
  using interval_table_detail::never;
  sum_.clear();
  const auto start = [&](std::span<const Breakpoint> points, Bytes shift) {
    return points.empty() ? std::size_t{0}
                          : static_cast<std::size_t>(interval_table_detail::last_within(points, begin - shift) -
                                                     std::span<const Breakpoint>(points).begin());
  };
  std::size_t i = start(candidate.first, candidate.first_shift);
  std::size_t k = start(candidate.second, candidate.second_shift);
  Bytes at = begin;
  while (true) {
    const Time time = candidate.time + (candidate.first.empty() ? 0 : candidate.first[i].time) +
                      (candidate.second.empty() ? 0 : candidate.second[k].time);
    sum_.push_back({at, time, candidate.choice});
    const Bytes next_first =
        i + 1 < candidate.first.size() ? candidate.first[i + 1].bytes + candidate.first_shift : never;
    const Bytes next_second =
        k + 1 < candidate.second.size() ? candidate.second[k + 1].bytes + candidate.second_shift : never;
    at = std::min(next_first, next_second);
    if (at == never) return;
    if (next_first == at) ++i;
    if (next_second == at) ++k;
  }
}

/// best_ becomes the lesser of itself and sum_. Most candidates improve nothing, which is found out without writing.
void IntervalTable::merge() {
  constexpr Time unreached = std::numeric_limits<Time>::max();
  Time best = unreached;
  std::size_t i = 0;
  std::size_t k = 0;
  for (; k < sum_.size(); ++k) {
    for (; i < best_.size() && best_[i].bytes <= sum_[k].bytes; ++i) best = best_[i].time;
    if (sum_[k].time < best) break;
  }
  if (k == sum_.size()) return;

  merged_.assign(best_.begin(), best_.begin() + static_cast<std::ptrdiff_t>(i));
  Time least = best;
  while (i < best_.size() || k < sum_.size()) {
    const bool from_best = k == sum_.size() || (i < best_.size() && best_[i].bytes <= sum_[k].bytes);
    const Breakpoint& point = from_best ? best_[i++] : sum_[k++];
    if (point.time >= least) continue;
    least = point.time;
    if (!merged_.empty() && merged_.back().bytes == point.bytes) {
      merged_.back() = point;
    } else {
      merged_.push_back(point);
    }
  }
  best_.swap(merged_);
  if (best_.size() / 4 > limit_) thin(2 * limit_);
}

/// Leaves at most `limit` breakpoints: the first, the last, and between them those that divide the curve into parts
/// of equal length, bytes and time both scaled to 1. `below` gives each part its last time, `above` its first.
void IntervalTable::thin(std::size_t limit) {
  if (best_.size() <= limit) return;
  is_thinned_ = true;
  const Breakpoint last = best_.back();
  const double bytes_scale = 1.0 / static_cast<double>(last.bytes - best_.front().bytes);
  const double time_scale = 1.0 / static_cast<double>(best_.front().time - last.time);
  const double part = limit > 2 ? 2.0 / static_cast<double>(limit - 2) : 4.0;
  std::size_t kept = 1;
  Breakpoint begin = best_.front();
  for (std::size_t i = 1; i < best_.size(); ++i) {
    const Breakpoint point = best_[i];
    const double length = static_cast<double>(point.bytes - begin.bytes) * bytes_scale +
                          static_cast<double>(begin.time - point.time) * time_scale;
    const bool is_last = i + 1 == best_.size();
    if (length >= part || (is_last && limit > 1)) {
      best_[kept++] = point;
      begin = point;
    } else if (thinning_ == Thinning::below) {
      best_[kept - 1].time = point.time;
    }
  }
  best_.resize(kept);
}

Plan IntervalTable::plan(Bytes bytes) const {
  struct Visit {
    Interval interval;
    Bytes bytes;
    std::size_t closes;  // 1 + the item whose re-run is complete; 0: plan the interval
  };
  Plan plan;
  std::vector<Visit> todo{{{0, chain_->size() - 1, false}, bytes, 0}};
  while (!todo.empty()) {
    const Visit visit = todo.back();
    todo.pop_back();
    if (visit.closes > 0) {
      plan.items[visit.closes - 1].size = static_cast<std::uint32_t>(plan.items.size() - visit.closes);
      continue;
    }
    const auto [a, b, is_pinned] = visit.interval;
    const auto points = of(a, b, is_pinned);
    const auto point = interval_table_detail::last_within(points, visit.bytes);
    if (point == points.end()) throw PlanError("remat plan: the table has no entry within the bytes at hand");
    const auto begin = static_cast<std::uint32_t>(a);
    if (point->choice < 0) {
      const auto o = static_cast<std::uint32_t>(-1 - point->choice);
      const Option& option = chain_->stages[a].options[o];
      plan.items.push_back({begin, begin + 1, o, 0});
      if (a < b) {
        todo.push_back({{a + 1, b, option.keeps_output}, point->bytes - record_shift(visit.interval, option), 0});
      }
    } else {
      const std::size_t j = a + static_cast<std::size_t>(point->choice);
      todo.push_back({{j, b, false}, point->bytes - chain_->activation_bytes(j), 0});
      todo.push_back({{}, 0, plan.items.size() + 1});
      todo.push_back({{a, j - 1, is_pinned}, point->bytes - rerun_shift(j, b), 0});
      plan.items.push_back({begin, static_cast<std::uint32_t>(j), 0, 1});
    }
  }
  return plan;
}

}  // namespace thimble::remat
