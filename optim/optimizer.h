#pragma once
// What all optimizers share: the parameters they update, the state they keep, and the learning rate.

#include <string>
#include <vector>

#include <thimble/core/tensor.h>

namespace thimble::optim {

/// A tensor and its dotted name.
struct Named {
  std::string name;
  Tensor tensor;
};

/// State is made in the constructor, all of it, so that a plan knows it before the first step and a step needs no
/// memory.
class Optimizer {
 public:
  /// Throws AutogradError when a parameter is not a leaf.
  Optimizer(std::vector<Named> parameters, double rate);
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// One update of every parameter that has a gradient. Writes in place; allocates nothing, so it cannot fail half-way.
  void step();
  /// The same in parts: counts the update that begins ...
  void begin_step() noexcept { ++step_count_; }
  /// ... and does that of one parameter, where it has a gradient. Throws ValueError for an index out of range.
  void step_one(std::size_t index);
  /// Forgets (and so frees) all gradients.
  void zero_grad();

  double rate() const noexcept { return rate_; }
  /// Throws ValueError when negative or not finite.
  void set_rate(double rate);
  /// Updates done so far.
  std::int64_t step_count() const noexcept { return step_count_; }
  void set_step_count(std::int64_t count) noexcept { step_count_ = count; }

  const std::vector<Named>& parameters() const noexcept { return parameters_; }
  /// State tensors, named `<parameter>.<kind>`: what a checkpoint holds besides parameters and step_count().
  virtual std::vector<Named> state() const = 0;
  /// Bytes of all state tensors.
  std::size_t state_bytes() const;
  virtual const char* name() const noexcept = 0;

 protected:
  virtual void update(std::size_t index, const Tensor& parameter, const Tensor& gradient) = 0;

 private:
  std::vector<Named> parameters_;
  double rate_;
  std::int64_t step_count_ = 0;
};

/// Zeros like `parameter` in its compute type (f32, or f64), counted as optimizer state under the parameter's path.
Tensor make_state(const Tensor& parameter);

}  // namespace thimble::optim
