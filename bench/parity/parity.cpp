// thimble_parity: trains a model from given weights on given batches and writes the results, for comparison with
// another framework (parity.py runs both).
//
// In:  weights (safetensors, public names and layouts); batches (safetensors: `<step>.input` and `<step>.target` for
//      steps 0, 1, ...; images as (N, C, H, W), ids and targets i64).
// Out: safetensors with `loss` (steps) f64; `gradient.<name>` of the first step; `buffer.<name>` after the first step;
//      `weight.<name>`, parameters after the last. Convolutions are (O, I, KH, KW). Models over tokens add `logits` of
//      the first batch before its step.
// --adapters reads a PEFT adapter folder and trains only the adapters; --save-adapters writes one before training.
// MODEL `llama` reads a Hugging Face folder (config.json and weights) instead of weights; --save writes one before
// training.

#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/tensor/transaction.h>
#include <thimble/models/llama/llama_files.h>
#include <thimble/models/model.h>
#include <thimble/nn/files/weights.h>
#include <thimble/nn/lora/adapter_files.h>
#include <thimble/optim/accumulate.h>
#include <thimble/optim/adam.h>
#include <thimble/optim/sgd.h>

namespace {

using namespace thimble;

struct Options {
  std::string model, weights, batches, out, save, adapters, save_adapters;
  std::uint64_t shard_bytes = 5'000'000'000;
  models::ModelOptions sizes;
  DType dtype = DType::f32;
  double rate = 0;
};

/// Reads a tensor from the file of batches. Images are stored channels first, like convolution weights.
Tensor read_input(const SafetensorsReader& file, const std::string& name, DType dtype) {
  const SafetensorsEntry& entry = file.entry(name);
  const nn::FileLayout layout = entry.shape.size() == 4 ? nn::FileLayout::oihw : nn::FileLayout::same;
  std::vector<std::int64_t> sizes = entry.shape;
  if (layout == nn::FileLayout::oihw) sizes = {sizes[0], sizes[2], sizes[3], sizes[1]};
  const Tensor t = Tensor::empty(Shape(std::span<const std::int64_t>(sizes)), dtype, cpu, memory::Category::input);
  const nn::NamedTensor target{name, t, layout};
  nn::check_file_tensor("batches", entry, target, nn::Conversion::floating);
  nn::FileStaging staging;
  nn::read_file_tensor(file, entry, target, staging);
  return t;
}

models::Batch read_batch(const SafetensorsReader& file, std::int64_t step, bool is_text, DType dtype) {
  const std::string prefix = std::to_string(step) + ".";
  return {read_input(file, prefix + "input", is_text ? DType::i64 : dtype),
          read_input(file, prefix + "target", DType::i64)};
}

/// PyTorch's AdamW decays every tensor, so smallest_decayed_rank is 0.
std::unique_ptr<optim::Optimizer> make_optimizer(const models::Model& model, double rate) {
  if (!model.is_text()) {
    return std::make_unique<optim::Sgd>(model.trainable(), optim::SgdOptions{.rate = rate, .momentum = 0.9});
  }
  optim::AdamOptions options;
  options.rate = rate;
  options.beta2 = 0.95;
  options.weight_decay = 0.1;
  return std::make_unique<optim::Adam>(model.trainable(), options);
}

/// Copies of `tensors`, named `<kind>.<name>`.
void append_copies(std::vector<nn::NamedTensor>& list, const std::string& kind,
                   const std::vector<nn::NamedTensor>& tensors) {
  for (const nn::NamedTensor& t : tensors) list.push_back({kind + "." + t.name, clone(t.tensor.detach()), t.layout});
}

std::vector<nn::NamedTensor> gradients_of(const models::Model& model) {
  std::vector<nn::NamedTensor> list = model.parameters();
  std::erase_if(list, [](const nn::NamedTensor& p) { return !p.tensor.requires_grad(); });
  for (nn::NamedTensor& p : list) {
    if (!p.tensor.grad().defined()) throw AutogradError("parity: " + p.name + " has no gradient after a backward");
    p.tensor = p.tensor.grad();
  }
  return list;
}

/// nn::training_step, which also copies the gradients before they are freed.
double train_step(models::Model& model, optim::Optimizer& optimizer, const models::Batch& batch,
                  std::vector<nn::NamedTensor>* results) {
  tape::Transaction transaction;
  const Tensor loss = optim::accumulate_gradients(1, 0, [&](std::int64_t) { return model.loss(batch); });
  if (results) append_copies(*results, "gradient", gradients_of(model));
  optimizer.step();
  optimizer.zero_grad();
  transaction.commit();
  if (results) append_copies(*results, "buffer", model.buffers());
  return to_host<double>(loss)[0];
}

std::unique_ptr<models::Model> load_model(const Options& options) {
  const nn::TensorOptions on{cpu, options.dtype};
  if (options.model == "llama") {
    std::unique_ptr<models::Llama> llama = models::load_llama(options.weights, on, options.sizes);
    if (!options.save.empty()) models::save_llama(*llama, options.save, options.shard_bytes);
    return llama;
  }
  std::unique_ptr<models::Model> model = models::make_model(options.model, options.sizes, on);
  nn::load_weights(*model, options.weights);
  return model;
}

void run(const Options& options) {
  const std::unique_ptr<models::Model> model = load_model(options);
  const nn::AdapterFiles files{.prefix = options.model == "llama" ? "" : "transformer."};
  if (!options.adapters.empty()) nn::load_adapters(*model, options.adapters, files);
  if (!options.save_adapters.empty()) nn::save_adapters(*model, options.save_adapters, files);
  const std::unique_ptr<optim::Optimizer> optimizer = make_optimizer(*model, options.rate);
  const SafetensorsReader file(options.batches);
  const auto steps = static_cast<std::int64_t>(file.header().tensors.size() / 2);
  if (steps == 0) throw ValueError("parity: " + options.batches + " has no batches");

  std::vector<nn::NamedTensor> results;
  std::vector<double> losses;
  for (std::int64_t step = 0; step < steps; ++step) {
    const models::Batch batch = read_batch(file, step, model->is_text(), options.dtype);
    if (step == 0 && model->is_text()) {
      const NoGrad off;
      results.push_back({"logits", model->forward(batch.input)});
    }
    losses.push_back(train_step(*model, *optimizer, batch, step == 0 ? &results : nullptr));
  }
  append_copies(results, "weight", model->parameters());
  results.push_back({"loss", from_host(losses, {steps})});
  nn::write_tensor_file(options.out, results, {});
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App program("Trains from given weights on given batches; writes losses, gradients and weights.",
                   "thimble_parity");
  Options options;
  bool is_textbook = false, is_double = false;
  program.add_option("MODEL", options.model, "char-gpt, resnet18, ...: text trains with AdamW, images with SGD")
      ->required();
  program.add_option("WEIGHTS", options.weights, "safetensors")->required();
  program.add_option("BATCHES", options.batches, "safetensors: <step>.input, <step>.target")->required();
  program.add_option("OUT", options.out, "safetensors to write")->required();
  program.add_flag("--textbook", is_textbook, "The textbook build instead of the fused one");
  program.add_flag("--f64", is_double, "In f64 instead of f32");
  program.add_option("--image", options.sizes.image, "Height and width of images");
  program.add_option("--layers", options.sizes.layers, "Blocks of a text model");
  program.add_option("--heads", options.sizes.heads, "Attention heads of a text model");
  program.add_option("--width", options.sizes.width, "Width of a text model, channels of the first stage of a ResNet");
  program.add_option("--seq", options.sizes.sequence, "Positions of a text model");
  program.add_option("--vocabulary", options.sizes.vocabulary, "Tokens that a text model knows");
  program.add_option("--save", options.save, "llama: folder to write the model to before training");
  program.add_option("--shard", options.shard_bytes, "llama: most bytes of a file in that folder");
  program.add_option("--adapters", options.adapters, "PEFT's folder of adapters: they alone are trained");
  program.add_option("--save-adapters", options.save_adapters, "Folder to write them to before training");
  program.add_option("--classes", options.sizes.classes, "Classes of images");
  program.add_option("--rate", options.rate, "Learning rate")->required();
  CLI11_PARSE(program, argc, argv);
  if (is_textbook) options.sizes.build = models::Build::textbook;
  if (is_double) options.dtype = DType::f64;
  // Dropout is off, because the frameworks' generators differ.
  options.sizes.dropout = options.model.starts_with("resnet") ? -1 : 0;
  try {
    run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "thimble_parity: %s\n", error.what());
    return 2;
  }
  return 0;
}
