#include <thimble/bench/commands/fp8_report.h>

#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace thimble::bench {

std::string to_lines(const nn::Fp8Layers& layers) {
  const auto or_none = [](const std::string& text) { return text.empty() ? std::string("nothing") : text; };
  std::string lines = "  in FP8           " + or_none(nn::fp8_paths_text(layers.layers)) + "\n";
  if (!layers.products.empty()) lines += "  its products     " + layers.products + "\n";
  std::vector<std::pair<std::string, std::vector<std::string>>> by_reason;
  for (const nn::Fp8Fallback& fallback : layers.fallbacks) {
    std::size_t i = 0;
    while (i < by_reason.size() && by_reason[i].first != fallback.reason) ++i;
    if (i == by_reason.size()) by_reason.push_back({fallback.reason, {}});
    by_reason[i].second.push_back(fallback.path);
  }
  for (const auto& [reason, paths] : by_reason) {
    lines += "  falls back       " + nn::fp8_paths_text(paths) + ": " + reason + "\n";
  }
  return lines + "  stays higher     " + or_none(nn::fp8_paths_text(layers.higher)) + "\n";
}

std::string to_json_text(const nn::Fp8Layers& layers) {
  nlohmann::ordered_json fallbacks = nlohmann::ordered_json::array();
  for (const nn::Fp8Fallback& f : layers.fallbacks) fallbacks.push_back({{"layer", f.path}, {"reason", f.reason}});
  const nlohmann::ordered_json json{{"layers", layers.layers},
                                    {"fallbacks", fallbacks},
                                    {"higher_precision", layers.higher},
                                    {"products", layers.products}};
  return json.dump();
}

}  // namespace thimble::bench
