// The folders form layers: cmake/layers.cmake lists which may include which. A change that needs a new edge changes
// that table, not this test.

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "sources.h"
#include "support/catch.h"

namespace {

using house::LayerTable;

/// The library of an include, if only some layers may use it.
std::string guest(const std::string& include) {
  if (include.starts_with("nlohmann/")) return "nlohmann-json";
  if (include == "zlib.h") return "zlib";
  if (include == "mpi.h") return "MPI";
  if (include == "nccl.h") return "NCCL";
  if (include.starts_with("CLI/")) return "CLI11";
  if (include.starts_with("catch2/")) return "Catch2";
  return {};
}

/// Guests and the layers whose .cpp files may use them; no header of the library may.
bool is_welcome(const std::string& name, const std::string& path) {
  const std::string layer = house::layer_of(path);
  if (name == "NCCL") return path == "dist/nccl.cpp";
  if (name == "MPI") return path.starts_with("dist/module/");
  if (name == "nlohmann-json" || name == "zlib") return layer == "nn" || layer == "models";
  return false;
}

std::vector<std::string> problems_of(const std::string& path, const std::string& text, const LayerTable& layers) {
  std::vector<std::string> problems;
  const std::string layer = house::layer_of(path);
  if (!layers.contains(layer) || !house::is_code(path)) return problems;
  for (const std::string& include : house::includes_of(text)) {
    const auto report = [&](const std::string& why) {
      problems.push_back(path + ": includes " + include + ": " + why);
    };
    if (const std::string name = guest(include); !name.empty()) {
      // That header only names types; weight_test.cpp keeps it out of thimble.h.
      if (house::is_header(path) && include != "nlohmann/json_fwd.hpp") report(name + " in a header of the library");
      if (!is_welcome(name, path)) report(name + " in " + layer + "/");
    }
    if (include.find("..") != std::string::npos || text.find("#include \"" + include) != std::string::npos) {
      report("the one spelling is <thimble/" + layer + "/...>");
    }
    if (!include.starts_with("thimble/") || include == "thimble/version.h") continue;
    const std::string target = house::layer_of(std::string_view(include).substr(8));
    if (target != layer && !layers.at(layer).contains(target)) report(layer + "/ is below " + target + "/");
  }
  return problems;
}

LayerTable layers_of(const std::vector<house::Source>& files) {
  const auto table =
      std::find_if(files.begin(), files.end(), [](const house::Source& s) { return s.path == "cmake/layers.cmake"; });
  return house::read_layers(table->text);
}

/// Removes layers whose includes are all removed, until none is left to remove: circles and their includers remain.
LayerTable without_free(LayerTable layers) {
  for (bool changed = true; changed;) {
    changed = false;
    for (auto layer = layers.begin(); layer != layers.end();) {
      const bool is_free =
          std::none_of(layer->second.begin(), layer->second.end(), [&](const auto& l) { return layers.contains(l); });
      changed |= is_free;
      layer = is_free ? layers.erase(layer) : std::next(layer);
    }
  }
  return layers;
}

LayerTable turned(const LayerTable& layers) {
  LayerTable by;
  for (const auto& [layer, includes] : layers) {
    by[layer];
    for (const std::string& other : includes) {
      if (layers.contains(other)) by[other].insert(layer);
    }
  }
  return by;
}

}  // namespace

TEST_CASE("layering: every file includes only its own layer and those below", "[house]") {
  const std::vector<house::Source> files = house::all_files();
  const LayerTable layers = layers_of(files);
  REQUIRE(layers.size() >= 7);
  std::vector<std::string> problems;
  std::size_t checked = 0;
  for (const house::Source& file : files) {
    checked += layers.contains(house::layer_of(file.path)) && house::is_code(file.path) ? 1 : 0;
    for (std::string& problem : problems_of(file.path, file.text, layers)) problems.push_back(std::move(problem));
  }
  INFO(house::lines(problems));
  CHECK(problems.empty());
  CHECK(checked > 20);
}

TEST_CASE("layering: the public face names headers of every layer, and no kernels", "[house]") {
  const std::vector<house::Source> files = house::all_files();
  const auto face = std::find_if(files.begin(), files.end(), [](const auto& f) { return f.path == "thimble.h"; });
  REQUIRE(face != files.end());
  std::set<std::string> named;
  for (const std::string& include : house::includes_of(face->text)) {
    if (include == "thimble/version.h") continue;
    const std::string path = include.substr(include.find('/') + 1);
    INFO(include);
    CHECK(std::any_of(files.begin(), files.end(), [&](const auto& f) { return f.path == path; }));
    CHECK(path.find("/kernels/") == std::string::npos);
    named.insert(house::layer_of(path));
  }
  CHECK(named == std::set<std::string>{"core", "memory", "autograd", "optim", "nn", "dist", "models"});
}

TEST_CASE("layering: the table of layers has no cycle", "[house]") {
  CHECK(without_free(layers_of(house::all_files())).empty());
}

TEST_CASE("layering: folders beside each other do not include each other in a circle", "[house]") {
  // For each folder, which of its folders include which. Files directly in it are ignored.
  std::map<std::string, LayerTable> beside;
  for (const house::Source& file : house::all_files()) {
    if (!house::is_code(file.path) || file.path.starts_with("tests/")) continue;
    for (const std::string& include : house::includes_of(file.text)) {
      if (!include.starts_with("thimble/")) continue;
      const std::string target = include.substr(std::string_view("thimble/").size());
      std::size_t at = 0;  // after the folders common to both
      for (std::size_t i = 0; i < std::min(target.size(), file.path.size()) && target[i] == file.path[i]; ++i) {
        if (target[i] == '/') at = i + 1;
      }
      const std::size_t from = file.path.find('/', at), to = target.find('/', at);
      if (from == std::string::npos || to == std::string::npos) continue;
      LayerTable& table = beside[target.substr(0, at)];
      table[file.path.substr(at, from - at)].insert(target.substr(at, to - at));
      table[target.substr(at, to - at)];
    }
  }
  CHECK(beside.size() > 8);
  std::set<std::string> circles;
  for (auto& [folder, table] : beside) {
    const LayerTable includers = turned(without_free(std::move(table)));
    for (const auto& [name, by] : without_free(includers)) circles.insert(folder + name);
  }
  CHECK(circles == std::set<std::string>{});
}

TEST_CASE("layering: the check finds what it is for", "[house]") {
  const LayerTable layers{{"core", {}}, {"memory", {"core"}}, {"nn", {"core", "memory"}}};
  struct Row {
    const char* path;
    const char* text;
    std::size_t problems;
  };
  const Row rows[] = {
      {"memory/a.h", "#include <thimble/core/tensor/tensor.h>\n#include <thimble/memory/b.h>\n#include <vector>\n", 0},
      {"core/a.cpp", "#include <thimble/version.h>\n", 0},
      {"nn/a.cpp", "#include <nlohmann/json.hpp>\n#include <zlib.h>\n", 0},
      {"nn/a.h", "#include <nlohmann/json_fwd.hpp>\n", 0},
      {"nn/a.h", "#include <nlohmann/json.hpp>\n", 1},
      {"bench/a.cpp", "#include <thimble/nn/layers/module.h>\n#include <CLI/CLI.hpp>\n", 0},
      {"core/a.cpp", "// #include <thimble/nn/a.h>\n/*\n#include <thimble/nn/a.h>\n*/\n", 0},
      {"core/a.h", "#include <thimble/memory/arena/arena.h>\n", 1},
      {"core/a.cpp", "#if X\n  #  include <thimble/nn/a.h>\n#endif\n", 1},
      {"memory/a.cpp", "/* one line */\n#include <thimble/nn/a.h>\n", 1},
      {"core/a.cpp", "#include <thimble/thimble.h>\n", 1},
      {"core/a.cpp", "#include \"b.h\"\n", 1},
      {"nn/a.h", "#include <zlib.h>\n", 1},
      {"core/a.cpp", "#include <nlohmann/json.hpp>\n", 1},
      {"nn/a.cpp", "#include <CLI/CLI.hpp>\n", 1},
      {"memory/a.h", "#include <nlohmann/json.hpp>\n", 2},
      {"nn/a.cpp", "#include <mpi.h>\n", 1},
  };
  for (const Row& row : rows) {
    const std::vector<std::string> problems = problems_of(row.path, row.text, layers);
    INFO(row.path << ":\n" << row.text << "found:\n" << house::lines(problems));
    CHECK(problems.size() == row.problems);
  }
}

TEST_CASE("layering: what lies behind the tape is no other file's business", "[house]") {
  std::vector<std::string> problems;
  std::size_t included = 0;
  for (const house::Source& file : house::all_files()) {
    if (!house::is_code(file.path)) continue;
    for (const std::string& include : house::includes_of(file.text)) {
      if (!include.starts_with("thimble/autograd/engine/")) continue;
      ++included;
      const bool is_source = file.path.starts_with("autograd/") && !house::is_header(file.path);
      if (!is_source && !file.path.starts_with("autograd/engine/")) problems.push_back(file.path + ": " + include);
    }
  }
  INFO(house::lines(problems));
  CHECK(problems.empty());
  CHECK(included > 10);
}
