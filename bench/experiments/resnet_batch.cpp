// Experiments: what a ResNet keeps for backward, against the batch; and block by block, on each of two branches.

#include <thimble/bench/experiments/experiments.h>
#include <thimble/models/theory.h>

namespace thimble::bench {
namespace resnet_batch_detail {

struct Family {
  const char* model;
  std::int64_t image;
  std::vector<std::int64_t> batches;
};

models::Setup setup_of(const Family& family, std::int64_t batch) {
  models::Setup setup;
  setup.model = family.model;
  setup.batch = batch;
  setup.sizes.image = family.image;
  setup.sizes.build = models::Build::textbook;
  return setup;
}

// The literature's saved set, linear in the batch; the rest of what the textbook build keeps is named beside it.
void add_theory(report::Row& row, const std::vector<models::Term>& terms, std::int64_t batch) {
  std::int64_t bytes = 0;
  for (const models::Term& term : terms) {
    const bool is_counted = term.name == "input" || term.name == "conv outputs" || term.name == "relu outputs" ||
                            term.name == "pool output" || term.name == "fc input";
    if (is_counted) {
      bytes += term.bytes(batch);
    } else {
      row.remainder.emplace_back(term.name, term.bytes(batch));
    }
  }
  row.theory_bytes = bytes;
}

report::Row row_of(const ExperimentOptions& options, const Family& family, std::int64_t batch) {
  const models::Setup setup = setup_of(family, batch);
  report::Row row;
  row.config = {{"model", setup.model}, {"image", family.image}, {"batch", batch}};
  add_theory(row, models::make_theory(setup.model, setup.sizes, setup.dtype).outside, batch);
  options.progress("resnet-batch: " + setup.model + ", image " + std::to_string(family.image) + ", batch " +
                   std::to_string(batch));
  // The batch itself is booked as input, but backward keeps it too: the theory counts it.
  const auto kept = [](const ForwardBytes& bytes) { return static_cast<std::int64_t>(bytes.activation + bytes.input); };
  const ForwardBytes predicted = forward_bytes(dry(options.device), setup, {});
  const ForwardBytes measured = forward_bytes(options.device, setup, {});
  row.predicted_bytes = kept(predicted);
  row.measured_bytes = kept(measured);
  add_process(row, predicted.process.arena_bytes, measured.process);
  row.numbers = {{"per_image", static_cast<double>(*row.predicted_bytes) / static_cast<double>(batch)}};
  return row;
}

/// A bottleneck block of ResNet-50: `width` channels inside, four times as many behind it.
struct Block {
  const char* path;
  std::int64_t width, image_in, image_out;  ///< pictures are square
  bool has_convolution;                     ///< on the shortcut; else the input is added as it is

  std::int64_t out() const { return 4 * width; }
  // Outputs of 1x1, 3x3 and 1x1, the two ReLUs between them, and the ReLU behind the sum.
  std::int64_t main_elements() const {
    return 2 * width * image_in * image_in + (2 * width + 2 * out()) * image_out * image_out;
  }
  std::int64_t shortcut_elements() const { return has_convolution ? out() * image_out * image_out : 0; }
  // Mean and 1 / deviation of each channel of a batch norm.
  std::int64_t main_statistics() const { return 2 * (2 * width + out()); }
  std::int64_t shortcut_statistics() const { return has_convolution ? 2 * out() : 0; }
};

report::Row branch_row(const Block& block, std::int64_t batch, bool is_shortcut, const ForwardBytes& predicted,
                       const ForwardBytes& measured) {
  report::Row row;
  row.config = {{"block", std::string(block.path)},
                {"branch", std::string(is_shortcut ? "shortcut" : "main path")},
                {"batch", batch}};
  row.theory_bytes = 4 * batch * (is_shortcut ? block.shortcut_elements() : block.main_elements());
  row.remainder = {
      {"batch-norm statistics", 4 * (is_shortcut ? block.shortcut_statistics() : block.main_statistics())}};
  const auto bytes = [&](const ForwardBytes& of) {
    const std::size_t shortcut = of.by_path[1].second;
    return static_cast<std::int64_t>(is_shortcut ? shortcut : of.by_path[0].second - shortcut);
  };
  row.predicted_bytes = bytes(predicted);
  row.measured_bytes = bytes(measured);
  add_process(row, predicted.process.arena_bytes, measured.process);
  return row;
}

}  // namespace resnet_batch_detail

report::Experiment resnet_batch_experiment(const ExperimentOptions& options) {
  using namespace resnet_batch_detail;
  report::Experiment experiment;
  experiment.name = "resnet-batch";
  experiment.title = "ResNet activation bytes against the batch";
  experiment.question = "Is what a ResNet keeps for backward linear in the batch, with the slope that the shapes give?";
  experiment.theory =
      "per image: input + conv outputs + ReLU outputs + pool output + fc input; for ResNet-50 at 224 that is "
      "21,075,968 elements, 4 bytes each. What remains is named: batch-norm statistics (whatever the batch), and the "
      "head's scores.";
  experiment.columns = {{"per_image", "bytes per image", report::Unit::bytes, 1}};
  std::vector<Family> families;
  if (options.is_quick) {
    families = {{"resnet18", 32, {1, 2, 4, 8, 16}}, {"resnet50", 224, {1, 2}}};
  } else {
    families = {{"resnet18", 32, {1, 2, 4, 8, 16, 32, 64}},
                {"resnet18", 224, {1, 2, 4, 8}},
                {"resnet50", 224, {1, 2, 4, 8, 16}},
                {"resnet101", 224, {1, 2, 4}}};
  }
  report::Plot plot;
  plot.name = "batch";
  plot.title = "Kept for backward against the batch (textbook build, f32)";
  plot.caption = "Straight lines: every image costs the same.";
  plot.x = {"batch", report::Unit::plain, report::Scale::linear, true};
  plot.y = {"kept for backward", report::Unit::bytes, report::Scale::linear, true};
  std::size_t named = 0;
  for (const Family& family : families) {
    std::vector<report::Row> rows;
    for (const std::int64_t batch : family.batches) rows.push_back(row_of(options, family, batch));
    const std::string name = std::string(family.model) + " at " + std::to_string(family.image);
    add_curves(plot, rows, 2, name, name);
    for (report::Row& row : rows) {
      named += report::unnamed_bytes(row) == 0 ? 1 : 0;
      experiment.rows.push_back(std::move(row));
    }
  }
  experiment.plots.push_back(plot);
  experiment.verdict = "Linear, with the theory's slope: in " + std::to_string(named) + " of " +
                       std::to_string(experiment.rows.size()) +
                       " rows theory and the named remainder give every predicted byte.";
  return experiment;
}

report::Experiment resnet_branches_experiment(const ExperimentOptions& options) {
  using namespace resnet_batch_detail;
  report::Experiment experiment;
  experiment.name = "resnet-branches";
  experiment.title = "ResNet-50, branch by branch";
  experiment.question = "What do a residual block's main path and its shortcut keep for backward?";
  experiment.theory =
      "a bottleneck block of <i>w</i> channels from <i>h</i> x <i>h</i> to <i>k</i> x <i>k</i> keeps on its main path "
      "2 <i>w h</i><sup>2</sup> + 10 <i>w k</i><sup>2</sup> values, on a shortcut with a convolution "
      "4 <i>w k</i><sup>2</sup>, on one that adds the input as it is none. Batch-norm statistics are named beside it.";
  constexpr Block blocks[] = {{"resnet.layer1.0", 64, 56, 56, true},
                              {"resnet.layer1.1", 64, 56, 56, false},
                              {"resnet.layer2.0", 128, 56, 28, true},
                              {"resnet.layer3.0", 256, 28, 14, true},
                              {"resnet.layer4.0", 512, 14, 7, true}};
  std::size_t named = 0;
  for (const std::int64_t batch : options.is_quick ? std::vector<std::int64_t>{1} : std::vector<std::int64_t>{1, 8}) {
    const models::Setup setup = setup_of({"resnet50", 224, {}}, batch);
    options.progress("resnet-branches: batch " + std::to_string(batch));
    std::vector<std::string> paths;
    for (const Block& block : blocks) {
      paths.insert(paths.end(), {block.path, std::string(block.path) + ".downsample"});
    }
    const ForwardBytes predicted = forward_bytes(dry(options.device), setup, paths);
    const ForwardBytes measured = forward_bytes(options.device, setup, paths);
    for (std::size_t i = 0; i < std::size(blocks); ++i) {
      const auto of_block = [&](ForwardBytes bytes) {
        bytes.by_path = {bytes.by_path[2 * i], bytes.by_path[2 * i + 1]};
        return bytes;
      };
      for (const bool is_shortcut : {false, true}) {
        report::Row row = branch_row(blocks[i], batch, is_shortcut, of_block(predicted), of_block(measured));
        named += report::unnamed_bytes(row) == 0 ? 1 : 0;
        experiment.rows.push_back(std::move(row));
      }
    }
  }
  experiment.verdict = "A shortcut that adds its input as it is keeps nothing. In " + std::to_string(named) + " of " +
                       std::to_string(experiment.rows.size()) +
                       " rows theory and the named remainder give every predicted byte.";
  return experiment;
}

}  // namespace thimble::bench
