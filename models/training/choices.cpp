#include <thimble/models/training/choices.h>

#include <algorithm>
#include <new>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/memory/offload/device_tier.h>
#include <thimble/memory/process/process.h>
#include <thimble/memory/units.h>
#include <thimble/models/techniques/technique.h>
#include <thimble/models/techniques/tiers.h>

namespace thimble::models {
namespace choices_detail {

std::shared_ptr<nn::Planner> planner_of(const ChoiceOptions& options, const Setup& setup) {
  return std::make_shared<nn::Planner>(options.run_of(setup), options.device, options.costs,
                                       planner_options(setup, options.device));
}

/// Techniques that are priced together: a list of options with blanks. Before what plans move and pack, those of steps;
/// after it what waits in a tier, as far as it does not yet.
constexpr std::string_view step_combinations[] = {"head feed_forward", "head fuses_optimizer", "head micro_batches"};
constexpr std::string_view tier_combinations[] = {"offloads_optimizer", "offloads_gradients offloads_optimizer",
                                                  "offloads_parameters",
                                                  "offloads_parameters offloads_gradients offloads_optimizer"};

StateBytes state_bytes(Setup setup) {
  setup.offload.clear(), setup.weights.clear();
  setup.offloads_parameters = setup.offloads_optimizer = false;
  const std::unique_ptr<Model> model = make_model(setup, dry(cpu));
  StateBytes bytes;
  for (const nn::NamedTensor& p : model->parameters()) bytes.parameters += static_cast<double>(p.tensor.bytes());
  for (const optim::Named& p : model->trainable()) bytes.gradients += static_cast<double>(p.tensor.bytes());
  bytes.optimizer = static_cast<double>(make_optimizer(setup, *model)->state_bytes());
  return bytes;
}

/// The changes to a setup that need less, by what the techniques say of themselves. Those that its other techniques
/// exclude are left out.
class Levers {
 public:
  /// `graph` is of the setup's step; without it, levers of the plan are left out.
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

  /// Switches `variant` on, besides what the change has. False where that cannot join.
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
    const bool is_new = setup_.offload.empty() && !change.setup.offload.empty();
    Setup planned = change.setup;
    if (is_new) planned.offload.clear();  // on dry devices no folder is looked for
    lever.plans = planner_options(planned, options_.device);
    if (is_new) {
      lever.plans.spilling.offloads = true;
      lever.plans.make_tier = [](memory::Device on) { return memory::make_tier(on); };  // dry: it has no folder
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

  /// Several, each in its strongest variant that can join; all of them, or as many as there are.
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

/// Whether a step with it takes another time than a plain one.
bool changes_step(const Technique& technique) {
  return technique.flag.commands == FlagSet::step && technique.variants != nullptr;
}

/// Seconds of the setup's step without techniques that keeps everything, by a recording.
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

}  // namespace choices_detail

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
  if (options.setup.ranks > 1) {
    throw ValueError("`process_budget_bytes`: what " + std::to_string(options.setup.ranks) +
                     " ranks hold outside of their arenas is not known; expected `budget_bytes`, of each rank");
  }
}

bool has_techniques(const Setup& setup) {
  return std::ranges::any_of(techniques(),
                             [&](const Technique& t) { return choices_detail::changes_step(t) && t.is_on(setup); });
}

double plain_step_seconds(const ChoiceOptions& options, const Setup& setup, const nn::Planner& planner) {
  if (!has_techniques(setup) || !options.costs.operators.empty()) return planner.keep_everything().step_s;
  return choices_detail::recorded_step_seconds(options, setup);
}

std::vector<nn::LeverPrice> price_techniques(const ChoiceOptions& given, const Setup& setup) {
  using namespace choices_detail;
  ChoiceOptions options = given;
  options.costs = nn::CostModel(given.costs.hardware);
  double plain_s = 0;
  std::vector<nn::LeverPrice> prices;
  const auto add = [&](const nn::Lever& lever) {
    if (options.progress) options.progress("planned with " + (lever.options.empty() ? "nothing more" : lever.options));
    nn::Planner planner(lever.program(), options.device, options.costs, lever.plans);
    if (prices.empty()) plain_s = plain_step_seconds(options, setup, planner);
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
  using namespace choices_detail;
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

nn::Plan fit_in_budget(const ChoiceOptions& options, const Setup& setup, nn::Planner& planner) {
  if (setup.ranks == 1 || (setup.zero < 3 && team_size(setup) == 1)) return planner.fit(options.budget_bytes);
  const int of_stage = setup.ranks / setup.pp, begin = setup.rank / of_stage * of_stage;  // the ranks of this stage
  Setup of_rank = setup;
  of_rank.rank = begin;
  nn::Planner first(options.run_of(of_rank), options.device, options.costs, planner_options(of_rank, options.device));
  std::size_t target = options.budget_bytes, most = 0;
  // The plan on this rank. Sets `most` to its bytes on the rank where it takes most.
  const auto place_on_all = [&](const nn::Plan& plan) {
    nn::Plan own;
    most = 0;
    for (of_rank.rank = begin; of_rank.rank < begin + of_stage; ++of_rank.rank) {
      nn::Plan placed = nn::place_anew(plan, options.run_of(of_rank), options.device);
      most = std::max(most, placed.peak_bytes);
      if (of_rank.rank == setup.rank) own = std::move(placed);
    }
    return own;
  };
  constexpr int tries = 4;  // blocks of shards differ by grains, arenas by granules
  try {
    for (int i = 0; i < tries; ++i) {
      nn::Plan own = place_on_all(first.fit(target));
      if (most <= options.budget_bytes) return own;
      target -= std::min(target, most - options.budget_bytes);
    }
  } catch (const nn::BudgetError& error) {  // of the first of them
    place_on_all(first.fit(error.minimum_bytes()));
  }
  throw nn::BudgetError("fit: no plan needs as little as " + memory::exact_bytes(options.budget_bytes) +
                            " on every rank; one needs " + memory::exact_bytes(most),
                        options.budget_bytes, most);
}

namespace choices_detail {

/// The number of micro-batches is open.
ChosenStep fastest_step(const ChoiceOptions& options, Setup setup) {
  check_techniques(setup, is_text(setup));
  if (options.budget_bytes == 0)
    throw ValueError("`micro_batches`: auto needs a budget to choose for; expected a number");
  if (!options.costs.operators.empty()) {
    throw ValueError(
        "`micro_batches`: auto compares several programs, and `measures` and `times` tell the times of one; expected "
        "a number");
  }
  ChosenStep fastest, least;
  double fastest_s = 0;
  std::size_t least_bytes = 0;
  for (std::int64_t count = 1; setup.batch % count == 0; count *= 2) {
    setup.micro_batches = count;
    const ChosenStep step{setup, planner_of(options, setup)};
    const std::size_t bytes = step.planner->smallest().peak_bytes;
    if (least.planner == nullptr || bytes < least_bytes) least = step, least_bytes = bytes;
    if (bytes > options.budget_bytes) continue;
    const double seconds = step.planner->fit(options.budget_bytes).step_s;
    if (fastest.planner == nullptr || seconds < fastest_s) fastest = step, fastest_s = seconds;
  }
  return fastest.planner != nullptr ? fastest : least;
}

}  // namespace choices_detail

ChosenStep choose_step(const ChoiceOptions& options, const Setup& setup) {
  if (options.progress) options.progress("the smallest plan");
  ChosenStep step{setup, nullptr};
  if (setup.micro_batches == auto_micro_batches) {
    step = choices_detail::fastest_step(options, setup);
  } else {
    step.planner = choices_detail::planner_of(options, setup);
  }
  check_lossy(step.setup, options.device, step.planner->graph());
  return step;
}

}  // namespace thimble::models
