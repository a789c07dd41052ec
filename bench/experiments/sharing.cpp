// Experiment: convolutions that share their kernels: how many parameters that leaves, and how much memory.

#include <thimble/autograd/functions/matmul.h>
#include <thimble/bench/experiments/experiments.h>
#include <thimble/bench/experiments/techniques.h>
#include <thimble/bench/report/text.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/models/theory.h>
#include <thimble/nn/layers/shared_conv.h>

namespace thimble::bench {
namespace {

constexpr std::int64_t kernel = 3;

/// `layers` convolutions of `width` to `width` channels that share a basis of `rank` kernels.
struct Stack {
  std::int64_t width, layers, rank;

  std::int64_t own_parameters() const { return layers * width * width * kernel * kernel; }
  std::int64_t shared_parameters() const { return rank * width * kernel * kernel + layers * width * rank; }
};

/// Bytes booked when everything is made, and the process at that time.
struct Booked {
  std::size_t bytes;
  ProcessBytes process;
};

Booked booked_parameters(memory::Device device, const Stack& stack) {
  const memory::Stack resources = memory::make_resource(device, nn::profile_options(device));
  const PartWatch watch(device);
  const ResourceScope scope(resources.top);
  const Tensor basis = nn::make_kernel_basis(stack.rank, stack.width, kernel, {device});
  std::vector<std::unique_ptr<nn::SharedConv2d>> layers;
  for (std::int64_t i = 0; i < stack.layers; ++i) {
    layers.push_back(
        std::make_unique<nn::SharedConv2d>(stack.width, basis, Conv2dOptions{.padding = 1}, nn::TensorOptions{device}));
  }
  return {resources.ledger->bytes(memory::Category::parameter), watch.bytes(*resources.arena, 0)};
}

Figures booked_figures(std::int64_t theory, const Both<Booked>& booked) {
  return {.theory = theory,
          .predicted = booked.predicted.bytes,
          .measured = booked.measured.bytes,
          .processes = {{booked.predicted.process.arena_bytes, booked.measured.process}}};
}

Figures stack_figures(const Rows& rows, const Stack& stack) {
  Figures figures = booked_figures(4 * stack.shared_parameters(),
                                   rows.both([&](memory::Device d) { return booked_parameters(d, stack); }));
  const auto shared = static_cast<double>(stack.shared_parameters());
  figures.numbers = {{"parameters", shared}, {"of_own", shared / static_cast<double>(stack.own_parameters())}};
  return figures;
}

/// Live before the first step: weights, statistics, the optimizer's moments.
Booked booked_state(memory::Device device, const models::Setup& setup) {
  const memory::Stack resources = memory::make_resource(device, nn::profile_options(device));
  const PartWatch watch(device);
  const ResourceScope scope(resources.top);
  const auto model = models::make_model(setup.model, setup.sizes, {device, setup.precision.dtype});
  const auto optimizer = make_optimizer(setup, *model);
  return {resources.ledger->bytes(), watch.bytes(*resources.arena, 0)};
}

Figures network_figures(const Rows& rows, const models::Setup& setup) {
  constexpr std::int64_t moments = 2;
  const models::ModelState state = models::make_theory(setup.model, setup.sizes, setup.precision.dtype).state(moments);
  Figures figures = booked_figures(state.parameters + state.buffers + state.optimizer,
                                   rows.both([&](memory::Device device) { return booked_state(device, setup); }));
  const Comparison peaks = compare(rows.options.device, technique_run(setup, {}));
  figures.numbers = {
      {"parameters", state.parameter_elements},     {"kept", pass_bytes(dry(rows.options.device), setup, {}).kept},
      {"live", peaks.predicted.peak_live_bytes},    {"peak", peaks.predicted.peak_bytes},
      {"peak_measured", peaks.measured.peak_bytes}, {"ms_per_step", peaks.measured.ms_per_step}};
  figures.processes.emplace_back(peaks.predicted.peak_bytes, process_bytes(peaks.measured));
  return figures;
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

}  // namespace

std::string run_sharing(Rows& rows) {
  for (const std::int64_t rank : {16, 21, 48}) {
    for (const std::int64_t layers : {1, 4}) {
      const Stack stack{64, layers, rank};
      rows.add({{"what", std::to_string(layers) + " x conv 64 -> 64, 3x3"},
                {"kernels", "shared, rank " + std::to_string(rank)}},
               [&] { return stack_figures(rows, stack); });
    }
  }
  std::vector<report::Row> networks;
  std::string findings;
  for (const std::int64_t batch : rows.sizes<std::vector<std::int64_t>>({1, 8}, {1, 8, 64})) {
    const std::int64_t width = rows.sizes(16, 32);
    for (const bool shares : {false, true}) {
      const models::Setup setup = setup_of("sharedconv", batch, {.width = width, .shares_kernels = shares}, "adam");
      networks.push_back(
          rows.add({{"what", "sharedconv, width " + std::to_string(width) + ", batch " + std::to_string(batch)},
                    {"kernels", shares ? "shared, rank 3/4 width" : "own"}},
                   [&] { return network_figures(rows, setup); }));
    }
    const auto share = [&](const char* name) {
      return number(networks.back(), name) / number(networks[networks.size() - 2], name);
    };
    rows.experiment.rows.back().numbers.emplace_back("of_own", share("parameters"));
    if (findings.empty()) {
      findings = "Sharing leaves " + report::format_percent(share("parameters")) + " of the parameters and " +
                 report::format_percent(share("kept")) + " of what is kept for backward; of the live bytes at the peak";
    }
    findings += (networks.size() == 2 ? " " : ", ") + report::format_percent(share("live")) + " at a batch of " +
                std::to_string(batch);
  }
  return findings +
         ". A combination of basis kernels comes out ordered by input, a convolution wants it ordered by output: left "
         "as it is, one of 16 to 32 channels " +
         (takes_kernels_in_the_order_of_the_basis(16, 32) ? "takes" : "refuses") + " it, one of 16 to 16 " +
         (takes_kernels_in_the_order_of_the_basis(16, 16) ? "takes it in silence, with inputs and outputs exchanged"
                                                          : "refuses it as well") +
         ". Peaks are predicted as measured in " +
         count_rows(networks, [](const auto& row) { return value(row, "peak") == value(row, "peak_measured"); }) +
         " networks.";
}

}  // namespace thimble::bench
