// Experiment: the Llama family in every form that it can be trained and used in, predicted and measured.

#include <cstdlib>
#include <filesystem>

#include <thimble/bench/experiments/runs.h>
#include <thimble/core/error.h>
#include <thimble/models/generation/generating.h>
#include <thimble/models/training/adapting.h>
#include <thimble/nn/fit/fit.h>

namespace thimble::bench {
namespace llama_rows_detail {

/// A model of the family, its proportions kept, with few layers and a small width.
struct Small {
  const char* model;
  std::int64_t heads, key_heads, width, hidden;
};

constexpr Small family[] = {{"llama-3.2-1b", 8, 2, 128, 512}, {"llama-3.2-3b", 6, 2, 96, 256},
                            {"llama-3-8b", 8, 2, 128, 448},   {"llama-3-70b", 8, 1, 128, 448},
                            {"llama-2-7b", 4, 4, 128, 352},   {"qwen2.5-0.5b", 7, 1, 112, 608},
                            {"qwen2.5-7b", 7, 1, 112, 592}};

models::TrainOptions training_of(const ExperimentOptions& options, const Small& small) {
  models::TrainOptions train =
      text_training(options, small.model,
                    {.layers = 2, .heads = small.heads, .width = small.width, .sequence = 192, .batch = 4}, 2, 2);
  train.setup.sizes.key_heads = small.key_heads, train.setup.sizes.hidden = small.hidden;
  train.eval_batches = 1;
  return train;
}

/// A folder that is gone when this is.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "thimble-rows-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw FileError(name, 0, "cannot be made");
    path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string file(const char* name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

/// Collects rows.
struct Rows {
  const ExperimentOptions& options;
  report::Experiment& experiment;

  void add(const Small& small, const std::string& form, const models::TrainOptions& train) {
    options.progress("llama: " + std::string(small.model) + ", " + form);
    experiment.rows.push_back(
        training_row({{"model", std::string(small.model)}, {"how", form}}, models::train(prepare_training(train))));
  }
};

std::string dtype_name(DType dtype) { return std::string(to_string(dtype)); }

void add_builds(Rows& rows, const Small& small) {
  for (const models::Build build : {models::Build::fused, models::Build::textbook}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      models::TrainOptions train = training_of(rows.options, small);
      train.setup.sizes.build = build, train.setup.dtype = dtype;
      rows.add(small, std::string(build == models::Build::fused ? "fused" : "textbook") + ", " + dtype_name(dtype),
               train);
    }
  }
}

void add_windows(Rows& rows, const Small& small) {
  for (const bool is_smallest : {false, true}) {
    models::TrainOptions train = training_of(rows.options, small);
    train.setup.sizes.window = 50;
    const models::PreparedTraining prepared = prepare_training(train);
    nn::Planner planner(training_program(prepared), rows.options.device, nn::hardware("cpu"));
    if (is_smallest) train.budget_bytes = planner.smallest().peak_bytes;
    rows.add(small, is_smallest ? "window of 50, smallest budget" : "window of 50", train);
  }
}

void add_heads_and_tiles(Rows& rows, const Small& small) {
  for (const bool has_chunks : {false, true}) {
    models::TrainOptions train = training_of(rows.options, small);
    train.setup.sizes.feed_forward = models::FeedForward::tiled;
    if (has_chunks) train.setup.sizes.head = models::Head::chunked;
    rows.add(small, has_chunks ? "chunked head, tiles" : "tiles", train);
    const models::PreparedTraining prepared = prepare_training(train);
    nn::Planner planner(training_program(prepared), rows.options.device, nn::hardware("cpu"));
    train.budget_bytes = planner.smallest().peak_bytes;
    rows.add(small, has_chunks ? "chunked head, tiles, smallest budget" : "tiles, smallest budget", train);
  }
}

void add_policies(Rows& rows, const Small& small) {
  for (const char* policy : {"O1", "O2", "bf16", "bf16-kahan"}) {
    models::TrainOptions train = training_of(rows.options, small);
    models::set_precision(train.setup, policy);
    train.setup.sizes.feed_forward = models::FeedForward::tiled;
    rows.add(small, std::string(policy) + ", tiles", train);
  }
}

void add_optimizers(Rows& rows, const Small& small) {
  for (const char* optimizer : {"sgd", "momentum", "adafactor", "muon", "adamw8"}) {
    models::TrainOptions train = training_of(rows.options, small);
    train.setup.optimizer = optimizer;
    rows.add(small, optimizer, train);
  }
}

void add_adapters(Rows& rows, const Small& small) {
  for (const char* base : {"f32", "bf16", "int8", "nf4"}) {
    models::TrainOptions train = training_of(rows.options, small);
    train.setup.lora_rank = 8;
    models::set_base(train.setup, base);
    rows.add(small, std::string("LoRA, base ") + base, train);
  }
  models::TrainOptions train = training_of(rows.options, small);
  train.setup.lora_rank = 8, train.setup.lora_targets = {"q_proj", "v_proj"};
  models::set_base(train.setup, "nf4");
  train.setup.sizes.feed_forward = models::FeedForward::tiled;
  train.setup.sizes.head = models::Head::chunked;
  rows.add(small, "LoRA of queries and values, base nf4, tiles, chunked head", train);
}

/// Tokens that a trained model writes.
void add_generation(Rows& rows, const Small& small) {
  const Folder folder;
  models::TrainOptions train = training_of(rows.options, small);
  train.save_weights = folder.file("weights.safetensors");
  models::train(prepare_training(train));
  for (const DType cache : {DType::f32, DType::bf16}) {
    rows.options.progress("llama: " + std::string(small.model) + ", generation");
    models::GenerateOptions generate;
    generate.shape.setup.model = small.model;
    generate.shape.context = 64, generate.shape.tokens = 16;
    generate.shape.cache = cache;
    generate.device = rows.options.device;
    generate.weights = train.save_weights;
    generate.prompt = "The ";
    const models::GenerateReport written = models::generate(models::prepare_generation(generate));
    report::Row row;
    row.config = {{"model", std::string(small.model)}, {"how", "generation, cache in " + dtype_name(cache)}};
    row.predicted_bytes = static_cast<std::int64_t>(written.predicted_peak_bytes);
    row.measured_bytes = static_cast<std::int64_t>(written.measured_peak_bytes);
    row.no_process = "of training runs alone";
    rows.experiment.rows.push_back(std::move(row));
  }
}

}  // namespace llama_rows_detail

report::Experiment llama_experiment(const ExperimentOptions& options) {
  using namespace llama_rows_detail;
  report::Experiment experiment;
  experiment.name = "llama";
  experiment.title = "Llama and Qwen in every form";
  experiment.question = "Are today's models predicted to the byte, however they are trained and used?";
  experiment.theory =
      "Seven models of the family with two layers and a small width, their heads, shared keys and gated layers in "
      "proportion, train two steps and evaluate: both builds, two dtypes, a window of attention, heads and "
      "feed-forward layers in tiles, "
      "budgets, policies, optimizers, adapters over bases in four forms; then they write tokens. predicted: a dry run; "
      "measured: what the arena committed.";
  experiment.columns = loss_columns(3);
  Rows rows{options, experiment};
  for (const Small& small : family) {
    if (options.is_quick && &small != &family[0]) break;
    add_builds(rows, small);
    add_windows(rows, small);
    add_heads_and_tiles(rows, small);
    add_policies(rows, small);
    add_optimizers(rows, small);
    add_adapters(rows, small);
    add_generation(rows, small);
  }
  experiment.verdict = equal_rows(experiment, "rows") + ".";
  return experiment;
}

}  // namespace thimble::bench
