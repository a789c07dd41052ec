#include <thimble/models/training/checkpoints.h>

#include <string_view>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/memory/units.h>
#include <thimble/models/datasets/dataset_text.h>
#include <thimble/models/techniques/technique.h>
#include <thimble/models/training/recipe.h>
#include <thimble/models/weights/follow_weights.h>
#include <thimble/nn/files/checkpoint.h>
#include <thimble/nn/files/safetensors.h>

namespace thimble::models {
namespace {

/// O0 and O3 are one dtype for everything, like `dtype` without a policy; the tensors tell which.
bool is_same(const RunTrait& trait, const std::string& other) {
  const auto plain = [](const std::string& name) { return name == "O0" || name == "O3" ? std::string() : name; };
  if (trait.key != "precision") return trait.value == other;
  return plain(trait.value) == plain(other);
}

std::string in_words(const RunTrait& trait, const std::string& value) {
  if (value.empty()) return "without " + trait.option;
  return "with " + trait.option + (trait.key == "tf32" ? "" : " " + value);
}

}  // namespace

std::vector<RunTrait> run_traits(const RunOptions& options, const Model& model) {
  std::vector<RunTrait> list;
  for (const Technique& one : techniques()) {
    if (one.identity.on_resume != OnResume::same) continue;
    const auto saved = one.saved(options.setup, model);
    if (saved) list.push_back({std::string(one.identity.key), one.name(), saved->value, saved->usual});
  }
  // A checkpoint of adapters does not have the frozen base.
  if (options.setup.lora.rank > 0) {
    list.push_back({"weights", "`weights` with the sum", options.setup.weights_sum, ""});
  }
  list.push_back({"tf32", "`allows_tf32`", options.allows_tf32 ? "allowed" : "", ""});
  return list;
}

nn::Metadata metadata_of(const RunOptions& options, const Dataset& data, const Model& model) {
  nn::Metadata metadata{{"model", options.setup.model}};
  for (const auto& trait : run_traits(options, model)) {
    if (trait.value != trait.usual) metadata[trait.key] = trait.value;
  }
  if (const std::string symbols = data.symbols(); !symbols.empty()) metadata["characters"] = to_hexadecimal(symbols);
  if (const std::string tokenizer = data.tokenizer(); !tokenizer.empty()) metadata["tokenizer"] = tokenizer;
  put_recipe(metadata, options, data, model);
  return metadata;
}

std::int64_t check_resume(const RunOptions& options, const Dataset& data, Training& training, std::string* change) {
  const std::string start = "`resume`: '" + options.resume + "' ";
  const SafetensorsHeader header = SafetensorsReader(options.resume).header();
  const nn::CheckpointInfo info = nn::parse_checkpoint_info(header, options.resume);
  const auto held = [&](const std::string& key, const std::string& otherwise) {
    const auto found = info.metadata.find(key);
    return found == info.metadata.end() ? otherwise : found->second;
  };
  const nn::Metadata own = metadata_of(options, data, training.model());
  for (const char* key : {"model", "characters", "tokenizer"}) {
    if (own.count(key) != 0 && held(key, "") != own.at(key)) {
      throw ValueError(start + "has " + key + " '" + held(key, "") + "'; this run has '" + own.at(key) +
                       "'; expected the same");
    }
  }
  for (const auto& trait : run_traits(options, training.model())) {
    const std::string before = held(trait.key, trait.usual);
    if (is_same(trait, before)) continue;
    throw ValueError(start + "was trained " + in_words(trait, before) + "; expected the same, got a run " +
                     in_words(trait, trait.value));
  }
  const auto require = [&](const std::string& option, std::string_view was, std::string_view is) {
    if (was == is) return;
    throw ValueError(start + "was trained with " + option + " " + std::string(was) +
                     "; expected the same, got a run with " + option + " " + std::string(is));
  };
  const std::string optimizer = training.optimizer().name(), narrow = "_bf16";  // the suffix of narrow moments
  if (info.optimizer + narrow == optimizer) require("`state`", "f32", "bf16");
  if (info.optimizer == optimizer + narrow) require("`state`", "bf16", "f32");
  require("`optimizer`", info.optimizer, optimizer);
  for (const nn::NamedTensor& p : training.model().parameters()) {
    const SafetensorsEntry* const saved = header.find(checkpoint_prefix + p.name);
    if (saved != nullptr) require("`dtype`", to_string(loadable_dtype(*saved)), to_string(p.tensor.dtype()));
  }
  const std::string changed = recipe_change(info.metadata, options, data, training.model(), start);
  if (change != nullptr) *change = changed;
  training.load(options.resume);
  if (training.generator().seed() != options.setup.seed) {
    throw ValueError(start + "was trained with `seed` " + std::to_string(training.generator().seed()) +
                     "; expected the same, got a run with `seed` " + std::to_string(options.setup.seed));
  }
  const auto done = static_cast<std::uint64_t>(info.step_count) +
                    static_cast<std::uint64_t>(info.scaler ? info.scaler->skipped_steps : 0);
  if (done >= static_cast<std::uint64_t>(options.steps)) {
    throw ValueError(start + "has done " + std::to_string(done) + " steps; `steps` " + std::to_string(options.steps) +
                     " must be more (it counts from the start)");
  }
  return static_cast<std::int64_t>(done);
}

}  // namespace thimble::models
