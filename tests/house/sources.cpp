#include "sources.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>

namespace house {

namespace fs = std::filesystem;

std::vector<Source> all_files() {
  if (!fs::exists("cmake/layers.cmake")) {
    throw std::runtime_error("run this in the project's root, not in " + fs::current_path().string());
  }
  std::vector<Source> files;
  for (auto entry = fs::recursive_directory_iterator("."); entry != fs::recursive_directory_iterator(); ++entry) {
    const std::string name = entry->path().filename().string();
    if (entry->is_symlink()) {
      throw std::runtime_error(entry->path().string() + " is a link; the project holds plain files");
    }
    if (entry->is_directory()) {
      const bool is_output = entry.depth() == 0 && (name.starts_with("build") || name == "report");
      if (is_output || (name.starts_with(".") && name != ".ci")) entry.disable_recursion_pending();
    } else if (entry->is_regular_file() && !name.starts_with(".")) {
      std::ifstream in(entry->path(), std::ios::binary);
      files.push_back({entry->path().lexically_relative(".").generic_string(),
                       std::string(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>())});
    }
  }
  std::sort(files.begin(), files.end(), [](const Source& a, const Source& b) { return a.path < b.path; });
  return files;
}

bool is_header(std::string_view path) { return path.ends_with(".h") || path.ends_with(".cuh"); }
bool is_code(std::string_view path) { return is_header(path) || path.ends_with(".cpp") || path.ends_with(".cu"); }

std::string layer_of(std::string_view path) { return std::string(path.substr(0, path.find('/'))); }

std::vector<std::string> includes_of(const std::string& text) {
  std::vector<std::string> includes;
  std::istringstream in(text);
  bool in_comment = false;
  for (std::string line; std::getline(in, line);) {
    const std::size_t begin = line.find_first_not_of(" \t");
    if (!in_comment && begin != std::string::npos && line[begin] == '#') {
      const std::size_t verb = line.find_first_not_of(" \t", begin + 1);
      const std::size_t open = line.find_first_of("<\"", begin);
      if (verb != std::string::npos && line.compare(verb, 7, "include") == 0 && open != std::string::npos) {
        const std::size_t close = line.find(line[open] == '<' ? '>' : '"', open + 1);
        includes.push_back(line.substr(open + 1, close - open - 1));
      }
    }
    const std::size_t opened = line.rfind("/*");
    const std::size_t closed = line.rfind("*/");
    if (opened != std::string::npos && (closed == std::string::npos || closed < opened)) in_comment = true;
    if (closed != std::string::npos && (opened == std::string::npos || closed > opened)) in_comment = false;
  }
  return includes;
}

LayerTable read_layers(const std::string& cmake_text) {
  LayerTable table;
  std::istringstream in(cmake_text);
  for (std::string line; std::getline(in, line);) {
    std::replace_if(
        line.begin(), line.end(), [](char c) { return c == '(' || c == ')' || c == '"'; }, ' ');
    std::istringstream words(line);
    std::string command, name;
    if (!(words >> command >> name) || command != "set") continue;
    if (!name.starts_with("thimble_") || !name.ends_with("_includes")) continue;
    table[name.substr(8, name.size() - 17)] = {std::istream_iterator<std::string>(words), {}};
  }
  return table;
}

std::string lines(const std::vector<std::string>& problems) {
  std::string text;
  for (const std::string& problem : problems) text += problem + '\n';
  return text;
}

}  // namespace house
