#pragma once
// Measured cost models as files.

#include <string>

#include <thimble/nn/fit/cost.h>

namespace thimble::nn {

/// Writes JSON, as a whole or not at all. Throws FileError.
void write_cost_model(const std::string& path, const CostModel& costs);
/// Throws FileError if there is no such file, or write_cost_model() did not write it.
CostModel read_cost_model(const std::string& path);

}  // namespace thimble::nn
