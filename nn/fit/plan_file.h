#pragma once
// The text of a plan file: one JSON object with a checksum near its start.
//
//   {"format":"thimble plan 2","crc32c":"89abcdef","figures":{...},"key":{...},"tape":{...},"placement":[...]}
//
// The sum is the CRC-32C of the whole text with zeros in place of its digits.

#include <string>
#include <string_view>

#include <thimble/nn/fit/fit.h>

namespace thimble::nn {

/// A plan as JSON. Throws ValueError for one without a key.
std::string plan_to_json(const Plan& plan);

/// Puts the sum of a text of this form into its place; a text of another form stays unchanged.
void put_plan_sum(std::string& json);

/// Reads the text of plan_to_json. Checks everything that does not need the program: the sum, every number's range,
/// indices, lifetimes of blocks, offsets, unknown keys. The tape has no operators yet. Throws FileError, naming
/// `source`, and PlanError for blocks that overlap.
Plan parse_plan(std::string_view json, const std::string& source);

// ---- Plans as files: made once, inspected, and followed by runs without planning. A file holds the whole plan: its
// key (nn/fit/plan_key.h), the fates of all nodes, the place of every block, its figures, and the checksum.

/// Writes plan_to_json; the file appears whole or not at all. Throws ValueError, FileError.
void write_plan(const std::string& path, const Plan& plan);

/// Reads a plan for this run. The run's step is recorded on the dry twin of `device` and compared with the plan's key,
/// without a search. Then `steps` steps (one for a run that makes no more) and the work after them are run dry under
/// the plan. The peak, its parts, the load and the tiers' bytes are then those of this run, and the offloaded and
/// packed bytes must equal its figures. Times are the file's. Offloading needs `make_tier`. Throws PlanError for a plan
/// of another key, naming the first difference, for one that contradicts itself, that the dry run departs from, or that
/// offloads without a tier; FileError for a file that holds no plan, has another checksum or none (as before "thimble
/// plan 2"); what the run throws.
Plan read_plan(const std::string& path, const MakeRun& make, memory::Device device, const MakeTier& make_tier = nullptr,
               std::size_t steps = 2);

/// A function that reads the plan from this file for a given program, as TrainerOptions::plan takes it.
PlanSource plan_file(std::string path);

/// The same of a text that plan_to_json made; errors name its `source`.
Plan plan_from_json(std::string_view json, const std::string& source, const MakeRun& make, memory::Device device,
                    const MakeTier& make_tier = nullptr, std::size_t steps = 2);

/// A few lines to read: the key, the figures, the segments and spills, how the blocks are placed.
std::string to_text(const Plan& plan);

}  // namespace thimble::nn
