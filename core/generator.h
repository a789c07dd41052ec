#pragma once
// The state of random numbers: a seed and a step, no stream. Every random number is a function of
// (seed, step, site, global sample index, element), so a recompute, a micro-batch or another thread count draws the
// same.

#include <cstdint>
#include <vector>

#include <thimble/core/resource.h>

namespace thimble {

/// What a random operator keeps in its descriptor, instead of a mask: everything its numbers depend on.
struct RandomSite {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  std::int64_t first_sample = 0;
  std::uint32_t site = 0;  ///< hash of the module path and the call's ordinal under that path in this pass
};

class Generator {
 public:
  explicit Generator(std::uint64_t seed = 0) : seed_(seed) {}

  std::uint64_t seed() const noexcept { return seed_; }
  std::uint64_t step() const noexcept { return step_; }

  /// Starts a pass over the model: the calls under every path are counted from zero again. `first_sample` is the global
  /// index of the first sample of the (micro-)batch, so that a micro-batch draws what the whole batch would have drawn.
  void start_pass(std::int64_t first_sample = 0);
  /// Goes to a step (a resume sets it; Transaction::commit advances it) and starts a pass.
  void set_step(std::uint64_t step);

  /// Random calls of this pass so far, by path; paths that are not there had none.
  const std::vector<std::uint32_t>& calls() const noexcept { return calls_; }

  /// The next random call under `path`.
  RandomSite next_site(PathId path);

 private:
  std::uint64_t seed_;
  std::uint64_t step_ = 0;
  std::int64_t first_sample_ = 0;
  std::vector<std::uint32_t> calls_;  // per path
};

}  // namespace thimble
