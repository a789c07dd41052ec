#pragma once
// Measures a cost model in a few steps of the program itself, with a smaller batch.
//
//   nn::CostModel costs = nn::measure_costs(small_run, cpu, nn::hardware("cpu"));   // in a separate arena
//   nn::write_cost_model("resnet50.json", costs);                                   // for the same plans again later
//   nn::Planner planner(large_run, cpu, costs);
//
// It keeps the ratio of each node's time to its roofline instead of seconds, so that it holds for other batches. Each
// time is the least of several steps.

#include <string>

#include <thimble/nn/fit/cost.h>
#include <thimble/nn/step/profile.h>

namespace thimble::nn {

/// Runs a few steps of `make`'s run on `device` and times its operators: forward, backward, and results recomputed from
/// saved tensors. Throws any error of the run, and ValueError for a dry device.
CostModel measure_costs(const MakeRun& make, memory::Device device, const Hardware& machine);

}  // namespace thimble::nn
