#include <thimble/models/training/recipe.h>

#include <filesystem>

#include <thimble/core/error.h>
#include <thimble/core/files/printable.h>
#include <thimble/memory/units.h>
#include <thimble/models/techniques/technique.h>
#include <thimble/models/weights/follow_weights.h>

namespace thimble::models {
namespace recipe_detail {

constexpr const char* data_key = "data";
constexpr const char* data_name_key = "recipe.data_name";
constexpr const char *heads_key = "heads", *window_key = "window";

std::string name_of_data(const TrainOptions& options) {
  return printable(std::filesystem::path(options.data).filename().string());
}

std::string in_file(const RecipePart& part) { return "recipe." + part.key; }

std::string at(const nn::Metadata& metadata, const std::string& key) {
  const auto found = metadata.find(key);
  return found == metadata.end() ? std::string() : found->second;
}

}  // namespace recipe_detail

std::vector<RecipePart> recipe_of(const TrainOptions& options, const Dataset& data, const Model& model) {
  const Setup& setup = options.setup;
  const OptimizerNumbers numbers = optimizer_numbers(setup);
  std::vector<RecipePart> list{{"batch", "`batch`", std::to_string(setup.batch)},
                               {"lr", "`rate`", format_real(numbers.rate)},
                               {"schedule", "`schedule`", options.schedule},
                               {"warmup", "`warmup`", std::to_string(options.warmup)},
                               {"min_lr", "`min_rate`", format_real(options.min_rate)},
                               {"weight_decay", "`weight_decay`", format_real(numbers.weight_decay)}};
  // A constant rate does not know where the run ends.
  if (options.schedule != "constant") list.push_back({"steps", "`steps`", std::to_string(options.steps)});
  if (numbers.beta2) list.push_back({"beta2", "`beta2`", format_real(*numbers.beta2)});
  if (model.options().heads > 0) list.push_back({"dropout", "`dropout`", format_real(model.options().dropout)});
  for (const Technique& one : techniques()) {
    if (one.identity.on_resume != OnResume::told) continue;
    const auto saved = one.saved(setup, model);
    if (saved) list.push_back({std::string(one.identity.key), one.name(), saved->value, saved->usual});
  }
  list.push_back({recipe_detail::data_key, "`data`", data.digest()});
  return list;
}

void put_recipe(nn::Metadata& metadata, const TrainOptions& options, const Dataset& data, const Model& model) {
  for (const RecipePart& part : recipe_of(options, data, model)) {
    if (part.value == part.unwritten) continue;
    metadata[recipe_detail::in_file(part)] = part.value;
  }
  metadata[recipe_detail::data_name_key] = recipe_detail::name_of_data(options);
  metadata.merge(function_metadata(options.setup.model, model.options()));
}

std::string recipe_change(const nn::Metadata& before, const TrainOptions& options, const Dataset& data,
                          const Model& model, const std::string& start) {
  using namespace recipe_detail;
  const auto require_same = [&](const char* key, const std::string& was, std::int64_t is) {
    const std::string own = std::to_string(is);
    if (was.empty() || was == own) return;
    throw ValueError(start + "was trained with `" + key + "` " + was + "; expected the same, got `" + key + "` " + own +
                     ", another function of the same parameters");
  };
  const ModelOptions& sizes = model.options();
  require_same(heads_key, at(before, heads_key), sizes.heads);
  const std::string window = at(before, window_key);
  if (!at(before, heads_key).empty()) {
    require_same(window_key, window.empty() ? "0" : window, sizes.window);
    const ModelFunction usual = complete_options(options.setup.model).function;
    const nn::Metadata was = function_texts(read_function(before, usual, options.resume), sizes.function);
    const nn::Metadata is = function_texts(sizes.function, read_function(before, usual, options.resume));
    if (!was.empty()) {
      const std::string& key = was.begin()->first;
      throw ValueError(start + "was trained with " + key + " " + at(was, key) +
                       "; expected the same function of the same parameters, got " + at(is, key));
    }
  }
  std::string text;
  for (const RecipePart& part : recipe_of(options, data, model)) {
    std::string old = at(before, in_file(part));
    if (old.empty()) old = part.unwritten;
    if (old.empty() || old == part.value) continue;
    const bool is_data = part.key == data_key;
    text += text.empty() ? "" : ", ";
    text += is_data ? "other data: " + at(before, data_name_key) + ", " + old + " -> " + name_of_data(options) + ", " +
                          part.value
                    : part.option + " " + old + " -> " + part.value;
  }
  return text;
}

}  // namespace thimble::models
