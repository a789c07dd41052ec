// The models by name, each with its theory. A new model is a new row.

#include <algorithm>
#include <array>
#include <string>

#include <thimble/autograd/functions/loss.h>
#include <thimble/core/error.h>
#include <thimble/models/bert/bert.h>
#include <thimble/models/googlenet/googlenet.h>
#include <thimble/models/gpt/gpt.h>
#include <thimble/models/llama/llama.h>
#include <thimble/models/mlp/mlp.h>
#include <thimble/models/resnet/resnet.h>
#include <thimble/models/sharedconv/sharedconv.h>
#include <thimble/models/vit/vit.h>
#include <thimble/nn/parallel/shards.h>

namespace thimble::models {
namespace {

std::unique_ptr<Model> resnet(std::string_view name, const ModelOptions& options, const nn::TensorOptions& on) {
  const PathScope family("resnet");
  return std::make_unique<Resnet>(name, options, on);
}

std::unique_ptr<Model> mlp(std::string_view, const ModelOptions& options, const nn::TensorOptions& on) {
  const PathScope family("mlp");
  return std::make_unique<Mlp>(options, on);
}

std::unique_ptr<Model> googlenet(std::string_view, const ModelOptions& options, const nn::TensorOptions& on) {
  const PathScope family("googlenet");
  return std::make_unique<Googlenet>(options, on);
}

std::unique_ptr<Model> sharedconv(std::string_view, const ModelOptions& options, const nn::TensorOptions& on) {
  const PathScope family("sharedconv");
  return std::make_unique<Sharedconv>(options, on);
}

struct Row {
  std::string_view name, description;
  std::unique_ptr<Model> (*make)(std::string_view name, const ModelOptions& options, const nn::TensorOptions& on);
  Theory (*theory)(std::string_view name, const ModelOptions& options, const nn::Precision& precision);
};

constexpr std::array rows = {
    Row{"resnet18", "residual network, 18 layers of basic blocks (He et al. 2015)", resnet, resnet_theory},
    Row{"resnet34", "residual network, 34 layers of basic blocks (He et al. 2015)", resnet, resnet_theory},
    Row{"resnet50", "residual network, 50 layers of bottlenecks (He et al. 2015, v1.5)", resnet, resnet_theory},
    Row{"resnet101", "residual network, 101 layers of bottlenecks (He et al. 2015, v1.5)", resnet, resnet_theory},
    Row{"gpt2", "GPT-2, 12 layers of width 768 (Radford et al. 2019)", make_gpt, gpt_theory},
    Row{"gpt2-medium", "GPT-2, 24 layers of width 1024", make_gpt, gpt_theory},
    Row{"gpt2-large", "GPT-2, 36 layers of width 1280", make_gpt, gpt_theory},
    Row{"gpt2-xl", "GPT-2, 48 layers of width 1600", make_gpt, gpt_theory},
    Row{"char-gpt", "small GPT over characters, 6 layers of width 384", make_gpt, gpt_theory},
    Row{"gpt-22b", "GPT, 48 layers of width 6144 (Korthikanti et al. 2022)", make_gpt, gpt_theory},
    Row{"gpt-175b", "GPT, 96 layers of width 12288", make_gpt, gpt_theory},
    Row{"gpt-530b", "GPT, 105 layers of width 20480", make_gpt, gpt_theory},
    Row{"gpt-1t", "GPT, 128 layers of width 25600", make_gpt, gpt_theory},
    Row{"llama-3.2-1b", "Llama 3.2, 16 layers of width 2048 (Grattafiori et al. 2024)", make_llama, llama_theory},
    Row{"llama-3.2-3b", "Llama 3.2, 28 layers of width 3072", make_llama, llama_theory},
    Row{"llama-3-8b", "Llama 3, 32 layers of width 4096", make_llama, llama_theory},
    Row{"llama-3-70b", "Llama 3, 80 layers of width 8192", make_llama, llama_theory},
    Row{"llama-2-7b", "Llama 2, 32 layers of width 4096 (Touvron et al. 2023)", make_llama, llama_theory},
    Row{"qwen2.5-0.5b", "Qwen 2.5, 24 layers of width 896 (Yang et al. 2024)", make_llama, llama_theory},
    Row{"qwen2.5-7b", "Qwen 2.5, 28 layers of width 3584", make_llama, llama_theory},
    Row{"tiny-llama", "small Llama over characters, 6 layers of width 384", make_llama, llama_theory},
    Row{"bert-base", "BERT with its masked-token head, 12 layers of width 768 (Devlin et al. 2018)", make_bert,
        bert_theory},
    Row{"bert-large", "BERT with its masked-token head, 24 layers of width 1024", make_bert, bert_theory},
    Row{"vit-b16", "vision transformer, 12 layers of width 768, 16x16 patches (Dosovitskiy et al. 2020)", make_vit,
        vit_theory},
    Row{"vit-l16", "vision transformer, 24 layers of width 1024, 16x16 patches", make_vit, vit_theory},
    Row{"googlenet", "Inception v1 with batch norm, no auxiliary heads (Szegedy et al. 2014)", googlenet,
        googlenet_theory},
    Row{"sharedconv", "residual network whose convolutions share a basis of kernels", sharedconv, sharedconv_theory},
    Row{"mlp", "multilayer perceptron with two hidden layers", mlp, mlp_theory},
};

const Row& row_of(std::string_view name) {
  std::string known;
  for (const Row& row : rows) {
    if (row.name == name) return row;
    known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  throw ValueError("model: '" + std::string(name) + "' is not one of " + known);
}

}  // namespace

Tensor Model::loss(const Batch& batch) {
  const PathScope scope(path());
  if (!options_.stage.is_last()) return forward(batch.input);
  return cross_entropy(forward(batch.input), batch.target);
}

void Model::recompute_blocks(bool is_on) {
  if (is_on) throw ValueError("`recompute_blocks`: " + std::string(path_name(path())) + " has no blocks");
}

std::unique_ptr<Model> make_model(std::string_view name, const ModelOptions& options, const nn::TensorOptions& on) {
  std::unique_ptr<Model> model = row_of(name).make(name, options, on);
  if (options.function != ModelFunction{}) complete_options(name, options);  // throws if the family lacks a value
  if (options.stage.count > 1 && !model->has_stages()) {
    throw ValueError("`pp`: " + std::string(name) + " is no chain of blocks; expected 1, got " +
                     std::to_string(options.stage.count));
  }
  if (options.group.cuts_sequence && !model->can_cut_sequence()) {
    throw ValueError((options.group.cuts_layers() ? "`sequence_parallel`: " : "`cp`: ") + std::string(name) +
                     " is not cut along the sequence; expected GPT, Llama or BERT");
  }
  const auto is_whole = [](int layer) { return layer < 0; };
  if (options.group.cuts_layers() &&
      std::ranges::all_of(nn::shard_layers({model.get()}, model->trainable()), is_whole)) {
    throw ValueError("`tp`: " + std::string(name) + " has only whole layers; expected 1, got " +
                     std::to_string(options.group.shards));
  }
  return model;
}

Theory make_theory(std::string_view name, const ModelOptions& options, const nn::Precision& precision) {
  if (options.group.cuts_sequence) make_model(name, options, {dry(cpu)});  // throws if it cannot be sharded
  ModelOptions sizes = options;
  if (options.group.has_whole_layers) sizes.group = {};
  Theory theory = row_of(name).theory(name, sizes, precision);
  if (options.group.has_whole_layers) {
    theory.unknown = "tokens in shards, in attention heads, keep";
    theory.layers.clear(), theory.outside.clear();
  }
  return theory;
}

std::string_view model_family(std::string_view name) {
  const Row& row = row_of(name);
  if (row.make == make_gpt) return "gpt";
  if (row.make == make_llama) return "llama";
  if (row.make == make_bert) return "bert";
  if (row.make == make_vit) return "vit";
  if (row.make == resnet) return "resnet";
  if (row.make == mlp) return "mlp";
  if (row.make == googlenet) return "googlenet";
  return "sharedconv";
}

ModelOptions complete_options(std::string_view name, const ModelOptions& options) {
  const std::string_view family = model_family(name);
  if (family == "gpt") return gpt_options(name, options);
  if (family == "llama") return llama_config(name, options).sizes;
  if (family == "bert") return bert_options(name, options);
  if (family == "vit") return vit_options(name, options);
  require_function(name, options.function, {});
  return options;
}

std::vector<ModelInfo> model_list() {
  RandomGenerator unused;  // keeps the caller's generator as it is
  const GeneratorScope scope(unused);
  std::vector<ModelInfo> list;
  for (const Row& row : rows) {
    const auto model = make_model(row.name, {}, {dry(cpu)});
    list.push_back({std::string(row.name), std::string(row.description), model->parameter_count()});
  }
  return list;
}

}  // namespace thimble::models
