#pragma once
// Measured cost models as files.

#include <string>

#include <thimble/nn/fit/cost.h>

namespace thimble::nn {

/// Writes JSON, as a whole or not at all. Throws FileError.
void write_cost_model(const std::string& path, const CostModel& costs);
/// Throws FileError when there is no such file, or it is not one of write_cost_model().
CostModel read_cost_model(const std::string& path);

}  // namespace thimble::nn
