#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <unordered_map>
#include <utility>

#include <thimble/memory/remat/interval_classes.h>

namespace thimble::remat {

namespace {

Time total_time(const Option& o) { return o.forward_time + o.recompute_time + o.backward_time; }

bool is_dominated(const Option& worse, const Option& better) {
  return (!better.is_first_visit_only || worse.is_first_visit_only) && better.kept_bytes <= worse.kept_bytes &&
         std::includes(worse.kept_shared.begin(), worse.kept_shared.end(), better.kept_shared.begin(),
                       better.kept_shared.end()) &&
         std::includes(better.unread_shared.begin(), better.unread_shared.end(), worse.unread_shared.begin(),
                       worse.unread_shared.end()) &&
         (!better.keeps_input || worse.keeps_input) && (!better.keeps_output || worse.keeps_output) &&
         total_time(better) <= total_time(worse) && better.forward_peak_bytes <= worse.forward_peak_bytes &&
         better.recompute_peak_bytes <= worse.recompute_peak_bytes &&
         better.backward_peak_bytes <= worse.backward_peak_bytes;
}

/// Every number that the solver reads of an option, or of a stage without its options.
using Numbers = std::vector<std::int64_t>;

void append(Numbers& numbers, const Option& o) {
  const std::int64_t flags = (o.keeps_input ? 1 : 0) + (o.keeps_output ? 2 : 0) + (o.is_first_visit_only ? 4 : 0);
  const std::int64_t all[] = {o.kept_bytes,         flags, total_time(o), o.forward_peak_bytes, o.recompute_peak_bytes,
                              o.backward_peak_bytes};
  numbers.insert(numbers.end(), std::begin(all), std::end(all));
}

Numbers numbers_of(const Stage& stage) {
  return {stage.output_bytes, stage.output_gradient_bytes, stage.parameter_gradient_bytes, stage.forward_time,
          stage.forward_peak_bytes};
}

/// Places of an option's shared tensors: kept ones in the list that its stages make for later stages, unread ones in
/// the list that earlier stages make for its stages.
void append_shared(Numbers& numbers, const Chain& chain, std::size_t stage, const Option& option) {
  if (chain.shared.empty()) return;
  const std::size_t end = stage + option.span;
  std::int64_t made = 0, given = 0;
  for (std::uint32_t t = 0; t < chain.shared.size() && chain.shared[t].maker < end; ++t) {
    const SharedTensor& tensor = chain.shared[t];
    const auto has = [&](const std::vector<std::uint32_t>& list) {
      return std::binary_search(list.begin(), list.end(), t);
    };
    if (tensor.maker >= stage && tensor.readers.back() >= end) {
      if (has(option.kept_shared)) numbers.push_back(made);
      ++made;
    } else if (tensor.maker < stage && tensor.is_read_in(stage, end)) {
      if (has(option.unread_shared)) numbers.push_back(-1 - given);
      ++given;
    }
  }
  numbers.push_back(largest_total);  // the end of the list
}

/// Every number that the solver reads of the shared tensors of an interval.
Numbers shared_numbers(const Chain& chain, std::size_t a, std::size_t b) {
  Numbers numbers;
  for (const SharedTensor& tensor : chain.shared) {
    if (tensor.maker > b) break;
    if (tensor.maker < a && !tensor.is_read_in(a, b + 1)) continue;
    const std::int64_t maker = tensor.maker < a ? -1 : static_cast<std::int64_t>(tensor.maker - a);
    const std::int64_t all[] = {maker, tensor.bytes, tensor.gradient_bytes, tensor.readers.back() > b ? 1 : 0};
    numbers.insert(numbers.end(), std::begin(all), std::end(all));
    for (const std::uint32_t reader : tensor.readers) {
      if (reader >= a && reader <= b) numbers.push_back(static_cast<std::int64_t>(reader - a));
    }
    numbers.push_back(-1);
  }
  return numbers;
}

/// Whether pinning a_a changes intervals that begin with stage a.
bool can_pin(const Chain& chain, std::size_t a, std::size_t longest_span) {
  const auto& own = chain.stages[a].options;
  if (std::all_of(own.begin(), own.end(), [](const Option& o) { return o.keeps_input; })) return false;
  for (std::size_t span = 1; span <= std::min(a, longest_span); ++span) {
    const auto& before = chain.stages[a - span].options;
    const auto pins = [&](const Option& o) { return o.span == span && o.keeps_output; };
    if (std::any_of(before.begin(), before.end(), pins)) return true;
  }
  return false;
}

}  // namespace

IntervalClasses::IntervalClasses(const Chain& chain) : size_(chain.size()) {
  for (const Stage& stage : chain.stages) {
    for (const Option& option : stage.options) longest_span_ = std::max<std::size_t>(longest_span_, option.span);
  }
  for (std::size_t a = 1; a < size_; ++a) {
    has_pinned_ = has_pinned_ || can_pin(chain, a, longest_span_);
  }
  sort_options(chain);
  number_ends(chain);
  number_intervals(chain);
}

void IntervalClasses::sort_options(const Chain& chain) {
  for (const Stage& stage : chain.stages) {
    const std::vector<Option>& options = stage.options;
    std::vector<std::uint32_t> sorted(options.size());
    std::iota(sorted.begin(), sorted.end(), 0U);
    std::stable_sort(sorted.begin(), sorted.end(),
                     [&](std::uint32_t x, std::uint32_t y) { return options[x].span < options[y].span; });
    std::vector<Record> records;
    for (std::uint32_t place = 0; place < sorted.size(); ++place) {
      const Option& own = options[sorted[place]];
      const auto betters = [&](std::uint32_t other) {
        if (other == sorted[place] || options[other].span != own.span || !is_dominated(own, options[other])) {
          return false;
        }
        return other < sorted[place] || !is_dominated(options[other], own);  // of equal options the first stays
      };
      if (std::none_of(sorted.begin(), sorted.end(), betters)) records.push_back({place, sorted[place], own.span});
    }
    by_span_.push_back(std::move(sorted));
    records_.push_back(std::move(records));
  }
}

void IntervalClasses::number_ends(const Chain& chain) {
  std::map<Numbers, std::uint32_t> groups;  // options of one stage and one span
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> kinds;
  const auto number = [](auto& numbers, auto key) {
    return numbers.emplace(std::move(key), static_cast<std::uint32_t>(numbers.size())).first->second;
  };
  const auto options_of = [&](std::size_t stage, std::size_t span) {
    Numbers all{static_cast<std::int64_t>(span)};
    for (const std::uint32_t o : by_span_[stage]) {
      const Option& option = chain.stages[stage].options[o];
      if (option.span != span) continue;
      append(all, option);
      append_shared(all, chain, stage, option);
    }
    return all;
  };
  for (std::size_t b = 0; b < size_; ++b) {
    std::vector<std::uint32_t> of_lengths;
    std::uint32_t kind = number(groups, numbers_of(chain.stages[b]));
    for (std::size_t span = 1; span <= longest_span_; ++span) {
      // Intervals cannot begin before the chain.
      const Numbers ending = span <= b + 1 ? options_of(b + 1 - span, span) : Numbers{};
      if (ending.size() > 1) kind = number(kinds, std::make_pair(kind, number(groups, ending)));
      of_lengths.push_back(kind);
    }
    end_kinds_.push_back(std::move(of_lengths));
  }
}

std::size_t IntervalClasses::long_records(const Interval& interval) const {
  std::size_t count = 0;
  for (const Record& record : records_[interval.a]) {
    count += record.span > 1 && record.span <= interval.length() ? 1 : 0;
  }
  return count;
}

void IntervalClasses::number_intervals(const Chain& chain) {
  // Four things define an interval: the sizes of its input, its stages, whether it is pinned, and whether it ends the
  // chain, as the last gradient does not exist yet during the last interval's forward. The key of an interval extends
  // the key of the interval that is one stage shorter.
  std::map<std::pair<Bytes, Bytes>, std::uint64_t> input_kinds;
  std::map<Numbers, std::uint64_t> shared_kinds;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint64_t> prefix_kinds;  // with shared tensors
  std::unordered_map<std::uint64_t, std::uint32_t> by_key;
  class_of_.assign(size_ * size_ * (has_pinned_ ? 2 : 1), 0);
  for (std::size_t length = 1; length <= size_; ++length) {
    for (std::size_t a = 0; a + length <= size_; ++a) {
      const std::size_t b = a + length - 1;
      for (const bool is_pinned : {false, true}) {
        if (is_pinned && !has_pinned_) continue;
        if (is_pinned && !can_pin(chain, a, longest_span_)) {
          class_of_[(size_ + a) * size_ + b] = of(a, b, false);
          continue;
        }
        const auto input = std::make_pair(chain.activation_bytes(a), chain.gradient_bytes(a));
        std::uint64_t prefix =
            length == 1 ? input_kinds.emplace(input, input_kinds.size()).first->second * 2 + (is_pinned ? 1 : 0)
                        : of(a, b - 1, is_pinned);
        if (!chain.shared.empty()) {
          const std::uint64_t kind =
              shared_kinds.emplace(shared_numbers(chain, a, b), shared_kinds.size()).first->second;
          prefix = prefix_kinds.emplace(std::make_pair(prefix, kind), prefix_kinds.size()).first->second;
        }
        const std::uint64_t flags = (length == 1 ? 2U : 0U) + (b + 1 == size_ ? 1U : 0U);
        const std::uint64_t key =
            (prefix << 24) | (std::uint64_t{end_kinds_[b][std::min(length, longest_span_) - 1]} << 2) | flags;
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
    count += static_cast<std::int64_t>(long_records(interval));
  }
  return count;
}

}  // namespace thimble::remat
