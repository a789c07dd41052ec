#include <thimble/models/training/recipe.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>

#include <thimble/core/error.h>
#include <thimble/core/files/crc32c.h>
#include <thimble/core/files/file.h>
#include <thimble/core/files/printable.h>
#include <thimble/memory/units.h>
#include <thimble/models/techniques/technique.h>
#include <thimble/models/training/checkpoints.h>
#include <thimble/models/weights/follow_weights.h>
#include <thimble/nn/files/safetensors.h>
#include <thimble/nn/files/weights.h>
#include <thimble/nn/lora/adapter_files.h>

namespace thimble::models {
namespace {

constexpr const char* data_key = "data";
constexpr const char* data_name_key = "recipe.data_name";
constexpr const char *heads_key = "heads", *window_key = "window";

std::string name_of_data(const RunOptions& options) {
  return printable(std::filesystem::path(options.data).filename().string());
}

std::string in_file(const RecipePart& part) { return "recipe." + part.key; }

std::string at(const nn::Metadata& metadata, const std::string& key) {
  const auto found = metadata.find(key);
  return found == metadata.end() ? std::string() : found->second;
}

}  // namespace

std::vector<RecipePart> recipe_of(const RunOptions& options, const Dataset& data, const Model& model) {
  const Setup& setup = options.setup;
  const OptimizerNumbers numbers = optimizer_numbers(setup);
  std::vector<RecipePart> list{{"batch", "`batch`", std::to_string(setup.batch)},
                               {"lr", "`rate`", format_real(numbers.rate)},
                               {"schedule", "`schedule`", options.schedule},
                               {"warmup", "`warmup`", std::to_string(options.warmup)},
                               {"min_lr", "`min_rate`", format_real(options.min_rate)},
                               {"weight_decay", "`weight_decay`", format_real(numbers.weight_decay)}};
  // A constant rate does not depend on the end of the run.
  if (options.schedule != "constant") list.push_back({"steps", "`steps`", std::to_string(options.steps)});
  if (numbers.beta2) list.push_back({"beta2", "`beta2`", format_real(*numbers.beta2)});
  if (model.options().heads > 0) list.push_back({"dropout", "`dropout`", format_real(model.options().dropout)});
  for (const Technique& one : techniques()) {
    if (one.identity.on_resume != OnResume::told) continue;
    const auto saved = one.saved(setup, model);
    if (saved) list.push_back({std::string(one.identity.key), one.name(), saved->value, saved->usual});
  }
  list.push_back({data_key, "`data`", data.digest()});
  return list;
}

void put_recipe(nn::Metadata& metadata, const RunOptions& options, const Dataset& data, const Model& model) {
  for (const RecipePart& part : recipe_of(options, data, model)) {
    if (part.value == part.unwritten) continue;
    metadata[in_file(part)] = part.value;
  }
  metadata[data_name_key] = name_of_data(options);
  metadata.merge(function_metadata(options.setup.model, model.options()));
}

std::string recipe_change(const nn::Metadata& before, const RunOptions& options, const Dataset& data,
                          const Model& model, const std::string& start) {
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
    // 2 and more stages give the same bits, so files do not have their number.
    const bool is_data = part.key == data_key, is_now_in_stages = part.value == several_stages;
    text += text.empty() ? "" : ", ";
    text += is_data ? "other data: " + at(before, data_name_key) + ", " + old + " -> " + name_of_data(options) + ", " +
                          part.value
                    : part.option + " " + (old == several_stages ? "2 or more" : old) + " -> " +
                          (is_now_in_stages ? std::to_string(options.setup.layout.pp) : part.value);
  }
  return text;
}

namespace {

constexpr std::uint64_t most_bytes = std::uint64_t{1} << 30;  // of a file read as a whole

std::string sum_of_file(const std::string& path) {
  return path.empty() ? "" : sum_text(crc32c(read_whole_file(path, most_bytes)));
}

/// The sum of a checkpoint's settings and its tensors' checksums.
std::string sum_of_checkpoint(const std::string& path) {
  if (path.empty()) return "";
  const SafetensorsReader file(path);
  std::uint32_t sum = 0;
  for (const auto& [key, value] : file.header().metadata) sum = crc32c(value, crc32c(key, sum));
  for (const SafetensorsEntry& entry : file.header().tensors) {
    sum = crc32c(entry.name + " " + std::to_string(entry.crc32c.value_or(0)), sum);
  }
  return sum_text(sum);
}

std::string sum_of_adapters(const std::string& folder) {
  if (folder.empty()) return "";
  return sum_of_file(nn::adapter_config_path(folder)) + ", " + nn::weights_sum(nn::adapter_tensors_path(folder));
}

/// Whether ranks must plan with the same inputs: they follow one plan, or it determines bits.
bool plans_alike(const Setup& setup) {
  return setup.layout.zero == 3 || group_size(setup) > 1 || setup.layout.pp > 1 || setup.packing.is_allowed;
}

}  // namespace

std::vector<dist::Trait> rank_traits(const RunOptions& options, const Dataset& data, const Model& model) {
  const Setup& setup = options.setup;
  const ModelOptions& sizes = model.options();
  std::vector<dist::Trait> list = dist::process_traits();
  const auto add = [&list](const std::string& name, const std::string& value) { list.push_back({name, value}); };
  const auto add_number = [&](const std::string& name, std::int64_t value) { add(name, std::to_string(value)); };
  const auto add_switch = [&](const std::string& name, bool is_on) { add(name, is_on ? "on" : "off"); };
  add("model", setup.model);
  add("`device`", options.device.is_cuda() ? "cuda, " + options.costs.gpu : "cpu");
  add_number("`image`", sizes.image);
  add_number("channels of the data", sizes.channels);
  add_number("classes of the data", sizes.classes);
  add_number("vocabulary", sizes.vocabulary);
  add_number("`sequence`", sizes.sequence);
  add_number("`layers`", sizes.layers);
  add_number("`heads`", sizes.heads);
  add_number("`kv_heads`", sizes.key_heads);
  add_number("`width`", sizes.width);
  add_number("`mlp`", sizes.hidden);
  add_number("`window`", sizes.window);
  add_switch("`shares_kernels`", sizes.shares_kernels);
  add("`tokenizer`", data.tokenizer());
  add("`seed`", std::to_string(setup.seed));
  add("sum of `weights`", setup.weights_sum);
  add("sum of `adapters`", sum_of_adapters(setup.lora.adapters));
  add("sum of `resume`", sum_of_checkpoint(options.resume));
  const auto add_techniques = [&](OnRanks kind, const std::string& suffix) {
    for (const Technique& one : techniques()) {
      if (one.identity.on_ranks != kind) continue;
      const bool has_own = kind == OnRanks::alike && one.identity.on_resume == OnResume::free;
      add(one.name() + suffix, has_own ? one.saved(setup, model)->value : one.flag.field.value(setup));
    }
  };
  add_techniques(OnRanks::alike, "");
  add_techniques(OnRanks::each, " of a rank");
  add_number("`steps`", options.steps);
  add_number("`eval_every`", options.eval_every);
  add_number("`eval_batches`", options.eval_batches);
  add_number("`sample`", options.sample);
  add("`save`", options.save);
  add_number("`save_every`", options.save_every);
  add_number("`keep`", options.keep);
  add("`save_weights`", options.save_weights);
  add("`save_adapters`", options.save_adapters);
  // A name that is already listed has the same value in the recipe.
  const auto add_new = [&](const std::string& name, const std::string& value) {
    const auto is_named = [&](const dist::Trait& t) { return t.name == name; };
    if (std::none_of(list.begin(), list.end(), is_named)) add(name, value);
  };
  for (const auto& [key, value] : function_texts(sizes.function, complete_options(setup.model).function)) {
    add(key + " of the model", value);  // where it differs from the named model's
  }
  for (const RunTrait& trait : run_traits(options, model)) add_new(trait.option, trait.value);
  for (const RecipePart& part : recipe_of(options, data, model)) add_new(part.option, part.value);
  if (!plans_alike(setup)) return list;
  add("`budget_bytes`", options.budget_bytes == 0 ? "" : std::to_string(options.budget_bytes));
  add("sum of `plan`", sum_of_file(options.plan));
  add("sum of `times`", sum_of_file(options.costs.times));
  add_switch("`offload`", !setup.offload.to.empty());
  add_techniques(OnRanks::with_plans, "");
  return list;
}

}  // namespace thimble::models
