#pragma once
// Where data files are.

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>

namespace thimble_test {

/// The path of a data file ("mnist/t10k-images-idx3-ubyte.gz"): in the folder that the environment variable
/// THIMBLE_DATA names, then in `../shared/data` seen from the current folder, its parent and its grandparent (so that
/// it is found from the project's root and from a build folder). nullopt when it is in none of them.
inline std::optional<std::string> find_data(const std::string& name) {
  namespace fs = std::filesystem;
  std::error_code error;  // a folder that cannot be read is one in which nothing is found
  if (const char* folder = std::getenv("THIMBLE_DATA"); folder != nullptr && *folder != '\0')
    if (const fs::path path = fs::path(folder) / name; fs::is_regular_file(path, error)) return path.string();
  fs::path from = fs::current_path(error);
  for (int level = 0; level < 3; ++level, from = from.parent_path())
    if (const fs::path path = from.parent_path() / "shared" / "data" / name; fs::is_regular_file(path, error))
      return path.string();
  return std::nullopt;
}

}  // namespace thimble_test
