#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

#include <thimble/memory/remat/interval_classes.h>

namespace thimble::remat {

namespace interval_classes_detail {

Time total_time(const Option& o) { return o.forward_time + o.recompute_time + o.backward_time; }

bool is_dominated(const Option& worse, const Option& better) {
  return better.kept_bytes <= worse.kept_bytes && (!better.keeps_input || worse.keeps_input) &&
         (!better.keeps_output || worse.keeps_output) && total_time(better) <= total_time(worse) &&
         better.forward_peak_bytes <= worse.forward_peak_bytes &&
         better.recompute_peak_bytes <= worse.recompute_peak_bytes &&
         better.backward_peak_bytes <= worse.backward_peak_bytes;
}

std::vector<std::uint32_t> undominated(const Stage& stage) {
  std::vector<std::uint32_t> kept;
  for (std::uint32_t o = 0; o < stage.options.size(); ++o) {
    bool is_needed = true;
    for (std::uint32_t p = 0; p < stage.options.size() && is_needed; ++p) {
      if (p == o || !is_dominated(stage.options[o], stage.options[p])) continue;
      // Of equal options the first stays.
      is_needed = p > o && is_dominated(stage.options[p], stage.options[o]);
    }
    if (is_needed) kept.push_back(o);
  }
  return kept;
}

bool have_equal_numbers(const Stage& x, const Stage& y) {
  const auto equal = [](const Option& a, const Option& b) {
    return a.kept_bytes == b.kept_bytes && a.keeps_input == b.keeps_input && a.keeps_output == b.keeps_output &&
           total_time(a) == total_time(b) && a.forward_peak_bytes == b.forward_peak_bytes &&
           a.recompute_peak_bytes == b.recompute_peak_bytes && a.backward_peak_bytes == b.backward_peak_bytes;
  };
  return x.output_bytes == y.output_bytes && x.output_gradient_bytes == y.output_gradient_bytes &&
         x.parameter_gradient_bytes == y.parameter_gradient_bytes && x.forward_time == y.forward_time &&
         x.forward_peak_bytes == y.forward_peak_bytes &&
         std::equal(x.options.begin(), x.options.end(), y.options.begin(), y.options.end(), equal);
}

/// Whether it matters to intervals that begin with stage a that a_a is pinned.
bool can_pin(const Chain& chain, std::size_t a) {
  if (a == 0) return false;
  const auto& before = chain.stages[a - 1].options;
  const auto& own = chain.stages[a].options;
  return std::any_of(before.begin(), before.end(), [](const Option& o) { return o.keeps_output; }) &&
         std::any_of(own.begin(), own.end(), [](const Option& o) { return !o.keeps_input; });
}

}  // namespace interval_classes_detail

IntervalClasses::IntervalClasses(const Chain& chain) : size_(chain.size()) {
  for (std::size_t a = 1; a < size_; ++a) has_pinned_ = has_pinned_ || interval_classes_detail::can_pin(chain, a);
  number_stages(chain);
  number_intervals(chain);
}

void IntervalClasses::number_stages(const Chain& chain) {
  std::vector<std::size_t> first_of_kind;
  for (std::size_t i = 0; i < size_; ++i) {
    std::uint32_t kind = 0;
    while (kind < first_of_kind.size() &&
           !interval_classes_detail::have_equal_numbers(chain.stages[first_of_kind[kind]], chain.stages[i])) {
      ++kind;
    }
    if (kind == first_of_kind.size()) {
      first_of_kind.push_back(i);
      options_of_kind_.push_back(interval_classes_detail::undominated(chain.stages[i]));
    }
    kind_of_.push_back(kind);
  }
}

void IntervalClasses::number_intervals(const Chain& chain) {
  // An interval is the sizes of its input, its stages, whether it is pinned and whether it ends the chain: the last
  // gradient does not exist yet while that one runs forward. Each is the one that is a stage shorter, and a stage.
  std::map<std::pair<Bytes, Bytes>, std::uint64_t> input_kinds;
  std::unordered_map<std::uint64_t, std::uint32_t> by_key;
  class_of_.assign(size_ * size_ * (has_pinned_ ? 2 : 1), 0);
  for (std::size_t length = 1; length <= size_; ++length) {
    for (std::size_t a = 0; a + length <= size_; ++a) {
      const std::size_t b = a + length - 1;
      for (const bool is_pinned : {false, true}) {
        if (is_pinned && !has_pinned_) continue;
        if (is_pinned && !interval_classes_detail::can_pin(chain, a)) {
          class_of_[(size_ + a) * size_ + b] = of(a, b, false);
          continue;
        }
        const auto input = std::make_pair(chain.activation_bytes(a), chain.gradient_bytes(a));
        const std::uint64_t prefix =
            length == 1 ? input_kinds.emplace(input, input_kinds.size()).first->second * 2 + (is_pinned ? 1 : 0)
                        : of(a, b - 1, is_pinned);
        const std::uint64_t flags = (length == 1 ? 2U : 0U) + (b + 1 == size_ ? 1U : 0U);
        const std::uint64_t key = (prefix << 24) | (std::uint64_t{kind_of_[b]} << 2) | flags;
        const auto [entry, is_new] = by_key.emplace(key, static_cast<std::uint32_t>(representatives_.size()));
        if (is_new) representatives_.push_back({a, b, is_pinned});
        class_of_[((is_pinned ? 1 : 0) * size_ + a) * size_ + b] = entry->second;
      }
    }
  }
}

std::int64_t IntervalClasses::split_count(bool has_few_splits) const noexcept {
  std::int64_t count = 0;
  for (const Interval& interval : representatives_) {
    for (std::size_t first = 1; first <= interval.length(); ++first) {
      const std::size_t second = interval.length() - first;
      count += second == 0 || !has_few_splits || is_few_split(first, second) ? 1 : 0;
    }
  }
  return count;
}

}  // namespace thimble::remat
