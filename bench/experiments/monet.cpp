// Experiment: the table of MONeT (Shah et al. 2021, arXiv:2010.14501), the budgets of five nets with branches and long
// skips, planned on a dry device.
//
// The published bytes and times are from monet/schedule.py --check_runtime and examples/check_runtime_original.py in
// github.com/utsaslab/MONeT: parameters, input, activations, gradients (freed after each step) and cuDNN's workspaces,
// U-Net at 416x608 with one class, no loss but a sum.

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <thimble/autograd/functions.h>
#include <thimble/bench/experiments/runs.h>
#include <thimble/core/tensor/copy.h>
#include <thimble/memory/process/process.h>
#include <thimble/memory/units.h>
#include <thimble/models/convnets/convnets.h>
#include <thimble/models/model.h>
#include <thimble/nn/fit/fit.h>
#include <thimble/optim/sgd.h>

namespace thimble::bench {
namespace monet_detail {

/// A module as a function of images (N, H, W, 3).
struct Net {
  std::unique_ptr<nn::Module> module;
  std::function<Tensor(const Tensor&)> forward;
};

template <class Layer, class... Arguments>
Net layer(Arguments&&... arguments) {
  auto made = std::make_unique<Layer>(std::forward<Arguments>(arguments)...);
  Layer& net = *made;
  return {std::move(made), [&net](const Tensor& images) { return net(images); }};
}

Net named(const char* name, memory::Device device) {
  std::unique_ptr<models::Model> made = models::make_model(name, {}, {device});
  models::Model& net = *made;
  return {std::move(made), [&net](const Tensor& images) { return net.forward(images); }};
}

/// What a cell publishes: GiB that PyTorch's allocator hands out at most in steps 100 to 120 (max_memory_allocated), of
/// forward and backward without a loss and an optimizer, and how many percent longer than PyTorch 1.5.1 they take.
struct Cell {
  double gib, percent;
};

struct Table {
  const char* net;
  std::int64_t batch, height, width;
  double pytorch_gib;  ///< of PyTorch, which keeps everything
  /// Without batch norm the step of a batch is that of its micro-batches.
  bool cuts_batch;
  std::int64_t measured_batch;  ///< of rows that also run; 0: none do
  Net (*make)(memory::Device device);
  std::vector<Cell> cells;
};

const std::vector<Table>& tables() {
  const auto unet = [](memory::Device device) { return layer<models::UNet>(3, 1, nn::TensorOptions{device}); };
  const auto mobilenet = [](memory::Device device) {
    return layer<models::MobileNetV2>(1000, nn::TensorOptions{device});
  };
  const auto vgg = [](memory::Device device) { return layer<models::Vgg16>(1000, nn::TensorOptions{device}); };
  const auto resnet = [](memory::Device device) { return named("resnet50", device); };
  const auto googlenet = [](memory::Device device) { return named("googlenet", device); };
  static const std::vector<Table> list{
      {"ResNet-50",
       184,
       224,
       224,
       15.06,
       false,
       16,
       resnet,
       {{10.01, 3.22}, {9.01, 4.68}, {8.01, 5.56}, {6.99, 7.28}, {6.00, 9.31}, {4.99, 11.95}}},
      {"GoogLeNet",
       320,
       224,
       224,
       14.93,
       false,
       16,
       googlenet,
       {{9.98, 7.13}, {8.99, 7.87}, {8.01, 8.44}, {7.02, 9.71}, {6.01, 12.14}, {4.99, 15.77}}},
      {"U-Net",
       11,
       416,
       608,
       14.32,
       false,
       1,
       unet,
       {{10.01, -4.10}, {9.01, -2.07}, {8.02, -0.09}, {7.00, 1.39}, {6.01, 4.95}, {5.01, 11.51}}},
      {"MobileNet-V2",
       272,
       224,
       224,
       14.46,
       false,
       16,
       mobilenet,
       {{10.02, 2.40}, {9.01, 3.10}, {8.02, 4.77}, {7.01, 5.53}, {6.01, 7.55}, {5.01, 8.72}}},
      {"VGG-16",
       176,
       224,
       224,
       14.12,
       true,
       0,
       vgg,
       {{9.71, -5.30}, {8.66, -4.64}, {7.88, -2.18}, {6.82, 1.99}, {5.90, 5.44}, {5.51, 9.11}}}};
  return list;
}

/// A net's steps on a batch of zeros, in micro-batches.
struct Steps {
  const Table& table;
  std::int64_t batch, height, width, parts;
};

/// Forward and backward of the mean of a net's outputs, and an update without state.
class Run final : public nn::TrainingRun {
 public:
  Run(const Steps& steps, memory::Device device)
      : scope_(generator_), net_(steps.table.make(device)), optimizer_(net_.module->trainable(), optim::SgdOptions{}) {
    options_.micro_batches = steps.parts;
    options_.micro_samples = steps.batch / steps.parts;
    images_ = zeros({steps.batch, steps.height, steps.width, 3}, DType::f32, device, Category::input);
  }

  void step() override {
    const std::int64_t samples = options_.micro_samples;
    nn::training_step(
        optimizer_,
        [&](std::int64_t i) { return mean(net_.forward(slice(images_, 0, i * samples, (i + 1) * samples))); },
        options_);
  }
  nn::StepOptions& options() override { return options_; }
  std::int64_t parameters() const override { return net_.module->parameter_count(); }

 private:
  RandomGenerator generator_{1};
  GeneratorScope scope_;
  Net net_;
  Tensor images_;  // (N, H, W, 3)
  optim::Sgd optimizer_;
  nn::StepOptions options_;
};

/// The card of the paper, by the rule of nn/fit/cost.cpp: four fifths of its maker's figures.
const nn::Hardware& p100() {
  static const nn::Hardware card{.name = "p100-16gb",
                                 .description = "NVIDIA P100, 16 GiB",
                                 .memory_bytes = std::size_t{16} << 30,
                                 .f32_per_s = 3720e9,
                                 .bytes_per_s = 586e9,
                                 .call_s = 5e-6};
  return card;
}

/// The planners of a net's steps: of the whole batch, and of its micro-batches where these make the same step.
class Planners {
 public:
  Planners(Steps steps, memory::Device device) {
    for (const std::int64_t parts : {1, 2, 4}) {
      if (parts > 1 && (!steps.table.cuts_batch || steps.batch % parts != 0)) break;
      steps.parts = parts;
      makes_.push_back([steps](memory::Device on) { return std::make_unique<Run>(steps, on); });
      planners_.push_back(std::make_unique<nn::Planner>(makes_.back(), device, p100()));
    }
  }
  struct Choice {
    const nn::Plan* plan = nullptr;  ///< null: none keeps the budget
    std::size_t number = 0;
    double time_overhead = 0, least = 0;  ///< over keeping everything; of the plan, and of any in its bytes
  };
  const nn::Plan& keep_everything() const { return planners_.front()->keep_everything(); }
  std::size_t smallest_bytes() {
    std::size_t least = planners_.front()->smallest().peak_bytes;
    for (const auto& planner : planners_) least = std::min(least, planner->smallest().peak_bytes);
    return least;
  }
  /// The fastest plan within a budget.
  Choice fit(std::size_t budget_bytes) {
    Choice best;
    for (std::size_t i = 0; i < planners_.size(); ++i) {
      if (planners_[i]->smallest().peak_bytes > budget_bytes) continue;
      const nn::Plan& plan = planners_[i]->fit(budget_bytes);
      const double base_s = keep_everything().step_s;
      if (best.plan && plan.step_s / base_s - 1 >= best.time_overhead) continue;
      best = {&plan, i, plan.step_s / base_s - 1, plan.least_step_s / base_s - 1};
    }
    return best;
  }
  std::int64_t parts(const Choice& choice) const { return std::int64_t{1} << choice.number; }
  /// Runs of a choice that follow its plan.
  nn::MakeRun planned(const Choice& choice) const { return planned_run(makes_[choice.number], *choice.plan); }

 private:
  std::vector<nn::MakeRun> makes_;
  std::vector<std::unique_ptr<nn::Planner>> planners_;
};

/// The rows of a table, all as dry plans, or some of the cells at a batch that is run, too.
void add_rows(Rows& rows, const Table& table, bool is_measured) {
  Steps steps{table, table.batch, table.height, table.width, 1};
  if (is_measured) steps.batch = table.measured_batch;
  if (is_measured && rows.options.is_quick) steps.height /= 2, steps.width /= 2;
  rows.say(std::string(table.net) + ", planning a batch of " + std::to_string(steps.batch));
  const double begin_ms = process::processor_ms();
  Planners planners(steps, rows.options.device);
  const std::size_t everything = planners.keep_everything().peak_bytes;
  for (std::size_t i = 0; i < table.cells.size(); ++i) {
    if (is_measured && i % rows.sizes(std::size_t{6}, std::size_t{2}) != 0) continue;
    const Cell& cell = table.cells[i];
    const double share = cell.gib / table.pytorch_gib;
    const auto budget = static_cast<std::size_t>(static_cast<double>(everything) * share);
    const Planners::Choice choice = planners.fit(budget);
    if (is_measured && !choice.plan) continue;  // parameters weigh more in small batches
    Figures figures{.predicted = choice.plan ? choice.plan->peak_bytes : planners.smallest_bytes(),
                    .numbers = {{"published", cell.percent / 100}, {"share", share}, {"everything", everything}}};
    if (choice.plan) {
      figures.numbers.insert(figures.numbers.end(), {{"overhead", choice.time_overhead},
                                                     {"least", choice.least},
                                                     {"gap", choice.plan->time_gap()},
                                                     {"parts", planners.parts(choice)}});
    }
    if (!is_measured) {
      const auto gib = static_cast<std::size_t>(cell.gib * static_cast<double>(std::size_t{1} << 30));
      if (const Planners::Choice same = planners.fit(gib); same.plan) {
        figures.numbers.insert(figures.numbers.end(), {{"overhead_in_gib", same.time_overhead},
                                                       {"least_in_gib", same.least},
                                                       {"parts_in_gib", planners.parts(same)}});
      }
      figures.numbers.emplace_back("ms", process::processor_ms() - begin_ms);
    } else if (choice.plan->peak_bytes <= rows.options.most_measured_bytes) {
      const nn::MemoryProfile measured =
          nn::profile_training(rows.options.device, planners.planned(choice), 2, false, choice.plan->placement);
      figures.measured = measured.peak_bytes;
      figures.processes = {{choice.plan->peak_bytes, process_bytes(measured)}};
    }
    rows.add({{"net", table.net}, {"batch", steps.batch}, {"published GiB", cell.gib}}, figures);
  }
}

}  // namespace monet_detail

std::string run_monet(Rows& rows) {
  using namespace monet_detail;
  for (const Table& table : tables()) add_rows(rows, table, false);
  const std::vector<report::Row> dry_rows = rows.experiment.rows;
  for (const Table& table : tables()) {
    if (table.measured_batch > 0) add_rows(rows, table, true);
  }
  std::vector<report::Row> positive;
  for (const report::Row& row : dry_rows) {
    if (number(row, "published") > 0) positive.push_back(row);
  }
  const auto is_below = [](const char* name) {
    return [name](const report::Row& row) { return value(row, name).value_or(1) < number(row, "published"); };
  };
  const auto is_bound = [](const report::Row& row) {
    return value(row, "least_in_gib").value_or(0) >= number(row, "published");
  };
  return "Where a published overhead is positive it is above the plan's in " +
         count_rows(positive, is_below("overhead")) + " cells at the same share of keeping everything, and in " +
         count_rows(positive, is_below("overhead_in_gib")) +
         " in the same GiB; there no plan of these operators is below it in " + count_rows(positive, is_bound) + ". " +
         equal_rows(rows.experiment) + ".";
}

}  // namespace thimble::bench
