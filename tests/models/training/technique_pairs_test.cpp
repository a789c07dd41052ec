// Every pair of techniques: a run with both needs the predicted bytes, and where one of them is exact has the bits of
// a run with the other; or it is refused by a message that names both.

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/models/training/adapting.h>
#include <thimble/models/training/training.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/offload_data.h"

using namespace thimble;
using files_test::contains;

namespace {

struct Technique {
  std::string name;      // as errors have it, in backticks
  bool is_exact = true;  // it has the bits of the plain step
  std::function<void(models::Setup&)> apply;
  std::vector<std::string> implied = {};  // options without which there is no such technique

  bool is_named_by(const std::string& refusal) const {
    const auto names = [&](const std::string& option) { return contains(refusal, "`" + option + "`"); };
    return names(name) || std::any_of(implied.begin(), implied.end(), names);
  }
};

std::vector<Technique> all_techniques(const std::string& folder) {
  return {
      {"fuses_optimizer", true, [](models::Setup& s) { s.fuses_optimizer = true; }},
      {"clip_norm", false, [](models::Setup& s) { s.clip_norm = 0.25; }},
      {"micro_batches", false, [](models::Setup& s) { s.micro_batches = 2; }},
      {"head", false, [](models::Setup& s) { s.sizes.head = models::Head::chunked; }},
      {"feed_forward", false, [](models::Setup& s) { s.sizes.feed_forward = models::FeedForward::tiled; }},
      {"recomputes_blocks", true, [](models::Setup& s) { s.recomputes_blocks = true; }},
      {"offload", true, [folder](models::Setup& s) { s.offload = folder; }},
      {"offloads_optimizer",
       true,
       [folder](models::Setup& s) { s.offload = folder, s.offloads_optimizer = true; },
       {"offload"}},
      {"offloads_parameters",
       true,
       [folder](models::Setup& s) { s.offload = folder, s.offloads_parameters = true; },
       {"offload"}},
      {"offloads_gradients",
       true,
       [folder](models::Setup& s) { s.offload = folder, s.offloads_gradients = true; },
       {"offload"}},
      {"state", false, [](models::Setup& s) { s.state = DType::bf16; }},
      {"optimizer", false, [](models::Setup& s) { s.optimizer = "adafactor"; }},
      {"precision", false, [](models::Setup& s) { models::set_precision(s, "O2"); }},
      {"loss_scale", false, [](models::Setup& s) { s.loss_scale = optim::GradScalerOptions{.is_dynamic = true}; }},
      {"lora_rank", false, [](models::Setup& s) { s.lora_rank = 2; }, {"lora_targets"}},
      {"base",
       false,
       [](models::Setup& s) { s.lora_rank = 2, models::set_base(s, "nf4"); },
       {"lora_rank", "lora_targets"}},
      {"window", false, [](models::Setup& s) { s.sizes.window = 5; }},
      {"tp", false, [](models::Setup& s) { s.tp = 2; }},
      {"cp", false, [](models::Setup& s) { s.cp = 2; }},
      {"pp", false, [](models::Setup& s) { s.pp = 2, s.micro_batches = 2; }, {"micro_batches"}},
      {"sequence_parallel", false, [](models::Setup& s) { s.tp = 2, s.sequence_parallel = true; }, {"tp"}},
      {"allows_lossy", true, [](models::Setup& s) { s.allows_lossy = true; }},  // without a budget nothing is packed
  };
}

models::Setup pairs_setup() {
  models::Setup setup;
  setup.model = "char-gpt";
  setup.sizes.layers = 2, setup.sizes.width = 24, setup.sizes.heads = 2, setup.sizes.sequence = 10;
  setup.sizes.vocabulary = 29, setup.sizes.dropout = 0;
  setup.batch = 4;
  setup.clip_norm = 0;
  return setup;
}

/// The losses of three steps and of an evaluation after them.
std::vector<double> run_pair(const models::Setup& setup) {
  models::TrainOptions options;
  options.setup = setup;
  options.data = "synthetic";
  options.steps = 3;
  options.eval_batches = 1;
  std::vector<double> losses;
  const models::TrainReport report =
      models::train(models::prepare_training(options), [&](const nn::Progress& p) { losses.push_back(p.loss); });
  CHECK(report.differences() == "");
  CHECK(report.is_finite());
  losses.push_back(report.evaluation->loss);
  return losses;
}

}  // namespace

TEST_CASE("techniques: each pair has its bytes, or is refused by a message that names both", "[technique_pairs]") {
  const std::string folder = offload_test::disk_folder();
  if (folder.empty()) return;
  const std::vector<Technique> all = all_techniques(folder);
  std::vector<std::vector<double>> alone;
  for (const Technique& one : all) {
    models::Setup setup = pairs_setup();
    one.apply(setup);
    INFO(one.name << " alone");
    alone.push_back(run_pair(setup));
  }
  int runs = 0, refusals = 0;
  for (std::size_t a = 0; a < all.size(); ++a) {
    for (std::size_t b = a + 1; b < all.size(); ++b) {
      INFO(all[a].name << " with " << all[b].name);
      models::Setup setup = pairs_setup();
      all[a].apply(setup);
      all[b].apply(setup);
      std::string refusal;
      try {
        const std::vector<double> losses = run_pair(setup);
        ++runs;
        if (all[a].is_exact) CHECK(losses == alone[b]);
        if (all[b].is_exact) CHECK(losses == alone[a]);
      } catch (const ValueError& error) {
        refusal = error.what();
      } catch (const PlanError& error) {
        refusal = error.what();
      }
      if (refusal.empty()) continue;
      INFO(refusal);
      ++refusals;
      CHECK(all[a].is_named_by(refusal));
      CHECK(all[b].is_named_by(refusal));
    }
  }
  INFO(runs << " pairs run, " << refusals << " refused");
  CHECK(runs > 150);
  CHECK(refusals > 20);
}
