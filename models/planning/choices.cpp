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
  const bool may_gradients = !setup.fuses_optimizer && setup.micro_batches == 1 && !loss_scaling(setup);
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

/// The smallest plan with these away. A plan's time has no such transfers: here they are added, each as if nothing ran
/// beside it. Forward, backward and update read each parameter, and the update writes it; gradients and state are
/// written and read once.
TechniquePrice price_away(const ChoiceOptions& options, const Setup& setup, const Away& what, const StateBytes& bytes,
                          double plain_s) {
  constexpr double of_parameters = 4, of_others = 2;
  const char* const place = options.device.is_cuda() ? "host" : "FOLDER";
  Setup away = setup;
  nn::PlannerOptions plans = planner_options(setup, options.device);
  std::string names;
  if (away.offload.empty()) {
    names = std::string("`offload` ") + place;
    away.offload = place;  // on dry devices it is not looked for
    plans.spilling.offloads = true;
    plans.make_tier = [](Device on) { return memory::make_tier(on); };
  }
  double moved = 0;
  const auto send = [&](bool is_sent, const char* option, bool& flag, double transfers) {
    if (!is_sent) return;
    names += (names.empty() ? "`" : " `") + std::string(option) + "`";
    flag = true;
    moved += transfers;
  };
  send(what.parameters, "offloads_parameters", away.offloads_parameters, of_parameters * bytes.parameters);
  send(what.gradients, "offloads_gradients", away.offloads_gradients, of_others * bytes.gradients);
  send(what.optimizer, "offloads_optimizer", away.offloads_optimizer, of_others * bytes.optimizer);
  nn::Planner planner(options.run_of(away), options.device, options.costs, plans);
  const double transfer_s = moved / options.costs.hardware.tier_bytes_per_s;
  const nn::Plan& least = planner.smallest();
  TechniquePrice price{names, least.peak_bytes, (least.step_s + transfer_s) / plain_s - 1, {}, {}};
  if (least.peak_bytes <= options.budget_bytes) {
    price.time_overhead_in_budget = (planner.fit(options.budget_bytes).step_s + transfer_s) / plain_s - 1;
  }
  price.note = what.parameters ? "parameters are read as they are needed" : "";
  return price;
}

std::string percent(double part) { return std::to_string(std::llround(100 * part)) + " %"; }

}  // namespace choices_detail

bool has_techniques(const Setup& setup) noexcept {
  return setup.sizes.head != Head::full || setup.sizes.feed_forward != FeedForward::full || setup.fuses_optimizer ||
         setup.micro_batches != 1;
}

double plain_step_seconds(const ChoiceOptions& options, const Setup& setup, const nn::Planner& planner) {
  if (!has_techniques(setup) || !options.costs.operators.empty()) return planner.keep_everything().step_s;
  Setup plain = setup;
  plain.sizes.head = Head::full;
  plain.sizes.feed_forward = FeedForward::full;
  plain.fuses_optimizer = false;
  plain.micro_batches = least_micro_batches(setup);
  const TapeGraph of_micro_batch = nn::record_step(options.device, options.run_of(plain));
  return static_cast<double>(plain.micro_batches) * nn::step_seconds(nn::node_times(of_micro_batch, options.costs));
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
  if (!options.prices_away && (options.budget_bytes == 0 || has_fit)) return prices;
  const StateBytes bytes(setup);
  for (const Away& away : away_of(options, setup, bytes)) {
    prices.push_back(price_away(options, setup, away, bytes, plain_s));
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
