#include <thimble/dist/shards.h>

#include <algorithm>
#include <string>
#include <utility>

#include <thimble/core/error.h>

namespace thimble::dist {
namespace {

/// The permitted bound of a shard that is nearest to `wanted`.
std::int64_t bound_at(const Bucket& bucket, std::int64_t wanted, bool keeps_parameters) {
  const auto after = std::upper_bound(bucket.offsets.begin(), bucket.offsets.end(), wanted);
  if (after == bucket.offsets.begin()) return 0;
  const std::int64_t begin = *(after - 1), end = after == bucket.offsets.end() ? bucket.elements : *after;
  const std::int64_t grain = keeps_parameters ? end - begin : shard_grain;
  if (grain == 0) return begin;
  return std::min(end, begin + (wanted - begin + grain / 2) / grain * grain);
}

void cut(Bucket& bucket, const std::vector<optim::Named>& parameters, int ranks, bool keeps_parameters) {
  bucket.bounds.push_back(0);
  for (int r = 1; r <= ranks; ++r) {
    const std::int64_t share = bucket.elements / ranks, rest = bucket.elements % ranks;
    const std::int64_t wanted = share * r + rest * r / ranks;
    const std::int64_t bound = r == ranks ? bucket.elements : bound_at(bucket, wanted, keeps_parameters);
    bucket.bounds.push_back(std::max(bound, bucket.bounds.back()));
  }
  bucket.pieces.resize(static_cast<std::size_t>(ranks));
  for (std::size_t r = 0; r < bucket.pieces.size(); ++r) {
    for (std::size_t k = 0; k < bucket.parameters.size(); ++k) {
      const std::int64_t at = bucket.offsets[k], n = parameters[bucket.parameters[k]].tensor.elements();
      const std::int64_t begin = std::max(bucket.bounds[r], at), end = std::min(bucket.bounds[r + 1], at + n);
      if (begin < end) bucket.pieces[r].push_back({bucket.parameters[k], begin - at, end - at, begin});
    }
  }
}

void cut_each(Bucket& bucket, int ranks, RangeOf range_of) {
  bucket.offsets.clear();
  bucket.bounds.push_back(0);
  bucket.pieces.resize(static_cast<std::size_t>(ranks));
  for (int r = 0; r < ranks; ++r) {
    std::int64_t at = bucket.bounds.back();
    for (const std::size_t parameter : bucket.parameters) {
      const Range range = range_of(parameter, r);
      if (range.size() > 0)
        bucket.pieces[static_cast<std::size_t>(r)].push_back({parameter, range.begin, range.end, at});
      at += range.size();
    }
    bucket.bounds.push_back(at);
  }
}

std::vector<Bucket> fill_buckets(const std::vector<optim::Named>& parameters, int ranks, const BucketOptions& options) {
  if (ranks < 1) throw ValueError("make_buckets: " + std::to_string(ranks) + " ranks; expected at least 1");
  std::vector<Bucket> buckets;
  std::vector<std::size_t> open;  // of each dtype and device, the one being filled
  for (std::size_t i = parameters.size(); i-- > 0;) {
    const Tensor& p = parameters[i].tensor;
    const int chunk = options.chunks.empty() ? 0 : options.chunks[i];
    const auto fits = [&](std::size_t b) {
      return buckets[b].dtype == p.dtype() && buckets[b].device == p.device() && buckets[b].chunk == chunk;
    };
    auto found = std::find_if(open.begin(), open.end(), fits);
    const auto bytes = [&](std::size_t b) {
      return static_cast<std::size_t>(buckets[b].elements) * size_of(p.dtype());
    };
    if (found != open.end() && bytes(*found) + p.bytes() > options.bytes) found = open.erase(found), found = open.end();
    if (found == open.end()) {
      Bucket bucket;
      bucket.dtype = p.dtype(), bucket.device = p.device(), bucket.chunk = chunk;
      buckets.push_back(std::move(bucket));
      found = open.insert(open.end(), buckets.size() - 1);
    }
    Bucket& bucket = buckets[*found];
    bucket.parameters.push_back(i);
    bucket.offsets.push_back(bucket.elements);
    bucket.elements += p.elements();
  }
  return buckets;
}

}  // namespace

Range shard_range(std::int64_t elements, int ranks, int rank, std::size_t number) {
  const auto turn = static_cast<int>(number % static_cast<std::size_t>(ranks));
  const int part = (rank + ranks - turn) % ranks;
  const auto bound = [&](int k) {
    if (k == ranks) return elements;
    const std::int64_t wanted = elements / ranks * k + elements % ranks * k / ranks;
    return (wanted + shard_grain / 2) / shard_grain * shard_grain;
  };
  return {std::min(bound(part), elements), std::min(bound(part + 1), elements)};
}

std::vector<Bucket> make_buckets(const std::vector<optim::Named>& parameters, int ranks, const BucketOptions& options) {
  std::vector<Bucket> buckets = fill_buckets(parameters, ranks, options);
  for (Bucket& bucket : buckets) cut(bucket, parameters, ranks, options.keeps_parameters);
  return buckets;
}

std::vector<Bucket> make_buckets(const std::vector<optim::Named>& parameters, int ranks, const BucketOptions& options,
                                 RangeOf range_of) {
  std::vector<Bucket> buckets = fill_buckets(parameters, ranks, options);
  for (Bucket& bucket : buckets) cut_each(bucket, ranks, range_of);
  return buckets;
}

}  // namespace thimble::dist
