#pragma once
// Setups of models in pipeline stages, for comparison with one rank that has the whole model.

#include <cstdint>
#include <string>

#include <thimble/models/training/training.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/rank_steps.h"
#include "support/train_ranks.h"

namespace thimble::testing {

struct PipelineRow {
  std::string model;
  int pp, tp = 1, dp = 1, zero = 0;
  std::int64_t micro_batches = 4;  // per rank
  std::string pipeline = "1f1b", precision = {}, optimizer = {};
  models::Build build = models::Build::fused;
  double clip = 0.5;
  bool cuts_sequence = false;
  int chunks = 1;  // with "interleaved"
  std::int64_t layers = 4;

  std::string text() const {
    return model + ", " + std::to_string(pp) + " stages, " + pipeline +
           (chunks > 1 ? " in " + std::to_string(chunks) + " chunks, " : ", ") + std::to_string(tp) + " parts, " +
           (cuts_sequence ? "sequence as well, " : "") + std::to_string(dp) + " shares, ZeRO " + std::to_string(zero) +
           ", " + std::to_string(micro_batches) + " micro-batches, " + precision + " " + optimizer +
           (build == models::Build::textbook ? ", textbook" : "");
  }
};

inline models::Setup setup_of(const PipelineRow& row) {
  models::Setup setup;
  setup.model = row.model;
  models::ModelOptions& sizes = setup.sizes;
  sizes.build = row.build;
  if (row.model == "resnet18") {
    sizes.image = 16, sizes.width = 8;
  } else if (row.model == "mlp") {
    sizes.layers = row.layers - 1, sizes.width = 24;  // plus the head
  } else {
    sizes.layers = row.layers, sizes.width = 48, sizes.heads = 12;
    if (row.model == "vit-b16") {
      sizes.image = 32;
    } else {
      sizes.sequence = 16;
    }
  }
  if (row.model == "tiny-llama") sizes.key_heads = 4;
  if (row.model == "llama-3-8b") sizes.key_heads = 4, sizes.vocabulary = 96, sizes.hidden = 96;
  if (row.model == "char-gpt" || row.model == "bert-base" || row.model == "vit-b16") sizes.dropout = 0.1;
  if (row.model == "bert-base") sizes.vocabulary = 96;
  setup.batch = row.micro_batches * row.dp * 2, setup.optimizer.name = row.optimizer;
  if (row.optimizer == "adamw8") setup.optimizer.full_state = {"h.0"};  // of the first stage
  setup.layout.ranks = row.pp * row.tp * row.dp, setup.layout.pp = row.pp, setup.layout.tp = row.tp;
  setup.layout.sequence_parallel = row.cuts_sequence, setup.layout.zero = row.zero;
  setup.layout.pipeline = row.pipeline, setup.layout.chunks = row.chunks;
  setup.micro_batches = row.micro_batches, setup.layout.bucket_bytes = 16 << 10;
  setup.optimizer.clip_norm = row.clip;
  if (!row.precision.empty()) set_precision(setup, row.precision);
  return setup;
}

/// Checkpoints and weight files of `first` equal one rank's, and runs stopped in `first` continue as `then`.
inline void check_files(const PipelineRow& first, const PipelineRow& then) {
  const files_test::TemporaryFolder folder;
  const auto contents = [&](const std::string& name) { return files_test::read_text_file(folder / name); };
  const auto run_to = [&](const models::Setup& setup, std::int64_t steps, const std::string& from,
                          const std::string& name) {
    models::RunOptions options;
    options.setup = setup, options.data = "synthetic", options.eval_batches = 1, options.steps = steps;
    if (!from.empty()) options.resume = folder / from;
    options.save = folder / name;
    options.save_weights = folder / (name + ".weights");
    const models::TrainReport report = train(options);
    CHECK(report.differences() == "");
  };
  const models::Setup a = setup_of(first), b = setup_of(then);
  run_to(alone(a), 4, "", "one");
  run_to(a, 4, "", "several");
  CHECK((contents("several") == contents("one")));
  CHECK((contents("several.weights") == contents("one.weights")));
  run_to(a, 2, "", "half");
  run_to(b, 4, "half", "whole");
  CHECK((contents("whole") == contents("one")));
  run_to(alone(a), 4, "half", "alone");
  CHECK((contents("alone") == contents("one")));
}

}  // namespace thimble::testing
