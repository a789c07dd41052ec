#pragma once
// Stacks of resources: the default resource of each device, and a program's separate arenas.
//
// Policy
// - From the bottom: arena, then placed, limit, ledger, trace, as requested. Placed is directly above the arena, so
//   that the others see a step's blocks and not their region. The ledger is above the limit, so that every refusal
//   carries the table of categories. The trace is on top and sees only successful requests.
// - All policies of a stack share one lock (memory/arena/lock.h).
//
// Terms
//   top   the resource for tensors

#include <cstddef>
#include <memory>
#include <vector>

#include <thimble/memory/arena/arena.h>
#include <thimble/memory/policies/ledger.h>
#include <thimble/memory/policies/limit.h>
#include <thimble/memory/policies/placed.h>
#include <thimble/memory/policies/trace.h>

namespace thimble::memory {

struct Options {
  Arena::Options arena = {};
  std::size_t limit_bytes = 0;            ///< most live requested bytes; 0 is unbounded
  bool trace = false;                     ///< record every event
  std::vector<StepPlacement> plans = {};  ///< one for each step; later steps repeat the last. Empty places nothing
};

struct Stack {
  std::shared_ptr<Arena> arena;
  std::shared_ptr<PlacedArena> placed;  ///< null without plans
  std::shared_ptr<Limit> limit;         ///< null unless requested
  std::shared_ptr<Ledger> ledger;
  std::shared_ptr<Trace> trace;  ///< null unless requested
  std::shared_ptr<Resource> top;
};

/// A new stack on `device`. Throws DeviceError when the device does not exist, ValueError for inconsistent plans.
Stack make_resource(Device device, Options options = {});

/// The stack of default_resource(device): ledger over arena, made at first use. Throws DeviceError when the device does
/// not exist.
const Stack& default_stack(Device device);

}  // namespace thimble::memory
