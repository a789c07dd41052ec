// Experiment: convolutions that share their kernels: how many parameters that leaves, and how much memory.

#include <thimble/autograd/functions/matmul.h>
#include <thimble/bench/experiments/experiments.h>
#include <thimble/bench/experiments/runs.h>
#include <thimble/bench/experiments/techniques.h>
#include <thimble/bench/report/text.h>
#include <thimble/core/error.h>
#include <thimble/core/tensor/copy.h>
#include <thimble/models/theory.h>
#include <thimble/nn/layers/shared_conv.h>

namespace thimble::bench {
namespace sharing_detail {

constexpr std::int64_t kernel = 3;

/// `layers` convolutions of `width` to `width` channels that share a basis of `rank` kernels.
struct Stack {
  std::int64_t width, layers, rank;

  std::int64_t own_parameters() const { return layers * width * width * kernel * kernel; }
  std::int64_t shared_parameters() const { return rank * width * kernel * kernel + layers * width * rank; }
};

/// What is booked when all is made, and the process by then.
struct Booked {
  std::size_t bytes;
  ProcessBytes process;
};

Booked booked_parameters(Device device, const Stack& stack) {
  const memory::Stack resources = memory::make_resource(device, nn::profile_options(device));
  const PartWatch watch(device);
  const ResourceScope scope(resources.top);
  const Tensor basis = nn::make_kernel_basis(stack.rank, stack.width, kernel, {device});
  std::vector<std::unique_ptr<nn::SharedConv2d>> layers;
  for (std::int64_t i = 0; i < stack.layers; ++i) {
    layers.push_back(
        std::make_unique<nn::SharedConv2d>(stack.width, basis, Conv2dOptions{.padding = 1}, nn::TensorOptions{device}));
  }
  return {resources.ledger->bytes(Category::parameter), watch.bytes(*resources.arena, 0)};
}

void add_booked(report::Row& row, const Booked& predicted, const Booked& measured) {
  row.predicted_bytes = static_cast<std::int64_t>(predicted.bytes);
  row.measured_bytes = static_cast<std::int64_t>(measured.bytes);
  add_process(row, predicted.process.arena_bytes, measured.process);
}

report::Row row_of(const ExperimentOptions& options, const Stack& stack) {
  report::Row row;
  row.config = {{"what", std::to_string(stack.layers) + " x conv " + std::to_string(stack.width) + " -> " +
                             std::to_string(stack.width) + ", 3x3"},
                {"kernels", "shared, rank " + std::to_string(stack.rank)}};
  row.theory_bytes = 4 * stack.shared_parameters();
  add_booked(row, booked_parameters(dry(options.device), stack), booked_parameters(options.device, stack));
  row.numbers = {
      {"parameters", static_cast<double>(stack.shared_parameters())},
      {"of_own", static_cast<double>(stack.shared_parameters()) / static_cast<double>(stack.own_parameters())}};
  return row;
}

/// What lives before the first step: weights, statistics, the optimizer's moments.
Booked booked_state(Device device, const models::Setup& setup) {
  const memory::Stack resources = memory::make_resource(device, nn::profile_options(device));
  const PartWatch watch(device);
  const ResourceScope scope(resources.top);
  const auto model = models::make_model(setup.model, setup.sizes, {device, setup.dtype});
  const auto optimizer = make_optimizer(setup, *model);
  return {resources.ledger->bytes(), watch.bytes(*resources.arena, 0)};
}

models::Setup network(std::int64_t width, std::int64_t batch, bool shares_kernels) {
  models::Setup setup;
  setup.model = "sharedconv";
  setup.batch = batch;
  setup.optimizer = "adam";
  setup.sizes.width = width;
  setup.sizes.shares_kernels = shares_kernels;
  return setup;
}

report::Row row_of(const ExperimentOptions& options, const models::Setup& setup) {
  report::Row row;
  row.config = {
      {"what", "sharedconv, width " + std::to_string(setup.sizes.width) + ", batch " + std::to_string(setup.batch)},
      {"kernels", std::string(setup.sizes.shares_kernels ? "shared, rank 3/4 width" : "own")}};
  constexpr std::int64_t moments = 2;
  const models::ModelState state = models::make_theory(setup.model, setup.sizes, setup.dtype).state(moments);
  row.theory_bytes = state.parameters + state.buffers + state.optimizer;
  add_booked(row, booked_state(dry(options.device), setup), booked_state(options.device, setup));
  const Comparison peaks = compare(options.device, technique_run(setup, {}));
  const PassBytes pass = pass_bytes(dry(options.device), setup, {});
  row.numbers = {{"parameters", static_cast<double>(state.parameter_elements)},
                 {"kept", static_cast<double>(pass.kept)},
                 {"live", static_cast<double>(peaks.predicted.peak_live_bytes)},
                 {"peak", static_cast<double>(peaks.predicted.peak_bytes)},
                 {"peak_measured", static_cast<double>(peaks.measured.peak_bytes)},
                 {"ms_per_step", peaks.measured.ms_per_step}};
  add_process(row, peaks.predicted.peak_bytes, process_bytes(peaks.measured));
  return row;
}

/// Whether a convolution of `in` to `out` channels takes kernels that were combined from a basis (r, out, k, k) with
/// coefficients (in, r) and left in that order: (in, k, k, out), where it wants (out, k, k, in).
bool takes_kernels_in_the_order_of_the_basis(std::int64_t in, std::int64_t out) {
  const Tensor x = zeros({1, 8, 8, in}, DType::f32, dry(cpu));
  const Tensor combined = zeros({in, kernel, kernel, out}, DType::f32, dry(cpu));
  try {
    conv2d(x, combined, {}, {.padding = 1});
    return true;
  } catch (const ShapeError&) {
    return false;
  }
}

}  // namespace sharing_detail

report::Experiment sharing_experiment(const ExperimentOptions& options) {
  using namespace sharing_detail;
  report::Experiment experiment;
  experiment.name = "sharing";
  experiment.title = "Shared kernels";
  experiment.question = "How much memory does a network save whose convolutions share a third of the parameters?";
  experiment.theory =
      "a basis of <i>r</i> kernels for <i>L</i> convolutions of <i>in</i> to <i>out</i> channels costs "
      "<i>r out k</i><sup>2</sup> + <i>L in r</i> numbers instead of <i>L in out k</i><sup>2</sup>. Weights, gradients "
      "and moments shrink with it; what is kept for backward does not, and the expanded kernels come on top. Rows of "
      "networks show weights, statistics and Adam's moments; those of convolutions the weights.";
  using report::Unit;
  experiment.columns = {{"parameters", "parameters", Unit::plain, 0},
                        {"of_own", "of those with own kernels", Unit::percent, 1},
                        {"kept", "kept for backward", Unit::bytes},
                        {"live", "live bytes at the step's peak", Unit::bytes},
                        {"peak", "peak of the step", Unit::bytes},
                        {"peak_measured", "the same, measured", Unit::bytes},
                        {"ms_per_step", "ms per step", Unit::milliseconds, 1}};
  for (const std::int64_t rank : {16, 21, 48}) {
    for (const std::int64_t layers : {1, 4}) experiment.rows.push_back(row_of(options, Stack{64, layers, rank}));
  }
  std::string findings;
  std::size_t equal = 0, networks = 0;
  const std::vector<std::int64_t> batches =
      options.is_quick ? std::vector<std::int64_t>{1, 8} : std::vector<std::int64_t>{1, 8, 64};
  for (const std::int64_t batch : batches) {
    const auto row = [&](bool shares) {
      options.progress("sharing: batch " + std::to_string(batch) + (shares ? ", shared kernels" : ", own kernels"));
      return row_of(options, network(options.is_quick ? 16 : 32, batch, shares));
    };
    const report::Row own = row(false);
    report::Row shared = row(true);
    const auto share = [&](const char* name) { return *find_number(shared, name) / *find_number(own, name); };
    shared.numbers.insert(shared.numbers.begin() + 1, {"of_own", share("parameters")});
    const auto percent = [](double value) { return report::format_quantity(value, Unit::percent, 1); };
    if (findings.empty()) {
      findings = "Sharing leaves " + percent(share("parameters")) + " of the parameters and " + percent(share("kept")) +
                 " of what is kept for backward; of the live bytes at the peak";
    }
    findings +=
        (batch == batches.front() ? " " : ", ") + percent(share("live")) + " at a batch of " + std::to_string(batch);
    for (const report::Row& one : {own, shared}) {
      equal += find_number(one, "peak") == find_number(one, "peak_measured") ? 1 : 0;
      ++networks;
      experiment.rows.push_back(one);
    }
  }
  experiment.verdict =
      findings +
      ". A combination of basis kernels comes out ordered by input, a convolution wants it "
      "ordered by output: left as it is, one of 16 to 32 channels " +
      (takes_kernels_in_the_order_of_the_basis(16, 32) ? "takes" : "refuses") + " it, one of 16 to 16 " +
      (takes_kernels_in_the_order_of_the_basis(16, 16) ? "takes it in silence, with inputs and outputs exchanged"
                                                       : "refuses it as well") +
      ". Peaks are predicted as measured in " + std::to_string(equal) + " of " + std::to_string(networks) +
      " networks.";
  return experiment;
}

}  // namespace thimble::bench
