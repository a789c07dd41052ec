// Experiments: published bytes and times of nets that run operators again, planned on a dry device.
//
// - MONeT (Shah et al. 2021, arXiv:2010.14501): the budgets of five nets with branches and long skips, from
//   monet/schedule.py --check_runtime and examples/check_runtime_original.py in github.com/utsaslab/MONeT: parameters,
//   input, activations, gradients (freed after each step) and cuDNN's workspaces, U-Net at 416x608 with one class, no
//   loss but a sum.
// - HiRemate (Gusak et al. 2025, PMLR 267:21418-21443): 50 to 70 % fewer bytes for 10 to 15 % more time. Nets of its
//   experiments in sizes that keep everything in the 16 GiB of one of its cards.

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <thimble/autograd/functions.h>
#include <thimble/autograd/graph.h>
#include <thimble/autograd/node.h>
#include <thimble/bench/experiments/experiments.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/memory/process/process.h>
#include <thimble/models/convnets/convnets.h>
#include <thimble/models/model.h>
#include <thimble/nn/fit/fit.h>
#include <thimble/optim/sgd.h>

namespace thimble::bench {
namespace {

/// A module as a function of images (N, H, W, 3) or ids (N, T).
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

/// The loss of GPT-2 with its head in chunks: logits and their gradient are half of its bytes otherwise.
Net gpt(models::ModelOptions sizes, memory::Device device) {
  sizes.head = models::Head::chunked;
  std::unique_ptr<models::Model> made = models::make_model("gpt2", sizes, {device});
  models::Model& net = *made;
  return {std::move(made), [&net](const Tensor& ids) { return net.loss({ids, ids}); }};
}

/// Tokens (N, 196, 768), mixed over positions and then over channels.
class MixerBlock final : public nn::Layer {
 public:
  explicit MixerBlock(const nn::TensorOptions& on) {
    const std::int64_t widths[][2] = {{196, 384}, {384, 196}, {768, 3072}, {3072, 768}};
    for (int i = 0; i < 2; ++i) norms_.push_back(&child<nn::LayerNorm>("norm" + std::to_string(i), 768, on));
    for (int i = 0; i < 4; ++i) {
      products_.push_back(&child<nn::Linear>("fc" + std::to_string(i), widths[i][0], widths[i][1], on));
    }
  }

 protected:
  Tensor forward(const Tensor& x) override {
    Tensor y = (*norms_[0])(x);
    y = (*products_[0])(transpose(y));
    y = gelu(y);
    y = x + transpose((*products_[1])(y));
    Tensor z = (*norms_[1])(y);
    z = (*products_[2])(z);
    z = gelu(z);
    return y + (*products_[3])(z);
  }

 private:
  std::vector<nn::LayerNorm*> norms_;
  std::vector<nn::Linear*> products_;
};

/// MLP-Mixer B/16 (Tolstikhin et al. 2021, arXiv:2105.01601, table 1) at 224 x 224: 59,880,472 parameters.
Net mixer(memory::Device device) {
  const nn::TensorOptions on{device};
  auto net = std::make_unique<nn::Sequential>();
  auto& patches = net->add<nn::Conv2d>(3, 768, 16, Conv2dOptions{.stride = 16}, true, on);
  std::vector<MixerBlock*> blocks;
  for (int i = 0; i < 12; ++i) blocks.push_back(&net->add<MixerBlock>(on));
  auto& norm = net->add<nn::LayerNorm>(768, on);
  auto& head = net->add<nn::Linear>(768, 1000, on);
  return {std::move(net), [&patches, blocks, &norm, &head](const Tensor& images) {
            Tensor x = reshape(patches(images), {images.size(0), 196, 768});
            for (MixerBlock* const block : blocks) x = (*block)(x);
            return head(mean(norm(x), {1}));
          }};
}

/// relu(norm(conv(x))), also without relu and with a shortcut before it.
class ConvNorm final : public nn::Module {
 public:
  ConvNorm(std::int64_t in, std::int64_t out, std::int64_t kernel, const Conv2dOptions& options, memory::Device device)
      : conv_(child<nn::Conv2d>("0", in, out, kernel, options, false, nn::TensorOptions{device})),
        norm_(child<nn::BatchNorm2d>("1", out, nn::TensorOptions{device})) {}
  Tensor relu(const Tensor& x) { return norm_.with_relu(conv_(x)); }
  Tensor add_relu(const Tensor& x, const Tensor& shortcut) { return norm_.with_add_relu(conv_(x), shortcut); }
  Tensor plain(const Tensor& x) { return norm_(conv_(x)); }

 private:
  nn::Conv2d& conv_;
  nn::BatchNorm2d& norm_;
};

/// RegNetX-32GF (Radosavovic et al. 2020, arXiv:2003.13678, figure 17): 107,811,560 parameters.
class RegNet final : public nn::Layer {
 public:
  explicit RegNet(memory::Device device) : stem_(child<ConvNorm>("stem", 3, 32, 3, twice(1), device)) {
    const std::int64_t depths[] = {2, 7, 13, 1}, widths[] = {336, 672, 1344, 2520};
    std::int64_t in = 32;
    for (int stage = 0; stage < 4; ++stage) {
      const std::int64_t width = widths[stage];
      for (std::int64_t i = 0; i < depths[stage]; ++i) {
        const std::string at = std::to_string(stage) + "." + std::to_string(i) + ".";
        const Conv2dOptions inner{.stride = i == 0 ? 2 : 1, .padding = 1, .groups = width / 168};
        blocks_.push_back({i == 0 ? &child<ConvNorm>(at + "proj", in, width, 1, twice(0), device) : nullptr,
                           child<ConvNorm>(at + "a", in, width, 1, Conv2dOptions{}, device),
                           child<ConvNorm>(at + "b", width, width, 3, inner, device),
                           child<ConvNorm>(at + "c", width, width, 1, Conv2dOptions{}, device)});
        in = width;
      }
    }
    head_ = &child<nn::Linear>("fc", in, 1000, nn::TensorOptions{device});
  }

 protected:
  Tensor forward(const Tensor& images) override {
    Tensor x = stem_.relu(images);
    for (const Block& block : blocks_) {
      Tensor y = block.a.relu(x);
      y = block.b.relu(y);
      if (block.shortcut) x = block.shortcut->plain(x);
      x = block.c.add_relu(y, x);
    }
    return (*head_)(global_avg_pool(x));
  }

 private:
  static Conv2dOptions twice(std::int64_t padding) { return {.stride = 2, .padding = padding}; }
  struct Block {
    ConvNorm* shortcut;  // null adds x itself
    ConvNorm &a, &b, &c;
  };
  ConvNorm& stem_;
  std::vector<Block> blocks_;
  nn::Linear* head_ = nullptr;
};

/// A published cell: GiB that PyTorch's allocator hands out at most in steps 100 to 120 (max_memory_allocated) of
/// forward and backward without a loss and an optimizer, or a share of the bytes of keeping everything; and the percent
/// by which they take longer than PyTorch 1.5.1.
struct Cell {
  double bytes, percent;
};

struct Table {
  const char* net;
  std::int64_t batch, height, width;  ///< of ids 1 and their number
  double pytorch_gib;                 ///< of PyTorch, which keeps everything; 0 if cells have shares
  /// Without batch norm a batch and its micro-batches make the same step.
  bool cuts_batch;
  std::int64_t measured_batch;  ///< of rows that also run; 0 if none do
  Net (*make)(memory::Device device);
  std::vector<Cell> cells;
};

Net unet(memory::Device device) { return layer<models::UNet>(3, 1, nn::TensorOptions{device}); }
template <class Classifier>
Net classifier(memory::Device device) {
  return layer<Classifier>(1000, nn::TensorOptions{device});
}

const std::vector<Table>& monet_tables() {
  const auto resnet = [](memory::Device device) { return named("resnet50", device); };
  const auto googlenet = [](memory::Device device) { return named("googlenet", device); };
  using Cells = std::vector<Cell>;
  const Cells of_resnet{{10.01, 3.22}, {9.01, 4.68}, {8.01, 5.56}, {6.99, 7.28}, {6.00, 9.31}, {4.99, 11.95}};
  const Cells of_googlenet{{9.98, 7.13}, {8.99, 7.87}, {8.01, 8.44}, {7.02, 9.71}, {6.01, 12.14}, {4.99, 15.77}};
  const Cells of_unet{{10.01, -4.10}, {9.01, -2.07}, {8.02, -0.09}, {7.00, 1.39}, {6.01, 4.95}, {5.01, 11.51}};
  const Cells of_mobilenet{{10.02, 2.40}, {9.01, 3.10}, {8.02, 4.77}, {7.01, 5.53}, {6.01, 7.55}, {5.01, 8.72}};
  const Cells of_vgg{{9.71, -5.30}, {8.66, -4.64}, {7.88, -2.18}, {6.82, 1.99}, {5.90, 5.44}, {5.51, 9.11}};
  static const std::vector<Table> list{
      {"ResNet-50", 184, 224, 224, 15.06, false, 16, resnet, of_resnet},
      {"GoogLeNet", 320, 224, 224, 14.93, false, 16, googlenet, of_googlenet},
      {"U-Net", 11, 416, 608, 14.32, false, 1, unet, of_unet},
      {"MobileNet-V2", 272, 224, 224, 14.46, false, 16, classifier<models::MobileNetV2>, of_mobilenet},
      {"VGG-16", 176, 224, 224, 14.12, true, 0, classifier<models::Vgg16>, of_vgg}};
  return list;
}

/// A quick run leaves out the deepest net, which takes longest to plan.
std::vector<Table> hiremate_tables(bool is_quick) {
  const auto gpt2 = [](memory::Device device) { return gpt({}, device); };
  const auto deep = [](memory::Device device) {
    return gpt({.vocabulary = 1024, .sequence = 512, .layers = 274, .heads = 4, .width = 256}, device);
  };
  const auto resnet = [](memory::Device device) { return named("resnet101", device); };
  const auto regnet = [](memory::Device device) { return layer<RegNet>(device); };
  const std::vector<Cell> claim{{0.5, 10}, {0.3, 15}};
  std::vector<Table> list{{"GPT-2", 8, 1, 1024, 0, false, 0, gpt2, claim},
                          {"U-Net", 11, 416, 608, 0, false, 4, unet, claim},
                          {"ResNet-101", 64, 224, 224, 0, false, 32, resnet, claim},
                          {"MLP-Mixer-B/16", 64, 224, 224, 0, false, 0, mixer, claim},
                          {"RegNetX-32GF", 32, 224, 224, 0, false, 0, regnet, claim}};
  if (!is_quick) list.insert(list.begin() + 1, {"GPT-2, 274 layers of width 256", 8, 1, 512, 0, false, 0, deep, claim});
  return list;
}

/// A net's steps on a batch of zeros, in micro-batches.
struct Steps {
  Net (*make)(memory::Device device);
  std::int64_t batch, height, width, parts;
};

/// Forward and backward of the mean of a net's outputs, and an update without state.
class MeanRun final : public nn::TrainingRun {
 public:
  MeanRun(const Steps& steps, memory::Device device)
      : scope_(generator_), net_(steps.make(device)), optimizer_(net_.module->trainable(), optim::SgdOptions{}) {
    options_.micro_batches = steps.parts;
    options_.micro_samples = steps.batch / steps.parts;
    if (steps.height == 1) {
      inputs_ = zeros({steps.batch, steps.width}, DType::i64, device, memory::Category::input);
    } else {
      inputs_ = zeros({steps.batch, steps.height, steps.width, 3}, DType::f32, device, memory::Category::input);
    }
  }

  void step() override {
    const std::int64_t samples = options_.micro_samples;
    nn::training_step(
        optimizer_,
        [&](std::int64_t i) { return mean(net_.forward(slice(inputs_, 0, i * samples, (i + 1) * samples))); },
        options_);
  }
  nn::StepOptions& options() override { return options_; }
  std::int64_t parameters() const override { return net_.module->parameter_count(); }

 private:
  RandomGenerator generator_{1};
  GeneratorScope scope_;
  Net net_;
  Tensor inputs_;  // (N, H, W, 3) or (N, T)
  optim::Sgd optimizer_;
  nn::StepOptions options_;
};

/// The cards of the papers, by the rule of nn/fit/cost.cpp: four fifths of their maker's figures.
nn::Hardware card(const char* name, double f32_per_s, double bytes_per_s) {
  return {.name = name,
          .description = std::string(name) + ", 16 GiB",
          .memory_bytes = std::size_t{16} << 30,
          .f32_per_s = f32_per_s,
          .bytes_per_s = bytes_per_s,
          .call_s = 5e-6};
}
const nn::Hardware& p100() {
  static const nn::Hardware made = card("NVIDIA P100", 3720e9, 586e9);
  return made;
}
const nn::Hardware& v100() {
  static const nn::Hardware made = card("NVIDIA V100", 6280e9, 720e9);
  return made;
}

/// The planners of a net's steps: of the whole batch, and of its micro-batches where these make the same step.
class Planners {
 public:
  Planners(Steps steps, bool cuts_batch, memory::Device device, const nn::Hardware& hardware) {
    for (const std::int64_t parts : {1, 2, 4}) {
      if (parts > 1 && (!cuts_batch || steps.batch % parts != 0)) break;
      steps.parts = parts;
      makes_.push_back([steps](memory::Device on) { return std::make_unique<MeanRun>(steps, on); });
      planners_.push_back(std::make_unique<nn::Planner>(makes_.back(), device, hardware));
    }
  }
  struct Choice {
    const nn::Plan* plan = nullptr;  ///< null if no plan keeps the budget
    std::size_t number = 0;
    double time_overhead = 0, least = 0;  ///< over keeping everything; of the plan, and of any in its bytes
  };
  nn::Planner& whole() { return *planners_.front(); }
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
      const double base_s = whole().kept_step_s();
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

/// Seconds of a step that keeps everything with PyTorch's separate ReLU behind each batch norm: its forward reads and
/// writes the map in place, its backward reads two maps and writes one.
double separate_step_s(nn::Planner& planner, const nn::Hardware& hardware) {
  double seconds = planner.kept_step_s();
  for (const TapeGraph::Node& node : planner.graph().nodes) {
    const std::string name(node.type->name);
    if (!name.starts_with("batch_norm_relu") && name != "batch_norm_add_relu") continue;
    const TapeGraph::Value& map = planner.graph().values[node.output];
    const auto bytes = static_cast<double>(map.shape.elements()) * static_cast<double>(size_of(map.dtype));
    seconds += 5 * bytes / hardware.bytes_per_s + 2 * hardware.call_s;
  }
  return seconds;
}

/// The rows of a table, all as dry plans, or some of the cells at a batch that is run, too.
void add_rows(Rows& rows, const Table& table, const nn::Hardware& hardware, bool is_measured) {
  Steps steps{table.make, table.batch, table.height, table.width, 1};
  if (is_measured) steps.batch = table.measured_batch;
  if (is_measured && rows.options.is_quick) steps.height /= 2, steps.width /= 2;
  rows.say(std::string(table.net) + ", planning a batch of " + std::to_string(steps.batch));
  const double begin_ms = process::processor_ms();
  Planners planners(steps, table.cuts_batch, rows.options.device, hardware);
  const std::size_t everything = planners.whole().keep_everything().peak_bytes;
  const double separate_s = separate_step_s(planners.whole(), hardware);
  for (std::size_t i = 0; i < table.cells.size(); ++i) {
    if (is_measured && i % rows.sizes(std::size_t{6}, std::size_t{2}) != 0) continue;
    const Cell& cell = table.cells[i];
    const bool is_share = table.pytorch_gib == 0;
    const double share = is_share ? cell.bytes : cell.bytes / table.pytorch_gib;
    const auto budget = static_cast<std::size_t>(static_cast<double>(everything) * share);
    const Planners::Choice choice = planners.fit(budget);
    if (is_measured && !choice.plan) continue;  // parameters weigh more in small batches
    Figures figures{.predicted = choice.plan ? choice.plan->peak_bytes : planners.smallest_bytes(),
                    .numbers = {{"published", cell.percent / 100}, {"everything", everything}}};
    if (is_share) {
      figures.numbers.emplace_back("parameters", planners.whole().parameters());
      figures.numbers.emplace_back("operators", planners.whole().graph().nodes.size());
    } else {
      figures.numbers.emplace_back("share", share);
    }
    if (choice.plan) {
      figures.numbers.insert(
          figures.numbers.end(),
          {{"overhead", choice.time_overhead}, {"least", choice.least}, {"gap", choice.plan->time_gap()}});
      if (!is_share) figures.numbers.emplace_back("parts", planners.parts(choice));
    }
    if (!is_measured) {
      const auto gib = static_cast<std::size_t>(cell.bytes * static_cast<double>(std::size_t{1} << 30));
      if (const Planners::Choice same = is_share ? Planners::Choice() : planners.fit(gib); same.plan) {
        figures.numbers.insert(figures.numbers.end(), {{"overhead_in_gib", same.time_overhead},
                                                       {"least_in_gib", same.least},
                                                       {"over_separate", same.plan->step_s / separate_s - 1},
                                                       {"parts_in_gib", planners.parts(same)}});
      }
      figures.numbers.emplace_back("ms", process::processor_ms() - begin_ms);
    } else if (choice.plan->peak_bytes <= rows.options.most_measured_bytes) {
      const nn::MemoryProfile measured =
          nn::profile_training(rows.options.device, planners.planned(choice), 2, false, choice.plan->placement);
      figures.measured = measured.peak_bytes;
      figures.processes = {{choice.plan->peak_bytes, process_bytes(measured)}};
    }
    rows.add({{"net", table.net}, {"batch", steps.batch}, {is_share ? "of all bytes" : "published GiB", cell.bytes}},
             figures);
  }
}

/// All as dry plans, then the ones that run. Returns the rows of the first.
std::vector<report::Row> add_tables(Rows& rows, const std::vector<Table>& tables, const nn::Hardware& hardware) {
  for (const Table& table : tables) add_rows(rows, table, hardware, false);
  std::vector<report::Row> dry_rows = rows.experiment.rows;
  for (const Table& table : tables) {
    if (table.measured_batch > 0) add_rows(rows, table, hardware, true);
  }
  return dry_rows;
}

/// Whether a row's figure is less than the published one.
std::function<bool(const report::Row&)> is_below(const char* name) {
  return [name](const report::Row& row) { return value(row, name).value_or(1) < number(row, "published"); };
}

}  // namespace

nn::MakeRun run_of_net(const std::string& net, std::int64_t batch) {
  const std::map<std::string, Steps> all{{"U-Net", {unet, batch, 208, 304, 1}},
                                         {"MobileNet-V2", {classifier<models::MobileNetV2>, batch, 224, 224, 1}},
                                         {"DenseNet-121", {classifier<models::DenseNet121>, batch, 224, 224, 1}},
                                         {"VGG-16", {classifier<models::Vgg16>, batch, 224, 224, 1}}};
  const auto found = all.find(net);
  if (found == all.end()) throw ValueError("overhead: expected a net of the list, got '" + net + "'");
  const Steps steps = found->second;
  return [steps](memory::Device on) { return std::make_unique<MeanRun>(steps, on); };
}

std::string run_monet(Rows& rows) {
  std::vector<report::Row> positive;
  for (const report::Row& row : add_tables(rows, monet_tables(), p100())) {
    if (number(row, "published") > 0) positive.push_back(row);
  }
  const auto is_bound = [](const report::Row& row) {
    return value(row, "least_in_gib").value_or(0) >= number(row, "published");
  };
  return "Where a published overhead is positive it is above the plan's in " +
         count_rows(positive, is_below("overhead")) + " cells at the same share of keeping everything, and in " +
         count_rows(positive, is_below("overhead_in_gib")) +
         " in the same GiB; there no plan of these operators is below it in " + count_rows(positive, is_bound) +
         ". Over a step with separate ReLUs, as published, the plan's is below it in " +
         count_rows(positive, is_below("over_separate")) + ". " + equal_rows(rows.experiment) + ".";
}

std::string run_hiremate(Rows& rows) {
  const std::vector<report::Row> dry_rows = add_tables(rows, hiremate_tables(rows.options.is_quick), v100());
  return "The published time is above the plan's in " + count_rows(dry_rows, is_below("overhead")) + " cells. " +
         equal_rows(rows.experiment) + ".";
}

}  // namespace thimble::bench
