#pragma once
// The state of random numbers: a seed and a step, no stream. Every random number is a function of (seed, step, site,
// global sample index, element), so recomputation, micro-batches and other thread counts draw the same numbers.
//
// The site of a call
// - Calls are counted under each module path; a site is a hash of path and count.
// - A pass (from start_pass to end_pass: a training step or one of its micro-batches) counts from zero, so that a
//   repeated step draws the same numbers.
// - Calls outside passes have a separate count and domain: noise drawn between steps never equals a step's noise,
//   however often a step is retried. Each step resets this count, so that a resumed run draws the same numbers. Numbers
//   drawn between a step and the checkpoint after it are drawn again when the run resumes.
// - Initial values (nn/layers/init.h) have a third count. At step 0, when models are made, they have the domain of
//   passes: a module that draws under its parameters' path repeats their random words in the first step.

#include <cstdint>
#include <vector>

#include <thimble/core/tensor/resource.h>

namespace thimble {

/// A random operator keeps this instead of a mask: everything that its numbers depend on.
struct RandomSite {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  std::int64_t first_sample = 0;
  std::uint32_t site = 0;  ///< hash of the module path and the call's ordinal under that path in this pass
};

class RandomGenerator {
 public:
  explicit RandomGenerator(std::uint64_t seed = 0) : seed_(seed) {}

  std::uint64_t seed() const noexcept { return seed_; }
  std::uint64_t step() const noexcept { return step_; }

  /// Starts a pass over the model: calls under every path count from zero. `first_sample` is the global index of the
  /// first sample of the (micro-)batch, so that micro-batches draw the same numbers as the whole batch.
  void start_pass(std::int64_t first_sample = 0);
  void end_pass() noexcept;
  bool is_in_pass() const noexcept { return is_in_pass_; }
  /// Sets the step (for a resume, or Transaction::commit), ends the pass and zeroes every count.
  void set_step(std::uint64_t step);

  /// Number of random calls of the current or last pass, by path; 0 for missing paths.
  const std::vector<std::uint32_t>& calls() const noexcept { return in_pass_; }

  /// The next random call under `path`.
  RandomSite next_site(PathId path);
  /// The next site for initial values; within a pass and after step 0, next_site.
  RandomSite next_initial_site(PathId path);

 private:
  using Calls = std::vector<std::uint32_t>;  // per path
  RandomSite site(PathId path, Calls& calls, bool is_outside);

  std::uint64_t seed_;
  std::uint64_t step_ = 0;
  std::int64_t first_sample_ = 0;
  bool is_in_pass_ = false;
  Calls in_pass_, outside_, initial_;
};

/// A scope for passes: its end ends the last pass, unless the scope began inside a pass.
class PassScope {
 public:
  explicit PassScope(RandomGenerator& generator) : generator_(generator), was_in_pass_(generator.is_in_pass()) {}
  ~PassScope();
  PassScope(const PassScope&) = delete;
  PassScope& operator=(const PassScope&) = delete;

 private:
  RandomGenerator& generator_;
  bool was_in_pass_;
};

}  // namespace thimble
