// The tree shows the architecture: the map in docs/architecture.md names each folder, and its picture follows the
// includes. `thimble_house_tests '[.draw]'` redraws it.

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <set>
#include <string>

#include "sources.h"
#include "support/catch.h"

namespace {

constexpr const char* picture_path = "docs/folders.svg";

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? std::string() : path.substr(0, slash);
}

/// Folders of the library and of the program with their numbers of code files; thimble.h is in none.
std::map<std::string, std::size_t> folders_of(const std::vector<house::Source>& files) {
  std::map<std::string, std::size_t> folders;
  for (const house::Source& file : files) {
    if (house::is_code(file.path) && !file.path.starts_with("tests/") && !file.path.starts_with("tools/") &&
        !file.path.starts_with("examples/") && file.path.find('/') != std::string::npos) {
      ++folders[folder_of(file.path)];
    }
  }
  return folders;
}

/// Layer -> layers whose headers its files include.
house::LayerTable layers_by_includes(const std::vector<house::Source>& files) {
  house::LayerTable layers;
  for (const auto& [folder, count] : folders_of(files)) layers[house::layer_of(folder + "/")];
  for (const house::Source& file : files) {
    const std::string layer = house::layer_of(file.path);
    if (!layers.contains(layer) || !house::is_code(file.path)) continue;
    for (const std::string& include : house::includes_of(file.text)) {
      if (!include.starts_with("thimble/")) continue;
      const std::string target = house::layer_of(std::string_view(include).substr(8));
      if (target != layer && layers.contains(target)) layers[layer].insert(target);
    }
  }
  return layers;
}

/// Edges that do not follow from others.
house::LayerTable direct(const house::LayerTable& layers) {
  house::LayerTable result = layers;
  for (auto& [layer, below] : result) {
    for (const std::string& between : layers.at(layer)) {
      for (const std::string& far : layers.at(between)) below.erase(far);
    }
  }
  return result;
}

/// Layers from the top down: each above every layer that it includes.
std::vector<std::string> from_top(const house::LayerTable& layers) {
  std::vector<std::string> order;
  const auto depth = [&layers](const auto& self, const std::string& layer) -> std::size_t {
    std::size_t most = 0;
    for (const std::string& below : layers.at(layer)) most = std::max(most, self(self, below) + 1);
    return most;
  };
  for (const auto& [layer, below] : layers) order.push_back(layer);
  std::stable_sort(order.begin(), order.end(),
                   [&](const std::string& a, const std::string& b) { return depth(depth, a) > depth(depth, b); });
  return order;
}

std::string picture_of(const std::vector<house::Source>& files) {
  constexpr int width = 800, left = 150, line_height = 20, gap = 26, columns = 3, column_width = 208;
  const std::map<std::string, std::size_t> folders = folders_of(files);
  const house::LayerTable layers = layers_by_includes(files), arrows = direct(layers);
  std::map<std::string, std::pair<int, int>> box;  // top and bottom of each layer
  std::string shapes;
  int y = 20;
  const auto text = [](int x, int at, const char* kind, const std::string& words) {
    return "<text x=\"" + std::to_string(x) + "\" y=\"" + std::to_string(at) + "\" class=\"" + kind + "\">" + words +
           "</text>\n";
  };
  for (const std::string& layer : from_top(layers)) {
    std::vector<std::string> entries;
    for (const auto& [folder, count] : folders) {
      if (house::layer_of(folder + "/") != layer) continue;
      const std::string name = folder == layer ? "." : folder.substr(layer.size() + 1);
      entries.push_back(name + " <tspan class=\"count\">" + std::to_string(count) + "</tspan>");
    }
    const int rows = (static_cast<int>(entries.size()) + columns - 1) / columns;
    const int height = rows * line_height + 16;
    shapes += "<rect x=\"" + std::to_string(left) + "\" y=\"" + std::to_string(y) + "\" width=\"" +
              std::to_string(width - left - 10) + "\" height=\"" + std::to_string(height) + "\"/>\n";
    shapes += text(16, y + height / 2 + 5, "layer", layer + "/");
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const int column = static_cast<int>(i) / rows, row = static_cast<int>(i) % rows;
      shapes += text(left + 14 + column * column_width, y + 22 + row * line_height, "folder", entries[i]);
    }
    box[layer] = {y, y + height};
    y += height + gap;
  }
  // An arrow to the next layer goes straight down; one past other layers goes around them on the left.
  int lane = 0, around = 0;
  for (const auto& [layer, below] : arrows) {
    for (const std::string& target : below) {
      const bool is_next = box[target].first - box[layer].second == gap;
      const int x = left + 40 + lane++ * 70 % (width - left - 100);
      const std::string way =
          is_next ? "M" + std::to_string(x) + " " + std::to_string(box[layer].second) + "V" +
                        std::to_string(box[target].first - 7)
                  : "M" + std::to_string(left) + " " + std::to_string(box[layer].second - 8 - 5 * around) + "H" +
                        std::to_string(left - 16 - 10 * around) + "V" +
                        std::to_string(box[target].first + 12 + 8 * around) + "H" + std::to_string(left - 7);
      if (!is_next) ++around;
      shapes += "<path data-from=\"" + layer + "\" data-to=\"" + target + "\" d=\"" + way + "\"/>\n";
    }
  }
  return "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + std::to_string(width) + " " + std::to_string(y) +
         "\" font-family=\"sans-serif\" font-size=\"14\">\n<style>rect{fill:#f6f8fa;stroke:#8c959f}text{fill:#1f2328}"
         ".layer{font-weight:600}.count{fill:#6e7781;font-size:12px}path{stroke:#0969da;stroke-width:2;fill:none;"
         "marker-end:url(#tip)}</style>\n<defs><marker id=\"tip\" markerWidth=\"8\" markerHeight=\"8\" refX=\"3\" "
         "refY=\"3\" orient=\"auto\"><path d=\"M0 0L6 3L0 6Z\" style=\"fill:#0969da;stroke:none;marker-end:none\"/>"
         "</marker></defs>\n<rect width=\"100%\" height=\"100%\" style=\"fill:#fff;stroke:none\"/>\n" +
         shapes + "</svg>\n";
}

const house::Source* find(const std::vector<house::Source>& files, const std::string& path) {
  const auto found = std::find_if(files.begin(), files.end(), [&](const house::Source& s) { return s.path == path; });
  return found == files.end() ? nullptr : &*found;
}

}  // namespace

TEST_CASE("folders: the map in docs/architecture.md names each, and no other", "[house]") {
  const std::vector<house::Source> files = house::all_files();
  const house::Source* const page = find(files, "docs/architecture.md");
  REQUIRE(page != nullptr);
  const std::size_t begin = page->text.find("## The map"), end = page->text.find("\n## ", begin + 1);
  REQUIRE(begin != std::string::npos);
  const std::string map = page->text.substr(begin, end - begin);
  const std::map<std::string, std::size_t> folders = folders_of(files);
  std::vector<std::string> problems;
  for (const auto& [folder, count] : folders) {
    if (map.find("`" + folder + "/`") == std::string::npos) problems.push_back("the map lacks `" + folder + "/`");
  }
  std::size_t named = 0;
  for (std::size_t at = map.find("\n| `"); at != std::string::npos; at = map.find("\n| `", at + 1), ++named) {
    const std::string name = map.substr(at + 4, map.find("/`", at) - at - 4);
    if (!folders.contains(name)) problems.push_back("the map names `" + name + "/`, which has no code");
  }
  INFO(house::lines(problems));
  CHECK(problems.empty());
  CHECK(named == folders.size());
}

TEST_CASE("folders: the picture is what the includes say", "[house]") {
  const std::vector<house::Source> files = house::all_files();
  const house::Source* const picture = find(files, picture_path);
  REQUIRE(picture != nullptr);
  INFO(picture_path << " is old: thimble_house_tests '[.draw]' draws it anew");
  CHECK(picture->text == picture_of(files));
  const house::LayerTable layers = layers_by_includes(files);
  CHECK(layers.at("core").empty());
  CHECK(layers.at("memory") == std::set<std::string>{"core"});
  CHECK(direct({{"a", {}}, {"b", {"a"}}, {"c", {"a", "b"}}}) ==
        house::LayerTable{{"a", {}}, {"b", {"a"}}, {"c", {"b"}}});
}

TEST_CASE("folders: draw the picture", "[.draw]") {
  std::ofstream(picture_path) << picture_of(house::all_files());
  std::printf("wrote %s\n", picture_path);
}
