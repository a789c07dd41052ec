// Experiments: every precision policy beside 8-bit state and packed tensors. Committed bytes, loss and time of a step;
// bytes of each category and of a parameter; whether an encoder under O2 is 40 % smaller and 15 % faster.

#include <thimble/bench/experiments/precision.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include <thimble/bench/report/text.h>
#include <thimble/bench/timing/timing.h>
#include <thimble/models/theory.h>
#include <thimble/models/training/costs.h>
#include <thimble/models/training/quantizing.h>

namespace thimble::bench {

namespace {

std::size_t index(memory::Category category) { return static_cast<std::size_t>(category); }

Config config_of(const PrecisionCase& one) {
  return {{"precision", one.name()}, {"optimizer", one.optimizer}, {"saved", one.saved.empty() ? "kept" : one.saved}};
}

std::string label(const PrecisionCase& one) {
  std::string text = one.name();
  if (one.optimizer != "adamw") text += ", " + one.optimizer;
  if (!one.saved.empty()) text += ", saved in " + one.saved;
  return text;
}

// Training of a small GPT on generated text, as a case has it.
models::RunOptions training_of(const Rows& rows, const PrecisionCase& one) {
  const TextSizes quick, full{.layers = 4, .heads = 4, .width = 128, .sequence = 64, .batch = 12};
  models::RunOptions train = text_training(rows.options, "char-gpt", rows.sizes(quick, full), 40, 300);
  train.setup.optimizer.rate = 1e-3;
  train.min_rate = 1e-4;
  train.eval_batches = rows.sizes(16, 64);
  one.apply(train.setup);
  return train;
}

// Steps of the case on a batch of zeros, with the case's plan.
nn::MakeRun steps_of(const models::Setup& setup, const PrecisionCase& one, memory::Device device) {
  const nn::MakeRun make = zero_batch_run(setup);
  return planned_run(make, packing_plan(make, device, one.saved));
}

/// A category's most bytes in a step of a GPT by theory. There is no formula for temporaries, workspaces and packed
/// activations.
std::optional<std::int64_t> theory_of(const PrecisionCase& one, const models::Setup& setup, memory::Category category) {
  constexpr std::int64_t moments = 2;
  const models::Theory theory = models::make_theory(setup.model, setup.sizes, one.precision());
  const models::ModelState state =
      one.optimizer == "adamw8" ? theory.state(moments, {.dtype = DType::u8}) : theory.state(moments);
  if (category == memory::Category::parameter) return state.parameters + state.buffers;
  if (category == memory::Category::gradient) return state.gradients;
  if (category == memory::Category::optimizer) return state.optimizer;
  if (category == memory::Category::input || (category == memory::Category::activation && one.saved.empty())) {
    return theory.kept_bytes(category, setup.batch);
  }
  return std::nullopt;
}

// Appends processor times of rows from `first` on, which take turns, and how they compare with the first one.
std::vector<double> add_times(Rows& rows, std::size_t first, const std::vector<nn::MakeRun>& runs, const char* name,
                              double (*compared)(double ms, double of_first)) {
  if (rows.options.device != cpu) return {};
  const std::vector<double> ms = step_processor_ms(rows.options.device, runs, rows.sizes(3, 12));
  for (std::size_t i = 0; i < runs.size(); ++i) {
    std::vector<std::pair<std::string, double>>& numbers = rows.experiment.rows[first + i].numbers;
    numbers.insert(numbers.end(), {{"ms_per_step", ms[i]}, {name, compared(ms[i], ms[0])}});
  }
  return ms;
}

constexpr const char* policies[] = {"O0", "O1", "O2", "bf16", "fp8"};
constexpr double claimed_saving = 0.40, claimed_speed = 0.15;

// The steps of one size of an encoder under every policy.
class EncoderSize {
 public:
  Figures figures(const models::Setup& setup, const nn::MemoryProfile& step) {
    const auto live = static_cast<double>(step.peak_live_bytes);
    const auto& at_peak = step.peak_by_category;
    const double share = static_cast<double>(at_peak[index(memory::Category::activation)] +
                                             at_peak[index(memory::Category::temporary)]) /
                         live;
    // By theory, the bytes when backward begins: weights, optimizer state, batch and kept activations.
    const models::Theory theory = models::make_theory(setup.model, setup.sizes, nn::precision(policies[live_.size()]));
    theory_.push_back(static_cast<double>(theory.held_bytes(2, setup.batch)));
    live_.push_back(live);
    share_.push_back(share);
    return {.predicted = step.peak_bytes,
            .numbers = {{"activation_share", share},
                        {"saving", 1 - live / live_[0]},
                        {"saving_theory", 1 - theory_.back() / theory_[0]}}};
  }
  EncoderSaving saving_of_o2(const std::string& size) const { return {size, share_[0], 1 - live_[2] / live_[0]}; }
  /// The share of bf16's live bytes that fp8 saves.
  double on_top() const { return 1 - live_[4] / live_[3]; }

 private:
  std::vector<double> live_, theory_, share_;  // by policy
};

// A small BERT, trained. Returns by how much O2 and bf16 are faster than O0.
std::vector<double> train_encoder(Rows& rows, std::int64_t batch) {
  const TextSizes sizes =
      rows.sizes<TextSizes>({.batch = batch}, {.layers = 2, .heads = 4, .width = 128, .sequence = 64, .batch = batch});
  EncoderSize size;
  const std::size_t first = rows.experiment.rows.size();
  std::vector<nn::MakeRun> runs;
  double exact_loss = 0;
  for (const char* const policy : policies) {
    rows.add({{"model", "small BERT"}, {"sequence", sizes.sequence}, {"batch", batch}, {"precision", policy}}, [&] {
      models::RunOptions train_options = text_training(rows.options, "bert-base", sizes, 20, 200);
      train_options.setup.optimizer.rate = 1e-3;
      train_options.eval_batches = rows.sizes(16, 64);
      set_precision(train_options.setup, policy);
      models::Engine engine(train_options);
      const models::Setup& setup = engine.options().setup;
      Figures figures = size.figures(
          setup, nn::profile_training(dry(rows.options.device), engine.runs(), 2, false, engine.plan().placement));
      const models::TrainReport result = engine.run();
      figures.measured = result.measured_peak_bytes;
      figures.processes = {{result.predicted_peak_bytes, process_bytes(result)}};
      const double loss = validation_loss(result);
      figures.numbers.emplace_back("validation_loss", loss);
      if (runs.empty()) {
        exact_loss = loss;
      } else {
        figures.numbers.emplace_back("validation_change", loss / exact_loss - 1);
      }
      runs.push_back(zero_batch_run(setup));
      return figures;
    });
  }
  const std::vector<double> ms =
      add_times(rows, first, runs, "faster", [](double of_one, double of_first) { return of_first / of_one - 1; });
  if (ms.empty()) return {};
  return {ms[0] / ms[2] - 1, ms[0] / ms[3] - 1};
}

}  // namespace

nn::Precision PrecisionCase::precision() const {
  if (!policy.empty()) return nn::precision(policy);
  return {.name = "bf16 throughout", .parameters = DType::bf16, .norms = DType::bf16};
}

void PrecisionCase::apply(models::Setup& setup) const {
  setup.optimizer.name = optimizer;
  if (!policy.empty()) return set_precision(setup, policy);
  setup.precision.policy.clear();
  setup.precision.dtype = DType::bf16;
}

std::vector<PrecisionCase> precision_cases() {
  std::vector<PrecisionCase> cases;
  for (const nn::Precision& precision : nn::precisions()) cases.push_back({std::string(precision.name), "adamw", ""});
  for (const char* const policy : {"O0", "bf16", "bf16-stochastic", ""}) cases.push_back({policy, "adamw8", ""});
  cases.push_back({"O0", "adamw", "i8"});
  return cases;
}

std::int64_t StepBytes::state() const noexcept {
  return most[index(memory::Category::parameter)] + most[index(memory::Category::gradient)] +
         most[index(memory::Category::optimizer)];
}

StepBytes step_bytes(memory::Device device, const nn::MakeRun& make) {
  const nn::MemoryProfile profile = nn::profile_training(device, make, 2, true);
  StepBytes bytes{{}, report::report_bytes(profile.peak_by_category), process_bytes(profile), profile.parameters};
  for (const memory::CategoryBytes& live : timeline(profile.events)) {
    for (std::size_t i = 0; i < memory::category_count; ++i) {
      bytes.most[i] = std::max(bytes.most[i], static_cast<std::int64_t>(live[i]));
    }
  }
  return bytes;
}

void add_categories(Rows& rows, const Config& config, const Both<StepBytes>& bytes, bool has_peak_columns,
                    const std::function<std::optional<std::int64_t>(memory::Category)>& theory) {
  for (std::size_t i = 0; i < memory::category_count; ++i) {
    const auto category = static_cast<memory::Category>(i);
    Config of_category = config;
    of_category.emplace_back("category", std::string(to_string(category)));
    Figures figures{.theory = theory(category),
                    .predicted = bytes.predicted.most[i],
                    .measured = bytes.measured.most[i],
                    .processes = {{bytes.predicted.process.arena_bytes, bytes.measured.process}}};
    if (has_peak_columns) {
      figures.numbers = {{"at_peak", bytes.predicted.at_peak[i]}, {"at_peak_measured", bytes.measured.at_peak[i]}};
    }
    rows.add(of_category, figures);
  }
}

std::string run_precision(Rows& rows) {
  report::Bars bars{"categories",
                    "Live bytes at the peak of a step, by category",
                    "By the dry run. What the arena commits is a little more: holes, and whole pages.",
                    {}};
  const memory::Device device = rows.options.device;
  const std::vector<PrecisionCase> cases = precision_cases();
  std::vector<report::Row>& all = rows.experiment.rows;
  std::vector<nn::MakeRun> runs;
  for (const PrecisionCase& one : cases) {
    models::Engine engine(training_of(rows, one));
    pack_saved(engine, one.saved);
    Config config = config_of(one);
    config.emplace_back("steps", engine.options().steps);
    rows.add(config, [&] {
      const models::TrainReport result = engine.run();
      runs.push_back(steps_of(engine.options().setup, one, device));
      const StepBytes bytes = step_bytes(dry(device), runs.back());
      bars.bars.push_back(report::category_bar(label(one), bytes.at_peak));
      const auto live = static_cast<double>(report::total(bytes.at_peak));
      Figures figures = training_figures(result);
      const auto change = [&](const char* name, double to) { return all.empty() ? 0 : to / number(all[0], name) - 1; };
      figures.numbers.insert(figures.numbers.end(),
                             {{"live", live},
                              {"saving", -change("live", live)},
                              {"validation_change", change("validation_loss", validation_loss(result))}});
      if (result.scaler) figures.numbers.emplace_back("skipped", result.scaler->skipped_steps);
      return figures;
    });
  }
  rows.experiment.bars.push_back(bars);
  add_times(rows, 0, runs, "time_change", [](double ms, double of_first) { return ms / of_first - 1; });
  std::size_t farthest = 0, smallest = 0;
  double most = -1;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const double change = std::fabs(number(all[i], "validation_change"));
    if (std::isnan(change) || change > most) most = change, farthest = i;
    if (number(all[i], "live") < number(all[smallest], "live")) smallest = i;
  }
  char text[160];
  std::snprintf(text, sizeof text, ": %.2f %% away; fewest bytes (-%.1f %%): ", 100 * most,
                100 * number(all[smallest], "saving"));
  return "Farthest from the loss of O0: " + label(cases[farthest]) + text + label(cases[smallest]) + "; " +
         equal_rows(rows.experiment) + ".";
}

std::string run_precision_bytes(Rows& rows) {
  for (const PrecisionCase& one : precision_cases()) {
    rows.say(label(one));
    const models::Setup setup = models::Engine(training_of(rows, one)).options().setup;
    const nn::MakeRun make = steps_of(setup, one, rows.options.device);
    add_categories(rows, config_of(one), rows.both([&](memory::Device device) { return step_bytes(device, make); }),
                   true, [&](memory::Category category) { return theory_of(one, setup, category); });
  }
  const auto is_same_at_peak = [](const auto& row) { return value(row, "at_peak") == value(row, "at_peak_measured"); };
  return equal_rows(rows.experiment, "rows") + ", and at the peak in " +
         count_rows(rows.experiment.rows, is_same_at_peak) + "; " + equal_theory(rows.experiment) + ".";
}

std::string run_precision_state(Rows& rows) {
  const models::Setup small = models::Engine(training_of(rows, precision_cases().front())).options().setup;
  const models::Setup gpt2 = setup_of("gpt2", 1, {.sequence = 64});
  for (const bool is_measured : {true, false}) {
    for (const PrecisionCase& one : precision_cases()) {
      if (!one.saved.empty()) continue;  // which changes nothing here
      rows.add({{"model", is_measured ? "small GPT" : "gpt2"}, {"precision", one.name()}, {"optimizer", one.optimizer}},
               [&] {
                 models::Setup setup = is_measured ? small : gpt2;
                 one.apply(setup);
                 std::int64_t theory = 0;
                 for (const memory::Category category :
                      {memory::Category::parameter, memory::Category::gradient, memory::Category::optimizer}) {
                   theory += *theory_of(one, setup, category);
                 }
                 const StepBytes predicted = step_bytes(dry(rows.options.device), zero_batch_run(setup));
                 Figures figures{.theory = theory,
                                 .predicted = predicted.state(),
                                 .numbers = {{"per_parameter", static_cast<double>(predicted.state()) /
                                                                   static_cast<double>(predicted.parameters)},
                                             {"parameter", predicted.most[index(memory::Category::parameter)]},
                                             {"gradient", predicted.most[index(memory::Category::gradient)]},
                                             {"optimizer_bytes", predicted.most[index(memory::Category::optimizer)]}}};
                 if (!is_measured) return figures;
                 const StepBytes measured = step_bytes(rows.options.device, zero_batch_run(setup));
                 figures.measured = measured.state();
                 figures.processes = {{predicted.process.arena_bytes, measured.process}};
                 return figures;
               });
    }
  }
  const auto each = [&](const std::string& policy) {  // of gpt2, with AdamW
    const auto found = std::find_if(rows.experiment.rows.begin(), rows.experiment.rows.end(), [&](const auto& row) {
      return setting(row, "model") == "gpt2" && setting(row, "precision") == policy &&
             setting(row, "optimizer") == "adamw";
    });
    return number(*found, "per_parameter");
  };
  std::string text = "gpt2. Bytes of a parameter, its gradient and the optimizer's state: ";
  for (const char* name : {"O0", "O2", "O3", "bf16-stochastic", "bf16-kahan"}) {
    text += std::string(name) + " " + report::format_fixed(each(name), 2) + ", ";
  }
  const double half = each("O3"), master = each("O2") - half, kahan = each("bf16-kahan") - half;
  return text + "so master copies cost " + report::format_fixed(master, 2) + " (" +
         report::format_fixed(100 * master / half, 0) + " % more than O3) and Kahan's sum " +
         report::format_fixed(kahan, 2) + "; O2 holds " + with_sign(100 * (each("O2") / each("O0") - 1), 1) +
         " % beside f32; " + equal_rows(rows.experiment, "measured rows") + ".";
}

std::string saving_verdict(const std::string& policy, double least, const std::vector<EncoderSaving>& sizes) {
  using report::format_fixed;
  std::string where;
  std::size_t count = 0;
  double share = 1;
  const EncoderSaving* best = nullptr;  // of the sizes that save less
  for (const EncoderSaving& size : sizes) {
    if (size.saving < least) {
      if (best == nullptr || size.saving > best->saving) best = &size;
      continue;
    }
    ++count;
    share = std::min(share, size.share);
    where += (where.empty() ? "" : ", ") + size.size;
  }
  std::string text = policy + " saves " + format_fixed(100 * least, 0) + " % at " + std::to_string(count) + " of " +
                     std::to_string(sizes.size()) + " sizes";
  if (count > 0) {
    text += " (" + where + "), where activations and temporaries are at least " + format_fixed(100 * share, 0) +
            " % of the peak in f32";
  }
  if (best != nullptr) {
    text += "; with " + format_fixed(100 * best->share, 0) + " % of them (" + best->size + ") it saves " +
            format_fixed(100 * best->saving, 1) + " %";
  }
  return text;
}

std::string run_precision_encoder(Rows& rows) {
  std::vector<EncoderSaving> savings;
  std::vector<double> on_top, faster;
  for (const std::int64_t sequence : {128, 512}) {
    for (const std::int64_t batch : {8, 16, 32, 64, 128}) {
      if (rows.options.is_quick && batch != 8 && batch != 32) continue;
      if (sequence == 512 && batch > 32) continue;
      EncoderSize size;
      for (const char* const policy : policies) {
        rows.add({{"model", "bert-base"}, {"sequence", sequence}, {"batch", batch}, {"precision", policy}}, [&] {
          models::Setup setup = setup_of("bert-base", batch, {.sequence = sequence});
          set_precision(setup, policy);
          return size.figures(setup, nn::profile_training(dry(rows.options.device), zero_batch_run(setup)));
        });
      }
      savings.push_back(size.saving_of_o2("T " + std::to_string(sequence) + " batch " + std::to_string(batch)));
      on_top.push_back(size.on_top());
    }
  }
  for (const std::int64_t batch : {4, 32}) {
    for (const double share : train_encoder(rows, batch)) faster.push_back(share);
  }
  const auto [least_on_top, most_on_top] = std::minmax_element(on_top.begin(), on_top.end());
  std::string text = "bert-base: " + saving_verdict("O2", claimed_saving, savings) +
                     ". fp8 on top of bf16: " + report::format_fixed(100 * *least_on_top, 1) + " to " +
                     report::format_fixed(100 * *most_on_top, 1) + " % fewer live bytes. ";
  if (!faster.empty()) {
    const auto [least, most] = std::minmax_element(faster.begin(), faster.end());
    text += "Speed of O2 and bf16 here: " + with_sign(100 * *least, 0) + " to " + with_sign(100 * *most, 0) +
            " %, so +15 % " +
            (*least >= claimed_speed  ? "holds"
             : *most >= claimed_speed ? "holds in part"
                                      : "does not hold") +
            " on this processor. ";
  }
  return text + equal_rows(rows.experiment, "measured rows") + ".";
}

// ---- Experiments: is a net in 8 bits 4 times smaller, and does it keep 98 % of its accuracy? And its bytes in
// inference.

namespace {

constexpr double claimed_ratio = 4, claimed_accuracy = 0.98;

// A residual net that reads generated images, and its file.
models::RunOptions trained(const Rows& rows, const std::string& file) {
  models::RunOptions options = generated_training(rows.options, "resnet18", 150, 300);
  options.device = cpu;  // where 8-bit inference is
  options.setup.batch = rows.sizes(16, 32);
  options.setup.sizes.width = 8;
  options.setup.sizes.image = rows.sizes(16, 32);
  options.setup.optimizer.rate = 0.02;
  options.save_weights = file;
  models::Engine engine(options);
  rows.say("f32, " + std::to_string(options.steps) + " steps");
  engine.run();
  return engine.options();
}

double live_bytes(const nn::MakeRun& make) {
  return static_cast<double>(nn::profile_training(dry(cpu), make).peak_live_bytes);
}

Figures exact_figures(const models::RunOptions& trained, const models::QuantizeReport& result) {
  const nn::MakeRun make = inference_run(trained.setup);
  const std::size_t predicted = nn::profile_training(dry(cpu), make).peak_bytes;
  const nn::MemoryProfile measured = nn::profile_training(cpu, make);
  return {.predicted = predicted,
          .measured = measured.peak_bytes,
          .numbers = {{"live", live_bytes(make)},
                      {"file_bytes", result.f32_file_bytes},
                      {"accuracy", *result.accuracy_f32},
                      {"loss", result.loss_f32},
                      {"ms", result.ms_f32}},
          .processes = {{predicted, process_bytes(measured)}}};
}

Figures int8_figures(const models::RunOptions& trained, const models::QuantizeReport& result) {
  const double ratio = static_cast<double>(result.f32_file_bytes) / static_cast<double>(result.int8_file_bytes);
  const ProcessBytes process{result.measured_peak_bytes, result.outside, result.process_peak_bytes};
  return {.predicted = result.predicted_peak_bytes,
          .measured = result.measured_peak_bytes,
          .numbers = {{"live", live_bytes(int8_inference_run(trained.setup))},
                      {"file_bytes", result.int8_file_bytes},
                      {"file_ratio", ratio},
                      {"accuracy", *result.accuracy_int8},
                      {"accuracy_ratio", *result.accuracy_int8 / *result.accuracy_f32},
                      {"loss", result.loss_int8},
                      {"ms", result.ms_int8},
                      {"faster", result.ms_f32 / result.ms_int8}},
          .processes = {{result.predicted_peak_bytes, process}}};
}

std::string verdict(const report::Experiment& experiment) {
  double least_accuracy = 1e9, least_ratio = 1e9, slowest = 1e9, fastest = 0;
  for (const report::Row& row : experiment.rows) {
    if (!value(row, "file_ratio")) continue;
    least_accuracy = std::min(least_accuracy, number(row, "accuracy_ratio"));
    least_ratio = std::min(least_ratio, number(row, "file_ratio"));
    slowest = std::min(slowest, number(row, "faster"));
    fastest = std::max(fastest, number(row, "faster"));
  }
  char text[320];
  std::snprintf(text, sizeof text,
                "The file is %.2f times smaller (4 %s: scales, biases and names are not 8 bits); of the accuracy at "
                "least %.1f %% is left (98 %% %s); inference is %.1f to %.1f times as fast; ",
                least_ratio, least_ratio >= claimed_ratio ? "is reached" : "is not reached", 100 * least_accuracy,
                least_accuracy >= claimed_accuracy ? "holds" : "does not hold", slowest, fastest);
  return text + equal_rows(experiment) + ".";
}

}  // namespace

std::string run_precision_int8(Rows& rows) {
  const Folder folder;
  const models::RunOptions net = trained(rows, folder.file("f32.safetensors"));
  for (const nn::quant::Calibrator calibrator : nn::quant::calibrators) {
    const std::string name(to_string(calibrator));
    rows.say(name);
    models::QuantizeOptions options;
    options.setup = net.setup;
    options.weights = net.save_weights;
    options.data = net.data;
    options.calibration.calibrator = calibrator;
    options.save = folder.file("int8.safetensors");
    const OneThread alone;
    const models::QuantizeReport result = quantize(options);
    if (rows.experiment.rows.empty()) rows.add({{"codes", "f32"}}, exact_figures(net, result));
    rows.add({{"codes", "int8, " + name}}, int8_figures(net, result));
  }
  return verdict(rows.experiment);
}

std::string run_precision_int8_bytes(Rows& rows) {
  for (const char* model : {"resnet18", "resnet50"}) {
    const models::Setup setup = setup_of(model, rows.sizes(2, 8), {.image = rows.sizes(32, 224)});
    const models::Theory theory = models::make_theory(setup.model, setup.sizes);
    rows.say(model);
    for (const bool is_int8 : {false, true}) {
      const auto bytes_on = [&](memory::Device device) {
        return step_bytes(device, is_int8 ? int8_inference_run(setup, device) : inference_run(setup));
      };
      add_categories(rows,
                     {{"model", setup.model},
                      {"image", setup.sizes.image},
                      {"batch", setup.batch},
                      {"codes", is_int8 ? "int8" : "f32"}},
                     {bytes_on(dry(cpu)), bytes_on(cpu)}, false,
                     [&](memory::Category category) -> std::optional<std::int64_t> {
                       if (category == memory::Category::gradient || category == memory::Category::optimizer) return 0;
                       if (category != memory::Category::parameter) return std::nullopt;
                       const models::ModelState state = theory.state(0);
                       return is_int8 ? theory.int8_bytes() : state.parameters + state.buffers;
                     });
    }
  }
  return equal_rows(rows.experiment, "rows") + "; " + equal_theory(rows.experiment) + ".";
}

}  // namespace thimble::bench
