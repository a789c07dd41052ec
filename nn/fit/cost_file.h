#pragma once
// Reads and writes measured cost models.

#include <string>

#include <thimble/nn/fit/cost.h>

namespace thimble::nn {

/// Writes JSON atomically. Throws FileError.
void write_cost_model(const std::string& path, const CostModel& costs);
/// Throws FileError if the file is missing, or not from write_cost_model().
CostModel read_cost_model(const std::string& path);

}  // namespace thimble::nn
