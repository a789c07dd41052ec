#pragma once
// The project's files as text, for tests about the sources.

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace house {

/// A file of the project: its path from the root with forward slashes, and its text.
struct Source {
  std::string path;
  std::string text;
};

/// Every file below the working directory, the project's root, except build folders and hidden ones. Sorted. Throws
/// std::runtime_error when the working directory is not the root.
std::vector<Source> all_files();

/// True for .h, .cuh, .cpp and .cu.
bool is_code(std::string_view path);
bool is_header(std::string_view path);

/// The first folder of a path: "core" of "core/kernels/functors/unary.h".
std::string layer_of(std::string_view path);

/// The files that a file includes with angle brackets or quotes, outside comments, in order.
std::vector<std::string> includes_of(const std::string& text);

/// Layer -> the other layers it may include, from cmake/layers.cmake.
using LayerTable = std::map<std::string, std::set<std::string>>;
LayerTable read_layers(const std::string& cmake_text);

/// One line per problem, so that a message names them all.
std::string lines(const std::vector<std::string>& problems);

}  // namespace house
