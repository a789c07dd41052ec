#include <thimble/nn/fit/cost_file.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <thimble/core/error.h>
#include <thimble/core/files/file.h>
#include <thimble/core/files/file_stream.h>

namespace thimble::nn {
namespace {

constexpr std::uint64_t most_costs_bytes = 64 << 20;
constexpr std::string_view costs_format = "thimble cost model 1";

CostModel read(const std::string& path, const nlohmann::json& json) {
  const auto refuse = [&](const std::string& why) { throw FileError(path, 0, why); };
  const auto know = [&](const nlohmann::json& object, std::initializer_list<std::string_view> keys) {
    for (const auto& [key, value] : object.items()) {
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) refuse("unknown key '" + key + "'");
    }
  };
  if (!json.is_object() || json.value("format", "") != costs_format) refuse("is not a cost model");
  know(json, {"format", "hardware", "source", "nodes"});
  CostModel costs(hardware(json.at("hardware").get<std::string>()));
  costs.source = json.at("source").get<std::string>();
  for (const nlohmann::json& node : json.at("nodes")) {
    costs.operators.push_back(node.at("operator").get<std::string>());
    know(node, {"operator", "forward", "remake", "backward"});
    NodeFactors f;
    for (const auto& [name, member] : {std::pair{"forward", &NodeFactors::forward},
                                       {"remake", &NodeFactors::recompute},
                                       {"backward", &NodeFactors::backward}}) {
      f.*member = node.at(name).get<double>();
      if (!(f.*member > 0) || !std::isfinite(f.*member)) {
        refuse("node " + std::to_string(costs.factors.size()) + ": " + name + " is " + std::to_string(f.*member) +
               ", must be > 0");
      }
    }
    costs.factors.push_back(f);
  }
  if (costs.factors.empty()) refuse("has no nodes");
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
  const auto* const begin = reinterpret_cast<const char*>(bytes.data());
  try {
    return read(path, nlohmann::json::parse(begin, begin + bytes.size()));
  } catch (const nlohmann::json::parse_error& error) {
    throw FileError(path, error.byte, "is not JSON from here on");
  } catch (const nlohmann::json::exception&) {  // a missing member, or a wrong type
    throw FileError(path, 0,
                    "lacks what a cost model has: hardware, source, nodes with operator, forward, remake, backward");
  } catch (const ValueError& error) {
    throw FileError(path, 0, error.what());
  }
}

}  // namespace thimble::nn
