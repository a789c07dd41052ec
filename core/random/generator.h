#pragma once
// The state of random numbers: a seed and a step, no stream. Every random number is a function of
// (seed, step, site, global sample index, element), so a recompute, a micro-batch or another thread count draws the
// same.
//
// Which site a call has
// - Calls are counted under each module path, and a site is a hash of path and count.
// - In a pass (from start_pass to end_pass: a training step, a micro-batch of it) they are counted from zero again, so
//   that a repeated step draws the same.
// - Outside of passes they have a count and a domain of their own: noise that is drawn between steps is never the
//   noise of a step, however often a step is tried. That count goes back to zero with each step that is made, so that a
//   run that is resumed after it draws the same. What is drawn between a step and the checkpoint taken after it is
//   drawn again when that is resumed.
// - Initial values (nn/layers/init.h) have a third count. At step 0, where models are made, they have the domain of
//   passes: a module that draws under the very path of its parameters meets their words again in the first step.

#include <cstdint>
#include <vector>

#include <thimble/core/tensor/resource.h>

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
  void end_pass() noexcept;
  bool is_in_pass() const noexcept { return is_in_pass_; }
  /// Goes to a step (a resume sets it; Transaction::commit advances it); no pass is under way there, and every count is
  /// zero.
  void set_step(std::uint64_t step);

  /// Random calls of the pass so far (the last one), by path; paths that are not there had none.
  const std::vector<std::uint32_t>& calls() const noexcept { return in_pass_; }

  /// The next random call under `path`.
  RandomSite next_site(PathId path);
  /// The next one that draws initial values; in a pass, and after step 0, one like any other.
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

/// Passes start inside of its scope; at its end the last one ends, unless the scope lies in a pass itself.
class PassScope {
 public:
  explicit PassScope(Generator& generator) : generator_(generator), was_in_pass_(generator.is_in_pass()) {}
  ~PassScope();
  PassScope(const PassScope&) = delete;
  PassScope& operator=(const PassScope&) = delete;

 private:
  Generator& generator_;
  bool was_in_pass_;
};

}  // namespace thimble
