#pragma once
// Stacks of resources: the ones of default_resource, and a program's separate arenas.
//
// Policy
// - From the bottom: arena, then placed, limit, ledger, trace, as requested. Placed is directly above the arena, so
//   that all others see the blocks of a step and none sees its region. The ledger is above the limit so that every
//   refusal carries the table of categories; the trace is on top and sees only successful requests.
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
  std::size_t limit_bytes = 0;  ///< bound of live requested bytes; 0 disables it
  bool trace = false;           ///< record every event
  std::vector<StepPlacement> plans =
      {};  ///< of the first step, the second, ...; the last one repeats. Empty places nothing
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

/// The stack under default_resource(device): ledger over arena, made at first use and shared by all. Throws
/// DeviceError.
const Stack& default_stack(Device device);

}  // namespace thimble::memory
