#pragma once
// One steady training step, event by event, with the place of every block: what the pictures of a plan are drawn from.
//
// Policy
// - A run of two steps on a dry device is traced; the second, steady one is cut out. Blocks that live at its begin come
//   first, as allocations, so that the trace stands on its own (as Trace::restart would have it).
// - A trace knows sizes and lifetimes, not addresses. The same requests in the same order meet the same arena again, so
//   the whole trace is replayed into a fresh one, and each block's offset is read off.
//
// Terms
//   event time   0 is the moment before the step; t is the state after its t-th event
//   layout       where the blocks of the step lie: as the arena places them on demand, or as they were placed offline

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include <thimble/autograd/plan.h>
#include <thimble/memory/policies/trace.h>
#include <thimble/nn/fit/fit.h>
#include <thimble/nn/step/profile.h>

namespace thimble::bench {

/// Offsets of a step's blocks in one arena.
struct StepLayout {
  std::vector<std::size_t> offsets;  ///< in bytes from the arena's base, by block id
  std::size_t height_bytes = 0;      ///< end of the highest block during the step
  std::size_t committed_bytes = 0;   ///< by the arena at most, over the whole run
};

struct StepTrace {
  std::string name;                          ///< "keep everything", "planned", "forward"
  std::vector<memory::Trace::Event> events;  ///< of the step, after `before` allocations of blocks that lived before it
  std::size_t before = 0;
  std::size_t live_peak_bytes = 0;  ///< largest sum of requested bytes in the step
  StepLayout dynamic;               ///< as the arena places blocks on demand
  StepLayout placed;                ///< the step's own blocks placed offline
};

/// Dry-runs two steps of `make`'s run on the dry twin of `device` under `plan` (its default: everything is kept) and
/// cuts the second one out. The steps are placed here where the plan does not say how. Throws what the run
/// throws; Error when a replay of the trace does not commit what the run did.
StepTrace trace_step(const std::string& name, memory::Device device, const nn::MakeRun& make,
                     const nn::Plan& plan = {});

}  // namespace thimble::bench
