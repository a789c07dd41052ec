#include <thimble/nn/fit/cost_file.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <thimble/core/error.h>
#include <thimble/core/files/file.h>
#include <thimble/core/files/file_stream.h>
#include <thimble/nn/fit/json_reader.h>

namespace thimble::nn {
namespace {

constexpr std::uint64_t most_costs_bytes = 64 << 20;
constexpr std::string_view costs_format = "thimble cost model 1";

constexpr double most_factor = 1e9;  // so that sums of times stay far from overflow

CostModel read(const JsonReader& reader, std::string_view text) {
  const JsonReader::Json json = reader.parse(text);
  reader.object(json, "it", {"format", "hardware", "source", "nodes"});
  if (reader.text(json["format"], "format") != costs_format) {
    reader.refuse("format", json["format"], '"' + std::string(costs_format) + '"');
  }
  CostModel costs(hardware(reader.text(json["hardware"], "hardware")));
  costs.source = reader.text(json["source"], "source");
  for (const JsonReader::Json& node : reader.list(json["nodes"], "nodes")) {
    const std::string what = "node " + std::to_string(costs.factors.size());
    reader.object(node, what, {"operator", "forward", "remake", "backward"});
    costs.operators.push_back(reader.text(node["operator"], what + ", operator"));
    NodeFactors f;
    for (const auto& [name, member] : {std::pair{"forward", &NodeFactors::forward},
                                       {"remake", &NodeFactors::recompute},
                                       {"backward", &NodeFactors::backward}}) {
      f.*member = reader.real(node[name], what + ", " + name, 0);
      if (f.*member <= 0 || f.*member > most_factor) {
        reader.refuse(what + ", " + name, node[name], "a number above 0, up to 1e9");
      }
    }
    costs.factors.push_back(f);
  }
  if (costs.factors.empty()) reader.refuse("nodes: expected at least one, got none");
  return costs;
}

}  // namespace

void write_cost_model(const std::string& path, const CostModel& costs) {
  nlohmann::ordered_json json{{"format", costs_format}, {"hardware", costs.hardware.name}, {"source", costs.source}};
  json["nodes"] = nlohmann::ordered_json::array();
  for (std::size_t n = 0; n < costs.factors.size(); ++n) {
    const NodeFactors& f = costs.factors[n];
    json["nodes"].push_back(
        {{"operator", costs.operators[n]}, {"forward", f.forward}, {"remake", f.recompute}, {"backward", f.backward}});
  }
  write_file_atomically(path, std::string_view(json.dump(1) + "\n"));
}

CostModel read_cost_model(const std::string& path) {
  const std::vector<std::byte> bytes = read_whole_file(path, most_costs_bytes);
  const JsonReader reader{path, "a cost model"};
  try {
    return read(reader, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  } catch (const ValueError& error) {  // an unknown machine
    reader.refuse(error.what());
  }
}

}  // namespace thimble::nn
