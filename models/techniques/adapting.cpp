#include <thimble/models/techniques/adapting.h>

#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/tensor/context.h>
#include <thimble/core/tensor/parameter_store.h>
#include <thimble/memory/units.h>
#include <thimble/models/datasets/dataset_text.h>
#include <thimble/nn/files/weights.h>

namespace thimble::models {
namespace {

nn::LoraOptions lora_options(const Setup& setup) {
  nn::LoraOptions options;
  options.rank = setup.lora.rank;
  options.alpha = setup.lora.alpha.value_or(static_cast<double>(setup.lora.rank));
  options.dropout = setup.lora.dropout;
  options.targets = setup.lora.targets;
  return options;
}

constexpr const char* gpt_layers_prefix = "transformer.";  // in transformers only GPT-2's layers have it

/// Uses memory as nn::load_adapters does.
void visit_adapters(Model& model) {
  const ParameterUse use;
  for (const nn::NamedLinear& layer : nn::adapted_layers(model)) {
    for (const Tensor* half : {&layer.adapter->lora_a, &layer.adapter->lora_b}) {
      fetch_parameters(*half);
      if (half->storage()) half->storage()->bump_version();
    }
  }
}

}  // namespace

void set_base(Setup& setup, const std::string& name) {
  if (name != "f32" && name != "bf16" && name != "int8" && name != "nf4") {
    throw ValueError("`base`: '" + name + "' is not one of f32, bf16, int8, nf4");
  }
  setup.lora.base = name;
  setup.precision.dtype = name == "f32" ? DType::f32 : DType::bf16;
}

void set_adapters(Setup& setup, const std::string& folder) {
  const char* const option = setup.lora.rank != 0          ? "`lora_rank`"
                             : setup.lora.alpha            ? "`lora_alpha`"
                             : setup.lora.dropout != 0     ? "`lora_dropout`"
                             : !setup.lora.targets.empty() ? "`lora_targets`"
                                                           : nullptr;
  if (option != nullptr) {
    throw ValueError(std::string("`adapters`: not with ") + option + ", which '" + folder +
                     "' says itself; leave out one of them");
  }
  nn::AdapterFiles files;
  files.prefix = gpt_layers_prefix;
  const nn::AdapterFolder found = nn::read_adapter_folder(folder, files);
  setup.lora.adapters = folder, setup.lora.targets = found.layers;
  setup.lora.rank = found.options.rank, setup.lora.alpha = found.options.alpha;
  setup.lora.dropout = found.options.dropout;
}

std::optional<WeightCode> base_code(const Setup& setup) {
  if (setup.lora.base == "int8") return WeightCode::int8;
  if (setup.lora.base == "nf4") return WeightCode::nf4;
  return std::nullopt;
}

void check_weights(const Setup& setup) {
  if (setup.weights.empty() && setup.lora.adapters.empty()) return;
  const auto model = make_model(setup.model, setup.sizes, tensor_options(setup, dry(cpu)));
  if (!setup.weights.empty()) nn::load_weights(*model, setup.weights);
  if (setup.lora.adapters.empty()) return;
  nn::add_lora(*model, lora_options(setup));
  nn::load_adapters(*model, setup.lora.adapters, adapter_files(setup, *model));
}

void check_tokens(const WeightFacts& facts, const Dataset& data) {
  const std::string characters = data.symbols().empty() ? "" : to_hexadecimal(data.symbols());
  for (const auto& [key, own] : {std::pair{"characters", characters}, std::pair{"tokenizer", data.tokenizer()}}) {
    const std::string held = facts.text(key);
    if (held.empty() || own.empty() || held == own) continue;
    throw ValueError("`weights`: expected the " + std::string(key) + " of the data, " + own + ", got those of " +
                     facts.path + ", " + held);
  }
}

void begin_fine_tuning(const Setup& setup, Model& model, memory::Device device) {
  if (!setup.weights.empty()) {
    if (device.is_dry) {
      nn::visit_weights(model);
    } else {
      nn::load_weights(model, setup.weights);
    }
  }
  if (setup.lora.rank > 0) nn::add_lora(model, lora_options(setup));
  if (setup.lora.adapters.empty()) return;
  if (device.is_dry) {
    visit_adapters(model);
  } else {
    nn::load_adapters(model, setup.lora.adapters, adapter_files(setup, model));
  }
}

nn::AdapterFiles adapter_files(const Setup& setup, const Model& model) {
  nn::AdapterFiles files;
  if (path_name(model.path()) == "gpt") files.prefix = gpt_layers_prefix;
  files.base = setup.weights;
  if (!model.is_text() || model.is_masked()) files.task.clear();
  return files;
}

std::string adapting_text(const Setup& setup) {
  if (setup.lora.rank == 0) return {};
  const nn::LoraOptions options = lora_options(setup);
  if (!setup.lora.adapters.empty()) {
    return "LoRA of rank " + std::to_string(options.rank) + ", alpha " + format_real(options.alpha) + ", on " +
           std::to_string(options.targets.size()) + " layers, from " + setup.lora.adapters +
           (setup.lora.base.empty() ? "" : "; base " + setup.lora.base);
  }
  std::string targets;
  for (const std::string& t : options.targets) targets += (targets.empty() ? "" : ", ") + t;
  return "LoRA of rank " + std::to_string(options.rank) + ", alpha " + format_real(options.alpha) + ", on " +
         (targets.empty() ? "all linear layers in blocks" : targets) +
         (setup.lora.base.empty() ? "" : "; base " + setup.lora.base);
}

}  // namespace thimble::models
