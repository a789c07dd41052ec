#pragma once
// Compares a training run that is partly in a tier with its dry run.

#include <cstddef>
#include <string>

#include <thimble/core/error.h>
#include <thimble/models/techniques/setup.h>
#include <thimble/models/training/costs.h>
#include <thimble/nn/step/profile.h>

#include "catch.h"

namespace store_run_test {

/// `setup` offloads something to `folder`: the run has the events and bytes of its dry run, and takes less than
/// `here_bytes`. Without a folder it is refused.
inline void check(thimble::models::Setup setup, const std::string& folder, std::size_t here_bytes) {
  using namespace thimble;
  setup.offload.to = folder;
  const nn::MemoryProfile predicted = nn::profile_training(dry(cpu), models::zero_batch_run(setup), 3, true);
  const nn::MemoryProfile measured = nn::profile_training(cpu, models::zero_batch_run(setup), 3, true);
  CHECK(predicted.events == measured.events);
  CHECK(predicted.peak_bytes == measured.peak_bytes);
  CHECK(predicted.peak_bytes < here_bytes);
  setup.offload.to.clear();
  CHECK_THROWS_AS(nn::profile_training(dry(cpu), models::zero_batch_run(setup)), ValueError);
}

}  // namespace store_run_test
