#include "certificate.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <tuple>
#include <utility>

#include <thimble/autograd/checkpoint.h>
#include <thimble/core/ops/copy.h>
#include <thimble/memory/offload/offload.h>
#include <thimble/memory/offload/tier_store.h>
#include <thimble/memory/policies/fail.h>
#include <thimble/memory/stack.h>

#include "support/offload_data.h"
#include "support/random_plans.h"
#include "support/tensor_bytes.h"

namespace thimble::certificate {
namespace {

using testing::Bytes;
using testing::bytes_of;

Bytes bytes_of(const void* from, std::size_t count) {
  const auto* const first = static_cast<const std::byte*>(from);
  return Bytes(first, first + count);
}

template <class T>
T read(const Bytes& bytes) {
  T value{};
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

class Run final : public nn::TrainingRun {
 public:
  Run(const MakeNet& make, const Technique& technique, memory::Device device)
      : technique_(technique), generator_(7), scope_(generator_) {
    if (technique_.offloads || technique_.sends_state || technique_.offloads_gradients ||
        technique_.offloads_parameters) {
      tier_ = std::make_shared<memory::FileTier>(device, offload_test::options_at(offload_test::disk_folder(), 4096));
    }
    {
      const ParameterStoreScope store(technique_.offloads_parameters ? std::make_shared<memory::TierStore>(tier_)
                                                                     : nullptr);
      net_ = make(device);
    }
    if (technique_.offloads) net_->offload_to(tier_);
    optimizer_ = net_->make_optimizer();
    options_.clip_norm = technique_.clip_norm;
    options_.micro_batches = technique_.micro_batches;
    options_.micro_samples = net_->samples();
    options_.recording.plan = technique_.plan;
    options_.recording.times = &times_;
    options_.recording.watch = &hook_;
    options_.fuses_optimizer = technique_.fuses;
    if (technique_.offloads_gradients) options_.gradient_tier = tier_;
    scaler_ = net_->make_scaler();
    options_.scaler = scaler_.get();
  }

  void step() override {
    gradients_.assign(optimizer_->parameters().size(), {});
    complete_ = 0;
    if (technique_.sends_state) send_state_away();
    const Tensor loss = nn::training_step(
        *optimizer_,
        [this](std::int64_t i) {
          Tensor mean = technique_.forward(*net_, i);
          if (technique_.after_forward) technique_.after_forward(*net_);
          return mean;
        },
        options_);
    if (!loss.device().is_dry) loss_ = bytes_of(loss);
  }
  nn::StepOptions& options() override { return options_; }
  std::int64_t parameters() const override { return net_->parameter_count(); }

  /// The results of the last step, and the state after it.
  Trajectory noted(int step) const {
    Trajectory all{{step, Item::loss, "loss", loss_}};
    for (std::size_t i = 0; i < optimizer_->parameters().size(); ++i) {
      all.push_back({step, Item::gradient, optimizer_->parameters()[i].name, gradients_[i]});
    }
    all.push_back({step, Item::generator, "calls", calls_});
    for (Entry& entry : state(step)) all.push_back(std::move(entry));
    return all;
  }

  Trajectory state(int step = 0) const {
    const ParameterUse use;
    Trajectory all;
    for (const auto& [item, name, tensor] : tensors()) all.push_back({step, item, name, bytes_of(tensor)});
    const std::int64_t updates = optimizer_->step_count();
    all.push_back({step, Item::optimizer_state, "updates", bytes_of(&updates, sizeof updates)});
    if (scaler_) {
      all.push_back({step, Item::optimizer_state, "scaler", bytes_of(&scaler_->state(), sizeof scaler_->state())});
    }
    const std::uint64_t generator_step = generator_.step();
    all.push_back({step, Item::generator, "step", bytes_of(&generator_step, sizeof generator_step)});
    return all;
  }

  void restore(const Trajectory& state) {
    const ParameterUse use;
    const auto list = tensors();
    for (std::size_t i = 0; i < list.size(); ++i) {
      testing::put_bytes(std::get<2>(list[i]), state[i].bytes.data());
      if (const auto& storage = std::get<2>(list[i]).storage()) storage->bump_version();
    }
    optimizer_->set_step_count(read<std::int64_t>(state[list.size()].bytes));
    if (scaler_) scaler_->set_state(read<optim::GradScalerState>(state[list.size() + 1].bytes));
    generator_.set_step(read<std::uint64_t>(state.back().bytes));
  }

  bool has_gradient() const {
    const auto& list = optimizer_->parameters();
    return std::any_of(list.begin(), list.end(), [](const auto& p) { return p.tensor.grad().defined(); });
  }

  std::uint64_t away_bytes() const { return tier_ ? tier_->statistics().live_bytes : 0; }
  Figures figures(const memory::Stack& stack) const {
    Figures figures;
    figures.recomputed = static_cast<std::size_t>(
        std::count_if(times_.recompute.begin(), times_.recompute.end(), [](double seconds) { return seconds > 0; }));
    figures.activation_peak_bytes = stack.ledger->max_allocated(memory::Category::activation);
    figures.gradient_peak_bytes = stack.ledger->max_allocated(memory::Category::gradient);
    figures.parameter_peak_bytes = stack.ledger->max_allocated(memory::Category::parameter);
    figures.moved_blocks = stack.arena->statistics().moved_blocks;
    if (tier_) figures.tier_writes = tier_->statistics().writes;
    if (stack.placed) figures.placed = stack.placed->statistics();
    return figures;
  }

 private:
  std::vector<std::tuple<Item, std::string, Tensor>> tensors() const {
    std::vector<std::tuple<Item, std::string, Tensor>> list;
    for (const auto& p : net_->parameters()) list.emplace_back(Item::parameter, p.name, p.tensor);
    for (const auto& b : net_->buffers()) list.emplace_back(Item::statistics, b.name, b.tensor);
    for (const auto& s : optimizer_->state()) list.emplace_back(Item::optimizer_state, s.name, s.tensor);
    return list;
  }

  void note_gradient(const std::shared_ptr<tape::Leaf>& leaf) {
    const auto& list = optimizer_->parameters();
    const auto found =
        std::find_if(list.begin(), list.end(), [&](const optim::Named& p) { return p.tensor.leaf() == leaf; });
    if (found == list.end()) return;
    if (leaf->grad.defined() && !leaf->grad.device().is_dry) {
      gradients_[static_cast<std::size_t>(found - list.begin())] = bytes_of(leaf->grad);
    }
    note_calls();
    const auto all = list.size() * static_cast<std::size_t>(options_.micro_batches);
    if (++complete_ == all && technique_.before_update) technique_.before_update(*net_);
  }

  // The site of the next random call under every path, which counts the calls so far.
  void note_calls() {
    RandomGenerator copy = generator_;
    std::vector<std::uint32_t> sites;
    for (const PathId path : net_->random_paths()) sites.push_back(copy.next_site(path).site);
    calls_ = bytes_of(sites.data(), sites.size() * sizeof(std::uint32_t));
  }

  void send_state_away() {
    for (const auto& [item, name, tensor] : tensors()) {
      memory::Offloaded away = memory::offload(clone(tensor), tier_);
      away.complete();
      const Tensor back = away.fetch();
      testing::put_bytes(tensor, Bytes(tensor.bytes(), std::byte{0xFF}).data());
      copy_into(tensor, back);
    }
  }

  Technique technique_;
  RandomGenerator generator_;
  GeneratorScope scope_;
  std::shared_ptr<memory::FileTier> tier_;
  std::unique_ptr<Net> net_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<optim::GradScaler> scaler_;
  nn::StepOptions options_;
  TapeTimes times_;
  Bytes loss_, calls_;
  std::vector<Bytes> gradients_;  // of the step, per parameter
  std::size_t complete_ = 0;      // gradients that are complete
  std::function<void(const std::shared_ptr<tape::Leaf>&)> note_ = [this](const std::shared_ptr<tape::Leaf>& leaf) {
    note_gradient(leaf);
  };
  LeafHook hook_ = note_;
};

std::vector<memory::StepPlacement> placement_of(const MakeNet& make, const Technique& technique,
                                                memory::Device device) {
  if (!technique.is_placed || !technique.placement.empty()) return technique.placement;
  return nn::plan_steps(device, make_runs(make, technique));
}

memory::Options memory_options(const Technique& technique) {
  memory::Options options;
  options.arena.poison = true;
  if (technique.moves_blocks) options.arena.compaction = memory::Arena::Compaction::before_every_allocation;
  return options;
}

void run_segment(Net& net, FatePolicy policy, std::size_t begin, std::size_t end, std::int64_t micro_batch, Tensor& x) {
  const SegmentScope segment(policy);
  const std::size_t middle = begin + (end - begin) / 2;
  if (end - begin == 1) {
    x = net.run(begin, x, micro_batch);
  } else {
    run_segment(net, policy, begin, middle, micro_batch, x);
    run_segment(net, policy, middle, end, micro_batch, x);
  }
}

/// Whether OutOfMemory is nested in the error.
bool is_from_memory(const nn::PartialUpdateError& error) {
  try {
    std::rethrow_if_nested(error);
  } catch (const OutOfMemory&) {
    return true;
  } catch (...) {
  }
  return false;
}

bool is_clean(const ThreadContext& now) {
  return now.tape == nullptr && now.transaction == nullptr && !now.is_recomputing && now.path == 0;
}

}  // namespace

Tensor run_plain(Net& net, std::int64_t micro_batch) {
  Tensor x = net.input(micro_batch);
  for (std::size_t i = 0; i < net.stage_count(); ++i) x = net.run(i, x, micro_batch);
  return x;
}

Forward every_kth(std::size_t k, FatePolicy policy) {
  return [=](Net& net, std::int64_t micro_batch) {
    Tensor x = net.input(micro_batch);
    for (std::size_t begin = 0; begin < net.stage_count(); begin += k) {
      const SegmentScope segment(policy);
      for (std::size_t i = begin; i < std::min(begin + k, net.stage_count()); ++i) x = net.run(i, x, micro_batch);
    }
    return x;
  };
}

Forward square_root(FatePolicy policy) {
  return [=](Net& net, std::int64_t micro_batch) {
    const double root = std::ceil(std::sqrt(static_cast<double>(net.stage_count())));
    return every_kth(static_cast<std::size_t>(root), policy)(net, micro_batch);
  };
}

Forward nested(FatePolicy policy) {
  return [=](Net& net, std::int64_t micro_batch) {
    Tensor x = net.input(micro_batch);
    run_segment(net, policy, 0, net.stage_count(), micro_batch, x);
    return x;
  };
}

nn::MakeRun make_runs(const MakeNet& make, const Technique& technique) {
  return [=](memory::Device device) { return std::make_unique<Run>(make, technique, device); };
}

Training train(const MakeNet& make, const Technique& technique, int steps, memory::Device device) {
  memory::Options options = memory_options(technique);
  options.plans = placement_of(make, technique, device);
  const memory::Stack stack = memory::make_resource(device, std::move(options));
  Training training;
  {
    const ResourceScope scope(stack.top);
    Run run(make, technique, device);
    for (int i = 0; i < steps; ++i) {
      if (stack.placed) stack.placed->begin_step();
      run.step();
      if (stack.placed) stack.placed->end_step();
      for (Entry& entry : run.noted(i)) training.trajectory.push_back(std::move(entry));
    }
    training.figures = run.figures(stack);
  }
  training.figures.leaked_bytes = stack.ledger->bytes();
  return training;
}

bool Certificate::names(Item item, int step) const {
  return std::any_of(differences.begin(), differences.end(),
                     [&](const Difference& d) { return d.kind == item && (step < 0 || d.step == step); });
}

std::string Certificate::text() const {
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(differences.size(), 10); ++i) {
    const Difference& d = differences[i];
    text += "step " + std::to_string(d.step) + ": " + std::string(to_string(d.kind)) + " " + d.name + "\n";
  }
  return text;
}

std::vector<Difference> compare(const Trajectory& plain, const Trajectory& other) {
  const auto digests = [](const Trajectory& entries) {
    nn::Trajectory all;
    for (const Entry& entry : entries) {
      nn::DigestStream digest;
      digest.add(entry.bytes.data(), entry.bytes.size());
      all.push_back({entry.step, entry.item, entry.name, entry.bytes.size(), digest.value()});
    }
    return all;
  };
  return nn::compare(digests(plain), digests(other));
}

Certificate Certifier::certify(const Technique& technique) {
  Training& plain = plain_[{technique.micro_batches, technique.clip_norm}];
  if (plain.trajectory.empty()) {
    const ThreadScope one(1);
    Technique without;
    without.micro_batches = technique.micro_batches;
    without.clip_norm = technique.clip_norm;
    plain = train(make_, without, certified_steps, device_);
  }
  const Training other = train(make_, technique, certified_steps, device_);
  return {compare(plain.trajectory, other.trajectory), plain.figures, other.figures};
}

std::vector<std::shared_ptr<const TapePlan>> draw_plans(const MakeNet& make, const Technique& technique,
                                                        std::size_t count, std::uint64_t seed, memory::Device device) {
  TapeGraph graph;
  {
    const memory::Stack stack = memory::make_resource(dry(device), nn::profile_options(dry(device)));
    const ResourceScope scope(stack.top);
    Run run(make, technique, dry(device));
    run.options().recording.graph = &graph;
    run.step();
  }
  random_plans::Random random(seed);
  std::vector<std::shared_ptr<const TapePlan>> plans;
  for (std::size_t i = 0; i < count; ++i) {
    plans.push_back(std::make_shared<TapePlan>(random_plans::random_plan(graph, random)));
  }
  return plans;
}

FailureWalk walk_failures(const MakeNet& make, const Technique& technique, FailPlace place, memory::Device device) {
  memory::Options options = memory_options(technique);
  const bool is_below = place == FailPlace::below_placed;
  std::vector<memory::StepPlacement> plans = placement_of(make, technique, device);
  if (!is_below) options.plans = plans;
  memory::Stack stack = memory::make_resource(device, std::move(options));
  const auto fail = std::make_shared<memory::FailAt>(stack.top, 0);
  if (is_below) stack.placed = std::make_shared<memory::PlacedArena>(fail, std::move(plans));
  const ResourceScope scope(is_below ? std::shared_ptr<memory::Resource>(stack.placed) : fail);
  Run run(make, technique, device);

  // Step 0, or step 1 with the k-th request failing. A placed arena takes its region anew each time.
  const auto step = [&](std::size_t index, std::uint64_t k) {
    if (stack.placed) stack.placed->release_region();
    fail->arm(k);
    if (stack.placed) stack.placed->begin_step(index);
    struct End {
      memory::PlacedArena* placed;
      ~End() {
        if (placed) placed->end_step();
      }
    } const end{stack.placed.get()};
    run.step();
  };
  const auto bytes_now = [&] {
    if (stack.placed) stack.placed->release_region();
    return stack.ledger->bytes() + run.away_bytes();
  };
  FailureWalk walk;
  step(0, 0);
  const Trajectory before = run.state();
  const std::size_t bytes_before = bytes_now();
  step(1, 0);
  walk.requests = fail->request_count();
  const Trajectory after = run.noted(1);
  for (std::uint64_t k = 1; k <= walk.requests; ++k) {
    run.restore(before);
    try {
      step(1, k);
      ++walk.untyped;
    } catch (const OutOfMemory& error) {
      ++(error.facts().requested_bytes == 0 ? walk.untyped : run.state() == before ? walk.clean : walk.changed);
    } catch (const nn::PartialUpdateError& error) {
      const bool is_partial = error.updated() > 0 && error.updated() < error.parameters() && is_from_memory(error);
      ++(is_partial ? walk.partial : walk.untyped);
      run.restore(before);
    } catch (...) {
      ++walk.untyped;
    }
    if (bytes_now() != bytes_before) ++walk.leaked;
    if (run.has_gradient() || !is_clean(context())) ++walk.leftovers;
    step(1, 0);
    if (run.noted(1) != after) ++walk.different;
  }
  walk.figures = run.figures(stack);
  return walk;
}

}  // namespace thimble::certificate
