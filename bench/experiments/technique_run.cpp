#include <thimble/bench/experiments/techniques.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include <thimble/autograd/checkpoint.h>
#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/core/tensor/copy.h>
#include <thimble/core/tensor/transaction.h>
#include <thimble/memory/offload/device_tier.h>
#include <thimble/memory/offload/offload.h>
#include <thimble/models/bert/bert.h>
#include <thimble/models/gpt/gpt.h>
#include <thimble/models/llama/llama.h>
#include <thimble/models/vit/vit.h>
#include <thimble/nn/fit/stages.h>

namespace thimble::bench {
namespace technique_run_detail {

constexpr double average_decay = 0.99;

/// Every block of a transformer under checkpoint(); false where the model is none.
bool recompute_blocks(models::Model& model) {
  if (auto* const gpt = dynamic_cast<models::Gpt*>(&model)) return gpt->recompute_blocks(), true;
  if (auto* const llama = dynamic_cast<models::Llama*>(&model)) return llama->recompute_blocks(), true;
  if (auto* const bert = dynamic_cast<models::Bert*>(&model)) return bert->recompute_blocks(), true;
  if (auto* const vit = dynamic_cast<models::Vit*>(&model)) return vit->recompute_blocks(), true;
  return false;
}

/// A moving average of all parameters. It is here between steps, and during them where it is not offloaded.
class WeightAverage {
 public:
  WeightAverage(const models::Model& model, memory::Device device, bool is_offloaded) : model_(model) {
    if (is_offloaded) tier_ = memory::make_tier(device);
    for (const nn::NamedTensor& p : model.parameters()) averages_.push_back(clone(p.tensor.detach()));
  }

  std::size_t tier_bytes() const { return tier_ ? tier_->statistics().committed_bytes : 0; }

  void begin_step() {
    if (!tier_) return;
    for (Tensor& t : averages_) away_.push_back(memory::offload(std::move(t), tier_));
    averages_.clear();
    for (memory::Offloaded& t : away_) t.complete();
  }

  void end_step() {
    for (memory::Offloaded& t : away_) averages_.push_back(t.fetch());
    away_.clear();
    const NoGrad off;
    std::size_t i = 0;
    for (const nn::NamedTensor& p : model_.parameters()) {
      Tensor& average = averages_[i++];
      copy_into(average, add(mul(average, average_decay), mul(p.tensor.detach(), 1 - average_decay)));
    }
  }

 private:
  const models::Model& model_;
  std::shared_ptr<Tier> tier_;
  std::vector<Tensor> averages_;
  std::vector<memory::Offloaded> away_;
};

class Run final : public nn::TrainingRun {
 public:
  Run(const models::Setup& setup, const StepForm& technique, memory::Device device)
      : technique_(technique),
        generator_(setup.seed),
        scope_(generator_),
        model_(models::make_model(setup.model, setup.sizes, {device, setup.dtype})) {
    const std::int64_t parts = technique.micro_batches;
    if (parts < 1 || setup.batch % parts != 0) {
      throw ValueError("technique: " + std::to_string(parts) + " micro-batches do not divide a batch of " +
                       std::to_string(setup.batch));
    }
    const bool wants_blocks = technique.checkpoint == Checkpoint::blocks || technique.checkpoint == Checkpoint::nested;
    const bool has_blocks = wants_blocks && recompute_blocks(*model_);
    is_whole_ = technique.checkpoint == Checkpoint::nested || technique.checkpoint == Checkpoint::costly ||
                (wants_blocks && !has_blocks);
    for (std::int64_t i = 0; i < parts; ++i) batches_.push_back(model_->empty_batch(setup.batch / parts, device));
    if (technique.is_inference) {
      model_->eval();
      return;
    }
    optimizer_ = make_optimizer(setup, *model_);
    options_.clip_norm = technique.fuses_optimizer ? 0 : clip_norm(setup, model_->is_text());
    options_.micro_batches = parts;
    options_.micro_samples = setup.batch / parts;
    options_.recording.plan = technique.tape;
    if (technique.fuses_optimizer) {
      options_.fuses_optimizer = technique.placement.empty() ? nn::FusedUpdate::unsecured : nn::FusedUpdate::secured;
    }
    if (technique.average != Average::none) {
      average_ = std::make_unique<WeightAverage>(*model_, device, technique.average == Average::offloaded);
    }
  }

  void step() override {
    if (technique_.is_inference) {
      const NoGrad off;
      for (const models::Batch& batch : batches_) model_->forward(batch.input);
      return;
    }
    if (average_) average_->begin_step();
    nn::training_step(
        *optimizer_, [this](std::int64_t i) { return loss_of(batches_[static_cast<std::size_t>(i)]); }, options_);
    if (average_) average_->end_step();
  }
  nn::StepOptions& options() override { return options_; }
  std::int64_t parameters() const override { return model_->parameter_count(); }
  std::size_t tier_bytes() const override {
    return (optimizer_ ? nn::tier_bytes(*optimizer_, options_) : 0) + (average_ ? average_->tier_bytes() : 0);
  }

  PassBytes pass(const memory::Stack& stack, const PartWatch& watch, const std::string& layers) {
    const std::size_t first_event = stack.trace->event_count();
    Transaction transaction;
    PassBytes bytes;
    {
      Tape tape;
      tape.follow(technique_.tape);
      Tensor loss;
      {
        const Recording on(tape);
        loss = loss_of(batches_.front());
      }
      bytes.kept = stack.ledger->bytes(Category::activation);
      bytes.kept_layers = stack.ledger->bytes(Category::activation, layers);
      const std::size_t nodes = tape.node_count();
      tape.backward(loss);
      bytes.process = watch.bytes(*stack.arena, nodes);
    }
    const std::vector<CategoryBytes> states = timeline(stack.trace->events());
    for (std::size_t i = first_event; i < states.size(); ++i) {
      const auto of = [&](Category category) { return states[i][static_cast<std::size_t>(category)]; };
      bytes.peak = std::max(bytes.peak, static_cast<std::size_t>(of(Category::activation) + of(Category::temporary)));
    }
    return bytes;
  }

 private:
  Tensor loss_of(const models::Batch& batch) {
    if (!is_whole_) return model_->loss(batch);
    const FatePolicy policy = technique_.checkpoint == Checkpoint::costly ? keep_costly : drop_all;
    return checkpoint_with(
        policy,
        [&](const Tensor& x) {
          return model_->loss({x, batch.target});
        },
        batch.input);
  }

  StepForm technique_;
  RandomGenerator generator_;
  GeneratorScope scope_;
  std::unique_ptr<models::Model> model_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::vector<models::Batch> batches_;
  std::unique_ptr<WeightAverage> average_;
  nn::StepOptions options_;
  bool is_whole_ = false;  // the whole network is one segment
};

}  // namespace technique_run_detail

nn::MakeRun technique_run(const models::Setup& setup, const StepForm& technique) {
  return [setup, technique](memory::Device device) {
    return std::make_unique<technique_run_detail::Run>(setup, technique, device);
  };
}

TapePlan tape_plan_of(const TapeGraph& graph, std::span<const std::uint32_t> cuts,
                      const remat::ScheduleTree& schedule) {
  TapePlan plan;
  for (const TapeGraph::Node& node : graph.nodes) plan.types.push_back(node.type);
  plan.fates.assign(graph.nodes.size(), Fate::drop);
  struct Open {
    std::size_t last_item;
    std::int32_t segment;
  };
  std::vector<Open> around;
  for (std::size_t i = 0; i < schedule.items.size(); ++i) {
    while (!around.empty() && around.back().last_item < i) around.pop_back();
    const remat::ScheduleTree::Item& item = schedule.items[i];
    if (!item.is_dropped()) continue;
    const std::int32_t parent = around.empty() ? TapePlan::none : around.back().segment;
    around.push_back({i + item.size, static_cast<std::int32_t>(plan.segments.size())});
    plan.segments.push_back({cuts[item.begin], cuts[item.end], parent});
  }
  return plan;
}

std::shared_ptr<const TapePlan> scheduled_tape(memory::Device device, const nn::MakeRun& make,
                                               const std::function<remat::ScheduleTree(std::size_t n)>& schedule) {
  const TapeGraph graph = nn::record_step(device, make);
  const std::vector<std::uint32_t> cuts = nn::cut_points(graph);
  return std::make_shared<TapePlan>(tape_plan_of(graph, cuts, schedule(cuts.size() - 1)));
}

std::vector<std::uint32_t> block_cuts(const TapeGraph& graph, const std::string& prefix) {
  std::vector<std::uint32_t> cuts;
  std::string block;
  std::uint32_t end = 0;
  for (std::uint32_t n = 0; n < graph.nodes.size(); ++n) {
    const std::string_view path = path_name(graph.nodes[n].path);
    if (!path.starts_with(prefix)) continue;
    const std::string_view name = path.substr(0, std::min(path.find('.', prefix.size()), path.size()));
    if (name != block) cuts.push_back(n);
    block = name;
    end = n + 1;
  }
  if (cuts.empty()) throw ValueError("block_cuts: no operator runs under a path that begins with '" + prefix + "'");
  cuts.push_back(end);
  return cuts;
}

PassBytes pass_bytes(memory::Device device, const models::Setup& setup, const StepForm& technique,
                     const std::string& layers) {
  memory::Options options = nn::profile_options(device);
  options.trace = true;
  const memory::Stack stack = memory::make_resource(device, std::move(options));
  const ResourceScope scope(stack.top);
  const PartWatch watch(device);
  technique_run_detail::Run run(setup, technique, device);
  return run.pass(stack, watch, layers);
}

bool Comparison::is_equal() const noexcept {
  const bool is_resident = measured.rss_bytes == 0 || measured.rss_bytes == measured.peak_bytes;
  return predicted.peak_bytes == measured.peak_bytes && predicted.peak_height_bytes == measured.peak_height_bytes &&
         predicted.peak_live_bytes == measured.peak_live_bytes &&
         predicted.lower_bound_bytes == measured.lower_bound_bytes && predicted.tier_bytes == measured.tier_bytes &&
         is_resident;
}

Comparison compare(memory::Device device, const nn::MakeRun& make, const std::vector<StepPlacement>& placement) {
  constexpr std::size_t steps = 2;
  return {nn::profile_training(dry(device), make, steps, false, placement),
          nn::profile_training(device, make, steps, false, placement)};
}

}  // namespace thimble::bench
