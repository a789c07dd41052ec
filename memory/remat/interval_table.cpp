#include <algorithm>
#include <cmath>

#include <thimble/memory/remat/interval_table.h>

namespace thimble::remat {

namespace interval_table_detail {

using Points = std::span<const IntervalTable::Breakpoint>;

/// The last breakpoint within `bytes`, or the end.
Points::iterator last_within(Points points, Bytes bytes) {
  const auto after = std::upper_bound(points.begin(), points.end(), bytes,
                                      [](Bytes value, const auto& point) { return value < point.bytes; });
  return after == points.begin() ? points.end() : after - 1;
}

// Every step function ends with a sentinel at `never`, and the envelope of candidates also begins with a sentinel, so
// walks along several functions need no test for ends. Shifts are below `far`, so a shifted sentinel stays above `far`.
constexpr std::int64_t never = std::int64_t{1} << 62;
constexpr std::int64_t far = std::int64_t{1} << 61;
constexpr IntervalTable::Breakpoint nothing[] = {{0, 0, 0}, {never, 0, 0}};

/// The fewest bytes that fit a candidate and its parts.
Bytes begin_of(Bytes least, Points first, Bytes first_shift, Points second, Bytes second_shift) {
  Bytes begin = std::max<Bytes>(least, 0);
  if (!first.empty()) begin = std::max(begin, first.front().bytes + first_shift);
  if (!second.empty()) begin = std::max(begin, second.front().bytes + second_shift);
  return begin;
}

/// Walks along two shifted step functions and an envelope at once, without branches: a branch predictor could not guess
/// which of the three has the next breakpoint.
struct Walk {
  const IntervalTable::Breakpoint* first;
  const IntervalTable::Breakpoint* second;
  const IntervalTable::Breakpoint* envelope;
  Bytes first_shift;
  Bytes second_shift;
  Bytes at;

  bool is_at_end() const { return at >= far; }
  Time time() const { return first->time + second->time; }
  void advance() {
    const Bytes next_first = first[1].bytes + first_shift;
    const Bytes next_second = second[1].bytes + second_shift;
    const Bytes next_envelope = envelope[1].bytes;
    at = std::min(std::min(next_first, next_second), next_envelope);
    first += next_first == at ? 1 : 0;
    second += next_second == at ? 1 : 0;
    envelope += next_envelope == at ? 1 : 0;
  }
};

}  // namespace interval_table_detail

IntervalTable::IntervalTable(const Chain& chain, const IntervalClasses& classes, const Thinning& thinning)
    : chain_(&chain), classes_(&classes), thinning_(thinning) {
  parameter_sums_.assign(1, 0);
  for (const Stage& stage : chain.stages) {
    parameter_sums_.push_back(parameter_sums_.back() + stage.parameter_gradient_bytes);
  }
  if (!chain.shared.empty()) {
    const std::size_t boundaries = chain.size() + 1;
    crossing_gradients_.assign(boundaries * boundaries, 0);
    for (const SharedTensor& tensor : chain.shared) {
      for (std::size_t a = tensor.maker + 1; a <= tensor.readers.back(); ++a) {
        for (std::size_t e = a; e <= tensor.readers.back(); ++e) {
          crossing_gradients_[a * boundaries + e] += tensor.gradient_bytes;
        }
      }
    }
  }
  const std::vector<Interval>& all = classes.representatives();
  ranges_.reserve(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::size_t length = all[i].length();
    if (thinning_.work > 0 && length >= 8 && (length & (length - 1)) == 0 && all[i - 1].length() < length) {
      is_abandoned_ = forecast(length) > static_cast<double>(thinning_.work);
      if (is_abandoned_) return;
    }
    solve(all[i]);
  }
}

/// Breakpoints that all intervals will visit if their number keeps growing with the length as it did over the last,
/// just completed doubling.
double IntervalTable::forecast(std::size_t length) const {
  const std::vector<Interval>& all = classes_->representatives();
  const auto mean = [&](std::size_t l) {
    double sum = 0;
    double count = 0;
    for (std::size_t i = 0; i < ranges_.size(); ++i) {
      if (all[i].length() != l) continue;
      sum += static_cast<double>(ranges_[i].size);
      ++count;
    }
    return count > 0 ? sum / count : 1.0;
  };
  const double now = mean(length - 1);
  const double exponent = std::log2(std::max(1.0, now / mean((length - 1) / 2)));
  double work = 0;
  for (const Interval& interval : all) {
    const auto ratio = static_cast<double>(interval.length()) / static_cast<double>(length - 1);
    // Each split walks along two parts and the envelope. Parts are shorter than the whole.
    const auto ways = static_cast<double>(interval.length() + classes_->long_records(interval));
    work += ways * 2 * now * std::pow(ratio, exponent);
  }
  return work;
}

void IntervalTable::find_shared(const Interval& interval, SharedBytes& bytes) const {
  if (chain_->shared.empty()) return;
  const std::size_t a = interval.a, b = interval.b;
  for (auto* list : {&bytes.read, &bytes.made, &bytes.output, &bytes.is_over}) list->assign(interval.length() + 2, 0);
  for (const SharedTensor& tensor : chain_->shared) {
    if (tensor.maker > b) break;
    if (tensor.readers.back() < a) continue;
    const auto first = std::lower_bound(tensor.readers.begin(), tensor.readers.end(), a);
    const auto end = std::upper_bound(first, tensor.readers.end(), b);
    // Differences, summed below.
    const auto add = [&](std::vector<Bytes>& list, std::size_t from, std::size_t to) {
      list[from - a] += tensor.bytes;
      list[to + 1 - a] -= tensor.bytes;
    };
    if (tensor.maker < a) {
      if (first != end) add(bytes.is_over, a, *first);
      continue;
    }
    bytes.output[tensor.maker - a] += tensor.bytes;
    add(bytes.made, tensor.maker + 1, std::min<std::size_t>(tensor.readers.back(), b + 1));
    if (first != end) add(bytes.read, tensor.maker + 1, *(end - 1));
  }
  for (auto* list : {&bytes.read, &bytes.made, &bytes.is_over}) {
    for (std::size_t k = 1; k < list->size(); ++k) (*list)[k] += (*list)[k - 1];
  }
}

// Held bytes that dropping stages a..j-1 adds to the visit of the stages after them.
Bytes IntervalTable::drop_shift(std::size_t a, std::size_t j, const SharedBytes& shared) const {
  return chain_->activation_bytes(j) + (chain_->shared.empty() ? 0 : shared.read[j - a]);
}

// When a segment runs again, d_j and the parameters' gradients of the stages after it exist, and d_{b+1} is freed.
Bytes IntervalTable::recompute_shift(std::size_t a, std::size_t j, std::size_t b, const SharedBytes& shared) const {
  const Bytes of_chain = chain_->gradient_bytes(j) - outer_gradient(b) + parameter_sums_[b + 1] - parameter_sums_[j];
  if (chain_->shared.empty()) return of_chain;
  return of_chain + shared_gradients(j) - shared_gradients(b + 1) - shared.is_over[j - a];
}

// Bytes that an option keeps until its backward.
Bytes IntervalTable::kept_bytes(const Option& option) const {
  Bytes bytes = option.kept_bytes;
  for (const std::uint32_t t : option.kept_shared) bytes += chain_->shared[t].bytes;
  return bytes;
}

// Held bytes that recording from stage a on adds to the visit of the stages after the option.
Bytes IntervalTable::record_shift(const Interval& interval, const Option& option, const SharedBytes& shared) const {
  const bool gives_input_up = !option.keeps_input && !interval.is_pinned;
  const std::size_t end = interval.a + option.span;
  Bytes bytes =
      option.kept_bytes + chain_->activation_bytes(end) - (gives_input_up ? chain_->activation_bytes(interval.a) : 0);
  if (chain_->shared.empty()) return bytes;
  if (end <= interval.b) bytes += shared.read[option.span];
  for (const std::uint32_t t : option.kept_shared) {
    if (!chain_->shared[t].is_read_in(end, interval.b + 1)) bytes += chain_->shared[t].bytes;
  }
  for (const std::uint32_t t : option.unread_shared) {
    if (!chain_->shared[t].is_read_in(end, interval.b + 1)) bytes -= chain_->shared[t].bytes;
  }
  return bytes;
}

void IntervalTable::solve(const Interval& interval) {
  using interval_table_detail::never;
  best_.assign({{-never, never, 0}, {never, 0, 0}});
  find_shared(interval, shared_);
  consider_records(interval);
  consider_drops(interval);
  thin(thinning_.limit);
  const std::size_t size = best_.size() - 2;
  ranges_.push_back({pool_.size(), size});
  pool_.insert(pool_.end(), best_.begin() + 1, best_.end());
}

void IntervalTable::consider_records(const Interval& interval) {
  const auto [a, b, is_pinned] = interval;
  for (const IntervalClasses::Record& record : classes_->records(a)) {
    if (record.span > interval.length()) break;
    const Option& option = chain_->stages[a].options[record.option];
    if (option.is_first_visit_only && b + 1 != chain_->size()) continue;  // a re-run ends before the chain does
    const std::size_t end = a + record.span;
    const Bytes output = chain_->activation_bytes(end);
    const Bytes made = chain_->gradient_bytes(a) + shared_gradients(a) - crossing_gradients(a, end) +
                       parameter_sums_[end] - parameter_sums_[a];
    Candidate candidate;
    candidate.choice = -1 - static_cast<std::int32_t>(record.place);
    candidate.time = option.forward_time + option.recompute_time + option.backward_time;
    candidate.first_shift = record_shift(interval, option, shared_);
    Bytes forward = option.kept_bytes + output + option.forward_peak_bytes;
    const bool gives_input_up = !option.keeps_input && !is_pinned;
    Bytes held = kept_bytes(option) - (gives_input_up ? chain_->activation_bytes(a) : 0) +
                 (option.keeps_output ? output : 0) + chain_->gradient_bytes(end) - outer_gradient(b) +
                 parameter_sums_[b + 1] - parameter_sums_[end];
    if (!chain_->shared.empty()) {
      forward += shared_.made[record.span];
      held += shared_gradients(end) - shared_gradients(b + 1) - (end <= b ? shared_.is_over[record.span] : 0);
      for (const std::uint32_t t : option.unread_shared) held -= chain_->shared[t].bytes;
    }
    const Bytes backward = held + std::max(option.recompute_peak_bytes, made + option.backward_peak_bytes);
    candidate.least = std::max(forward, backward);
    if (end <= b) candidate.first = of(end, b, option.keeps_output);
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
    // Beyond a_a: input, output and temporaries of the passed stage.
    const Bytes shared = chain_->shared.empty() ? 0 : shared_.read[j - 1 - a] + shared_.output[j - 1 - a];
    candidate.least = std::max(candidate.least, (j - 1 > a ? chain_->activation_bytes(j - 1) : 0) + shared +
                                                    passed.output_bytes + passed.forward_peak_bytes);
    candidate.first = of(j, b, false);
    candidate.first_shift = drop_shift(a, j, shared_);
    candidate.second = of(a, j - 1, is_pinned);
    candidate.second_shift = recompute_shift(a, j, b, shared_);
    if (thinning_.has_few_splits && !IntervalClasses::is_few_split(j - a, b + 1 - j) &&
        interval_table_detail::begin_of(candidate.least, candidate.first, candidate.first_shift, candidate.second,
                                        candidate.second_shift) >= best_[1].bytes) {
      continue;
    }
    consider(candidate);
  }
}

void IntervalTable::consider(const Candidate& candidate) {
  using interval_table_detail::last_within;
  interval_table_detail::Walk walk{};
  walk.at = interval_table_detail::begin_of(candidate.least, candidate.first, candidate.first_shift, candidate.second,
                                            candidate.second_shift);
  const auto start = [&](std::span<const Breakpoint> points, Bytes shift) {
    return points.empty() ? interval_table_detail::nothing : &*last_within(points, walk.at - shift);
  };
  walk.first = start(candidate.first, candidate.first_shift);
  walk.second = start(candidate.second, candidate.second_shift);
  walk.first_shift = candidate.first_shift;
  walk.second_shift = candidate.second_shift;
  walk.envelope = &*last_within(best_, walk.at);
  // Most candidates improve nothing. This loop finds out without writing.
  while (walk.time() + candidate.time >= walk.envelope->time) {
    walk.advance();
    if (walk.is_at_end()) return;
  }
  merge(walk, candidate);
}

/// best_ becomes the minimum of itself and the candidate, which first improves on it at the walk's position.
void IntervalTable::merge(interval_table_detail::Walk walk, const Candidate& candidate) {
  const std::size_t before =
      static_cast<std::size_t>(walk.envelope - best_.data()) + (walk.envelope->bytes < walk.at ? 1 : 0);
  const std::size_t rest = best_.size() - before + candidate.first.size() + candidate.second.size() + 2;
  merged_.resize(before + rest);
  std::copy_n(best_.begin(), before, merged_.begin());
  Breakpoint* out = merged_.data() + before;
  Time least = interval_table_detail::never;
  while (!walk.is_at_end()) {
    const Time own = walk.time() + candidate.time;
    const bool is_own = own < walk.envelope->time;
    const Time time = is_own ? own : walk.envelope->time;
    *out = {walk.at, time, is_own ? candidate.choice : walk.envelope->choice};
    out += time < least ? 1 : 0;
    least = std::min(least, time);
    walk.advance();
  }
  *out++ = {interval_table_detail::never, 0, 0};
  merged_.resize(static_cast<std::size_t>(out - merged_.data()));
  best_.swap(merged_);
  if (best_.size() / 4 > thinning_.limit) thin(2 * thinning_.limit);
}

/// Leaves at most `limit` breakpoints: the first, the last, and others that divide the curve into parts of equal
/// length, with bytes and time scaled to 1. A part takes its last time for a lower bound, otherwise its first.
void IntervalTable::thin(std::size_t limit) {
  const std::span<Breakpoint> points(best_.data() + 1, best_.size() - 2);
  if (points.size() <= limit) return;
  const Breakpoint last = points.back();
  const double bytes_scale = 1.0 / static_cast<double>(last.bytes - points.front().bytes);
  const double time_scale = 1.0 / static_cast<double>(points.front().time - last.time);
  const double part = limit > 2 ? 2.0 / static_cast<double>(limit - 2) : 4.0;
  std::size_t kept = 1;
  Breakpoint begin = points.front();
  for (std::size_t i = 1; i < points.size(); ++i) {
    const Breakpoint point = points[i];
    const double length = static_cast<double>(point.bytes - begin.bytes) * bytes_scale +
                          static_cast<double>(begin.time - point.time) * time_scale;
    const bool is_last = i + 1 == points.size();
    if (length >= part || (is_last && limit > 1)) {
      points[kept++] = point;
      begin = point;
    } else if (thinning_.is_below) {
      points[kept - 1].time = point.time;
    }
  }
  points[kept] = best_.back();
  best_.resize(kept + 2);
}

ScheduleTree IntervalTable::plan(Bytes bytes) const {
  struct Visit {
    Interval interval;
    Bytes bytes;
    std::size_t closes;  // 1 + the item whose re-run is complete, or 0 to plan the interval
  };
  ScheduleTree plan;
  SharedBytes shared;
  std::vector<Visit> visits{{{0, chain_->size() - 1, false}, bytes, 0}};
  while (!visits.empty()) {
    const Visit visit = visits.back();
    visits.pop_back();
    if (visit.closes > 0) {
      plan.items[visit.closes - 1].size = static_cast<std::uint32_t>(plan.items.size() - visit.closes);
      continue;
    }
    const auto [a, b, is_pinned] = visit.interval;
    const auto points = of(a, b, is_pinned);
    const auto point = interval_table_detail::last_within(points, visit.bytes);
    if (point == points.end()) throw PlanError("remat plan: the table has no entry within the bytes at hand");
    const auto begin = static_cast<std::uint32_t>(a);
    find_shared(visit.interval, shared);
    if (point->choice < 0) {
      const std::uint32_t o = classes_->option_at(a, static_cast<std::size_t>(-1 - point->choice));
      const Option& option = chain_->stages[a].options[o];
      const std::size_t end = a + option.span;
      plan.items.push_back({begin, static_cast<std::uint32_t>(end), o, 0});
      if (end <= b) {
        visits.push_back(
            {{end, b, option.keeps_output}, point->bytes - record_shift(visit.interval, option, shared), 0});
      }
    } else {
      const std::size_t j = a + static_cast<std::size_t>(point->choice);
      visits.push_back({{j, b, false}, point->bytes - drop_shift(a, j, shared), 0});
      visits.push_back({{}, 0, plan.items.size() + 1});
      visits.push_back({{a, j - 1, is_pinned}, point->bytes - recompute_shift(a, j, b, shared), 0});
      plan.items.push_back({begin, static_cast<std::uint32_t>(j), 0, 1});
    }
  }
  return plan;
}

}  // namespace thimble::remat
