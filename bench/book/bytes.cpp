// Pictures of sums of bytes.

#include <thimble/bench/book/drawing.h>
#include <thimble/bench/book/figures.h>
#include <thimble/bench/book/steps.h>
#include <thimble/bench/report/figures.h>
#include <thimble/core/tensor/context.h>
#include <thimble/memory/policies/committed.h>
#include <thimble/models/theory.h>
#include <thimble/nn/step/profile.h>
#include <thimble/nn/step/step.h>
#include <thimble/optim/sgd.h>

namespace thimble::bench {

using report::SumPart;

models::Setup book_gpt() {
  models::Setup setup;
  setup.model = "char-gpt";
  setup.batch = 8;
  setup.sizes.layers = 4, setup.sizes.width = 64, setup.sizes.heads = 4, setup.sizes.sequence = 64;
  setup.sizes.dropout = 0;
  return setup;
}

report::Bar step_bar(const std::string& label, const models::Setup& setup) {
  return {label, report::report_bytes(nn::profile_training(dry(cpu), zero_batch_run(setup)).peak_by_category)};
}

std::string draw_committed_bar() {
  const memory::Stack stack = memory::make_resource(dry(cpu));
  const ResourceScope scope(stack.top);
  models::ModelOptions sizes;
  sizes.image = 32;
  const auto model = models::make_model("resnet18", sizes, {dry(cpu)});
  optim::Sgd sgd(model->trainable(), {.rate = 0.05, .momentum = 0.9});
  const models::Batch batch = model->empty_batch(16, dry(cpu));
  for (int i = 0; i < 2; ++i) nn::training_step(sgd, [&](std::int64_t) { return model->loss(batch); });
  report::Sum sum;
  sum.title = "Where the bytes of a training step are: ResNet-18, 16 images of 32 x 32";
  sum.description = "Bytes at the peak by category, the holes between blocks, and the rounding to whole granules.";
  sum.total_name = "committed";
  const std::array<std::size_t, category_count> peak = stack.ledger->peak_by_category();
  for (const Category category : report::stacking_order) {
    const auto bytes = static_cast<std::int64_t>(peak[static_cast<std::size_t>(category)]);
    if (bytes > 0) sum.parts.push_back({std::string(report::label_of(category)), bytes, report::paint_of(category)});
  }
  const memory::CommittedParts parts = memory::committed_at_peak(stack);
  sum.parts.push_back({"holes between blocks", static_cast<std::int64_t>(parts.hole_bytes), report::paints::axis});
  sum.parts.push_back({"rounding to 2 MiB", static_cast<std::int64_t>(parts.rounding_bytes), report::paints::muted});
  return report::svg_sum(sum);
}

std::string draw_layer_terms() {
  models::ModelOptions sizes;
  sizes.sequence = 512, sizes.width = 128, sizes.heads = 4, sizes.layers = 1, sizes.dropout = 0;
  sizes.build = models::Build::textbook;
  const models::Theory theory = models::make_theory("char-gpt", sizes);
  report::Sum sum;
  sum.title = "What one layer of a GPT keeps: s = 512, b = 2, h = 128, a = 4, f32, no dropout";
  sum.description = "Each tensor that backward of one transformer layer reads, with its bytes.";
  sum.total_name = "one layer";
  const std::int64_t sbh = 512 * 2 * 128;
  for (const models::Term& term : theory.layers[0].kept) {
    const std::int64_t bytes = term.bytes(2);
    const bool is_square = term.name == "probabilities";
    std::string note = is_square ? "= e a s\xC2\xB2 b" : "= " + std::to_string(bytes / sbh) + " sbh";
    if (term.name == "norm statistics") note = "= 16 sb";
    sum.parts.push_back(
        {term.name, bytes, is_square ? report::series_paints[1] : report::paint_of(Category::activation), note});
  }
  return report::svg_sum(sum);
}

std::string draw_step_bars() {
  report::Bars bars;
  bars.name = "models";
  bars.title = "Live bytes at the peak of a step, by category";
  bars.caption = "Five steps of three models at batches that a laptop trains; a dry run each.";
  const auto add = [&](const char* label, const char* model, std::int64_t batch, std::int64_t image) {
    models::Setup setup;
    setup.model = model, setup.batch = batch, setup.sizes.image = image;
    bars.bars.push_back(step_bar(label, setup));
  };
  add("mlp, batch 128", "mlp", 128, 0);
  add("resnet18, batch 16, 32 x 32", "resnet18", 16, 32);
  add("resnet18, batch 64, 32 x 32", "resnet18", 64, 32);
  add("char-gpt, batch 2", "char-gpt", 2, 0);
  add("char-gpt, batch 8", "char-gpt", 8, 0);
  return report::svg_bars(bars);
}

std::string draw_accumulation() {
  report::Bars bars;
  bars.name = "accumulation";
  bars.title = "A batch of 32 in k micro-batches: live bytes at the peak";
  bars.caption = "Activations fall with 1 / k; parameters, gradients and the optimizer's state stay.";
  for (const std::int64_t k : {1, 2, 4, 8, 16, 32}) {
    models::Setup setup = book_gpt();
    setup.batch = 32, setup.micro_batches = k;
    bars.bars.push_back(step_bar("k = " + std::to_string(k), setup));
  }
  return report::svg_bars(bars);
}

std::string draw_parameter_bytes() {
  report::SharedSums sums;
  sums.title = "Bytes for each parameter, with Adam";
  sums.description = "Parameter, gradient, two moments and what a policy keeps besides, for five policies.";
  sums.unit = report::Unit::plain;
  const auto row = [](const models::ParameterBytes& bytes, std::int64_t moments) {
    return std::vector<SumPart>{{"parameter", bytes.parameter, report::paint_of(Category::parameter)},
                                {"gradient", bytes.gradient, report::paint_of(Category::gradient)},
                                {"two moments", moments, report::paint_of(Category::optimizer)},
                                {"master copy or compensation", bytes.extra, report::series_paints[1]}};
  };
  for (const char* const name : {"O0", "O2", "bf16-kahan", "bf16-stochastic"}) {
    const models::ParameterBytes bytes = models::parameter_bytes(nn::precision(name), 2);
    sums.bars.emplace_back(std::string(name) == "O0" ? "all f32 (O0)" : name, row(bytes, bytes.moments));
  }
  const models::ParameterBytes narrow = models::parameter_bytes(nn::precision("bf16-stochastic"), 2);
  sums.bars.emplace_back("bf16-stochastic, 8-bit moments", row(narrow, 2));
  return report::svg_shared_sums(sums);
}

std::string draw_rank_bytes() {
  report::SharedSums sums;
  sums.title = "A billion parameters with Adam in mixed precision: bytes on each of 8 ranks";
  sums.description = "Parameters, gradients and optimizer state of a rank under the stages of ZeRO.";
  const std::int64_t p = 1'000'000'000, n = 8;
  const auto row = [](std::int64_t parameters, std::int64_t gradients, std::int64_t state) {
    return std::vector<SumPart>{{"parameters", parameters, report::paint_of(Category::parameter)},
                                {"gradients", gradients, report::paint_of(Category::gradient)},
                                {"optimizer state", state, report::paint_of(Category::optimizer)}};
  };
  sums.bars.emplace_back("every rank has all", row(2 * p, 2 * p, 12 * p));
  sums.bars.emplace_back("stage 1: state in shards", row(2 * p, 2 * p, 12 * p / n));
  sums.bars.emplace_back("stage 2: and gradients", row(2 * p, 2 * p / n, 12 * p / n));
  sums.bars.emplace_back("stage 3: and parameters", row(2 * p / n, 2 * p / n, 12 * p / n));
  return report::svg_shared_sums(sums);
}

std::string draw_advice() {
  report::Bars bars;
  bars.name = "advice";
  bars.title = "What advice does to one step: a small GPT, batch 32";
  bars.caption = "Live bytes at the peak of a step under each piece of advice alone.";
  models::Setup plain = book_gpt();
  plain.batch = 32;
  const auto add = [&](const char* label, auto change) {
    models::Setup setup = plain;
    change(setup);
    bars.bars.push_back(step_bar(label, setup));
  };
  add("as it is", [](models::Setup&) {});
  add("another learning rate", [](models::Setup& s) { s.rate = 1e-4; });
  add("half the batch", [](models::Setup& s) { s.batch = 16; });
  add("4 micro-batches", [](models::Setup& s) { s.micro_batches = 4; });
  add("8-bit optimizer state", [](models::Setup& s) { s.optimizer = "adamw8"; });
  add("mixed precision (O2)", [](models::Setup& s) { set_precision(s, "O2"); });
  add("textbook operators", [](models::Setup& s) { s.sizes.build = models::Build::textbook; });
  return report::svg_bars(bars);
}

}  // namespace thimble::bench
