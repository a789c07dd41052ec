#include <thimble/models/planning/choices.h>

#include <algorithm>
#include <cmath>
#include <new>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/memory/bytes.h>
#include <thimble/memory/offload/device_tier.h>
#include <thimble/memory/policies/trace.h>
#include <thimble/memory/process/process.h>
#include <thimble/models/planning/spilling.h>
#include <thimble/nn/step/gradient_sink.h>

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

Variant with_tiles(Variant v) {
  v.options += v.options.empty() ? "`feed_forward` tiled" : " `feed_forward` tiled";
  v.setup.sizes.feed_forward = FeedForward::tiled;
  return v;
}

/// Whether the setup's transformer may run its feed-forward layers in tiles.
bool may_tile(const Setup& setup) {
  if (setup.sizes.feed_forward == FeedForward::tiled || setup.sizes.build == Build::textbook || team_size(setup) > 1)
    return false;
  const ModelOptions sizes = make_model(setup.model, setup.sizes, {dry(cpu)})->options();
  const bool is_over_images = sizes.image > 0;
  return sizes.heads > 0 && setup.lora_rank == 0 && !fp8_layers(setup, dry(cpu)) &&
         !(is_over_images && sizes.dropout > 0);
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

/// Whether the setup's steps can have this sink. The norm that they are clipped to follows the sink.
bool can_send_gradients(nn::SinkKind sink, const Setup& setup) {
  const auto scaling = loss_scaling(setup);
  return nn::refusal_of(sink, {.micro_batches = setup.micro_batches,
                               .is_scaled = scaling.has_value(),
                               .is_scale_dynamic = scaling && scaling->is_dynamic}) == nn::SinkRefusal::none;
}

std::vector<Variant> variants_of(const Setup& setup) {
  const bool text = is_text(setup);
  const bool normalises_batches = has_batch_norm(setup);
  const bool is_one = !setup.fuses_optimizer && !setup.offloads_gradients;  // else no gradient is added to
  const bool is_alone = setup.ranks == 1;
  const bool can_fuse = is_one && is_alone && can_send_gradients(nn::SinkKind::fused, setup);
  const bool can_chunk = text && may_chunk_head(setup) && setup.sizes.head == Head::full;
  std::int64_t most = 1;
  const Variant plain{"", setup, ""};
  std::vector<Variant> list{plain};
  if (can_fuse) list.push_back(with_fused(plain, text));
  if (can_chunk) list.push_back(with_chunks(plain));
  const bool can_tile = may_tile(setup);
  if (can_tile) list.push_back(with_tiles(plain));
  for (std::int64_t count = 2; count <= most_priced && is_one; count *= 2) {
    if (count <= setup.micro_batches || count % least_micro_batches(setup) != 0 ||
        setup.batch % (data_ranks(setup) * count) != 0) {
      continue;
    }
    list.push_back(with_parts(plain, count, normalises_batches));
    most = count;
  }
  const int last_stage = is_elementwise(optimizer_name(setup, text)) ? 3 : 2;  // which needs whole parameters
  for (int stage = setup.zero + 1; stage <= last_stage && !is_alone; ++stage) list.push_back(with_stage(plain, stage));
  if (can_chunk && can_tile) list.push_back(with_tiles(with_chunks(plain)));
  if (can_chunk && can_fuse) list.push_back(with_fused(with_chunks(plain), text));
  if (can_chunk && most > 1) list.push_back(with_parts(with_chunks(plain), most, normalises_batches));
  return list;
}

/// What waits in a tier between uses.
struct Away {
  bool parameters = false, gradients = false, optimizer = false;
  friend bool operator==(const Away&, const Away&) = default;
  bool any() const { return parameters || gradients || optimizer; }
};

/// Bytes of a setup's model and of its optimizer's state.
struct StateBytes {
  double parameters = 0, gradients = 0, optimizer = 0;

  explicit StateBytes(Setup setup) {
    setup.offload.clear(), setup.weights.clear();
    setup.offloads_parameters = setup.offloads_optimizer = false;
    const std::unique_ptr<Model> model = make_model(setup, dry(cpu));
    for (const nn::NamedTensor& p : model->parameters()) parameters += static_cast<double>(p.tensor.bytes());
    for (const optim::Named& p : model->trainable()) gradients += static_cast<double>(p.tensor.bytes());
    optimizer = static_cast<double>(make_optimizer(setup, *model)->state_bytes());
  }
};

/// What can be sent away besides what is: the optimizer's state, gradients as well, parameters alone, all of them.
std::vector<Away> away_of(const ChoiceOptions& options, const Setup& setup, const StateBytes& bytes) {
  if (setup.ranks > 1 || options.captures_steps) return {};
  const bool may_gradients = !setup.fuses_optimizer && can_send_gradients(nn::SinkKind::offloaded, setup);
  std::vector<Away> list;
  for (const Away& wish :
       {Away{false, false, true}, Away{false, true, true}, Away{true, false, false}, Away{true, true, true}}) {
    const Away away{wish.parameters && !setup.offloads_parameters,
                    wish.gradients && may_gradients && !setup.offloads_gradients,
                    wish.optimizer && bytes.optimizer > 0 && !setup.offloads_optimizer};
    if (away.any() && std::find(list.begin(), list.end(), away) == list.end()) list.push_back(away);
  }
  return list;
}

/// A technique, or several, switched on in a setup's run.
struct Lever {
  std::string options;
  Setup setup;
  nn::PlannerOptions plans;
  std::string note;
  double transfer_s = 0;  ///< of what no plan's time has
};

Lever lever_of(const ChoiceOptions& options, const Variant& variant) {
  return {variant.options, variant.setup, planner_options(variant.setup, options.device), variant.note};
}

const char* place_of(Device device) { return device.is_cuda() ? "host" : "FOLDER"; }

void offload_tensors(nn::PlannerOptions& plans) {
  plans.spilling.offloads = true;
  plans.make_tier = [](Device on) { return memory::make_tier(on); };  // dry: it has no folder
}

/// With these away. A plan's time has no such transfers: here they are added, each as if nothing ran beside it.
/// Forward, backward and update read each parameter, and the update writes it; gradients and state are written and read
/// once.
Lever away_lever(const ChoiceOptions& options, const Setup& setup, const Away& what, const StateBytes& bytes) {
  constexpr double of_parameters = 4, of_others = 2;
  Lever lever{{}, setup, planner_options(setup, options.device), {}};
  if (setup.offload.empty()) {
    lever.setup.offload = place_of(options.device);  // on dry devices it is not looked for
    lever.options = "`offload` " + lever.setup.offload;
    offload_tensors(lever.plans);
  }
  double moved = 0;
  const auto send = [&](bool is_sent, const char* option, bool& flag, double transfers) {
    if (!is_sent) return;
    lever.options += (lever.options.empty() ? "`" : " `") + std::string(option) + "`";
    flag = true;
    moved += transfers;
  };
  send(what.parameters, "offloads_parameters", lever.setup.offloads_parameters, of_parameters * bytes.parameters);
  send(what.gradients, "offloads_gradients", lever.setup.offloads_gradients, of_others * bytes.gradients);
  send(what.optimizer, "offloads_optimizer", lever.setup.offloads_optimizer, of_others * bytes.optimizer);
  lever.transfer_s = moved / options.costs.hardware.tier_bytes_per_s;
  if (what.parameters) lever.note = "parameters are read as they are needed";
  return lever;
}

/// Tensors that the plan offloads or packs, as far as the setup leaves that off. A captured step's stay on the device.
std::vector<Lever> spilling_levers(const ChoiceOptions& options, const Setup& setup, const TapeGraph& graph) {
  std::vector<Lever> list;
  if (setup.offload.empty() && !options.captures_steps) {
    list.push_back({std::string("`offload` ") + place_of(options.device), setup, {}, {}});
    offload_tensors(list.back().plans);
  }
  const std::vector<DType> narrower = narrower_dtypes(graph);
  if (setup.allows_lossy || narrower.empty()) return list;
  const bool is_usual = narrower.front() == setup.lossy;
  const std::string dtype = is_usual ? "" : "=" + std::string(to_string(narrower.back()));
  list.push_back({"`allows_lossy`" + dtype, setup, planner_options(setup, options.device), "gradients are rounded"});
  list.back().plans.spilling.packs = true;
  list.back().plans.spilling.packed = is_usual ? setup.lossy : narrower.back();
  return list;
}

nn::Planner planner_of(const ChoiceOptions& options, const Lever& lever) {
  return {options.run_of(lever.setup), options.device, options.costs, lever.plans};
}

TechniquePrice price_of(const ChoiceOptions& options, const Lever& lever, nn::Planner& planner, double plain_s) {
  const nn::Plan& least = planner.smallest();
  TechniquePrice price{
      lever.options, least.peak_bytes, (least.step_s + lever.transfer_s) / plain_s - 1, {}, lever.note};
  if (least.peak_bytes <= options.budget_bytes) {
    price.time_overhead_in_budget = (planner.fit(options.budget_bytes).step_s + lever.transfer_s) / plain_s - 1;
  }
  return price;
}

/// Seconds of the setup's step without techniques that keeps everything, by a recording.
double recorded_step_seconds(const ChoiceOptions& options, const Setup& setup, const TapeGraph* graph = nullptr) {
  Setup plain = setup;
  plain.sizes.head = Head::full;
  plain.sizes.feed_forward = FeedForward::full;
  plain.fuses_optimizer = false;
  plain.micro_batches = least_micro_batches(setup);
  const bool is_plain = graph != nullptr && !has_techniques(setup);
  const TapeGraph recorded = is_plain ? TapeGraph() : nn::record_step(options.device, options.run_of(plain));
  const std::vector<nn::NodeTimes> times = nn::node_times(is_plain ? *graph : recorded, options.costs);
  return static_cast<double>(plain.micro_batches) * nn::step_seconds(times);
}

/// Whether a refusal has time for work that takes about so long.
bool has_time(const ChoiceOptions& options, double ms) {
  return options.refusal_ms == 0 || process::processor_ms() - options.begin_ms + ms <= options.refusal_ms;
}

/// Whether a lever may have a plan within the budget; false: it has none.
bool may_fit(const ChoiceOptions& options, const Lever& lever) {
  return state_bound(options.run_of(lever.setup), options.device) <= options.budget_bytes;
}

std::string percent(double part) { return std::to_string(std::llround(100 * part)) + " %"; }

}  // namespace choices_detail

bool has_techniques(const Setup& setup) noexcept {
  return setup.sizes.head != Head::full || setup.sizes.feed_forward != FeedForward::full || setup.fuses_optimizer ||
         setup.micro_batches != 1;
}

double plain_step_seconds(const ChoiceOptions& options, const Setup& setup, const nn::Planner& planner) {
  if (!has_techniques(setup) || !options.costs.operators.empty()) return planner.keep_everything().step_s;
  return choices_detail::recorded_step_seconds(options, setup);
}

std::vector<TechniquePrice> price_techniques(const ChoiceOptions& given, const Setup& setup) {
  using namespace choices_detail;
  ChoiceOptions options = given;
  options.costs = nn::CostModel(given.costs.hardware);
  double plain_s = 0;
  std::vector<TechniquePrice> prices;
  const auto add = [&](const Lever& lever) {
    if (options.progress) options.progress("planned with " + (lever.options.empty() ? "nothing more" : lever.options));
    nn::Planner planner = planner_of(options, lever);
    if (prices.empty()) plain_s = plain_step_seconds(options, setup, planner);
    prices.push_back(price_of(options, lever, planner, plain_s));
  };
  for (const Variant& variant : variants_of(setup)) add(lever_of(options, variant));
  const bool has_fit = std::any_of(prices.begin(), prices.end(),
                                   [&](const TechniquePrice& p) { return p.minimum_bytes <= options.budget_bytes; });
  if (!options.prices_away && (options.budget_bytes == 0 || has_fit)) return prices;
  const StateBytes bytes(setup);
  for (const Away& away : away_of(options, setup, bytes)) add(away_lever(options, setup, away, bytes));
  return prices;
}

std::size_t state_bound(const nn::MakeRun& make, Device device) {
  const nn::MemoryProfile profile = nn::profile_training(dry(device), make, 1, true);
  std::size_t most = 0;
  for (const CategoryBytes& live : timeline(profile.events)) {
    std::size_t bytes = 0;
    for (const Category c : {Category::parameter, Category::gradient, Category::optimizer}) {
      bytes += live[static_cast<std::size_t>(c)];
    }
    most = std::max(most, bytes);
  }
  return most;
}

TechniqueOffers offer_techniques(const ChoiceOptions& given, const Setup& setup) {
  using namespace choices_detail;
  ChoiceOptions options = given;
  options.costs = nn::CostModel(given.costs.hardware);
  TechniqueOffers offers;
  // A lever is planned in about the time that the setup itself took.
  double lever_ms = process::processor_ms() - options.begin_ms, bound_ms = 0;
  const auto timed = [](double& most, auto&& work) {
    const double begin = process::processor_ms();
    const auto result = work();
    most = std::max(most, process::processor_ms() - begin);
    return result;
  };
  try {
    const TapeGraph graph = nn::record_step(options.device, options.run_of(setup));
    const double plain_s = recorded_step_seconds(options, setup, &graph);
    std::vector<Lever> levers;
    for (const Variant& variant : variants_of(setup)) levers.push_back(lever_of(options, variant));
    levers.erase(levers.begin());  // the setup as it is
    for (Lever& lever : spilling_levers(options, setup, graph)) levers.push_back(std::move(lever));
    const StateBytes bytes(setup);
    for (const Away& away : away_of(options, setup, bytes)) levers.push_back(away_lever(options, setup, away, bytes));
    offers.known = offers.untried = levers.size();
    std::size_t number = 0;
    for (const Lever& lever : levers) {
      if (options.progress) {
        options.progress("technique " + std::to_string(++number) + " of " + std::to_string(offers.known) + ": " +
                         lever.options);
      }
      if (!has_time(options, bound_ms)) break;
      if (timed(bound_ms, [&] { return may_fit(options, lever); })) {
        if (!has_time(options, lever_ms)) continue;  // a later one may be dropped by its bound
        timed(lever_ms, [&] {
          nn::Planner planner = planner_of(options, lever);
          if (planner.least_load() > options.budget_bytes) return false;
          const TechniquePrice price = price_of(options, lever, planner, plain_s);
          if (price.time_overhead_in_budget) offers.fitting.push_back(price);
          return true;
        });
      }
      --offers.untried;
    }
  } catch (const std::bad_alloc&) {  // the rest stays untried
  } catch (const OutOfMemory&) {
  }
  std::stable_sort(offers.fitting.begin(), offers.fitting.end(), [](const TechniquePrice& a, const TechniquePrice& b) {
    return *a.time_overhead_in_budget < *b.time_overhead_in_budget;
  });
  return offers;
}

std::string to_text(const TechniqueOffers& offers) {
  std::string text;
  for (const TechniquePrice& price : offers.fitting) {
    text += (text.empty() ? "it fits with " : ", or with ") + price.options + ", which needs " +
            memory::exact_bytes(price.minimum_bytes) + ", at " +
            choices_detail::percent(*price.time_overhead_in_budget) + " more time";
  }
  const std::size_t tried = offers.known - offers.untried;
  const std::string of = std::to_string(offers.known) + (offers.known == 1 ? " technique" : " techniques");
  if (text.empty() && tried > 0 && offers.untried == 0) return "none of " + of + " fits";
  if (text.empty() && tried > 0) text = "none of the " + std::to_string(tried) + " techniques fits that were tried";
  if (offers.untried > 0) {
    text += (text.empty() ? "" : "; ") + std::to_string(offers.untried) + " of " + of +
            " were not tried, for want of time or memory: a plan with `prices_techniques` tries them all";
  }
  return text;
}

nn::BudgetError with_offers(const nn::BudgetError& error, const TechniqueOffers& offers) {
  const std::string text = to_text(offers);
  return {error.what() + (text.empty() ? "" : "; " + text), error.budget_bytes(), error.minimum_bytes()};
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
