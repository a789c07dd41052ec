#include <algorithm>
#include <numeric>
#include <string>

#include <thimble/core/error.h>
#include <thimble/core/tensor/view.h>
#include <thimble/models/model.h>

namespace thimble::models {
namespace {

// The first sample of micro-batch `index`.
std::int64_t begin_of(const Batch& batch, std::int64_t index, std::int64_t count) {
  const std::int64_t samples = batch.input.size(0);
  if (count < 1 || count > samples) {
    throw ValueError("micro-batches: " + std::to_string(count) + " of a batch of " + std::to_string(samples) +
                     " samples; expected 1 to " + std::to_string(samples));
  }
  return index * samples / count;
}

}  // namespace

std::vector<std::int64_t> count_targets(std::span<const std::int64_t> targets, std::int64_t samples,
                                        std::int64_t ignored) {
  if (samples < 1 || targets.size() % static_cast<std::size_t>(samples) != 0) {
    throw ShapeError("count_targets: " + std::to_string(targets.size()) + " targets of " + std::to_string(samples) +
                     " samples; as many of each are needed");
  }
  const auto each = static_cast<std::ptrdiff_t>(targets.size() / static_cast<std::size_t>(samples));
  std::vector<std::int64_t> counts;
  for (auto at = targets.begin(); at != targets.end(); at += each) {
    counts.push_back(each - std::count(at, at + each, ignored));
  }
  return counts;
}

std::vector<optim::MicroBatch> micro_batches(const Batch& batch, std::int64_t count) {
  std::vector<optim::MicroBatch> parts;
  begin_of(batch, 0, count);  // throws for a wrong count
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t begin = begin_of(batch, i, count), end = begin_of(batch, i + 1, count);
    optim::MicroBatch part{end - begin, static_cast<double>(end - begin)};
    if (!batch.counts.empty()) {
      part.weight = static_cast<double>(
          std::accumulate(batch.counts.begin() + begin, batch.counts.begin() + end, std::int64_t{0}));
    }
    parts.push_back(part);
  }
  return parts;
}

Batch micro_batch(const Batch& batch, std::int64_t index, std::int64_t count) {
  if (count == 1) return batch;
  const std::int64_t begin = begin_of(batch, index, count), end = begin_of(batch, index + 1, count);
  return slice_samples(batch, begin, end);
}

Batch slice_samples(const Batch& batch, std::int64_t begin, std::int64_t end) {
  Batch part{view::slice(batch.input, 0, begin, end), view::slice(batch.target, 0, begin, end)};
  if (!batch.counts.empty()) part.counts.assign(batch.counts.begin() + begin, batch.counts.begin() + end);
  part.mask = batch.mask;
  if (!batch.mask.defined()) return part;
  const bool has_samples = batch.mask.dtype() == DType::i32 || (batch.mask.rank() == 4 && batch.mask.size(0) > 1);
  if (has_samples) part.mask = view::slice(batch.mask, 0, begin, end);
  return part;
}

}  // namespace thimble::models
