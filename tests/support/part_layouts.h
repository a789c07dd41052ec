#pragma once
// Models with sharded blocks, trained briefly in any layout of shards, ranks and stages, with their checkpoints.

#include <cstdint>
#include <functional>
#include <string>

#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/dist/threads.h>
#include <thimble/models/techniques/trained_parts.h>
#include <thimble/models/training/training.h>

namespace thimble::testing {

/// Numbers of shards and ranks, and the stage of ZeRO.
struct Layout {
  int tp, ranks, zero = 0;
  std::string text() const {
    return std::to_string(tp) + " parts, " + std::to_string(ranks) + " ranks, stage " + std::to_string(zero);
  }
};

inline constexpr std::int64_t width = 48, micro_batches = 4;  // over all ranks

inline models::Setup setup_of(const std::string& model, const Layout& layout, const std::string& precision = {}) {
  models::Setup setup;
  setup.model = model;
  models::ModelOptions& sizes = setup.sizes;
  sizes.layers = 2, sizes.width = width, sizes.heads = 12;
  if (model == "vit-b16") {
    sizes.image = 32;
  } else {
    sizes.sequence = 16;
  }
  if (model == "tiny-llama") sizes.key_heads = 4;
  if (model == "bert-base") sizes.vocabulary = 96;
  setup.batch = 8;
  setup.layout.bucket_bytes = 16 << 10;
  setup.layout.ranks = layout.ranks, setup.layout.tp = layout.tp, setup.layout.zero = layout.zero;
  setup.micro_batches = micro_batches / data_ranks(setup);
  setup.optimizer.name = "adamw";
  if (!precision.empty()) set_precision(setup, precision);
  return setup;
}

/// Runs `body` on each rank, with its setup; a single rank has no communicator.
inline void on_ranks(const models::Setup& setup,
                     const std::function<void(models::TrainedParts&, const models::Setup&)>& body) {
  if (setup.layout.ranks == 1) {
    models::TrainedParts parts(setup, cpu);
    return body(parts, setup);
  }
  dist::run_ranks(setup.layout.ranks, [&](dist::Communicator& ranks) {
    models::Setup own = setup;
    own.layout.rank = ranks.rank();
    models::TrainedParts parts(own, cpu, &ranks);
    body(parts, own);
  });
}

inline void train(models::TrainedParts& parts, const models::Setup& setup, int steps) {
  RandomGenerator words(5);
  for (int step = 0; step < steps; ++step) {
    models::Batch all = parts.model->empty_batch(setup.batch, cpu);
    {
      const GeneratorScope scope(words);
      const bool is_text = parts.model->is_text();
      const auto classes =
          static_cast<double>(is_text ? parts.model->options().vocabulary : parts.model->options().classes);
      all.input = to_dtype(uniform(all.input.shape(), 0, is_text ? classes : 1, DType::f64), all.input.dtype());
      all.target = to_dtype(uniform(all.target.shape(), 0, classes, DType::f64), all.target.dtype());
    }
    nn::training_step(
        *parts.optimizer,
        [&](std::int64_t i) {
          const std::int64_t number = parts.parallel ? parts.parallel->number(i) : i;
          return parts.model->loss(models::micro_batch(all, number, micro_batches));
        },
        parts.options);
  }
}

inline void save(models::TrainedParts& parts, const models::Setup& setup, const std::string& path,
                 const nn::Metadata& metadata = {}) {
  if (parts.parallel) {
    nn::save_checkpoint(path, *parts.model, *parts.parallel, *parts.optimizer, models::whole_state(setup, cpu),
                        parts.generator, metadata);
  } else {
    nn::save_checkpoint(path, *parts.model, *parts.optimizer, parts.generator, metadata);
  }
}

inline nn::Metadata load(models::TrainedParts& parts, const models::Setup& setup, const std::string& path) {
  if (!parts.parallel) return nn::load_checkpoint(path, *parts.model, *parts.optimizer, parts.generator);
  return nn::load_checkpoint(path, *parts.model, *parts.optimizer, models::whole_state(setup, cpu), parts.generator);
}

/// Options of a run of the program in the layout.
inline models::RunOptions options_of(const std::string& model, const Layout& layout) {
  models::RunOptions options;
  options.setup = setup_of(model, layout);
  options.data = "synthetic";
  options.eval_batches = 1;
  return options;
}

}  // namespace thimble::testing
