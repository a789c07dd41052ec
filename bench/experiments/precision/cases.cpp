#include <thimble/bench/experiments/precision/precision.h>

#include <algorithm>

#include <thimble/models/theory.h>

namespace thimble::bench {
namespace precision_cases_detail {

std::size_t index(Category category) { return static_cast<std::size_t>(category); }

}  // namespace precision_cases_detail

nn::Precision PrecisionCase::precision() const {
  if (!policy.empty()) return nn::precision(policy);
  return {.name = "bf16 throughout", .parameters = DType::bf16, .norms = DType::bf16};
}

void PrecisionCase::apply(models::Setup& setup) const {
  setup.optimizer = optimizer;
  if (!policy.empty()) return set_precision(setup, policy);
  setup.precision.clear();
  setup.dtype = DType::bf16;
}

std::vector<PrecisionCase> precision_cases() {
  std::vector<PrecisionCase> cases;
  for (const nn::Precision& precision : nn::precisions()) cases.push_back({std::string(precision.name), "adamw", ""});
  cases.push_back({"O0", "adamw8", ""});
  cases.push_back({"bf16", "adamw8", ""});
  cases.push_back({"bf16-stochastic", "adamw8", ""});
  cases.push_back({"", "adamw8", ""});
  cases.push_back({"O0", "adamw", "i8"});
  return cases;
}

models::TrainOptions precision_training(const ExperimentOptions& options, const PrecisionCase& one) {
  const TextSizes quick, full{.layers = 4, .heads = 4, .width = 128, .sequence = 64, .batch = 12};
  models::TrainOptions train = text_training(options, "char-gpt", options.is_quick ? quick : full, 40, 300);
  train.setup.rate = 1e-3;
  train.min_rate = 1e-4;
  train.eval_batches = options.is_quick ? 16 : 64;
  one.apply(train.setup);
  return train;
}

nn::MakeRun precision_run(const models::Setup& setup, const PrecisionCase& one, Device device) {
  const nn::MakeRun make = zero_batch_run(setup);
  return [make, plan = packing_plan(make, device, one.saved)](Device target) {
    std::unique_ptr<nn::TrainingRun> run = make(target);
    plan.apply(run->options(), target);
    return run;
  };
}

std::int64_t StepBytes::state() const noexcept {
  using precision_cases_detail::index;
  return most[index(Category::parameter)] + most[index(Category::gradient)] + most[index(Category::optimizer)];
}

StepBytes step_bytes(Device device, const nn::MakeRun& make) {
  const nn::MemoryProfile profile = nn::profile_training(device, make, 2, true);
  StepBytes bytes;
  bytes.process = process_bytes(profile);
  bytes.parameters = profile.parameters;
  bytes.at_peak = report::report_bytes(profile.peak_by_category);
  for (const CategoryBytes& live : timeline(profile.events)) {
    for (std::size_t i = 0; i < category_count; ++i) {
      bytes.most[i] = std::max(bytes.most[i], static_cast<std::int64_t>(live[i]));
    }
  }
  return bytes;
}

std::optional<std::int64_t> precision_theory(const PrecisionCase& one, const models::Setup& setup, Category category) {
  constexpr std::int64_t moments = 2;
  const models::Theory theory = models::make_theory(setup.model, setup.sizes, one.precision());
  const models::ModelState state =
      one.optimizer == "adamw8" ? theory.state(moments, {.dtype = DType::u8}) : theory.state(moments);
  switch (category) {
    case Category::parameter:
      return state.parameters + state.buffers;
    case Category::gradient:
      return state.gradients;
    case Category::optimizer:
      return state.optimizer;
    case Category::activation:
      if (!one.saved.empty()) return std::nullopt;
      [[fallthrough]];
    case Category::input:
      return theory.kept_bytes(category, setup.batch);
    case Category::temporary:
    case Category::workspace:
    case Category::communication:
      break;
  }
  return std::nullopt;
}

}  // namespace thimble::bench
