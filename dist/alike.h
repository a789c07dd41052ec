#pragma once
// Compares all traits that define the function of a run before its first step. Ranks that differ would silently train
// different functions and add their gradients.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <thimble/dist/communicator.h>

namespace thimble::dist {

/// A trait that must be the same on all ranks.
struct Trait {
  std::string name;      ///< "`seed`": an option in backticks, or words
  std::string value;     ///< as in an error
  std::string fix = {};  ///< how to make ranks equal; defaults to giving all the same value
};

/// The process's traits: version and compiler, the instruction set and the unit of bf16 products in use. They determine
/// the bits of results; the number of threads and the unit of int8 products do not.
std::vector<Trait> process_traits();

/// Returns when all ranks have the same traits. Otherwise throws the same ValueError on all of them, which begins with
/// `operation` and names each differing trait with the values of two ranks. Called on every rank; a dry communicator
/// has nothing to compare. Each rank sends (size - 1) * 16 bytes, which volume() does not count.
void require_alike(Communicator& ranks, std::string_view operation, std::span<const Trait> traits);

}  // namespace thimble::dist
