#include <thimble/models/planning/choices.h>

#include <algorithm>
#include <new>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/memory/offload/device_tier.h>
#include <thimble/models/planning/spilling.h>
#include <thimble/nn/step/gradient_sink.h>

namespace thimble::models {
namespace choices_detail {

constexpr std::int64_t most_priced = 8;  // micro-batches

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

using nn::Lever;
std::function<nn::MakeRun()> program_of(const ChoiceOptions& options, const Setup& setup) {
  return [run_of = options.run_of, setup] { return run_of(setup); };
}

Lever lever_of(const ChoiceOptions& options, const Variant& variant) {
  return {variant.options, program_of(options, variant.setup), planner_options(variant.setup, options.device),
          variant.note};
}

const char* place_of(memory::Device device) { return device.is_cuda() ? "host" : "FOLDER"; }

void offload_tensors(nn::PlannerOptions& plans) {
  plans.spilling.offloads = true;
  plans.make_tier = [](memory::Device on) { return memory::make_tier(on); };  // dry: it has no folder
}

/// With these away. A plan's time has no such transfers: here they are added, each as if nothing ran beside it.
/// Forward, backward and update read each parameter, and the update writes it; gradients and state are written and read
/// once.
Lever away_lever(const ChoiceOptions& options, const Setup& setup, const Away& what, const StateBytes& bytes) {
  constexpr double of_parameters = 4, of_others = 2;
  Setup sent = setup;
  Lever lever;
  lever.plans = planner_options(setup, options.device);
  if (setup.offload.empty()) {
    sent.offload = place_of(options.device);  // on dry devices it is not looked for
    lever.options = "`offload` " + sent.offload;
    offload_tensors(lever.plans);
  }
  double moved = 0;
  const auto send = [&](bool is_sent, const char* option, bool& flag, double transfers) {
    if (!is_sent) return;
    lever.options += (lever.options.empty() ? "`" : " `") + std::string(option) + "`";
    flag = true;
    moved += transfers;
  };
  send(what.parameters, "offloads_parameters", sent.offloads_parameters, of_parameters * bytes.parameters);
  send(what.gradients, "offloads_gradients", sent.offloads_gradients, of_others * bytes.gradients);
  send(what.optimizer, "offloads_optimizer", sent.offloads_optimizer, of_others * bytes.optimizer);
  lever.transfer_s = moved / options.costs.hardware.tier_bytes_per_s;
  if (what.parameters) lever.note = "parameters are read as they are needed";
  lever.program = program_of(options, sent);
  return lever;
}

/// Tensors that the plan offloads or packs, as far as the setup leaves that off. A captured step's stay on the device.
std::vector<Lever> spilling_levers(const ChoiceOptions& options, const Setup& setup, const TapeGraph& graph) {
  std::vector<Lever> list;
  if (setup.offload.empty() && !options.captures_steps) {
    list.push_back({std::string("`offload` ") + place_of(options.device), program_of(options, setup), {}, {}});
    offload_tensors(list.back().plans);
  }
  const std::vector<DType> narrower = narrower_dtypes(graph);
  if (setup.allows_lossy || narrower.empty()) return list;
  const bool is_usual = narrower.front() == setup.lossy;
  const std::string dtype = is_usual ? "" : "=" + std::string(to_string(narrower.back()));
  list.push_back({"`allows_lossy`" + dtype, program_of(options, setup), planner_options(setup, options.device),
                  "gradients are rounded"});
  list.back().plans.spilling.packs = true;
  list.back().plans.spilling.packed = is_usual ? setup.lossy : narrower.back();
  return list;
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

}  // namespace choices_detail

bool has_techniques(const Setup& setup) noexcept {
  return setup.sizes.head != Head::full || setup.sizes.feed_forward != FeedForward::full || setup.fuses_optimizer ||
         setup.micro_batches != 1;
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
  const auto add = [&](const Lever& lever) {
    if (options.progress) options.progress("planned with " + (lever.options.empty() ? "nothing more" : lever.options));
    nn::Planner planner(lever.program(), options.device, options.costs, lever.plans);
    if (prices.empty()) plain_s = plain_step_seconds(options, setup, planner);
    prices.push_back(nn::price_of(options, lever, planner, plain_s));
  };
  for (const Variant& variant : variants_of(setup)) add(lever_of(options, variant));
  const bool has_fit = std::any_of(prices.begin(), prices.end(),
                                   [&](const nn::LeverPrice& p) { return p.minimum_bytes <= options.budget_bytes; });
  if (!options.prices_away && (options.budget_bytes == 0 || has_fit)) return prices;
  const StateBytes bytes(setup);
  for (const Away& away : away_of(options, setup, bytes)) add(away_lever(options, setup, away, bytes));
  return prices;
}

nn::LeverOffers offer_techniques(const ChoiceOptions& given, const Setup& setup) {
  using namespace choices_detail;
  ChoiceOptions options = given;
  options.costs = nn::CostModel(given.costs.hardware);
  double plain_s = 0;
  std::vector<Lever> levers;
  try {
    const TapeGraph graph = nn::record_step(options.device, options.run_of(setup));
    plain_s = recorded_step_seconds(options, setup, &graph);
    for (const Variant& variant : variants_of(setup)) levers.push_back(lever_of(options, variant));
    levers.erase(levers.begin());  // the setup as it is
    for (Lever& lever : spilling_levers(options, setup, graph)) levers.push_back(std::move(lever));
    const StateBytes bytes(setup);
    for (const Away& away : away_of(options, setup, bytes)) levers.push_back(away_lever(options, setup, away, bytes));
  } catch (const std::bad_alloc&) {
    return {};
  } catch (const OutOfMemory&) {
    return {};
  }
  return nn::offer_levers(options, levers, plain_s);
}

MicroBatchChoice choose_micro_batches(const ChoiceOptions& options, const Setup& given) {
  Setup setup = given;
  setup.micro_batches = auto_micro_batches;
  check_techniques(setup, is_text(setup));
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
