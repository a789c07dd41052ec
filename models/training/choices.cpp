#include <thimble/models/training/choices.h>

#include <algorithm>
#include <new>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/threads/parallel.h>
#include <thimble/memory/offload/file_tier.h>
#include <thimble/memory/offload/tier.h>
#include <thimble/memory/process/process.h>
#include <thimble/memory/units.h>
#include <thimble/models/techniques/technique.h>
#include <thimble/models/techniques/tiers.h>
#include <thimble/nn/files/tensor_io.h>

namespace thimble::models {
namespace {

/// Options that are priced together, separated by blanks. Combinations of steps come before the levers of plans, and
/// combinations of tiers after them.
constexpr std::string_view step_combinations[] = {"head feed_forward", "head fuses_optimizer", "head micro_batches"};
constexpr std::string_view tier_combinations[] = {"offloads_optimizer", "offloads_gradients offloads_optimizer",
                                                  "offloads_parameters",
                                                  "offloads_parameters offloads_gradients offloads_optimizer"};

StateBytes state_bytes(Setup setup) {
  setup.offload.to.clear(), setup.weights.clear();
  setup.offload.parameters = setup.offload.optimizer = false;
  const std::unique_ptr<Model> model = make_model(setup, dry(cpu));
  StateBytes bytes;
  for (const nn::NamedTensor& p : model->parameters()) bytes.parameters += static_cast<double>(p.tensor.bytes());
  for (const optim::Named& p : model->trainable()) bytes.gradients += static_cast<double>(p.tensor.bytes());
  bytes.optimizer = static_cast<double>(make_optimizer(setup, *model)->state_bytes());
  return bytes;
}

/// The changes to a setup that need less, from the techniques' variants, except where the setup's other techniques
/// exclude them.
class Levers {
 public:
  /// `graph` records the setup's step; without it, levers of the plan are left out.
  Levers(const ChoiceOptions& options, const Setup& setup, const TapeGraph* graph = nullptr)
      : options_(options),
        setup_(setup),
        model_(make_model(setup.model, setup.sizes, {dry(cpu)})),
        facts_{setup_, options.device, *model_, graph, nullptr} {}

  std::vector<nn::Lever> of_steps() {
    std::vector<nn::Lever> list;
    add_single(list, [](const Technique& t) { return t.flag.commands != FlagSet::plans; });
    for (const std::string_view options : step_combinations) add_joined(list, options, true);
    return list;
  }

  std::vector<nn::Lever> of_plans() {
    std::vector<nn::Lever> list;
    add_single(list, [](const Technique& t) { return t.flag.commands == FlagSet::plans; });
    const StateBytes bytes = state_bytes(setup_);
    facts_.bytes = &bytes;
    for (const std::string_view options : tier_combinations) add_joined(list, options, false);
    facts_.bytes = nullptr;
    return list;
  }

 private:
  struct Change {
    Setup setup;
    nn::Lever lever;
    double transfer_bytes = 0;
  };

  /// Adds `variant` to the change. False if it cannot join.
  bool join(Change& change, const Technique& technique, const Variant& variant) const {
    if (options_.captures_steps && technique.why_not_captured != nullptr) return false;
    if (technique.flag.field.value(change.setup) == variant.text) return false;
    const auto say = [&](const std::string& text) {
      change.lever.options += (change.lever.options.empty() ? "" : " ") + text;
    };
    for (const Need& need : technique.needs) {
      const Technique& other = models::technique(need.other);
      if (other.is_on(change.setup)) continue;
      const std::vector<Variant> needed = other.variants({setup_, options_.device, *model_, &no_graph_, nullptr});
      if (needed.empty() || !join(change, other, needed.front())) return false;
    }
    technique.apply(change.setup, variant.text);
    say(technique.said(variant.text));
    if (!variant.besides.empty()) {
      const Technique& other = models::technique(variant.besides);
      other.apply(change.setup, "0");
      say(other.said("0"));
    }
    if (!variant.note.empty()) change.lever.note = variant.note;
    change.transfer_bytes += variant.transfer_bytes;
    try {
      check_techniques(change.setup, model_->is_text());
    } catch (const ValueError&) {
      return false;
    }
    return true;
  }

  void add(std::vector<nn::Lever>& list, Change change) const {
    nn::Lever& lever = change.lever;
    const bool is_new = setup_.offload.to.empty() && !change.setup.offload.to.empty();
    Setup planned = change.setup;
    if (is_new) planned.offload.to.clear();  // dry devices need no folder
    lever.plans = planner_options(planned, options_.device);
    if (is_new) {
      lever.plans.spilling.offloads = true;
      lever.plans.make_tier = [](memory::Device on) { return memory::make_tier(on); };  // dry, without a folder
    }
    lever.transfer_s = change.transfer_bytes / options_.costs.hardware.tier_bytes_per_s;
    lever.program = [run_of = options_.run_of, setup = change.setup] { return run_of(setup); };
    list.push_back(std::move(lever));
  }

  template <class Choice>
  void add_single(std::vector<nn::Lever>& list, Choice is_chosen) const {
    for (const Technique& technique : techniques()) {
      if (technique.variants == nullptr || !is_chosen(technique)) continue;
      for (const Variant& variant : technique.variants(facts_)) {
        Change change{setup_, {}, 0};
        if (join(change, technique, variant)) add(list, std::move(change));
      }
    }
  }

  /// Joins several options, each in its strongest variant that can join: all of them, or with `needs_all` false the
  /// ones that can.
  void add_joined(std::vector<nn::Lever>& list, std::string_view options, bool needs_all) const {
    Change change{setup_, {}, 0};
    bool has_all = true;
    for (std::size_t at = 0; at < options.size();) {
      const std::size_t end = std::min(options.find(' ', at), options.size());
      const Technique& technique = models::technique(options.substr(at, end - at));
      at = end + 1;
      const std::vector<Variant> variants = technique.variants(facts_);
      const Change before = change;
      bool is_in = false;
      for (std::size_t i = variants.size(); i > 0 && !is_in; --i) {
        change = before;
        is_in = join(change, technique, variants[i - 1]);
      }
      if (!is_in) change = before;
      has_all = has_all && is_in;
    }
    const auto is_same = [&](const nn::Lever& lever) { return lever.options == change.lever.options; };
    if (change.lever.options.empty() || (needs_all && !has_all) || std::any_of(list.begin(), list.end(), is_same))
      return;
    add(list, std::move(change));
  }

  const ChoiceOptions& options_;
  const Setup& setup_;
  std::unique_ptr<Model> model_;
  LeverFacts facts_;
  TapeGraph no_graph_;
};

/// Whether the technique may change the time of a step.
bool changes_step(const Technique& technique) {
  return technique.flag.commands == FlagSet::step && technique.variants != nullptr;
}

/// Seconds of a recorded step of the setup without techniques, keeping everything.
double recorded_step_seconds(const ChoiceOptions& options, const Setup& setup, const TapeGraph* graph = nullptr) {
  Setup plain = setup;
  for (const Technique& technique : techniques()) {
    if (changes_step(technique)) technique.apply(plain, technique.flag.field.value(Setup()));
  }
  plain.micro_batches = least_micro_batches(setup);
  const bool is_plain = graph != nullptr && !has_techniques(setup);
  const TapeGraph recorded = is_plain ? TapeGraph() : nn::record_step(options.device, options.run_of(plain));
  const std::vector<nn::NodeTimes> times = nn::node_times(is_plain ? *graph : recorded, options.costs);
  return static_cast<double>(plain.micro_batches) * nn::step_seconds(times);
}

}  // namespace

ChoiceOptions::ChoiceOptions(const RunOptions& options, const nn::CostModel& model, RunOfSetup runs)
    : nn::LeverSearch{options.device,     model,           options.budget_bytes, process::processor_ms(),
                      options.refusal_ms, options.progress},
      run_of(std::move(runs)) {}

void check_process_budget(const RunOptions& options) {
  if (options.process_budget_bytes == 0) return;
  if (options.device != cpu) {
    throw ValueError("`process_budget_bytes`: the host's bytes beside a " + to_string(options.device) +
                     " are not known; expected cpu");
  }
  if (options.setup.layout.ranks > 1) {
    throw ValueError("`process_budget_bytes`: what " + std::to_string(options.setup.layout.ranks) +
                     " ranks hold outside of their arenas is not known; expected `budget_bytes`, of each rank");
  }
}

memory::OutsideFacts outside_facts(const Setup& setup, bool has_budget, bool has_files, std::size_t nodes,
                                   std::size_t data_bytes) {
  const bool plans_offload = !setup.offload.to.empty() && has_budget;
  const int tiers = (setup.offload.optimizer ? 1 : 0) + (setup.offload.parameters ? 1 : 0) +
                    (setup.offload.gradients ? 1 : 0) + (plans_offload ? 1 : 0);
  return {.threads = thread_count(),
          .tier_threads = tiers * memory::FileTier::Options().workers,
          .nodes = nodes,
          .staging = has_files ? nn::file_staging_bytes : 0,
          .data = data_bytes};
}

bool has_techniques(const Setup& setup) {
  return std::ranges::any_of(techniques(), [&](const Technique& t) { return changes_step(t) && t.is_on(setup); });
}

double plain_step_seconds(const ChoiceOptions& options, const Setup& setup, double kept_step_s) {
  if (!has_techniques(setup) || !options.costs.operators.empty()) return kept_step_s;
  return recorded_step_seconds(options, setup);
}

std::vector<nn::LeverPrice> price_techniques(const ChoiceOptions& given, const Setup& setup) {
  ChoiceOptions options = given;
  options.costs = nn::CostModel(given.costs.hardware);
  double plain_s = 0;
  std::vector<nn::LeverPrice> prices;
  const auto add = [&](const nn::Lever& lever) {
    if (options.progress) options.progress("planned with " + (lever.options.empty() ? "nothing more" : lever.options));
    nn::Planner planner(lever.program(), options.device, options.costs, lever.plans);
    if (prices.empty()) plain_s = plain_step_seconds(options, setup, planner.kept_step_s());
    prices.push_back(nn::price_of(options, lever, planner, plain_s));
  };
  add({"", [&] { return options.run_of(setup); }, planner_options(setup, options.device), ""});
  Levers levers(options, setup);
  for (const nn::Lever& lever : levers.of_steps()) add(lever);
  const bool has_fit = std::any_of(prices.begin(), prices.end(),
                                   [&](const nn::LeverPrice& p) { return p.minimum_bytes <= options.budget_bytes; });
  if (!options.prices_away && (options.budget_bytes == 0 || has_fit)) return prices;
  for (const nn::Lever& lever : levers.of_plans()) add(lever);
  return prices;
}

nn::LeverOffers offer_techniques(const ChoiceOptions& given, const Setup& setup) {
  ChoiceOptions options = given;
  options.costs = nn::CostModel(given.costs.hardware);
  double plain_s = 0;
  std::vector<nn::Lever> list;
  try {
    const TapeGraph graph = nn::record_step(options.device, options.run_of(setup));
    plain_s = recorded_step_seconds(options, setup, &graph);
    Levers levers(options, setup, &graph);
    list = levers.of_steps();
    for (nn::Lever& lever : levers.of_plans()) list.push_back(std::move(lever));
  } catch (const std::bad_alloc&) {
    return {};
  } catch (const OutOfMemory&) {
    return {};
  }
  return nn::offer_levers(options, list, plain_s);
}

nn::TrainerOptions planning_options(const RunOptions& options, std::size_t budget_bytes) {
  nn::TrainerOptions planning;
  planning.budget_bytes = budget_bytes;
  planning.device = options.device;
  planning.step.micro_batches = options.setup.micro_batches;
  planning.planner = planner_options(options.setup, options.device);
  return planning;
}

PlannedSetup::PlannedSetup(const ChoiceOptions& choices, const Setup& setup, nn::TrainerOptions planning,
                           const memory::OutsideFacts& outside)
    : choices_(choices),
      setup_(setup),
      planning_(std::move(planning)),
      outside_(outside),
      first_rank_(setup.layout.rank),
      end_rank_(setup.layout.rank + 1),
      plans_(*this, planning_, choices_.costs) {
  if (setup.layout.ranks > 1 && (setup.layout.zero == 3 || group_size(setup) > 1)) {
    const int of_stage = setup.layout.ranks / setup.layout.pp;
    first_rank_ = setup.layout.rank / of_stage * of_stage;
    end_rank_ = first_rank_ + of_stage;
  }
  if (setup.micro_batches == auto_micro_batches) {
    check_auto();
    plans_.choose_micro_batches({{}});
    setup_.micro_batches = planning_.step.micro_batches;
  }
  const nn::ShapePlan& shape = plans_.add(std::make_unique<nn::ShapePlan>());
  if (!shape.planners.empty()) check_lossy(setup_, choices_.device, shape.planners.front()->graph());
}

/// Whether the number of micro-batches can be chosen.
void PlannedSetup::check_auto() const {
  check_techniques(setup_, is_text(setup_));
  if (planning_.budget_bytes == 0 && planning_.process_budget_bytes == 0)
    throw ValueError("`micro_batches`: auto needs a budget to choose for; expected a number");
  if (!choices_.costs.operators.empty()) {
    throw ValueError(
        "`micro_batches`: auto compares several programs, and `measures` and `times` tell the times of one; expected "
        "a number");
  }
}

void PlannedSetup::fit() { plans_.fit(); }

nn::Plan PlannedSetup::plan() const {
  const nn::ShapePlan& shape = *plans_.shapes().front();
  nn::Plan plan = shape.parts.front();
  plan.placement = shape.placed();
  plan.peak_bytes = plans_.plan().peak_bytes;
  plan.tier_bytes = plans_.plan().tier_bytes;
  plan.peak_by_category = plans_.plan().peak_by_category;
  return plan;
}

std::shared_ptr<nn::Planner> PlannedSetup::planner() {
  const auto& planners = plans_.shapes().front()->planners;
  if (!planners.empty() && first_rank_ == setup_.layout.rank) return planners.front();
  return std::make_shared<nn::Planner>(choices_.run_of(setup_), choices_.device, choices_.costs, planning_.planner);
}

Setup PlannedSetup::of_rank(int rank) const {
  Setup setup = setup_;
  setup.layout.rank = rank;
  setup.micro_batches = planning_.step.micro_batches;
  return setup;
}

nn::MakeRun PlannedSetup::part_run(const nn::ExampleStep&, std::size_t) const {
  return choices_.run_of(of_rank(first_rank_));
}

nn::MakeRun PlannedSetup::planned_run(std::vector<nn::ExampleStep>, const nn::ShapePlans& shapes) const {
  return [run = choices_.run_of(setup_), &plan = shapes.front()->parts.front()](memory::Device device) {
    std::unique_ptr<nn::TrainingRun> made = run(device);
    plan.apply(made->options(), device);
    return made;
  };
}

/// Places the plan on every rank that follows it, and keeps their peaks.
nn::Plan PlannedSetup::for_this_rank(nn::Plan plan, const nn::ExampleStep&, std::size_t) {
  if (end_rank_ - first_rank_ == 1) return plan;
  nn::Plan own;
  rank_bytes_.clear();
  for (int rank = first_rank_; rank < end_rank_; ++rank) {
    nn::Plan placed = nn::place_anew(plan, choices_.run_of(of_rank(rank)), choices_.device);
    rank_bytes_.push_back(placed.peak_bytes);
    if (rank == setup_.layout.rank) own = std::move(placed);
  }
  return own;
}

std::vector<std::size_t> PlannedSetup::rank_bytes(std::size_t) { return rank_bytes_; }

memory::OutsideFacts PlannedSetup::outside_facts(std::size_t nodes) const {
  memory::OutsideFacts facts = outside_;
  facts.nodes = nodes;
  return facts;
}

void PlannedSetup::refuse(std::size_t least_bytes) {
  const std::size_t budget = plans_.budget_bytes();
  const std::string needed = memory::exact_bytes(least_bytes);
  const auto refuse = [&](const std::string& why) { throw nn::BudgetError(why, budget, least_bytes); };
  if (planning_.plan) refuse("`plan`: it needs " + needed + ", the budget is " + memory::exact_bytes(budget));
  if (planning_.captures_steps) {
    refuse("`captures_steps`: no plan of a captured step needs as little as " + memory::exact_bytes(budget) +
           "; the smallest needs " + needed);
  }
  if (end_rank_ - first_rank_ > 1) {
    refuse("fit: no plan needs as little as " + memory::exact_bytes(budget) + " on every rank; one needs " + needed);
  }
  plans_.shapes().front()->planners.front()->fit(budget);
  throw Error("fit: a plan within the budget that was not found before");
}

}  // namespace thimble::models
