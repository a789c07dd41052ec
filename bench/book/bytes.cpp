// Bar charts of bytes.

#include <thimble/bench/book/drawing.h>
#include <thimble/bench/book/figures.h>
#include <thimble/bench/report/figures.h>
#include <thimble/core/tensor/context.h>
#include <thimble/memory/summary.h>
#include <thimble/models/theory.h>
#include <thimble/models/training/costs.h>
#include <thimble/nn/step/profile.h>
#include <thimble/nn/step/step.h>
#include <thimble/optim/sgd.h>

namespace thimble::bench {

using report::BarPart;

models::Setup book_gpt() {
  models::Setup setup;
  setup.model = "char-gpt";
  setup.batch = 8;
  setup.sizes.layers = 4, setup.sizes.width = 64, setup.sizes.heads = 4, setup.sizes.sequence = 64;
  setup.sizes.dropout = 0;
  return setup;
}

report::Bar step_bar(const std::string& label, const models::Setup& setup) {
  const nn::MemoryProfile profile = nn::profile_training(dry(cpu), zero_batch_run(setup));
  return report::category_bar(label, report::report_bytes(profile.peak_by_category));
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
  std::vector<BarPart> parts = report::category_bar("", report::report_bytes(stack.ledger->peak_by_category())).parts;
  std::erase_if(parts, [](const BarPart& part) { return part.amount == 0; });
  const memory::CommittedParts committed = memory::committed_at_peak(stack);
  parts.push_back({"holes between blocks", static_cast<std::int64_t>(committed.hole_bytes), report::paints::axis});
  parts.push_back({"rounding to 2 MiB", static_cast<std::int64_t>(committed.rounding_bytes), report::paints::muted});
  return report::svg_file(
      report::Bars{.name = "bar",
                   .title = "Where the bytes of a training step are: ResNet-18, 16 images of 32 x 32",
                   .caption = "Bytes at the peak by category, the holes between blocks, and the rounding to "
                              "whole granules.",
                   .bars = report::stair(parts, {}, "committed"),
                   .is_exact = true});
}

std::string draw_layer_terms() {
  models::ModelOptions sizes;
  sizes.sequence = 512, sizes.width = 128, sizes.heads = 4, sizes.layers = 1, sizes.dropout = 0;
  sizes.build = models::Build::textbook;
  const models::Theory theory = models::make_theory("char-gpt", sizes);
  std::vector<BarPart> parts;
  std::vector<std::string> notes;
  const std::int64_t sbh = 512 * 2 * 128;
  for (const models::Term& term : theory.layers[0].kept) {
    const std::int64_t bytes = term.bytes(2);
    const bool is_square = term.name == "probabilities";
    notes.push_back(is_square                        ? "= e a s\xC2\xB2 b"
                    : term.name == "norm statistics" ? "= 16 sb"
                                                     : "= " + std::to_string(bytes / sbh) + " sbh");
    parts.push_back(
        {term.name, bytes, is_square ? report::series_paints[1] : report::paint_of(memory::Category::activation)});
  }
  return report::svg_file(
      report::Bars{.name = "layer",
                   .title = "What one layer of a GPT keeps: s = 512, b = 2, h = 128, a = 4, f32, no dropout",
                   .caption = "Each tensor that backward of one transformer layer reads, with its bytes.",
                   .bars = report::stair(parts, notes, "one layer"),
                   .is_exact = true});
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
  return report::svg_file(bars);
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
  return report::svg_file(bars);
}

std::string draw_parameter_bytes() {
  report::Bars bars{.name = "parameter",
                    .title = "Bytes for each parameter, with Adam",
                    .caption = "Parameter, gradient, two moments and what a policy keeps besides, for five policies.",
                    .bars = {},
                    .unit = report::Unit::plain,
                    .is_exact = true};
  const auto add = [&](const char* policy, const std::string& label, bool is_narrow) {
    const models::ParameterBytes bytes = models::parameter_bytes(nn::precision(policy), 2);
    bars.bars.push_back({label,
                         {{"parameter", bytes.parameter, report::paint_of(memory::Category::parameter)},
                          {"gradient", bytes.gradient, report::paint_of(memory::Category::gradient)},
                          {"two moments", is_narrow ? 2 : bytes.moments, report::paint_of(memory::Category::optimizer)},
                          {"master copy or compensation", bytes.extra, report::series_paints[1]}}});
  };
  add("O0", "all f32 (O0)", false);
  for (const char* const name : {"O2", "bf16-kahan", "bf16-stochastic"}) add(name, name, false);
  add("bf16-stochastic", "bf16-stochastic, 8-bit moments", true);
  return report::svg_file(bars);
}

std::string draw_rank_bytes() {
  report::Bars bars{.name = "ranks",
                    .title = "A billion parameters with Adam in mixed precision: bytes on each of 8 ranks",
                    .caption = "Parameters, gradients and optimizer state of a rank under the stages of ZeRO.",
                    .bars = {},
                    .is_exact = true};
  const std::int64_t p = 1'000'000'000, n = 8;
  const auto add = [&](const char* label, std::int64_t parameters, std::int64_t gradients, std::int64_t state) {
    bars.bars.push_back({label,
                         {{"parameters", parameters, report::paint_of(memory::Category::parameter)},
                          {"gradients", gradients, report::paint_of(memory::Category::gradient)},
                          {"optimizer state", state, report::paint_of(memory::Category::optimizer)}}});
  };
  add("every rank has all", 2 * p, 2 * p, 12 * p);
  add("stage 1: state in shards", 2 * p, 2 * p, 12 * p / n);
  add("stage 2: and gradients", 2 * p, 2 * p / n, 12 * p / n);
  add("stage 3: and parameters", 2 * p / n, 2 * p / n, 12 * p / n);
  return report::svg_file(bars);
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
  add("another learning rate", [](models::Setup& s) { s.optimizer.rate = 1e-4; });
  add("half the batch", [](models::Setup& s) { s.batch = 16; });
  add("4 micro-batches", [](models::Setup& s) { s.micro_batches = 4; });
  add("8-bit optimizer state", [](models::Setup& s) { s.optimizer.name = "adamw8"; });
  add("mixed precision (O2)", [](models::Setup& s) { set_precision(s, "O2"); });
  add("textbook operators", [](models::Setup& s) { s.sizes.build = models::Build::textbook; });
  return report::svg_file(bars);
}

}  // namespace thimble::bench
