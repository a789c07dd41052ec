#pragma once
// A cost model from a few steps of the program itself, with a smaller batch.
//
//   nn::CostModel costs = nn::measure_costs(small_run, cpu, nn::hardware("cpu"));   // seconds, in an arena of its own
//   nn::write_cost_model("resnet50.json", costs);                                   // the same plans again later
//   nn::Planner planner(large_run, cpu, costs);
//
// For every node it keeps not seconds but their ratio to its roofline, so that it holds for other batches. Each time is
// the least of several steps.

#include <string>

#include <thimble/nn/fit/cost.h>
#include <thimble/nn/step/profile.h>

namespace thimble::nn {

/// Runs a few steps of `make`'s run on `device` and times its operators: forward and backward, then results recomputed
/// from what operators save. Throws what the run throws, and ValueError for a dry device.
CostModel measure_costs(const MakeRun& make, memory::Device device, const Hardware& machine);

}  // namespace thimble::nn
