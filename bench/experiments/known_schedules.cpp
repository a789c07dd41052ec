// Experiment: the known schedules on a network of 100 equal blocks, run on a tape: forwards and bytes are the theory's.

#include <algorithm>
#include <numeric>

#include <thimble/autograd/apply.h>
#include <thimble/autograd/functions.h>
#include <thimble/bench/experiments/experiments.h>
#include <thimble/bench/experiments/techniques.h>
#include <thimble/core/kernels/functors/elementwise_functors.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/elementwise/elementwise.h>
#include <thimble/core/ops/random.h>
#include <thimble/memory/remat/schedule.h>

namespace thimble::bench {
namespace {

constexpr std::int64_t samples = 64, width = 32;
constexpr std::int64_t unit_bytes = samples * width * 4;  // an activation, or its gradient
constexpr std::int64_t weight_bytes = width * width * 4;  // of a block

/// y = relu(x W^T) as one operator that counts how often it runs forward. Keeps x and y.
struct Block {
  static constexpr const char* name = "block";
  static constexpr ops::Cost cost = ops::Cost::matmul;
  struct Saved {
    Tensor x, weight, y;
  };
  std::vector<int>* runs;
  std::size_t index;

  Tensor forward(const Tensor& x, const Tensor& weight, ops::Needs needs, Saved& saved) const {
    ++(*runs)[index];
    const NoGrad off;
    Tensor y = relu(linear(x, weight));
    if (needs.any()) saved = {x, weight, y};
    return y;
  }
  // The gradient of the product takes the place of dy; both others are new.
  ops::Gradients backward(Saved saved, Tensor dy, ops::Needs needs) const {
    const NoGrad off;
    Elementwise<ops::Relu>::Saved of_relu;
    of_relu.out = saved.y, of_relu.lhs_shape = saved.y.shape();
    const Tensor dz = Elementwise<ops::Relu>().backward(std::move(of_relu), std::move(dy), ops::Needs(1))[0];
    return {needs[0] ? matmul(dz, saved.weight) : Tensor(), matmul(dz, saved.x, true, false)};
  }
};

/// Forwards and bytes of the tape under one plan.
struct Outcome {
  std::vector<int> runs;         ///< forwards of each block
  std::size_t kept = 0;          ///< activations when backward begins
  std::size_t peak = 0;          ///< activations and temporaries at most, without the loss
  ProcessBytes process;          ///< of forward and backward
  std::vector<float> gradients;  ///< of the first block's weight; empty on a dry device
};

/// `blocks` times x -> relu(x weight), each under its own path, and the mean of the result.
Outcome run(memory::Device device, std::size_t blocks, std::shared_ptr<const TapePlan> plan,
            TapeGraph* graph = nullptr) {
  memory::Options options = nn::profile_options(device);
  options.trace = true;
  const memory::Stack stack = memory::make_resource(device, std::move(options));
  const PartWatch watch(device);
  const ResourceScope scope(stack.top);
  RandomGenerator generator(11);
  const GeneratorScope random(generator);
  std::vector<Tensor> weights;
  for (std::size_t i = 0; i < blocks; ++i) {
    weights.push_back(clone(randn({width, width}, DType::f32, device), memory::Category::parameter));
    weights.back().require_grad();
  }
  const Tensor input = randn({samples, width}, DType::f32, device);
  Outcome outcome;
  outcome.runs.assign(blocks, 0);
  Tape tape;
  tape.follow(std::move(plan));
  if (graph) tape.observe();
  Tensor loss;
  {
    const Recording on(tape);
    Tensor x = input;
    for (std::size_t i = 0; i < blocks; ++i) {
      const PathScope path("block." + std::to_string(i));
      x = apply(Block{&outcome.runs, i}, x, weights[i]);
    }
    loss = mean(x);
  }
  if (graph) {
    *graph = TapeGraph::of(tape);
    return outcome;
  }
  outcome.kept = stack.ledger->bytes(memory::Category::activation);
  const std::size_t nodes = tape.node_count();
  tape.backward(loss);
  outcome.process = watch.bytes(*stack.arena, nodes);
  for (const memory::CategoryBytes& bytes : timeline(stack.trace->events())) {
    const auto of = [&](memory::Category category) {
      return static_cast<std::size_t>(bytes[static_cast<std::size_t>(category)]);
    };
    outcome.peak = std::max(outcome.peak, of(memory::Category::activation) + of(memory::Category::temporary));
  }
  outcome.peak -= loss.bytes();
  if (!device.is_dry) outcome.gradients = to_host<float>(weights.front().grad());
  return outcome;
}

/// The network as a chain. A block keeps its input and result and nothing inside; its forward holds the product
/// beside the result, its backward the weight's gradient until the leaf has it.
remat::Chain chain_of(std::size_t blocks) {
  remat::Chain chain = remat::homogeneous_chain(blocks, unit_bytes, 0, 1, 2);
  chain.input_gradient_bytes = 0;
  for (remat::Stage& stage : chain.stages) {
    stage.forward_peak_bytes = unit_bytes;
    remat::Option& option = stage.options.front();
    option.keeps_output = true;
    option.forward_peak_bytes = unit_bytes;
    option.backward_peak_bytes = weight_bytes;
  }
  return chain;
}

struct Schedule {
  std::string name;
  remat::ScheduleTree plan;
  std::int64_t forwards;  ///< by the closed formula
};

/// Forwards that the halves of halves of n blocks pass without recording: A(n) = h + A(h) + A(n - h), h = ceil(n / 2).
std::int64_t halves_passes(std::int64_t n) {
  if (n < 2) return 0;
  const std::int64_t half = (n + 1) / 2;
  return half + halves_passes(half) + halves_passes(n - half);
}

std::vector<Schedule> schedules(std::size_t n) {
  const auto count = static_cast<std::int64_t>(n);
  std::size_t root = 1;
  while (root * root < n) ++root;
  // Every segment but the last is run a second time.
  const auto last = static_cast<std::int64_t>((n - 1) % root + 1);
  std::vector<Schedule> list{{"keep all", remat::keep_all(n), count},
                             {"sqrt(n)", remat::square_root(n), 2 * count - last},
                             {"each block", remat::every_kth(n, 1), 2 * count - 1},
                             {"halves of halves", remat::recursive_halves(n), count + halves_passes(count)}};
  for (const std::size_t slots : {1, 2, 3, 5, 10}) {
    list.push_back({"binomial, " + std::to_string(slots) + (slots == 1 ? " slot" : " slots"), remat::binomial(n, slots),
                    count + remat::revolve_forward_count(n, slots)});
  }
  return list;
}

}  // namespace

std::string run_known_schedules(Rows& rows) {
  constexpr std::size_t blocks = 100;
  TapeGraph graph;
  run(dry(rows.options.device), blocks, nullptr, &graph);
  const std::vector<std::uint32_t> cuts = block_cuts(graph, "block.");
  const remat::Chain chain = chain_of(blocks);
  std::vector<float> plain;
  std::size_t exact = 0;
  for (const Schedule& schedule : schedules(blocks)) {
    rows.add({{"schedule", schedule.name}}, [&] {
      const auto plan = std::make_shared<TapePlan>(tape_plan_of(graph, cuts, schedule.plan));
      const auto [predicted, measured] = rows.both([&](memory::Device device) { return run(device, blocks, plan); });
      if (plain.empty()) plain = measured.gradients;
      const std::int64_t forwards = std::accumulate(measured.runs.begin(), measured.runs.end(), std::int64_t{0});
      const remat::Bytes theory = remat::simulate(chain, schedule.plan).peak_bytes;
      const bool has_same_gradients = measured.gradients == plain;
      exact += forwards == schedule.forwards && predicted.runs == measured.runs && has_same_gradients &&
               theory == static_cast<remat::Bytes>(predicted.peak) && predicted.peak == measured.peak;
      return Figures{.theory = theory,
                     .predicted = predicted.peak,
                     .measured = measured.peak,
                     .numbers = {{"forwards_theory", schedule.forwards},
                                 {"forwards", forwards},
                                 {"kept", measured.kept},
                                 {"units", static_cast<double>(measured.peak) / unit_bytes},
                                 {"same_gradients", has_same_gradients ? 1 : 0}},
                     .processes = {{predicted.process.arena_bytes, measured.process}}};
    });
  }
  return "Forwards and peak bytes are the theory's, predicted and measured, and the gradients the same bits in " +
         std::to_string(exact) + " of " + std::to_string(rows.experiment.rows.size()) + " schedules.";
}

}  // namespace thimble::bench
