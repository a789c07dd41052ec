// thimble models: lists the models that MODEL can name.

#include <cstdio>
#include <iostream>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <thimble/bench/commands.h>
#include <thimble/memory/units.h>
#include <thimble/models/model.h>

namespace thimble::bench {

void add_models(CLI::App& program) {
  CLI::App* const command = program.add_subcommand("models", "List the models and their parameter counts");
  const auto is_json = std::make_shared<bool>(false);
  command->add_flag("--json", *is_json, "Print JSON");
  command->callback([is_json] {
    const std::vector<models::ModelInfo> list = models::model_list();
    nlohmann::ordered_json json = nlohmann::ordered_json::array();
    for (const models::ModelInfo& model : list) {
      if (*is_json) {
        json.push_back({{"name", model.name}, {"parameters", model.parameters}, {"description", model.description}});
      } else {
        std::printf("%-14s %14s  %s\n", model.name.c_str(), format_grouped(model.parameters).c_str(),
                    model.description.c_str());
      }
    }
    if (*is_json) std::cout << nlohmann::ordered_json{{"models", json}}.dump(2) << "\n";
  });
}

}  // namespace thimble::bench
