#pragma once
// Collects each rank's results for the main thread to check: Catch counts assertions without a lock.

#include <type_traits>
#include <utility>
#include <vector>

#include <thimble/dist/threads.h>

namespace thimble::testing {

/// The results of `body` on `ranks` threads, in the order of ranks.
template <class Body>
auto by_rank(int ranks, const Body& body, memory::Device device = cpu) {
  using Found = std::invoke_result_t<const Body&, dist::Communicator&>;
  static_assert(!std::is_same_v<Found, bool>, "threads cannot write to the bits of a std::vector<bool>");
  std::vector<Found> found(static_cast<std::size_t>(ranks));
  const auto keep = [&](dist::Communicator& c) { found[static_cast<std::size_t>(c.rank())] = body(c); };
  dist::run_ranks(ranks, keep, device);
  return found;
}

}  // namespace thimble::testing
