#include <algorithm>
#include <numeric>

#include <thimble/memory/remat/select.h>
#include <thimble/memory/remat/time_bound.h>

namespace thimble::remat {

namespace time_bound_detail {

constexpr std::size_t moments = 4;  // the last operator, and the ones that read most

}  // namespace time_bound_detail

TimeBound::TimeBound(const Graph& graph, bool counts_temporaries) {
  validate(graph);
  const auto read_bytes = [&](std::uint32_t op) {
    std::vector<std::uint32_t> reads = graph.operators[op].backward_reads;
    std::sort(reads.begin(), reads.end());
    reads.erase(std::unique(reads.begin(), reads.end()), reads.end());
    Bytes bytes = counts_temporaries ? graph.operators[op].backward_peak_bytes : 0;
    for (const std::uint32_t t : reads) bytes += graph.tensors[t].is_given ? 0 : graph.tensors[t].bytes;
    return bytes;
  };
  std::vector<std::uint32_t> operators(graph.operators.size());
  std::iota(operators.begin(), operators.end(), 0U);
  std::stable_sort(operators.begin(), operators.end() - 1,
                   [&](std::uint32_t a, std::uint32_t b) { return read_bytes(a) > read_bytes(b); });
  std::rotate(operators.begin(), operators.end() - 1, operators.end());
  operators.resize(std::min(operators.size(), time_bound_detail::moments));
  for (const std::uint32_t v : operators) {
    Graph part;
    part.tensors = graph.tensors;
    part.operators.assign(graph.operators.begin(), graph.operators.begin() + v + 1);
    Moment moment;
    moment.read_bytes = read_bytes(v);
    for (GraphTensor& tensor : part.tensors) tensor.held_until = 0;  // its operator may be left out
    // Nothing has to be made for v any more, and its inputs can be taken.
    for (const std::uint32_t t : part.operators[v].backward_reads) part.tensors[t].bytes = 0;
    moment.graph = std::make_unique<const Graph>(std::move(part));
    moment.space = std::make_unique<KeptSpace>(*moment.graph);
    moments_.push_back(std::move(moment));
  }
}

Time TimeBound::at(Bytes bytes) {
  Time least = 0;
  for (Moment& moment : moments_) least = std::max(least, hull_cost(*moment.space, bytes - moment.read_bytes));
  return least;
}

}  // namespace thimble::remat
