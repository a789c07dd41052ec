#pragma once
// Runs on ranks that are threads, and rows of what each of them had.

#include <cstddef>
#include <cstdint>

#include <thimble/bench/report/experiment.h>
#include <thimble/models/training/training.h>

namespace thimble::bench {

models::TrainReport run_on_ranks(const models::TrainOptions& options);

/// Bytes that every rank's plan fits: the largest of what the ranks need at least.
std::size_t least_budget(models::TrainOptions options);

/// Sums over the ranks; each rank's own bytes are compared as well.
void add_ranks(report::Row& row, const models::TrainReport& result, std::int64_t steps);

}  // namespace thimble::bench
