#include <thimble/models/planning/planning.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include <thimble/autograd/node.h>
#include <thimble/core/error.h>
#include <thimble/core/launch/compute_capability.h>
#include <thimble/core/tensor/context.h>
#include <thimble/dist/sharding/group.h>
#include <thimble/memory/units.h>
#include <thimble/models/images.h>
#include <thimble/models/techniques/adapting.h>
#include <thimble/models/techniques/technique.h>
#include <thimble/models/techniques/tiers.h>
#include <thimble/models/techniques/trained_parts.h>
#include <thimble/models/training/choices.h>
#include <thimble/models/training/quantizing.h>
#include <thimble/models/training/training.h>
#include <thimble/models/transformer/transformer.h>
#include <thimble/models/weights/follow_weights.h>
#include <thimble/nn/fit/process_budget.h>
#include <thimble/nn/step/dry_scope.h>

namespace thimble::models {
namespace {

/// Data without values: batches are zeros with the bytes of real ones.
class Outline final : public Dataset {
 public:
  /// Batches of `samples`; the last of `validation_batches` has `last_samples`.
  Outline(bool is_text, ModelOptions sizes, std::int64_t samples, std::int64_t validation_batches,
          std::int64_t last_samples)
      : is_text_(is_text),
        sizes_(sizes),
        samples_(samples),
        validation_batches_(validation_batches),
        last_samples_(last_samples) {}

  void fit(ModelOptions&) const override {}
  void open(const ModelOptions&, std::int64_t, std::uint64_t) override {}
  Batch batch(std::int64_t, memory::Device device, DType dtype) const override {
    return make(samples_ / share().ranks, device, dtype);
  }
  std::int64_t validation_batches() const override { return validation_batches_; }
  Batch validation_batch(std::int64_t index, memory::Device device, DType dtype) const override {
    return make(index + 1 == validation_batches_ ? last_samples_ : samples_, device, dtype);
  }
  std::int64_t items_per_sample() const override { return is_text_ ? sizes_.sequence : 1; }
  std::string decode(const std::vector<std::int64_t>&) const override { return {}; }

 private:
  Batch make(std::int64_t samples, memory::Device device, DType dtype) const {
    return is_text_ ? empty_token_batch(sizes_, samples, device) : empty_image_batch(sizes_, samples, dtype, device);
  }

  bool is_text_;
  ModelOptions sizes_;
  std::int64_t samples_, validation_batches_, last_samples_;
};

}  // namespace

PlannedRuns::PlannedRuns(RunOptions& options) {
  Setup& setup = options.setup;
  if (!setup.weights.empty()) {
    follow_weights(setup.model, setup.sizes, read_weight_facts(setup.weights), WeightUse::training);
  }
  if (options.data.empty() && !setup.tokenizer.empty()) {
    throw ValueError("`tokenizer`: '" + setup.tokenizer + "' has no text to read; expected `data` beside it");
  }
  if (!options.data.empty()) {
    const auto model = make_model(setup.model, setup.sizes, tensor_options(setup, dry(options.device)));
    data_ = open_dataset(options.data, *model, setup.model, setup.seed, setup.tokenizer);
    data_->fit(setup.sizes);
  }
  options_ = options;
  options_.ranks = nullptr;  // dry ones take their place
}

nn::MakeRun PlannedRuns::of(const Setup& setup) const {
  const memory::Device on = dry(options_.device);
  const auto model = make_model(setup.model, setup.sizes, tensor_options(setup, on));
  std::int64_t batches = 1, last_samples = setup.batch;
  if (data_ != nullptr) {
    data_->set_share(share_of(setup));
    data_->open(model->options(), setup.batch, setup.seed);
    batches = data_->validation_batches();
    last_samples = data_->validation_batch(batches - 1, on, setup.precision.dtype).target.size(0);
  }
  const auto options = std::make_shared<RunOptions>(options_);
  options->setup = setup;
  const auto outline =
      std::make_shared<Outline>(model->is_text(), model->options(), setup.batch, batches, last_samples);
  outline->set_share(share_of(setup));
  return [options, outline](memory::Device device) { return std::make_unique<Training>(*options, *outline, device); };
}

namespace {

/// The peak of a forward without a tape.
nn::Plan inference_plan(const RunOptions& options, bool is_int8, PlanReport& report) {
  const nn::MemoryProfile profile = nn::profile_training(
      dry(options.device), is_int8 ? int8_inference_run(options.setup) : inference_run(options.setup));
  report.parameters = profile.parameters;
  nn::Plan plan;
  plan.peak_bytes = profile.peak_bytes;
  plan.lower_bound_bytes = profile.lower_bound_bytes;
  plan.peak_by_category = profile.peak_by_category;
  report.committed = memory::committed_parts(profile.peak_live_bytes, profile.peak_height_bytes, profile.peak_bytes);
  return plan;
}

/// The parts of a training plan's peak, by one more dry run.
memory::CommittedParts parts_of(const PlanReport& report, memory::Device device) {
  const auto run = [&](memory::Device on) {
    std::unique_ptr<nn::TrainingRun> made = report.run(on);
    report.plan.apply(made->options(), on);
    return made;
  };
  const nn::MemoryProfile profile = nn::profile_training(dry(device), run, 2, false, report.plan.placement);
  return memory::committed_parts(profile.peak_live_bytes, profile.peak_height_bytes, profile.peak_bytes);
}

/// Throws ValueError for options that a forward cannot use.
void check_inference(const RunOptions& options, bool is_int8) {
  const Setup& s = options.setup;
  tensor_options(s, dry(options.device));
  refuse_training(s, "`is_inference`");
  if (!is_int8) return;
  if (s.sizes.feed_forward == FeedForward::tiled) {
    throw ValueError("`is_int8`: not with `feed_forward` tiled, whose products have no codes; expected full");
  }
  if (!s.precision.policy.empty() && s.precision.policy != "O0") {
    throw ValueError("`is_int8`: not with `precision` " + s.precision.policy +
                     ", because the codes are made of a net in f32; expected O0, or no `precision`");
  }
  if (s.precision.dtype != DType::f32) {
    throw ValueError("`is_int8`: not with `dtype` " + std::string(to_string(s.precision.dtype)) +
                     ", because the codes are made of a net in f32; expected f32");
  }
}

/// Plans a training step for a report with a budget.
void plan_training_step(const RunOptions& options, const PlannedRuns& runs, const nn::CostModel& costs,
                        PlanReport& report) {
  ChoiceOptions choices(options, costs, [&runs](const Setup& other) { return runs.of(other); });
  choices.budget_bytes = report.budget_bytes;
  choices.prices_away = report.request.prices_techniques;
  if (choices.progress) choices.progress("the smallest plan");
  PlannedSetup planned(choices, options.setup, planning_options(options, report.budget_bytes));
  const Setup& setup = planned.setup();
  report.setup = setup;
  report.planner = planned.planner();
  check_lossy(setup, options.device, report.planner->graph());
  report.run = runs.of(setup);
  report.micro_batches = setup.micro_batches;
  nn::Planner& planner = *report.planner;
  report.parameters = planner.parameters();
  report.clip_norm = clip_norm(setup, make_model(setup.model, setup.sizes, {dry(cpu)})->is_text());
  report.minimum_bytes = planner.smallest().peak_bytes;
  report.keep_everything_bytes = planner.keep_everything().peak_bytes;
  report.plan = planner.keep_everything();
  if (report.budget_bytes == 0) {
    // Without a budget the run keeps the model's segments, which plans replace.
    report.plan.tape = nullptr;
    report.plan = nn::place_anew(report.plan, report.run, options.device);
  }
  report.plain_step_s = plain_step_seconds(choices, setup, planner.kept_step_s());
  if (report.budget_bytes > 0) {
    try {
      planned.fit();
      report.plan = planned.plan();
    } catch (const nn::BudgetError& error) {
      report.why_infeasible = error;
      report.is_feasible = false;
      report.plan = planner.smallest();
    }
  }
  report.plan.time_overhead = report.plan.step_s / report.plain_step_s - 1;
  report.packing = packed_bytes_of(report.plan);
  report.committed = parts_of(report, options.device);
  report.segments = nn::planned_segments(report.plan, planner.graph());
  if (report.request.prices_techniques) report.techniques = price_techniques(choices, setup);
  if (report.is_feasible) return;
  if (report.request.prices_techniques) choices.refusal_ms = 0;  // asking for all techniques allows the time
  const nn::LeverOffers offers = offer_techniques(choices, setup);
  report.why_infeasible = nn::with_offers(report.why_infeasible, offers);
  report.known_techniques = offers.known;
  report.untried_techniques = offers.untried;
  if (report.request.prices_techniques) return;
  report.techniques.push_back({"", report.minimum_bytes, report.plan.time_overhead, {}, {}});
  report.techniques.insert(report.techniques.end(), offers.fitting.begin(), offers.fitting.end());
}

memory::OutsideBytes outside_of(const RunOptions& options, const memory::ProcessBase& base, std::size_t nodes,
                                std::size_t data_bytes, std::size_t events = 0) {
  const bool has_budget = options.budget_bytes > 0 || options.process_budget_bytes > 0;
  memory::OutsideFacts facts = outside_facts(options.setup, has_budget, true, nodes, data_bytes);
  facts.events = events;
  return memory::outside_bytes(base, facts);
}

/// Sets the arena's budget that the process budget leaves. The number of nodes does not depend on the batch.
void fit_process(RunOptions& options, PlanReport& report, const memory::ProcessBase& base) {
  check_process_budget(options);
  RunOptions one = options;
  if (one.setup.micro_batches == auto_micro_batches) one.setup.micro_batches = 1;
  const PlannedRuns runs(one);
  const std::size_t nodes =
      report.request.is_inference ? 0 : nn::profile_training(dry(options.device), runs.of(one.setup), 1).nodes;
  memory::ProcessBase with_data = base;
  with_data.writable_bytes += runs.data_bytes();
  report.outside = outside_of(options, with_data, nodes, runs.data_bytes());
  report.process_budget_bytes = options.process_budget_bytes;
  const std::size_t left = nn::arena_budget(options.process_budget_bytes, report.outside);
  options.budget_bytes = options.budget_bytes > 0 ? std::min(options.budget_bytes, left) : left;
}

/// The setup with `size` samples or tokens.
Setup with_size(Setup setup, Extent extent, std::int64_t size) {
  if (extent == Extent::batch) {
    setup.batch = whole_batch(setup, size);
  } else {
    setup.sizes.sequence = size;
  }
  return setup;
}

/// 0 for models over images.
std::int64_t sequence_of(const Setup& setup) {
  return make_model(setup.model, setup.sizes, {dry(cpu)})->options().sequence;
}

/// Throws ValueError unless the sequence of the setup's model can be searched for.
void require_sequence(const RunOptions& options) {
  if (!make_model(options.setup.model, options.setup.sizes, {dry(cpu)})->is_text()) {
    throw ValueError("`finds_sequence`: " + options.setup.model + " is over images; expected a model over tokens");
  }
  if (!options.data.empty()) {
    throw ValueError("`finds_sequence`: not with `data`, which has its own sequences; leave out one of them");
  }
}

/// The dimension that a plan searches, if any. Throws ValueError.
std::optional<Extent> extent_of(const RunOptions& options, const PlanRequest& request, std::size_t budget_bytes) {
  if (!request.finds_batch && !request.finds_sequence) return std::nullopt;
  const Extent extent = request.finds_batch ? Extent::batch : Extent::sequence;
  const std::string option = request.finds_batch ? "`finds_batch`" : "`finds_sequence`";
  if (request.finds_batch && request.finds_sequence) {
    throw ValueError(option + ": not with `finds_sequence`; leave out one of them");
  }
  if (budget_bytes == 0) {
    throw ValueError(option + ": no budget; `budget_bytes`, or `hardware` with a memory, is needed");
  }
  if (options.setup.micro_batches == auto_micro_batches) {
    throw ValueError(option + ": not with `micro_batches` auto; expected a number of them");
  }
  return extent;
}

}  // namespace

void require_new_run(const RunOptions& options) {
  const char* const option = !options.resume.empty()  ? "`resume`"
                             : !options.plan.empty()  ? "`plan`"
                             : options.sample > 0     ? "`sample`"
                             : options.captures_steps ? "`captures_steps`"
                                                      : nullptr;
  if (option != nullptr)
    throw ValueError(std::string(option) + ": expected a new run to plan, without a sample; an Engine plans this one");
}

Largest find_largest(const RunOptions& given, std::size_t budget_bytes, BatchSearch search, Extent extent,
                     const PlanRequest& request) {
  const Tf32Scope products(given.allows_tf32);
  RunOptions options = given;
  if (extent == Extent::sequence) require_sequence(options);
  const PlannedRuns runs(options);
  std::map<std::int64_t, double> overheads;
  const auto planner = [&](std::int64_t size) {
    const Setup setup = with_size(options.setup, extent, size);
    return nn::Planner(runs.of(setup), options.device, hardware_for(options.costs, options.device),
                       planner_options(setup, options.device));
  };
  if (search == BatchSearch::in_a_third && !request.is_inference) return search_in_a_third(planner, budget_bytes);
  const auto peak = [&](std::int64_t size) -> std::size_t {
    const Setup setup = with_size(options.setup, extent, size);
    if (request.is_inference) {
      RunOptions forward = options;
      forward.setup = setup;
      PlanReport unused;
      return inference_plan(forward, request.is_int8, unused).peak_bytes;
    }
    if (search == BatchSearch::plain) {
      return nn::profile_placed(options.device, runs.of(setup), setup.micro_batches).profile.peak_bytes;
    }
    nn::Planner plans = planner(size);
    const nn::Plan& plan = plans.smallest();
    overheads[size] = plan.time_overhead;
    return plan.peak_bytes;
  };
  Largest found = search_largest(peak, budget_bytes, extent);
  found.time_overhead = overheads[found.size];
  return found;
}

PlanReport make_plan(const RunOptions& given, const PlanRequest& request) {
  auto start = std::chrono::steady_clock::now();
  check_tf32(given.allows_tf32, given.device);
  const Tf32Scope products(given.allows_tf32);
  RunOptions options = given;
  require_new_run(options);
  if (request.is_int8 && !request.is_inference) {
    throw ValueError("`is_int8`: expected `is_inference`, got a training step; add `is_inference`");
  }
  if (request.is_inference && (options.costs.measures || !options.costs.times.empty())) {
    throw ValueError("`measures`, `times`: expected a training step, got `is_inference`; leave them out");
  }
  const nn::Hardware machine = hardware_for(options.costs, options.device);
  PlanReport report;
  report.request = request;
  memory::ProcessBase base;
  if (options.device == cpu) base = memory::ProcessBase::measure();
  if (options.process_budget_bytes > 0) fit_process(options, report, base);
  report.budget_bytes = options.budget_bytes > 0 ? options.budget_bytes : machine.memory_bytes;
  if (const auto extent = extent_of(options, request, report.budget_bytes)) {
    const std::int64_t size = find_largest(options, report.budget_bytes, BatchSearch::planned, *extent, request).size;
    options.setup = with_size(options.setup, *extent, size);
  }
  const PlannedRuns runs(options);
  check_weights(options.setup);
  report.setup = options.setup;
  report.batch = options.setup.batch;
  report.sequence = sequence_of(options.setup);
  report.micro_batches = options.setup.micro_batches;
  report.cost_model = nn::CostModel(machine).source;
  if (request.is_inference) {
    if (request.prices_techniques) {
      throw ValueError("`is_inference`: not with `prices_techniques`, which are about training steps");
    }
    check_inference(options, request.is_int8);
    report.plan = inference_plan(options, request.is_int8, report);
    report.minimum_bytes = report.keep_everything_bytes = report.plan.peak_bytes;
    if (report.budget_bytes > 0 && report.plan.peak_bytes > report.budget_bytes) {
      report.is_feasible = false;
      report.why_infeasible =
          nn::BudgetError("plan: a forward needs " + memory::exact_bytes(report.plan.peak_bytes) +
                              ", the smallest budget that fits; got " + memory::exact_bytes(report.budget_bytes),
                          report.budget_bytes, report.plan.peak_bytes);
    }
  } else {
    const nn::CostModel costs = plan_costs(options.setup, options.costs, report.budget_bytes, options.device);
    start = std::chrono::steady_clock::now();
    report.cost_model = costs.source;
    plan_training_step(options, runs, costs, report);
  }
  if (options.device == cpu && options.setup.layout.ranks == 1 && report.outside.total() == 0) {
    base.writable_bytes += runs.data_bytes();
    const std::size_t nodes = report.planner ? report.planner->graph().nodes.size() : 0;
    report.outside = outside_of(options, base, nodes, runs.data_bytes(), event_count(report.plan.placement));
  }
  if (!report.is_feasible && report.process_budget_bytes > 0) {
    report.why_infeasible = nn::of_process(report.why_infeasible, report.process_budget_bytes, report.outside);
  }
  report.ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  return report;
}

// ---- Plans of several ranks.

namespace {

/// Determines the bytes of data rank `rank` of a stage: whether it writes checkpoints, and the sizes of its ZeRO
/// shards.
std::vector<std::int64_t> shares_of(int rank, bool is_writer, const dist::DataParallel& parallel) {
  std::vector<std::int64_t> sizes{is_writer ? 1 : 0};
  for (const dist::Bucket& bucket : parallel.buckets()) {
    sizes.push_back(bucket.shard_elements(rank));
    for (const dist::Piece& piece : bucket.pieces[static_cast<std::size_t>(rank)]) {
      sizes.insert(sizes.end(), {static_cast<std::int64_t>(piece.parameter), piece.end - piece.begin});
    }
  }
  return sizes;
}

}  // namespace

std::vector<std::vector<int>> alike_ranks(Setup setup, memory::Device device) {
  if (setup.layout.ranks == 1) return {{0}};
  const memory::Device on = dry(device);
  const int replicas = data_ranks(setup), of_stage = setup.layout.ranks / setup.layout.pp;
  std::vector<std::vector<int>> groups;
  for (int begin = 0; begin < setup.layout.ranks; begin += of_stage) {
    std::vector<int> members(
        static_cast<std::size_t>(group_size(setup)));  // ranks of a tensor-parallel group, not yet listed
    std::iota(members.begin(), members.end(), 0);
    while (!members.empty()) {  // all with equal shards of the vocabulary at once
      const nn::DryScope scope(on);
      setup.layout.rank = begin + members.front();
      const TrainedParts parts(setup, on);
      const auto tokens = [&, all = parts.model->options().vocabulary](int member) {
        return dist::shard_begin(all, setup.layout.tp, member + 1) - dist::shard_begin(all, setup.layout.tp, member);
      };
      const auto alike = std::stable_partition(members.begin(), members.end(),
                                               [&, own = tokens(members.front())](int m) { return tokens(m) != own; });
      std::map<std::vector<std::int64_t>, std::vector<int>> of_shares;
      for (int d = 0; d < replicas; ++d) {
        for (auto m = alike; m != members.end(); ++m) {
          const int r = begin + d * group_size(setup) + *m;
          of_shares[shares_of(d, r == 0, *parts.parallel)].push_back(r);
        }
      }
      for (auto& [shares, ranks] : of_shares) groups.push_back(std::move(ranks));
      members.erase(alike, members.end());
    }
  }
  std::sort(groups.begin(), groups.end());
  return groups;
}

std::vector<RankPlan> plan_ranks(const RunOptions& options, const PlanRequest& request) {
  if (request.finds_batch || request.finds_sequence || request.is_inference) {
    const char* const option = request.finds_batch      ? "`finds_batch`"
                               : request.finds_sequence ? "`finds_sequence`"
                                                        : "`is_inference`";
    throw ValueError(std::string(option) + ": not with `ranks` " + std::to_string(options.setup.layout.ranks) +
                     "; expected one rank");
  }
  check_techniques(options.setup, is_text(options.setup));
  std::vector<RankPlan> plans;
  RunOptions of_rank = options;
  const PlannedRuns runs(of_rank);
  for (std::vector<int>& ranks : alike_ranks(of_rank.setup, options.device)) plans.push_back({std::move(ranks), {}});
  if (options.budget_bytes == 0 && hardware_for(options.costs, options.device).memory_bytes == 0) {
    for (RankPlan& plan : plans) {  // without a search
      of_rank.setup.layout.rank = plan.ranks.front();
      const nn::MemoryProfile profile =
          nn::profile_placed(options.device, runs.of(of_rank.setup), of_rank.setup.micro_batches).profile;
      plan.report.plan.peak_bytes = profile.peak_bytes;
      plan.report.plan.peak_by_category = profile.peak_by_category;
      plan.report.committed =
          memory::committed_parts(profile.peak_live_bytes, profile.peak_height_bytes, profile.peak_bytes);
      plan.report.keep_everything_bytes = profile.peak_bytes;
    }
  } else {
    for (RankPlan& plan : plans) {
      of_rank.setup.layout.rank = plan.ranks.front();
      plan.report = make_plan(of_rank, request);
    }
  }
  const auto needs_less = [](const RankPlan& a, const RankPlan& b) {
    return a.report.plan.peak_bytes < b.report.plan.peak_bytes;
  };
  const auto most = std::max_element(plans.begin(), plans.end(), needs_less);
  if (!most->report.planner) {
    of_rank.setup.layout.rank = most->ranks.front();
    most->report = make_plan(of_rank, request);
  }
  std::rotate(plans.begin(), most, most + 1);
  return plans;
}

// ---- The search for the largest size that fits a budget.

namespace {

constexpr std::int64_t most_of_extent = std::int64_t{1} << 24;

/// The option that searches, and its unit, for errors.
struct ExtentWords {
  const char *option, *one, *many;
};
constexpr ExtentWords words_of(Extent extent) {
  return extent == Extent::batch ? ExtentWords{"`finds_batch`", "a batch of 1", "samples"}
                                 : ExtentWords{"`finds_sequence`", "a sequence of 1", "tokens"};
}

struct Probe {
  std::int64_t size;
  double bytes;
};

/// Where the line through two probes meets the budget, strictly between `fits` and `fails`.
std::int64_t by_line(const Probe& a, const Probe& b, double budget, std::int64_t fits, std::int64_t fails) {
  const double per_one = (b.bytes - a.bytes) / static_cast<double>(b.size - a.size);
  if (!(per_one > 0)) return fits + (fails - fits) / 2;
  const double at = static_cast<double>(a.size) + std::floor((budget - a.bytes) / per_one);
  return static_cast<std::int64_t>(std::clamp(at, static_cast<double>(fits + 1), static_cast<double>(fails - 1)));
}

}  // namespace

Largest search_largest(const std::function<std::size_t(std::int64_t size)>& peak, std::size_t budget_bytes,
                       Extent extent) {
  Largest found;
  const ExtentWords words = words_of(extent);
  const auto budget = static_cast<double>(budget_bytes);
  const auto probe = [&](std::int64_t size) {
    ++found.probes;
    return Probe{size, static_cast<double>(peak(size))};
  };
  Probe fits = probe(1);
  if (fits.bytes > budget) {
    const auto one = static_cast<std::size_t>(fits.bytes);
    throw nn::BudgetError(std::string(words.option) + ": " + words.one + " needs " + memory::exact_bytes(one) +
                              ", more than the budget of " + memory::exact_bytes(budget_bytes),
                          budget_bytes, one);
  }
  Probe before = fits, fails = probe(2);
  while (true) {
    // Upwards until one fails: where the line through the last two meets the budget, but at most 16 times as far,
    // because a line through two small sizes says little.
    while (fails.bytes <= budget) {
      before = fits;
      fits = fails;
      if (fits.size >= most_of_extent) {
        throw ValueError(std::string(words.option) + ": even " + std::to_string(fits.size) + " " + words.many +
                         " are within the budget of " + memory::exact_bytes(budget_bytes));
      }
      const std::int64_t most = std::min(fits.size * 16, most_of_extent);
      const std::int64_t ahead = by_line(before, fits, budget, fits.size, most + 1);
      // By the line, one more is the first to fail.
      fails = probe(std::clamp(ahead + 1, fits.size + 1, most));
    }
    // Between: twice by the line through the two, then once by bisection.
    for (int tries = 0; fails.size - fits.size > 1; ++tries) {
      const std::int64_t middle = tries % 3 == 2 ? fits.size + (fails.size - fits.size) / 2
                                                 : by_line(fits, fails, budget, fits.size, fails.size);
      const Probe next = probe(middle);
      (next.bytes <= budget ? fits : fails) = next;
    }
    found.size = fits.size;
    found.peak_bytes = static_cast<std::size_t>(fits.bytes);
    found.next_peak_bytes = static_cast<std::size_t>(fails.bytes);
    // Peaks are not quite linear: a sixteenth more may fit again.
    if (fits.size < 32) return found;
    fails = probe(std::min(fits.size + fits.size / 16, most_of_extent));
    if (fails.bytes > budget) return found;
  }
}

Largest search_in_a_third(const std::function<nn::Planner(std::int64_t size)>& planner, std::size_t budget_bytes) {
  constexpr double most_overhead = 1.0 / 3;
  Largest found;
  const auto fits = [&](std::int64_t size) {
    ++found.probes;
    try {
      nn::Planner plans = planner(size);
      const nn::Plan& plan = plans.fit(budget_bytes);
      if (plan.time_overhead > most_overhead) return false;
      found.size = size;
      found.peak_bytes = plan.peak_bytes;
      found.time_overhead = plan.time_overhead;
      return true;
    } catch (const nn::BudgetError&) {
      if (size == 1) throw;
      return false;
    }
  };
  std::int64_t fails = 1;
  while (fails <= most_of_extent && fits(fails)) fails *= 2;
  while (fails - found.size > 1) {
    const std::int64_t middle = found.size + (fails - found.size) / 2;
    if (!fits(middle)) fails = middle;
  }
  return found;
}

}  // namespace thimble::models
