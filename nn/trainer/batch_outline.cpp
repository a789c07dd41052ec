#include <thimble/nn/trainer/batch_outline.h>

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <numeric>

#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>

namespace thimble::nn {
namespace {

/// "4096 of 1", "3 of 8, 1 of 5": runs of micro-batches with equal numbers of samples, in order.
std::string counted(const std::vector<std::int64_t>& numbers) {
  std::string text;
  for (auto at = numbers.begin(); at != numbers.end();) {
    const auto end = std::find_if(at, numbers.end(), [&](std::int64_t n) { return n != *at; });
    text += (text.empty() ? "" : ", ") + std::to_string(end - at) + " of " + std::to_string(*at);
    at = end;
  }
  return text;
}

}  // namespace

void BatchOutline::add(const Tensor& tensor) {
  shapes += first_axes.empty() ? "" : ", ";
  shapes += tensor.defined() ? std::string(to_string(tensor.dtype())) + " " + to_string(tensor.shape()) : "none";
  if (tensors != nullptr) tensors->push_back(tensor);
  first_axes.push_back(tensor.defined() && tensor.rank() > 0 ? tensor.size(0) : -1);
}

void BatchOutline::add_value(std::string_view text) {
  if (!values.empty()) values += ", ";
  values += text;
}

void BatchOutline::hide(const std::type_info& type) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(abi::__cxa_demangle(type.name(), nullptr, nullptr, &status),
                                                    std::free);
  hidden = name ? name.get() : type.name();
}

void BatchOutline::require_seen() const {
  const char* const fix =
      "; give the program a `key` that differs where the shapes of batches do, or the type a function tensors(const "
      "T&), or make it an aggregate of tensors (nn/trainer/batch_outline.h)";
  if (!hidden.empty()) throw ValueError("trainer: the tensors in a batch's '" + hidden + "' cannot be seen" + fix);
  if (first_axes.empty())
    throw ValueError(std::string("trainer: expected a batch with tensors, got one of none") + fix);
}

std::vector<std::int64_t> samples_of(const BatchOutline& whole, const std::vector<BatchOutline>& micro_batches) {
  const auto refuse = [](const std::string& why) { throw ValueError("trainer: micro_batch " + why); };
  std::vector<std::int64_t> first_counts;
  for (std::size_t t = 0; t < whole.first_axes.size(); ++t) {
    std::vector<std::int64_t> counts;
    for (const BatchOutline& micro_batch : micro_batches) {
      if (micro_batch.first_axes.size() != whole.first_axes.size()) {
        refuse("gives " + std::to_string(micro_batch.first_axes.size()) + " tensors, the batch has " +
               std::to_string(whole.first_axes.size()) + "; expected the same members, with some of the samples");
      }
      counts.push_back(micro_batch.first_axes[t]);
    }
    if (t == 0) first_counts = counts;
    if (whole.first_axes[t] < 1) continue;
    if (std::accumulate(counts.begin(), counts.end(), std::int64_t{0}) != whole.first_axes[t]) continue;
    if (std::all_of(counts.begin(), counts.end(), [](std::int64_t n) { return n > 0; })) return counts;
    refuse("cuts " + std::to_string(whole.first_axes[t]) + " samples into micro-batches, " + counted(counts) +
           "; expected at least one sample in each, so at most as many micro-batches as samples");
  }
  refuse("must cut the samples of a batch, its tensors' first axis, into parts that are the whole together; got " +
         counted(first_counts) + ", from a batch of " +
         (whole.first_axes.empty() ? "none" : std::to_string(whole.first_axes.front())) +
         "; cut from size * index / count to size * (index + 1) / count where the count does not divide");
  return {};
}

void copy_batch(const BatchOutline& to, const BatchOutline& from) {
  const auto in_words = [](const BatchOutline& batch) {
    return batch.shapes + (batch.values.empty() ? "" : "; " + batch.values);
  };
  if (to.shapes != from.shapes || to.values != from.values) {
    throw PlanError("trainer: options.captures_steps: expected batches with " + in_words(to) + ", got one with " +
                    in_words(from));
  }
  for (std::size_t i = 0; i < to.tensors->size(); ++i) {
    const Tensor& own = (*to.tensors)[i];
    if (own.defined()) copy_into(own, (*from.tensors)[i]);
  }
}

}  // namespace thimble::nn
