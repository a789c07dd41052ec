#pragma once
// Time on the processor's clock, which does not run while others have the cores.

#include <vector>

#include <thimble/nn/step/profile.h>

namespace thimble::bench {

/// One thread for kernels as long as this lives: what threads spend on waiting for each other is then not counted.
class OneThread {
 public:
  OneThread();
  ~OneThread();
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

/// Processor milliseconds of one step of each run, on one thread: the runs stand side by side, each in an arena of its
/// own, and make their steps in turn, so that what else the machine does meets all of them. The least of `rounds` after
/// two that do not count; a step that its loss scaler skipped does not count either. Throws ValueError when none is
/// left, and for no rounds; what the runs throw.
std::vector<double> step_processor_ms(memory::Device device, const std::vector<nn::MakeRun>& makes, int rounds);

}  // namespace thimble::bench
