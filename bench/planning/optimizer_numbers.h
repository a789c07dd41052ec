#pragma once
// The numbers of an optimizer, with defaults by model and optimizer.

#include <optional>

#include <thimble/bench/runs/setup.h>

namespace thimble::bench {

/// What an optimizer of the setup is made with, defaults filled in. The default rates are those with which every family
/// of models trains (tests/program/default_rate_test.cpp).
struct OptimizerNumbers {
  double rate = 0, weight_decay = 0;
  std::optional<double> beta2 = {};  ///< of adam and adamw
};
OptimizerNumbers optimizer_numbers(const Setup& setup, const models::Model& model);

}  // namespace thimble::bench
