// Experiments on several ranks: the bits of one and the bytes that were told, on ranks that are threads; and ZeRO's
// table of models that no machine here could hold, from dry ranks.

#include <filesystem>
#include <map>
#include <utility>

#include <unistd.h>

#include <thimble/bench/experiments/experiments.h>
#include <thimble/bench/experiments/rank_runs.h>
#include <thimble/bench/experiments/runs.h>
#include <thimble/bench/experiments/watched_ranks.h>
#include <thimble/bench/report/text.h>
#include <thimble/core/error.h>
#include <thimble/core/files/file_stream.h>
#include <thimble/memory/stack.h>
#include <thimble/models/training/trained_parts.h>
#include <thimble/nn/step/profile.h>

namespace thimble::bench {
namespace distributed_detail {

namespace fs = std::filesystem;

/// A folder for checkpoints, which goes with it.
class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / ("thimble-ranks-" + std::to_string(getpid()))) {
    fs::create_directories(path_);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  std::string file(const char* name) const { return (path_ / name).string(); }

 private:
  fs::path path_;
};

struct Arithmetic {
  const char* name;
  const char* precision;
  const char* optimizer;
};
constexpr Arithmetic arithmetics[] = {
    {"f32", "", ""}, {"bf16", "bf16", ""}, {"O2", "O2", ""}, {"fp8", "fp8", ""}, {"8-bit state", "", "8"}};

constexpr std::int64_t all_micro_batches = 12;  // over all ranks, so that one run is the measure of all

models::TrainOptions training(const std::string& model, const Arithmetic& arithmetic, const ExperimentOptions& all) {
  models::TrainOptions options = generated_training(all, model, 4, 20);
  models::ModelOptions& sizes = options.setup.sizes;
  const bool is_text = model != "resnet18" && model != "vit-b16";
  if (is_text) {
    sizes.layers = 2, sizes.width = 64, sizes.heads = 2, sizes.sequence = 16, sizes.dropout = 0.1;
    if (model == "bert-base") sizes.vocabulary = 96;
  } else {
    sizes.image = 16, sizes.width = 8;
  }
  options.setup.batch = all_micro_batches;
  options.setup.micro_batches = all_micro_batches;
  if (*arithmetic.precision != 0) set_precision(options.setup, arithmetic.precision);
  if (*arithmetic.optimizer != 0) options.setup.optimizer = is_text ? "adamw8" : "momentum8";
  options.eval_batches = 1;
  return options;
}

std::vector<std::byte> contents(const std::string& path) { return read_whole_file(path, std::uint64_t{1} << 30); }

}  // namespace distributed_detail

report::Experiment distributed_experiment(const ExperimentOptions& options) {
  using namespace distributed_detail;
  report::Experiment experiment;
  experiment.name = "distributed";
  experiment.title = "Training on several ranks";
  experiment.question = "Has every rank the bytes that were told, and the whole the bits of one rank?";
  experiment.theory =
      "N ranks with M micro-batches each make the steps of one rank with N M of them: every sum is made in the same "
      "order. So the last checkpoint is the same file, byte by byte. What a rank needs is said by a dry run of that "
      "rank alone. Figures are sums over the ranks; each rank's own are compared as well.";
  experiment.columns = {{"sent", "sent per step", report::Unit::bytes},
                        {"loss_last", "last loss", report::Unit::plain, 6}};
  const Folder folder;
  std::size_t same = 0;
  const std::vector<int> counts = options.is_quick ? std::vector{2, 4} : std::vector{2, 3, 4};
  for (const char* const model : {"char-gpt", "bert-base", "resnet18"}) {
    for (const Arithmetic& arithmetic : arithmetics) {
      const bool is_first = &arithmetic == &arithmetics[0];
      if (options.is_quick && !is_first && model != std::string("char-gpt")) continue;
      models::TrainOptions one = training(model, arithmetic, options);
      one.save = folder.file("one");
      options.progress(std::string("distributed: ") + model + ", " + arithmetic.name);
      const models::TrainReport expected = train(prepare_training(one));
      const std::vector<std::byte> whole = contents(one.save);
      for (const int ranks : counts) {
        for (int zero = 0; zero <= 3; ++zero) {
          for (const bool has_budget : {false, true}) {
            if (has_budget && options.is_quick && !(is_first && ranks == 2)) continue;
            models::TrainOptions several = one;
            several.save = folder.file("several");
            several.setup.ranks = ranks;
            several.setup.zero = zero;
            several.setup.micro_batches = all_micro_batches / ranks;
            several.setup.bucket_bytes = 64 << 10;
            if (has_budget) several.budget_bytes = least_budget(several);
            const models::TrainReport result = run_on_ranks(several);
            const bool is_same = contents(several.save) == whole && result.loss_last == expected.loss_last;
            same += is_same ? 1 : 0;
            report::Row row;
            row.config = {{"model", std::string(model)},
                          {"arithmetic", std::string(arithmetic.name)},
                          {"ranks", std::int64_t{ranks}},
                          {"ZeRO", std::int64_t{zero}},
                          {"plan", std::string(has_budget ? "least budget" : "none")}};
            add_ranks(row, result, several.steps);
            const auto size = static_cast<std::int64_t>(whole.size());
            row.compared.push_back({"the file of one rank", size, is_same ? size : 0});
            experiment.rows.push_back(row);
          }
        }
      }
    }
  }
  experiment.verdict = "The file and the last loss are those of one rank in " + std::to_string(same) + " of " +
                       std::to_string(experiment.rows.size()) + " rows; " + equal_rows(experiment, "rows") + ".";
  return experiment;
}

report::Experiment distributed_parts_experiment(const ExperimentOptions& options) {
  using namespace distributed_detail;
  report::Experiment experiment;
  experiment.name = "distributed-parts";
  experiment.title = "Blocks in parts over teams of ranks";
  experiment.question = "Has every rank of a team the bytes that were told, and the whole the losses of one rank?";
  experiment.theory =
      "One rank that computes all parts of each block, one after the other, adds up what they give in their order; t "
      "ranks that have one part each add in the same order. So losses have the same bits, whoever has the parts. What "
      "a rank needs is said by a dry run of that rank alone. Figures are sums over the ranks; each rank's own are "
      "compared as well.";
  experiment.columns = {{"sent", "sent per step", report::Unit::bytes},
                        {"loss_last", "last loss", report::Unit::plain, 6}};
  std::size_t same = 0;
  for (const char* const model : {"char-gpt", "bert-base", "tiny-llama", "vit-b16"}) {
    for (const Arithmetic& arithmetic : arithmetics) {
      if (arithmetic.precision == std::string("fp8")) continue;
      const bool is_first = &arithmetic == &arithmetics[0];
      if (options.is_quick && !is_first) continue;
      options.progress(std::string("distributed-parts: ") + model + ", " + arithmetic.name);
      for (const int parts : options.is_quick ? std::vector{2} : std::vector{2, 4}) {
        models::TrainOptions one = training(model, arithmetic, options);
        models::ModelOptions& sizes = one.setup.sizes;
        sizes.heads = 12, sizes.width = 96, sizes.layers = 2;
        if (model != std::string("vit-b16")) sizes.sequence = 64;
        if (model == std::string("vit-b16")) sizes.image = 32;
        if (model == std::string("tiny-llama")) sizes.dropout = -1, sizes.key_heads = 4;
        one.setup.tp = parts;
        one.setup.batch = 24, one.setup.micro_batches = 2;
        const models::TrainReport expected = train(prepare_training(one));
        for (const int teams : {1, 2}) {
          for (int zero = 0; zero <= (teams == 1 ? 0 : 3); zero += options.is_quick ? 3 : 1) {
            for (const bool has_budget : {false, true}) {
              if (has_budget && options.is_quick && zero != 0) continue;
              models::TrainOptions several = one;
              several.setup.ranks = parts * teams;
              several.setup.zero = zero;
              several.setup.micro_batches = one.setup.micro_batches / teams;
              several.setup.bucket_bytes = 64 << 10;
              if (has_budget) several.budget_bytes = least_budget(several);
              const models::TrainReport result = run_on_ranks(several);
              same += result.loss_last == expected.loss_last && result.evaluation->loss == expected.evaluation->loss;
              report::Row row;
              row.config = {
                  {"model", std::string(model)},  {"arithmetic", std::string(arithmetic.name)},
                  {"parts", std::int64_t{parts}}, {"teams", std::int64_t{teams}},
                  {"ZeRO", std::int64_t{zero}},   {"plan", std::string(has_budget ? "least budget" : "none")}};
              add_ranks(row, result, several.steps);
              experiment.rows.push_back(row);
            }
          }
        }
      }
    }
  }
  experiment.verdict = "The last loss and the validation loss are those of one rank in " + std::to_string(same) +
                       " of " + std::to_string(experiment.rows.size()) + " rows; " + equal_rows(experiment, "rows") +
                       ".";
  return experiment;
}

namespace distributed_detail {

struct Giant {
  const char* title;
  std::int64_t layers, width, heads;
};
constexpr Giant giants[] = {{"7.5B", 37, 4096, 32}, {"128B", 101, 10240, 80}, {"1T", 127, 25600, 160}};

/// Bytes that a parameter costs in f16 or bf16 with Adam: 2 + 2 + 12; in f32: 4 + 4 + 8.
constexpr std::int64_t bytes_each = 16;

}  // namespace distributed_detail

report::Experiment distributed_zero_experiment(const ExperimentOptions& options) {
  using namespace distributed_detail;
  report::Experiment experiment;
  experiment.name = "distributed-zero";
  experiment.title = "Model state under ZeRO";
  experiment.question = "What do parameters, gradients and optimizer state take on each rank of models up to 10^12?";
  experiment.theory =
      "Rajbhandari et al. 2020 (arXiv:1910.02054), table 1: with 2 bytes of parameter, 2 of gradient and 12 of state "
      "per "
      "parameter a rank has 16 P, 4 P + 12 P / N, 2 P + 14 P / N, 16 P / N in stages 0 to 3. P / N are the elements of "
      "the rank's shards, which are whole grains of 4,096; norms' parameters are f32: 4 + 4 + 8. Dry runs of rank 0.";
  experiment.columns = {{"parameters", "parameters", report::Unit::plain, 0},
                        {"equal_share", "by P / N", report::Unit::bytes}};
  const std::vector<int> counts = options.is_quick ? std::vector{1, 64, 1024} : std::vector{1, 4, 16, 64, 256, 1024};
  for (const Giant& giant : giants) {
    for (const int ranks : counts) {
      for (int zero = ranks == 1 ? 3 : 0; zero <= 3; ++zero) {
        options.progress(std::string("distributed-zero: ") + giant.title + ", " + std::to_string(ranks) +
                         " ranks, stage " + std::to_string(zero));
        const Device on = dry(options.device);
        const memory::Stack stack = memory::make_resource(on, nn::profile_options(on));
        const ResourceScope scope(stack.top);
        models::Setup setup;
        setup.model = "gpt2";
        setup.sizes.layers = giant.layers, setup.sizes.width = giant.width, setup.sizes.heads = giant.heads;
        setup.sizes.sequence = 16;
        setup.optimizer = "adam";
        set_precision(setup, "O2");
        setup.batch = setup.ranks = ranks;
        setup.zero = zero;
        setup.bucket_bytes = 0;
        models::TrainedParts parts(setup, on);
        report::Row row;
        CategoryBytes bytes{};
        const models::Batch batch = parts.model->empty_batch(1, on);
        std::int64_t theory = 0, all = 0;
        if (parts.parallel == nullptr) {
          nn::training_step(
              *parts.optimizer, [&](std::int64_t) { return parts.model->loss(batch); }, parts.options);
          for (const Category c : {Category::parameter, Category::gradient, Category::optimizer}) {
            bytes[static_cast<std::size_t>(c)] = stack.ledger->max_allocated(c);
          }
          all = parts.model->parameter_count();
          theory = bytes_each * all;
        } else {
          WatchedRanks watched(*parts.parallel, [&] { bytes = stack.ledger->bytes_by_category(); });
          parts.options.ranks = &watched;
          parts.options.parts = models::micro_batches(batch, 1);
          nn::training_step(
              *parts.optimizer, [&](std::int64_t) { return parts.model->loss(batch); }, parts.options);
          for (const dist::Bucket& bucket : parts.parallel->buckets()) {
            const auto size = static_cast<std::int64_t>(size_of(bucket.dtype));
            const std::int64_t shard = bucket.shard_elements(0);
            theory += size * (zero < 3 ? bucket.elements : shard) + size * (zero < 2 ? bucket.elements : shard) +
                      (bytes_each - 2 * size) * (zero < 1 ? bucket.elements : shard);
            all += bucket.elements;
          }
        }
        row.config = {{"model", std::string(giant.title)},
                      {"ranks", std::int64_t{ranks}},
                      {"ZeRO", std::int64_t{ranks == 1 ? 0 : zero}}};
        row.theory_bytes = theory;
        row.predicted_bytes = 0;
        for (const Category c : {Category::parameter, Category::gradient, Category::optimizer}) {
          *row.predicted_bytes += static_cast<std::int64_t>(bytes[static_cast<std::size_t>(c)]);
        }
        const double p = static_cast<double>(all), n = ranks;
        const double share[] = {16 * p, 4 * p + 12 * p / n, 2 * p + 14 * p / n, 16 * p / n};
        row.numbers = {{"parameters", p}, {"equal_share", share[zero]}};
        experiment.rows.push_back(row);
      }
    }
  }
  std::size_t exact = 0;
  for (const report::Row& row : experiment.rows) exact += row.theory_bytes == row.predicted_bytes ? 1 : 0;
  experiment.verdict = "The dry rank has exactly the formula's bytes in " + std::to_string(exact) + " of " +
                       std::to_string(experiment.rows.size()) + " rows.";
  return experiment;
}

}  // namespace thimble::bench
