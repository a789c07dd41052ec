#include <thimble/models/planning/choices.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/memory/bytes.h>
#include <thimble/memory/offload/device_tier.h>

namespace thimble::models {
namespace choices_detail {

constexpr std::int64_t most_priced = 8;  // micro-batches

bool is_text(const Setup& setup) { return make_model(setup.model, setup.sizes, {dry(cpu)})->is_text(); }

bool has_batch_norm(const Setup& setup) {
  for (const nn::NamedTensor& b : make_model(setup.model, setup.sizes, {dry(cpu)})->buffers()) {
    if (b.name.find("running_mean") != std::string::npos) return true;
  }
  return false;
}

std::shared_ptr<nn::Planner> planner_of(const ChoiceOptions& options, const Setup& setup) {
  return std::make_shared<nn::Planner>(options.run_of(setup), options.device, options.costs,
                                       planner_options(setup, options.device));
}

/// A setup with something more switched on.
struct Variant {
  std::string options;
  Setup setup;
  std::string note;
};

Variant with_fused(Variant v, bool is_text) {
  v.options += v.options.empty() ? "`fuses_optimizer`" : " `fuses_optimizer`";
  if (v.setup.clip_norm > 0) v.options += " `clip_norm` 0";
  if (clip_norm(v.setup, is_text) > 0) v.note = "gradients are not clipped";
  v.setup.fuses_optimizer = true;
  v.setup.clip_norm = 0;
  return v;
}

Variant with_chunks(Variant v) {
  v.options += v.options.empty() ? "`head` chunked" : " `head` chunked";
  v.setup.sizes.head = Head::chunked;
  return v;
}

Variant with_parts(Variant v, std::int64_t count, bool normalises_batches) {
  v.options += (v.options.empty() ? "`micro_batches` " : " `micro_batches` ") + std::to_string(count);
  v.setup.micro_batches = count;
  if (normalises_batches) v.note = "batch norm sees one micro-batch at a time";
  return v;
}

Variant with_stage(Variant v, int stage) {
  v.options += "`zero` " + std::to_string(stage);
  v.setup.zero = stage;
  return v;
}

std::vector<Variant> variants_of(const Setup& setup) {
  const bool text = is_text(setup);
  const bool normalises_batches = has_batch_norm(setup);
  // Else a gradient is gone once it is complete.
  const bool is_one = !setup.fuses_optimizer && !setup.offloads_gradients;
  const bool is_alone = setup.ranks == 1;
  const auto scaling = loss_scaling(setup);
  const bool is_judged = scaling && scaling->is_dynamic;  // when all gradients are there
  const bool can_fuse = is_one && is_alone && setup.micro_batches == 1 && !is_judged;
  const bool can_chunk = text && may_chunk_head(setup) && setup.sizes.head == Head::full;
  std::int64_t most = 1;
  const Variant plain{"", setup, ""};
  std::vector<Variant> list{plain};
  if (can_fuse) list.push_back(with_fused(plain, text));
  if (can_chunk) list.push_back(with_chunks(plain));
  for (std::int64_t count = 2; count <= most_priced && is_one; count *= 2) {
    if (count <= setup.micro_batches || setup.batch % (setup.ranks * count) != 0) continue;
    list.push_back(with_parts(plain, count, normalises_batches));
    most = count;
  }
  const int last_stage = is_elementwise(optimizer_name(setup, text)) ? 3 : 2;  // which needs whole parameters
  for (int stage = setup.zero + 1; stage <= last_stage && !is_alone; ++stage) list.push_back(with_stage(plain, stage));
  if (can_chunk && can_fuse) list.push_back(with_fused(with_chunks(plain), text));
  if (can_chunk && most > 1) list.push_back(with_parts(with_chunks(plain), most, normalises_batches));
  return list;
}

/// The smallest plan with parameters away. A plan's time has no reads of parameters: here they are added, each as if
/// nothing ran beside it. Forward, backward and update read each parameter, and the update writes it.
TechniquePrice price_parameters_away(const ChoiceOptions& options, const Setup& setup, double plain_s) {
  constexpr double transfers = 4;
  const char* const place = options.device.is_cuda() ? "host" : "FOLDER";
  Setup away = setup;
  nn::PlannerOptions plans = planner_options(setup, options.device);
  std::string names = "`offloads_parameters`";
  if (away.offload.empty()) {
    names = std::string("`offload` ") + place + " " + names;
    away.offload = place;  // on dry devices it is not looked for
    plans.spilling.offloads = true;
    plans.make_tier = [](Device on) { return memory::make_tier(on); };
  }
  away.offloads_parameters = true;
  nn::Planner planner(options.run_of(away), options.device, options.costs, plans);
  const nn::Plan& least = planner.smallest();
  const auto bytes = static_cast<double>(planner.parameters()) * static_cast<double>(size_of(setup.dtype));
  const double seconds = least.step_s + transfers * bytes / options.costs.hardware.tier_bytes_per_s;
  return {names, least.peak_bytes, seconds / plain_s - 1, {}, "parameters are read as they are needed"};
}

std::string percent(double part) { return std::to_string(std::llround(100 * part)) + " %"; }

}  // namespace choices_detail

bool has_techniques(const Setup& setup) noexcept {
  return setup.sizes.head != Head::full || setup.fuses_optimizer || setup.micro_batches != 1;
}

double plain_step_seconds(const ChoiceOptions& options, const Setup& setup, const nn::Planner& planner) {
  if (!has_techniques(setup) || !options.costs.operators.empty()) return planner.keep_everything().step_s;
  Setup plain = setup;
  plain.sizes.head = Head::full;
  plain.fuses_optimizer = false;
  plain.micro_batches = 1;
  return nn::step_seconds(nn::node_times(nn::record_step(options.device, options.run_of(plain)), options.costs));
}

std::vector<TechniquePrice> price_techniques(const ChoiceOptions& given, const Setup& setup) {
  using namespace choices_detail;
  ChoiceOptions options = given;
  options.costs = nn::CostModel(given.costs.hardware);
  double plain_s = 0;
  std::vector<TechniquePrice> prices;
  for (const Variant& variant : variants_of(setup)) {
    const std::shared_ptr<nn::Planner> planner = planner_of(options, variant.setup);
    if (prices.empty()) plain_s = plain_step_seconds(options, setup, *planner);
    const nn::Plan& least = planner->smallest();
    TechniquePrice price{variant.options, least.peak_bytes, least.step_s / plain_s - 1, {}, variant.note};
    if (least.peak_bytes <= options.budget_bytes) {
      price.time_overhead_in_budget = planner->fit(options.budget_bytes).step_s / plain_s - 1;
    }
    prices.push_back(std::move(price));
  }
  const bool has_fit = std::any_of(prices.begin(), prices.end(),
                                   [&](const TechniquePrice& p) { return p.minimum_bytes <= options.budget_bytes; });
  if (options.budget_bytes > 0 && !has_fit && !setup.offloads_parameters && !options.captures_steps &&
      setup.ranks == 1) {
    prices.push_back(price_parameters_away(options, setup, plain_s));
  }
  return prices;
}

std::string to_line(const std::vector<TechniquePrice>& prices) {
  std::string line;
  for (std::size_t i = 1; i < prices.size(); ++i) {
    line += (line.empty() ? "" : ", ") + std::string("with ") + prices[i].options + " " +
            memory::exact_bytes(prices[i].minimum_bytes) + " at " + choices_detail::percent(prices[i].time_overhead);
  }
  return line;
}

MicroBatchChoice choose_micro_batches(const ChoiceOptions& options, const Setup& given) {
  Setup setup = given;
  setup.micro_batches = auto_micro_batches;
  check_techniques(setup, choices_detail::is_text(setup));
  if (options.budget_bytes == 0)
    throw ValueError("`micro_batches`: auto needs a budget to choose for; a number is allowed");
  if (!options.costs.operators.empty()) {
    throw ValueError(
        "`micro_batches`: auto compares several programs, and `measures` and `times` tell the times of one; a number "
        "is allowed with them");
  }
  MicroBatchChoice fastest, least;
  double fastest_s = 0;
  std::size_t least_bytes = 0;
  for (std::int64_t count = 1; setup.batch % count == 0; count *= 2) {
    setup.micro_batches = count;
    const MicroBatchChoice choice{count, choices_detail::planner_of(options, setup)};
    const std::size_t bytes = choice.planner->smallest().peak_bytes;
    if (least.planner == nullptr || bytes < least_bytes) least = choice, least_bytes = bytes;
    if (bytes > options.budget_bytes) continue;
    const double seconds = choice.planner->fit(options.budget_bytes).step_s;
    if (fastest.planner == nullptr || seconds < fastest_s) fastest = choice, fastest_s = seconds;
  }
  return fastest.planner != nullptr ? fastest : least;
}

}  // namespace thimble::models
