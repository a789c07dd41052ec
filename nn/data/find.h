#pragma once
// Where data files are.

#include <optional>
#include <string>

namespace thimble::data {

/// The path of a data file ("mnist/t10k-images-idx3-ubyte.gz"): in the folder that the environment variable
/// THIMBLE_DATA names, then in `../shared/data` seen from the current folder, its parent and its grandparent (so that
/// it is found from the project's root and from a build folder). nullopt when it is in none of them.
std::optional<std::string> find_data(const std::string& name);

}  // namespace thimble::data
