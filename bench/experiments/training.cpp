// Experiments that train: a GPT and a ResNet inside memory that was predicted; the Llama family in every form; saved
// tensors and optimizer state in fewer bits.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>

#include <thimble/bench/experiments/experiments.h>
#include <thimble/memory/stack.h>
#include <thimble/models/generation/generating.h>
#include <thimble/models/techniques/adapting.h>
#include <thimble/nn/fit/fit.h>
#include <thimble/nn/precision/gradient_report.h>

namespace thimble::bench {

std::string run_training(Rows& rows) {
  models::RunOptions text = text_training(
      rows.options, "char-gpt", {.layers = 4, .heads = 4, .width = 128, .sequence = 64, .batch = 12}, 100, 2000);
  text.setup.optimizer.rate = 1e-3;
  text.min_rate = 1e-4;
  models::RunOptions images = generated_training(rows.options, "resnet18", 40, 1000);
  images.setup.batch = 16;
  images.setup.sizes.width = 16;
  images.setup.optimizer.rate = 0.02;
  report::Plot plot{
      "loss", "Training loss", "Smoothed over a twentieth of the run.", {"share of the run", Unit::percent}, {"loss"},
      {}};
  for (const auto& [title, options] :
       {std::pair{"char-gpt on generated text", text}, {"resnet18 on generated images", images}}) {
    rows.say(std::string(title) + ", " + std::to_string(options.steps) + " steps");
    report::Series& series = plot.series.emplace_back(report::Series{title, Role::other, {}, title});
    const auto steps = static_cast<double>(options.steps);
    const std::int64_t window = std::max<std::int64_t>(1, options.steps / 20);
    double sum = 0;
    const models::TrainReport result = models::Engine(options).run([&](const nn::Progress& progress) {
      sum += progress.loss;
      if (progress.step % window != 0) return;
      series.points.push_back({static_cast<double>(progress.step) / steps, sum / static_cast<double>(window)});
      sum = 0;
    });
    Figures figures = training_figures(result);
    figures.numbers.emplace_back("loss_first", result.loss_first);
    figures.numbers.emplace_back("ms_per_step", result.ms_per_step);
    if (result.evaluation && result.evaluation->accuracy) {
      figures.numbers.emplace_back("accuracy", *result.evaluation->accuracy);
    }
    rows.add({{"model", options.setup.model},
              {"batch", options.setup.batch},
              {"steps", options.steps},
              {"parameters", result.parameters}},
             figures);
  }
  rows.experiment.plots.push_back(plot);
  const auto learned = [](const report::Row& row) {
    return number(row, "loss_last") < 0.9 * number(row, "loss_first");
  };
  return "The loss fell by more than a tenth in " + count_rows(rows.experiment.rows, learned) + " runs; " +
         equal_rows(rows.experiment) + ".";
}

namespace {

/// A model of the family, its proportions kept, with few layers and a small width.
struct Small {
  const char* model;
  std::int64_t heads, key_heads, width, hidden;
};

constexpr Small family[] = {{"llama-3.2-1b", 8, 2, 128, 512}, {"llama-3.2-3b", 6, 2, 96, 256},
                            {"llama-3-8b", 8, 2, 128, 448},   {"llama-3-70b", 8, 1, 128, 448},
                            {"llama-2-7b", 4, 4, 128, 352},   {"qwen2.5-0.5b", 7, 1, 112, 608},
                            {"qwen2.5-7b", 7, 1, 112, 592}};

models::RunOptions training_of(const ExperimentOptions& options, const Small& small) {
  models::RunOptions train =
      text_training(options, small.model,
                    {.layers = 2, .heads = small.heads, .width = small.width, .sequence = 192, .batch = 4}, 2, 2);
  train.setup.sizes.key_heads = small.key_heads, train.setup.sizes.hidden = small.hidden;
  train.eval_batches = 1;
  return train;
}

/// A form of training: how its setup differs, and whether it runs in the smallest budget.
struct Form {
  const char* name;
  void (*change)(models::Setup& setup);
  bool has_least_budget = false;
};

void tile(models::Setup& s) { s.sizes.feed_forward = models::FeedForward::tiled; }
void tile_and_chunk(models::Setup& s) { tile(s), s.sizes.head = models::Head::chunked; }
void set_window(models::Setup& s) { s.sizes.window = 50; }
template <models::Build build, DType dtype>
void build_in(models::Setup& s) {
  s.sizes.build = build, s.precision.dtype = dtype;
}
void adapt(models::Setup& s, const char* base) { s.lora.rank = 8, models::set_base(s, base); }
void set_policy(models::Setup& s, const char* policy) { models::set_precision(s, policy), tile(s); }

constexpr Form forms[] = {{"fused, f32", build_in<models::Build::fused, DType::f32>},
                          {"fused, bf16", build_in<models::Build::fused, DType::bf16>},
                          {"textbook, f32", build_in<models::Build::textbook, DType::f32>},
                          {"textbook, bf16", build_in<models::Build::textbook, DType::bf16>},
                          {"window of 50", set_window},
                          {"window of 50, smallest budget", set_window, true},
                          {"tiles", tile},
                          {"tiles, smallest budget", tile, true},
                          {"chunked head, tiles", tile_and_chunk},
                          {"chunked head, tiles, smallest budget", tile_and_chunk, true},
                          {"O1, tiles", [](models::Setup& s) { set_policy(s, "O1"); }},
                          {"O2, tiles", [](models::Setup& s) { set_policy(s, "O2"); }},
                          {"bf16, tiles", [](models::Setup& s) { set_policy(s, "bf16"); }},
                          {"bf16-kahan, tiles", [](models::Setup& s) { set_policy(s, "bf16-kahan"); }},
                          {"sgd", [](models::Setup& s) { s.optimizer.name = "sgd"; }},
                          {"momentum", [](models::Setup& s) { s.optimizer.name = "momentum"; }},
                          {"adafactor", [](models::Setup& s) { s.optimizer.name = "adafactor"; }},
                          {"muon", [](models::Setup& s) { s.optimizer.name = "muon"; }},
                          {"adamw8", [](models::Setup& s) { s.optimizer.name = "adamw8"; }},
                          {"LoRA, base f32", [](models::Setup& s) { adapt(s, "f32"); }},
                          {"LoRA, base bf16", [](models::Setup& s) { adapt(s, "bf16"); }},
                          {"LoRA, base int8", [](models::Setup& s) { adapt(s, "int8"); }},
                          {"LoRA, base nf4", [](models::Setup& s) { adapt(s, "nf4"); }},
                          {"LoRA of queries and values, base nf4, tiles, chunked head", [](models::Setup& s) {
                             adapt(s, "nf4"), tile_and_chunk(s);
                             s.lora.targets = {"q_proj", "v_proj"};
                           }}};

Figures train_in(const Rows& rows, const Small& small, const Form& form) {
  models::RunOptions train = training_of(rows.options, small);
  form.change(train.setup);
  if (form.has_least_budget) {
    models::Engine engine(train);
    nn::Planner planner(engine.runs(), rows.options.device, nn::hardware("cpu"));
    train.budget_bytes = planner.smallest().peak_bytes;
  }
  return training_figures(models::Engine(train).run());
}

/// Tokens that a trained model writes.
void add_generation(Rows& rows, const Small& small) {
  const Folder folder;
  models::RunOptions train = training_of(rows.options, small);
  train.save_weights = folder.file("weights.safetensors");
  models::Engine(train).run();
  for (const DType cache : {DType::f32, DType::bf16}) {
    rows.add({{"model", small.model}, {"how", "generation, cache in " + std::string(to_string(cache))}}, [&] {
      models::GenerateOptions generate;
      generate.shape.setup.model = small.model, generate.shape.cache = cache;
      generate.shape.context = 64, generate.shape.tokens = 16;
      generate.device = rows.options.device;
      generate.weights = train.save_weights, generate.prompt = "The ";
      const models::GenerateReport written = models::generate(models::prepare_generation(generate));
      return Figures{.predicted = written.predicted_peak_bytes,
                     .measured = written.measured_peak_bytes,
                     .no_process = "of training runs alone"};
    });
  }
}

}  // namespace

std::string run_llama(Rows& rows) {
  for (const Small& small : family) {
    if (rows.options.is_quick && &small != &family[0]) break;
    for (const Form& form : forms) {
      rows.add({{"model", small.model}, {"how", form.name}}, [&] { return train_in(rows, small, form); });
    }
    add_generation(rows, small);
  }
  return equal_rows(rows.experiment, "rows") + ".";
}

namespace {

struct EightBitCase {
  std::string saved;  // a dtype that all saved tensors are packed to; if empty, they are kept
  std::string optimizer;
  DType state = DType::f32;
};

models::RunOptions options_of(const ExperimentOptions& options, const EightBitCase& one) {
  models::RunOptions train = text_training(options, "char-gpt", {}, 40, 500);
  train.setup.optimizer.name = one.optimizer;
  train.setup.optimizer.state = one.state;
  // Not the steepest rate, at which any difference in rounding drives two runs apart.
  if (train.setup.optimizer.name.starts_with("adamw")) train.setup.optimizer.rate = 1e-3;
  return train;
}

// Gradients of the batch after the exact run, with this plan and without.
nn::GradientReport gradients(models::Training& trained, models::Engine& engine) {
  const models::Batch batch =
      engine.data().batch(engine.options().steps, engine.options().device, engine.options().setup.precision.dtype);
  return nn::compare_gradients(trained.optimizer().parameters(),
                               [&](std::int64_t) { return trained.model().loss(batch); }, {},
                               {.plan = engine.plan().tape});
}

report::Series errors_by_parameter(const std::string& saved, const nn::GradientReport& report) {
  report::Series series{"saved in " + saved, Role::other, {}, saved};
  for (std::size_t i = 0; i < report.parameters.size(); ++i) {
    series.points.push_back({static_cast<double>(i), report.parameters[i].relative_error});
  }
  return series;
}

}  // namespace

std::string run_eight_bits(Rows& rows) {
  const EightBitCase cases[] = {{"", "adamw"},       {"bf16", "adamw"}, {"f16", "adamw"},           {"f8e4m3", "adamw"},
                                {"f8e5m2", "adamw"}, {"i8", "adamw"},   {"", "adamw", DType::bf16}, {"", "adamw8"},
                                {"", "adafactor"},   {"", "momentum"},  {"", "momentum8"},          {"i8", "adamw8"}};
  report::Plot plot{"gradient-error",
                    "Relative error of each parameter's gradient",
                    "Parameters in the order of the model, from the embeddings to the last norm.",
                    {"parameter"},
                    {"relative error", Unit::percent},
                    {}};
  const memory::Stack stack = memory::make_resource(rows.options.device);
  const ResourceScope scope(stack.top);
  std::unique_ptr<models::Engine> exact;
  std::unique_ptr<models::Training> trained;
  double adamw = 0, momentum = 0, least = 1, worst_loss = 0;
  for (const EightBitCase& one : cases) {
    const models::RunOptions options = options_of(rows.options, one);
    const std::string saved = one.saved.empty() ? "f32" : one.saved;
    rows.add({{"saved", saved},
              {"optimizer", one.optimizer},
              {"state", std::string(to_string(optimizer_state(options.setup, true)))},
              {"steps", options.steps}},
             [&] {
               models::Engine engine(options);
               pack_saved(engine, one.saved);
               const models::TrainReport result = engine.run();
               if (!trained) {  // the first case: gradients are compared at its parameters
                 exact = std::make_unique<models::Engine>(options);
                 trained = std::make_unique<models::Training>(exact->options(), exact->data(), options.device);
                 for (std::int64_t step = 0; step < options.steps; ++step) trained->step();
               }
               double& base = one.optimizer.starts_with("momentum") ? momentum : adamw;
               if (base == 0) base = validation_loss(result);
               const double change = validation_loss(result) / base - 1;
               if (one.optimizer != "adafactor") worst_loss = std::max(worst_loss, std::fabs(change));
               const auto state_bytes = make_optimizer(options.setup, trained->model())->state_bytes();
               // Live bytes, because a small model's arena is always a few granules.
               const nn::MemoryProfile step =
                   nn::profile_training(dry(options.device), planned_run(engine.runs(), engine.plan()));
               Figures figures = training_figures(result);
               const auto add = [&](const char* name, auto number) { figures.numbers.emplace_back(name, number); };
               add("validation_change", change);
               if (!one.saved.empty()) {
                 const nn::GradientReport report = gradients(*trained, engine);
                 add("gradient_error", report.all.relative_error);
                 add("least_cosine", report.smallest_cosine());
                 least = std::min(least, report.smallest_cosine());
                 if (one.optimizer == "adamw") plot.series.push_back(errors_by_parameter(one.saved, report));
               }
               add("live_bytes", step.peak_live_bytes);
               add("packed_bytes", engine.plan().packed_bytes);
               add("state_bytes", state_bytes);
               add("state_per_parameter", static_cast<double>(state_bytes) / static_cast<double>(result.parameters));
               return figures;
             });
  }
  rows.experiment.plots.push_back(plot);
  char text[160];
  std::snprintf(text, sizeof text,
                "Losses differ by at most %.2f %% from those of the same optimizer in f32 (adafactor is another one), "
                "the least cosine of a gradient is %.5f; ",
                100 * worst_loss, least);
  return text + equal_rows(rows.experiment) + ".";
}

}  // namespace thimble::bench
