#pragma once
// Whether ranks were started alike: everything that makes the function of a run is compared before its first step.
// Ranks that differ would each train another function and add its gradients, with no sign of it.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <thimble/dist/communicator.h>

namespace thimble::dist {

/// Something that is the same on all ranks.
struct Trait {
  std::string name;      ///< "`seed`": an option in backticks, or words
  std::string value;     ///< as an error shows it
  std::string fix = {};  ///< how ranks get the same; empty: give all the same value
};

/// Those of the process: version and compiler, the instruction set and the unit of bf16 products that are in force.
/// They decide bits; threads and units of int8 products do not.
std::vector<Trait> process_traits();

/// Returns when all ranks have the same traits. Otherwise throws the same ValueError on all of them, which begins with
/// `operation` and names each trait that differs with the values of two ranks. On every rank; a dry communicator has
/// nothing to compare. Each rank sends (size - 1) * 16 bytes, which volume() does not count.
void require_alike(Communicator& ranks, std::string_view operation, std::span<const Trait> traits);

}  // namespace thimble::dist
