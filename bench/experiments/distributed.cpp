// Experiments on several ranks: threads as ranks reproduce the bits of one rank in the predicted bytes; dry ranks give
// the bytes of models that no machine here could hold.

#include <string_view>

#include <thimble/autograd/tape.h>
#include <thimble/bench/experiments/experiments.h>
#include <thimble/bench/experiments/watched_ranks.h>
#include <thimble/core/files/file_stream.h>
#include <thimble/core/ops/random.h>
#include <thimble/dist/communicator.h>
#include <thimble/memory/stack.h>
#include <thimble/models/techniques/trained_parts.h>
#include <thimble/models/theory.h>
#include <thimble/nn/step/dry_scope.h>

namespace thimble::bench {
namespace {

struct Arithmetic {
  const char* name;
  std::string_view precision = {};
  bool has_8_bit_state = false;
};
constexpr Arithmetic arithmetics[] = {
    {"f32"}, {"bf16", "bf16"}, {"O2", "O2"}, {"fp8", "fp8"}, {"8-bit state", "", true}};

models::RunOptions training(const std::string& model, const Arithmetic& arithmetic, const ExperimentOptions& all,
                            std::int64_t batch, std::int64_t micro_batches) {
  models::RunOptions options = generated_training(all, model, 4, 20);
  models::ModelOptions& sizes = options.setup.sizes;
  const bool is_text = model != "resnet18" && model != "vit-b16";
  if (is_text) {
    sizes.layers = 2, sizes.width = 64, sizes.heads = 2, sizes.sequence = 16, sizes.dropout = 0.1;
    if (model == "bert-base") sizes.vocabulary = 96;
  } else {
    sizes.image = 16, sizes.width = 8;
  }
  options.setup.batch = batch;
  options.setup.micro_batches = micro_batches;
  options.setup.layout.bucket_bytes = 64 << 10;
  if (!arithmetic.precision.empty()) set_precision(options.setup, std::string(arithmetic.precision));
  if (arithmetic.has_8_bit_state) options.setup.optimizer.name = is_text ? "adamw8" : "momentum8";
  options.eval_batches = 1;
  return options;
}

/// Runs the training of one rank on `ranks` ranks, which split the batch `data_ranks` ways.
models::TrainReport train_on_ranks(const models::RunOptions& one, int ranks, int data_ranks, int zero,
                                   bool has_budget) {
  models::RunOptions several = one;
  several.setup.layout.ranks = ranks;
  several.setup.layout.zero = zero;
  several.setup.micro_batches = one.setup.micro_batches / data_ranks;
  if (has_budget) several.budget_bytes = least_budget(several);
  return run_on_ranks(several);
}

const char* plan_name(bool has_budget) { return has_budget ? "least budget" : "none"; }

/// Rows of a training whose work is cut `ranks_each` ways, on one and two groups of that size. Returns the number of
/// rows with the losses of one rank.
std::size_t add_groups(Rows& rows, const Config& config, const char* groups_name, const models::RunOptions& one,
                       int ranks_each, bool has_quick_budget_of_two) {
  const models::TrainReport expected = models::Engine(one).run();
  std::size_t same = 0;
  for (const int groups : {1, 2}) {
    if (groups * ranks_each == 1) continue;
    for (int zero = 0; zero <= (groups == 1 ? 0 : 3); zero += rows.sizes(3, 1)) {
      for (const bool has_budget : {false, true}) {
        if (has_budget && rows.options.is_quick && (has_quick_budget_of_two ? zero != 0 : groups > 1)) continue;
        Config all = config;
        all.insert(all.end(), {{groups_name, groups}, {"ZeRO", zero}, {"plan", plan_name(has_budget)}});
        rows.add(all, [&] {
          const models::TrainReport result = train_on_ranks(one, groups * ranks_each, groups, zero, has_budget);
          same += result.loss_last == expected.loss_last && result.evaluation->loss == expected.evaluation->loss;
          return rank_figures(result, one.steps);
        });
      }
    }
  }
  return same;
}

std::string same_losses(const report::Experiment& experiment, std::size_t same) {
  return "The last loss and the validation loss are those of one rank in " + std::to_string(same) + " of " +
         std::to_string(experiment.rows.size()) + " rows; " + equal_rows(experiment, "rows") + ".";
}

/// How the work is cut. The arithmetic depends on it.
struct Cut {
  int tp = 1, pp = 1, cp = 1, chunks = 1;
  bool cuts_sequence = false;

  std::string text() const {
    std::string words = cp > 1 ? "sequence in " + std::to_string(cp) : "parts " + std::to_string(tp);
    if (cuts_sequence) words += " and sequence";
    words += ", stages " + std::to_string(pp);
    if (chunks > 1) words += " in " + std::to_string(chunks) + " chunks";
    return words;
  }
};

std::vector<Cut> cuts(bool is_quick) {
  if (is_quick) return {{2, 2, 1, 1, true}, {4, 1}, {1, 4}, {1, 1, 2}, {1, 2, 1, 2}};
  std::vector<Cut> list;
  for (const int pp : {1, 2, 4}) {
    for (const int tp : {1, 2, 4}) {
      list.push_back({tp, pp});
      if (tp > 1) list.push_back({tp, pp, 1, 1, true});
    }
    if (pp == 4) continue;
    for (const int cp : {2, 4}) list.push_back({1, pp, cp});
  }
  for (const int tp : {1, 2}) list.push_back({tp, 2, 1, 2});
  return list;
}

/// Bytes that the rank keeps after it recorded the loss of one sample, found by a dry run.
std::int64_t recorded(const std::string& name, const models::ModelOptions& sizes, const nn::TensorOptions& on) {
  const memory::Stack stack = memory::make_resource(on.device);
  const ResourceScope scope(stack.top);
  RandomGenerator generator(1);
  const GeneratorScope random(generator);
  const auto model = models::make_model(name, sizes, on);
  const models::Batch batch = model->empty_batch(1, on.device);
  Tape tape;
  generator.start_pass();
  const Recording on_tape(tape);
  model->loss(batch);
  return static_cast<std::int64_t>(stack.ledger->bytes(memory::Category::activation));
}

Figures activation_figures(const Rows& rows, const char* name, std::int64_t tokens, int parts) {
  const nn::Precision& precision = nn::precision("bf16");
  const auto ranks = dist::make_dry(0, parts);
  const models::ModelOptions sizes{.sequence = tokens, .group = {parts, parts > 1 ? ranks.get() : nullptr, parts > 1}};
  const models::Theory theory = models::make_theory(name, sizes, precision);
  const std::int64_t kept = recorded(name, sizes, precision.on(dry(rows.options.device)));
  const auto model = models::make_model(name, {}, {dry(cpu)});
  const double rule = 34.0 * static_cast<double>(tokens * model->options().width * model->options().layers) / parts;
  std::int64_t logits = 0;
  for (const models::Term& term : theory.outside) logits += term.name == "logits" ? term.bytes(1) : 0;
  return {.theory = theory.kept_bytes(memory::Category::activation, 1),
          .predicted = kept,
          .numbers = {{"rule", rule}, {"logits", logits}, {"ratio", static_cast<double>(kept) / rule}}};
}

struct Giant {
  const char* title;
  std::int64_t layers, width, heads;
};
constexpr Giant giants[] = {{"7.5B", 37, 4096, 32}, {"128B", 101, 10240, 80}, {"1T", 127, 25600, 160}};

/// Bytes that a parameter costs in f16 or bf16 with Adam: 2 + 2 + 12; in f32: 4 + 4 + 8.
constexpr std::int64_t bytes_each = 16;

std::int64_t state_bytes(const memory::CategoryBytes& bytes) {
  const auto of = [&](memory::Category c) { return bytes[static_cast<std::size_t>(c)]; };
  return static_cast<std::int64_t>(of(memory::Category::parameter) + of(memory::Category::gradient) +
                                   of(memory::Category::optimizer));
}

Figures state_figures(const Rows& rows, const Giant& giant, int ranks, int zero) {
  const memory::Device on = dry(rows.options.device);
  const nn::DryScope scope(on);
  models::Setup setup = setup_of(
      "gpt2", ranks, {.sequence = 16, .layers = giant.layers, .heads = giant.heads, .width = giant.width}, "adam");
  set_precision(setup, "O2");
  setup.layout.ranks = ranks;
  setup.layout.zero = zero;
  setup.layout.bucket_bytes = 0;
  models::TrainedParts parts(setup, on);
  const models::Batch batch = parts.model->empty_batch(1, on);
  const auto loss = [&](std::int64_t) { return parts.model->loss(batch); };
  std::int64_t theory = 0, all = 0;
  memory::CategoryBytes bytes{};
  if (parts.parallel == nullptr) {
    nn::training_step(*parts.optimizer, loss, parts.options);
    for (std::size_t i = 0; i < memory::category_count; ++i)
      bytes[i] = scope.stack.ledger->max_allocated(static_cast<memory::Category>(i));
    all = parts.model->parameter_count();
    theory = bytes_each * all;
  } else {
    WatchedRanks watched(*parts.parallel, [&] { bytes = scope.stack.ledger->bytes_by_category(); });
    parts.options.ranks = &watched;
    parts.options.parts = models::micro_batches(batch, 1);
    nn::training_step(*parts.optimizer, loss, parts.options);
    for (const dist::Bucket& bucket : parts.parallel->buckets()) {
      const auto size = static_cast<std::int64_t>(size_of(bucket.dtype));
      const std::int64_t shard = bucket.shard_elements(0);
      theory += size * (zero < 3 ? bucket.elements : shard) + size * (zero < 2 ? bucket.elements : shard) +
                (bytes_each - 2 * size) * (zero < 1 ? bucket.elements : shard);
      all += bucket.elements;
    }
  }
  const double p = static_cast<double>(all), n = ranks;
  const double share[] = {16 * p, 4 * p + 12 * p / n, 2 * p + 14 * p / n, 16 * p / n};
  return {
      .theory = theory, .predicted = state_bytes(bytes), .numbers = {{"parameters", p}, {"equal_share", share[zero]}}};
}

}  // namespace

std::string run_distributed(Rows& rows) {
  constexpr int micro_batches = 12;  // over all ranks, so that all compare with one run
  const auto contents = [](const std::string& path) { return read_whole_file(path, std::uint64_t{1} << 30); };
  const Folder folder;
  std::size_t same = 0;
  for (const std::string model : {"char-gpt", "bert-base", "resnet18"}) {
    for (const Arithmetic& arithmetic : arithmetics) {
      const bool is_first = &arithmetic == &arithmetics[0];
      if (rows.options.is_quick && !is_first && model != "char-gpt") continue;
      models::RunOptions one = training(model, arithmetic, rows.options, micro_batches, micro_batches);
      one.save = folder.file("one");
      const models::TrainReport expected = models::Engine(one).run();
      const std::vector<std::byte> whole = contents(one.save);
      one.save = folder.file("several");
      for (const int ranks : rows.sizes<std::vector<int>>({2, 4}, {2, 3, 4})) {
        if (ranks == 4 && rows.options.is_quick && !(is_first && model == "char-gpt")) continue;
        for (int zero = 0; zero <= 3; ++zero) {
          for (const bool has_budget : {false, true}) {
            if (has_budget && rows.options.is_quick && !(is_first && ranks == 2 && zero % 3 == 0)) continue;
            rows.add({{"model", model},
                      {"arithmetic", arithmetic.name},
                      {"ranks", ranks},
                      {"ZeRO", zero},
                      {"plan", plan_name(has_budget)}},
                     [&] {
                       const models::TrainReport result = train_on_ranks(one, ranks, ranks, zero, has_budget);
                       const bool is_same = contents(one.save) == whole && result.loss_last == expected.loss_last;
                       same += is_same ? 1 : 0;
                       Figures figures = rank_figures(result, one.steps);
                       figures.compared.push_back({"the file of one rank", whole.size(), is_same ? whole.size() : 0});
                       return figures;
                     });
          }
        }
      }
    }
  }
  return "The file and the last loss are those of one rank in " + std::to_string(same) + " of " +
         std::to_string(rows.experiment.rows.size()) + " rows; " + equal_rows(rows.experiment, "rows") + ".";
}

std::string run_distributed_parts(Rows& rows) {
  std::size_t same = 0;
  for (const std::string model : {"char-gpt", "bert-base", "tiny-llama", "vit-b16"}) {
    for (const Arithmetic& arithmetic : arithmetics) {
      if (arithmetic.precision == "fp8") continue;
      if (rows.options.is_quick && &arithmetic != &arithmetics[0]) continue;
      for (const int parts : rows.sizes<std::vector<int>>({2}, {2, 4})) {
        models::RunOptions one = training(model, arithmetic, rows.options, 24, 2);
        models::ModelOptions& sizes = one.setup.sizes;
        sizes.heads = 12, sizes.width = 96, sizes.layers = 2;
        (model == "vit-b16" ? sizes.image : sizes.sequence) = model == "vit-b16" ? 32 : 64;
        if (model == "tiny-llama") sizes.dropout = -1, sizes.key_heads = 4;
        one.setup.layout.tp = parts;
        same += add_groups(rows, {{"model", model}, {"arithmetic", arithmetic.name}, {"parts", parts}}, "groups", one,
                           parts, true);
      }
    }
  }
  return same_losses(rows.experiment, same);
}

std::string run_distributed_layouts(Rows& rows) {
  std::size_t same = 0;
  for (const Cut& cut : cuts(rows.options.is_quick)) {
    models::RunOptions one = training("char-gpt", {"f32"}, rows.options, 16, 8);
    models::Setup& setup = one.setup;
    one.steps = 4;
    one.warmup = 0;
    setup.sizes.layers = 4, setup.sizes.width = 48, setup.sizes.heads = 4, setup.sizes.sequence = 32;
    setup.layout.tp = cut.tp, setup.layout.pp = cut.pp, setup.layout.cp = cut.cp;
    setup.layout.sequence_parallel = cut.cuts_sequence;
    setup.layout.chunks = cut.chunks;
    if (cut.chunks > 1) setup.layout.pipeline = "interleaved";
    same += add_groups(rows, {{"cut", cut.text()}}, "shares", one, cut.tp * cut.pp * cut.cp, false);
  }
  return same_losses(rows.experiment, same);
}

std::string run_distributed_activations(Rows& rows) {
  for (const char* const name : {"llama-3.2-1b", "llama-3-8b", "llama-3-70b"}) {
    for (const std::int64_t tokens : rows.sizes<std::vector<std::int64_t>>({1024, 4096}, {1024, 4096, 16384, 131072})) {
      for (const int parts : {1, 2, 4, 8}) {
        rows.add({{"model", name}, {"tokens", tokens}, {"parts", parts}},
                 [&] { return activation_figures(rows, name, tokens, parts); });
      }
    }
  }
  return "The dry rank keeps exactly the closed form's bytes in " + count_rows(rows.experiment.rows, is_explained) +
         " rows.";
}

std::string run_distributed_zero(Rows& rows) {
  for (const Giant& giant : giants) {
    for (const int ranks : rows.sizes<std::vector<int>>({1, 64, 1024}, {1, 4, 16, 64, 256, 1024})) {
      for (int zero = ranks == 1 ? 3 : 0; zero <= 3; ++zero) {
        rows.add({{"model", giant.title}, {"ranks", ranks}, {"ZeRO", ranks == 1 ? 0 : zero}},
                 [&] { return state_figures(rows, giant, ranks, zero); });
      }
    }
  }
  return "The dry rank has exactly the formula's bytes in " + count_rows(rows.experiment.rows, is_explained) + " rows.";
}

}  // namespace thimble::bench
