#include <algorithm>
#include <functional>

#include <thimble/memory/remat/chain.h>

namespace thimble::remat {

namespace {

/// Checks numbers and their totals. No schedule runs a stage more than n times, so the limit on times is n + 1 times
/// lower.
class Checker {
 public:
  explicit Checker(std::size_t stages) : limit_time_(largest_total / static_cast<std::int64_t>(stages + 1)) {}

  void bytes(const std::string& where, const char* field, Bytes value) {
    add(where, field, value, total_bytes_, largest_total);
  }
  void time(const std::string& where, const char* field, Time value) {
    add(where, field, value, total_time_, limit_time_);
  }

 private:
  static void add(const std::string& where, const char* field, std::int64_t value, std::int64_t& total,
                  std::int64_t limit) {
    if (value < 0) {
      throw ValueError("remat chain: " + where + ": " + field + " is " + std::to_string(value) + ", must be >= 0");
    }
    if (value > limit - total) {
      throw ValueError("remat chain: " + where + ": " + field + " is " + std::to_string(value) +
                       ": the chain's numbers of its kind together may be at most " + std::to_string(limit));
    }
    total += value;
  }

  Time limit_time_;
  Bytes total_bytes_ = 0;
  Time total_time_ = 0;
};

std::string label(std::size_t i, const std::string& name) {
  return "stage " + std::to_string(i) + (name.empty() ? "" : " (" + name + ")");
}

void check_shared(Checker& check, const Chain& chain) {
  std::uint32_t before = 0;
  for (std::size_t t = 0; t < chain.shared.size(); ++t) {
    const SharedTensor& tensor = chain.shared[t];
    const std::string where = "shared tensor " + std::to_string(t);
    const std::vector<std::uint32_t>& readers = tensor.readers;
    const bool is_rising = std::adjacent_find(readers.begin(), readers.end(), std::greater_equal<>()) == readers.end();
    if (tensor.maker < before || readers.empty() || readers.front() <= tensor.maker || !is_rising ||
        readers.back() >= chain.size()) {
      throw ValueError("remat chain: " + where + ": expected rising makers, and rising readers after the maker " +
                       std::to_string(tensor.maker));
    }
    before = tensor.maker;
    check.bytes(where, "bytes", tensor.bytes);
    check.bytes(where, "gradient_bytes", tensor.gradient_bytes);
  }
}

/// `stage` is the option's first.
void check_shared(const std::string& where, const Option& option, const Chain& chain, std::size_t stage) {
  const auto check = [&](const std::vector<std::uint32_t>& list, const auto& is_right) {
    if (std::is_sorted(list.begin(), list.end()) && std::all_of(list.begin(), list.end(), is_right)) return;
    throw ValueError("remat chain: " + where + ": expected shared tensors that it makes or reads, rising");
  };
  const std::size_t end = stage + option.span;
  check(option.kept_shared, [&](std::uint32_t t) {
    return t < chain.shared.size() && chain.shared[t].maker >= stage && chain.shared[t].maker < end &&
           chain.shared[t].readers.back() >= end;
  });
  check(option.unread_shared, [&](std::uint32_t t) {
    return t < chain.shared.size() && chain.shared[t].maker < stage && chain.shared[t].is_read_in(stage, end);
  });
}

void check_option(Checker& check, const std::string& where, const Option& option, std::size_t stages_left) {
  if (option.span < 1 || option.span > stages_left) {
    throw ValueError("remat chain: " + where + ": span is " + std::to_string(option.span) + ", must be from 1 to the " +
                     std::to_string(stages_left) + " stages that are left");
  }
  check.bytes(where, "kept_bytes", option.kept_bytes);
  check.time(where, "forward_time", option.forward_time);
  check.time(where, "recompute_time", option.recompute_time);
  check.time(where, "backward_time", option.backward_time);
  check.bytes(where, "forward_peak_bytes", option.forward_peak_bytes);
  check.bytes(where, "recompute_peak_bytes", option.recompute_peak_bytes);
  check.bytes(where, "backward_peak_bytes", option.backward_peak_bytes);
}

}  // namespace

bool SharedTensor::is_read_in(std::size_t begin, std::size_t end) const {
  const auto reader = std::lower_bound(readers.begin(), readers.end(), begin);
  return reader != readers.end() && *reader < end;
}

void validate(const Chain& chain) {
  if (chain.stages.empty()) throw ValueError("remat chain: has no stages, needs at least one");
  if (chain.size() > (std::size_t{1} << 20)) {
    throw ValueError("remat chain: has " + std::to_string(chain.size()) + " stages, at most 1048576 are supported");
  }
  Checker check(chain.size());
  check.bytes("input", "input_bytes", chain.input_bytes);
  check.bytes("input", "input_gradient_bytes", chain.input_gradient_bytes);
  check_shared(check, chain);
  for (std::size_t i = 0; i < chain.size(); ++i) {
    const Stage& stage = chain.stages[i];
    const std::string where = label(i, stage.name);
    check.bytes(where, "output_bytes", stage.output_bytes);
    check.bytes(where, "output_gradient_bytes", stage.output_gradient_bytes);
    check.bytes(where, "parameter_gradient_bytes", stage.parameter_gradient_bytes);
    check.time(where, "forward_time", stage.forward_time);
    check.bytes(where, "forward_peak_bytes", stage.forward_peak_bytes);
    const auto is_single = [](const Option& option) { return option.span == 1 && !option.is_first_visit_only; };
    if (std::none_of(stage.options.begin(), stage.options.end(), is_single)) {
      throw ValueError("remat chain: " + where + ": has no option of span 1 for any visit, needs at least one");
    }
    for (std::size_t o = 0; o < stage.options.size(); ++o) {
      const std::string& name = stage.options[o].name;
      const std::string option = where + ", option " + std::to_string(o) + (name.empty() ? "" : " (" + name + ")");
      check_option(check, option, stage.options[o], chain.size() - i);
      check_shared(option, stage.options[o], chain, i);
    }
  }
}

Chain homogeneous_chain(std::size_t n, Bytes activation_bytes, Bytes kept_bytes, Time forward_time,
                        Time backward_time) {
  Option keep;
  keep.name = "keep";
  keep.kept_bytes = kept_bytes;
  keep.forward_time = forward_time;
  keep.backward_time = backward_time;

  Stage stage;
  stage.output_bytes = activation_bytes;
  stage.output_gradient_bytes = activation_bytes;
  stage.forward_time = forward_time;
  stage.options = {keep};

  Chain chain;
  chain.input_bytes = activation_bytes;
  chain.input_gradient_bytes = activation_bytes;
  chain.stages.assign(n, stage);
  validate(chain);
  return chain;
}

}  // namespace thimble::remat
