#pragma once
// Helpers of file format tests: a temporary folder, bytes from text and numbers, the reason of an error.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <thimble/core/error.h>

namespace files_test {

/// A new folder in the system's temporary folder, removed with its contents.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::random_device random;
    path_ = std::filesystem::temp_directory_path() / ("thimble-" + std::to_string(random()) + std::to_string(random()));
    std::filesystem::create_directory(path_);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  std::string path() const { return path_.string(); }
  std::size_t entries() const {
    return static_cast<std::size_t>(
        std::distance(std::filesystem::directory_iterator(path_), std::filesystem::directory_iterator()));
  }

 private:
  std::filesystem::path path_;
};

inline std::string read_text_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

inline void write_text_file(const std::string& path, std::string_view text) {
  std::ofstream out(path, std::ios::binary);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  if (!out) throw std::runtime_error("cannot write " + path);
}

/// `value` in `count` little-endian bytes.
inline std::string little(std::uint64_t value, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += static_cast<char>(value >> (8 * i) & 0xff);
  return text;
}

/// `value` in `count` big-endian bytes.
inline std::string big(std::uint64_t value, int count) {
  const std::string text = little(value, count);
  return {text.rbegin(), text.rend()};
}

inline std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// The text of the FileError that `call` throws, or a note of any other outcome.
template <class F>
std::string file_error(F&& call) {
  try {
    call();
  } catch (const thimble::FileError& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("not a FileError: ") + error.what();
  }
  return "no error";
}

inline bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

/// The folder of the test sources: from this file's path at compile time, otherwise `tests` in the current folder or
/// one of the two above it.
inline std::filesystem::path tests_folder() {
  namespace fs = std::filesystem;
  std::vector<fs::path> places{fs::path(__FILE__).parent_path().parent_path()};
  for (fs::path from :
       {fs::current_path(), fs::current_path().parent_path(), fs::current_path().parent_path().parent_path()})
    places.push_back(from / "tests");
  for (const fs::path& place : places)
    if (fs::is_directory(place / "fuzz" / "corpus")) return place;
  throw std::runtime_error("the folder tests/ with fuzz/corpus in it is not found; run from the project's root");
}

/// Runs `python tests/oracle/SCRIPT ARGUMENTS` with the Python of THIMBLE_PYTHON. Returns its exit status; 77 means a
/// missing package, or that the variable is not set.
inline int run_oracle(const std::string& script, const std::string& arguments) {
  const char* python = std::getenv("THIMBLE_PYTHON");
  if (python == nullptr || *python == '\0') return 77;
  const std::string command =
      "'" + std::string(python) + "' '" + (tests_folder() / "oracle" / script).string() + "' " + arguments;
  const int status = std::system(command.c_str());
  return status == -1 ? -1 : status >> 8 & 0xff;
}

}  // namespace files_test
