#pragma once
// The format of a plan file: one JSON object with a checksum near its start.
//
//   {"format":"thimble plan 2","crc32c":"89abcdef","figures":{...},"key":{...},"tape":{...},"placement":[...]}
//
// The checksum is the CRC-32C of the whole text with zeros instead of its digits.

#include <string>
#include <string_view>

#include <thimble/nn/fit/fit.h>

namespace thimble::nn {

/// A plan as JSON. Throws ValueError if it has no key.
std::string plan_to_json(const Plan& plan);

/// Fills in the checksum of a text in this format; leaves any other text unchanged.
void put_plan_sum(std::string& json);

/// Parses the text of plan_to_json. Checks everything that does not need the program: the checksum, ranges of numbers,
/// indices, lifetimes of blocks, offsets, unknown keys. The tape has no operators yet. Throws FileError, naming
/// `source`, and PlanError for blocks that overlap.
Plan parse_plan(std::string_view json, const std::string& source);

// ---- Plans as files: made once, inspected, and followed by runs without planning. A file holds the plan's key
// (nn/fit/plan_key.h), the fates of all nodes, the address of every block, its figures, and the checksum.

/// Writes plan_to_json atomically. Throws ValueError, FileError.
void write_plan(const std::string& path, const Plan& plan);

/// Reads a plan for `make`'s run without a search. It records the run's step on the dry twin of `device` and compares
/// it with the plan's key, then runs `steps` steps (one for a run that makes no more) and the work after them dry under
/// the plan. The peak, its categories, the load and the tiers' bytes come from this dry run; the offloaded and packed
/// bytes must equal the file's, and times are the file's. Offloading needs `make_tier`. Throws PlanError for a plan
/// with another key, naming the first difference, for one that contradicts itself, that the dry run leaves, or that
/// offloads without a tier; FileError for a file that holds no plan, has another checksum or none (as before "thimble
/// plan 2"); any error of the run.
Plan read_plan(const std::string& path, const MakeRun& make, memory::Device device, const MakeTier& make_tier = nullptr,
               std::size_t steps = 2);

/// A function for TrainerOptions::plan that reads the plan from this file for a given program.
PlanSource plan_file(std::string path);

/// read_plan() from text instead of a file; errors name its `source`.
Plan plan_from_json(std::string_view json, const std::string& source, const MakeRun& make, memory::Device device,
                    const MakeTier& make_tier = nullptr, std::size_t steps = 2);

/// A few lines of text: the key, the figures, the segments and spills, and the placement.
std::string to_text(const Plan& plan);

}  // namespace thimble::nn
