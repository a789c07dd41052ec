#pragma once
// What the ranks of a run must have alike, whichever machine each is on.

#include <vector>

#include <thimble/dist/alike.h>
#include <thimble/models/training/training.h>

namespace thimble::models {

/// The process's traits, the recipe, and every other option that makes the function of a run, its collective calls or
/// its files: model and sizes, data, weights, adapters and checkpoint by their bytes, seed, optimizer, formats, layout,
/// evaluations, files to write. The budget and what else a plan is made from is among them where ranks follow one plan
/// or it decides bits: with parts, stages or stage 3 of ZeRO, `allows_lossy`, `micro_batches` auto. Threads, strictness
/// and logs may differ. `options` has what open_training fills in. Throws FileError.
std::vector<dist::Trait> rank_traits(const TrainOptions& options, const Dataset& data, const Model& model);

}  // namespace thimble::models
