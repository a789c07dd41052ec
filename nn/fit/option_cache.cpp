#include <thimble/nn/fit/option_cache.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include <thimble/memory/remat/select.h>

namespace thimble::nn {
namespace {

// A price at which a tensor is recomputed wherever possible.
constexpr remat::Bytes too_large = remat::Bytes{1} << 50;

}  // namespace

const std::vector<OptionCache::Entry>& OptionCache::options(const remat::Graph& block,
                                                            const std::vector<std::uint32_t>& inner,
                                                            std::size_t limit) {
  const auto [found, is_new] = known_.try_emplace(numbers_of(block, inner));
  if (is_new) found->second = find(block, inner, limit);
  return found->second;
}

// All inputs that determine the options.
OptionCache::Numbers OptionCache::numbers_of(const remat::Graph& block, const std::vector<std::uint32_t>& inner) {
  Numbers numbers;
  const auto append = [&](const std::vector<std::uint32_t>& list) {
    numbers.push_back(static_cast<std::int64_t>(list.size()));
    numbers.insert(numbers.end(), list.begin(), list.end());
  };
  append(inner);
  for (const remat::GraphTensor& t : block.tensors) {
    const std::int64_t all[] = {t.bytes, t.gradient_bytes, (t.is_given ? 1 : 0) + (t.is_result ? 2 : 0)};
    numbers.insert(numbers.end(), std::begin(all), std::end(all));
  }
  for (const remat::GraphOperator& op : block.operators) {
    for (const auto* list : {&op.inputs, &op.outputs, &op.backward_reads, &op.windows}) append(*list);
    const std::int64_t all[] = {
        op.cost, op.forward_peak_bytes, op.backward_peak_bytes,
        (op.can_recompute ? 1 : 0) + (op.is_backward_in_place ? 2 : 0) + (op.frees_reads_first ? 4 : 0)};
    numbers.insert(numbers.end(), std::begin(all), std::end(all));
  }
  return numbers;
}

std::vector<OptionCache::Entry> OptionCache::find(const remat::Graph& block, const std::vector<std::uint32_t>& inner,
                                                  std::size_t limit) {
  remat::Graph priced = block;
  for (const std::uint32_t t : inner) priced.tensors[t].bytes += too_large;
  std::vector<Entry> entries;
  for (remat::KeptPlan& plan : remat::block_options(priced, limit + inner.size())) {
    remat::Selection& selection = plan.selection;
    const auto is_kept = [&](std::uint32_t t) {
      return std::binary_search(selection.kept.begin(), selection.kept.end(), t);
    };
    if (std::any_of(inner.begin(), inner.end(), is_kept)) continue;
    remat::Option option = remat::chain_option(block, selection, {});
    entries.push_back({std::move(selection), std::move(option)});
  }
  return entries;
}

}  // namespace thimble::nn
