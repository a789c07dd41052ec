#pragma once
// The text of a plan file: one JSON object with a checksum near its begin.
//
//   {"format":"thimble plan 2","crc32c":"89abcdef","figures":{...},"key":{...},"tape":{...},"placement":[...]}
//
// The sum is the CRC-32C of the whole text with zeros in place of its own digits.

#include <string>
#include <string_view>

#include <thimble/nn/fit/fit.h>

namespace thimble::nn {

/// A plan as JSON. Throws ValueError for one without a key.
std::string plan_to_json(const Plan& plan);

/// Puts the sum of a text of this form into its place; a text of another form stays as it is.
void put_plan_sum(std::string& json);

/// Reads what plan_to_json wrote. All that can be known without the program is checked: the sum, every number's range,
/// indices, lifetimes of blocks, offsets, keys that no plan has. The tape has no operators yet. Throws FileError,
/// naming `source`, and PlanError for blocks that overlap.
Plan parse_plan(std::string_view json, const std::string& source);

}  // namespace thimble::nn
