#pragma once
// A report with the size and shape of a real one, from formulas. All figures are invented but plausible.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <thimble/bench/report/experiment.h>

namespace report_sample {

using namespace thimble::report;
using thimble::memory::Category;

inline std::int64_t& part(CategoryBytes& bytes, Category category) { return bytes[static_cast<std::size_t>(category)]; }

/// Activations of two residual networks against the batch: theory, prediction and measurement on one line.
inline Experiment resnet_batch() {
  Experiment experiment;
  experiment.name = "resnet-batch";
  experiment.title = "ResNet activations against the batch";
  experiment.question = "Do saved activations grow linearly with the batch, as the closed formula says?";
  experiment.theory =
      "M = B \xC2\xB7 e \xC2\xB7 (<i>input</i> + \xCE\xA3<sub>l</sub> <i>conv</i><sub>l</sub> + \xCE\xA3<sub>l</sub> "
      "<i>relu</i><sub>l</sub> + <i>pool</i> + <i>fc</i>)<br>21,075,968 elements per image for ResNet-50";
  experiment.verdict =
      "Linear to the byte. What the formula leaves out does not depend on the image size: batch-norm statistics and "
      "the "
      "labels of the loss.";
  experiment.columns = {{"ms_per_step", "time per step", Unit::milliseconds, 1},
                        {"images_per_s", "images / s", Unit::plain, 1}};
  Plot plot{.name = "batch",
            .title = "Saved activations against the batch",
            .caption = "Dashed: the closed formula. Wide line: the dry run. Markers: the real run.",
            .x = {.title = "batch", .unit = Unit::plain, .scale = Scale::log2},
            .y = {.title = "saved activations", .unit = Unit::bytes, .scale = Scale::log2},
            .series = {}};
  struct Model {
    const char* name;
    const char* title;
    std::int64_t elements, statistics;
    double ms;
  };
  for (const Model& model : {Model{"resnet18", "ResNet-18", 6'222'336, 38'400, 9.1},
                             Model{"resnet50", "ResNet-50", 21'075'968, 212'480, 31.7}}) {
    Series theory{std::string(model.title) + ", theory", Role::theory, {}, model.name};
    Series predicted{std::string(model.title) + ", predicted", Role::predicted, {}, model.name};
    Series measured{std::string(model.title) + ", measured", Role::measured, {}, model.name};
    for (const std::int64_t batch : {1, 2, 4, 8, 16, 32, 64, 128}) {
      Row row;
      row.config = {{"model", std::string(model.name)}, {"batch", batch}, {"dtype", std::string("f32")}};
      row.theory_bytes = batch * model.elements * 4;
      row.remainder = {{"batch-norm mean and inverse deviation", model.statistics}, {"labels", batch * 8}};
      row.predicted_bytes = *row.theory_bytes + model.statistics + batch * 8;
      if (batch <= 64) row.measured_bytes = row.predicted_bytes;
      const double ms = model.ms * static_cast<double>(batch) + 4.2;
      if (batch <= 64) {
        row.numbers = {{"ms_per_step", ms}, {"images_per_s", 1000.0 * static_cast<double>(batch) / ms}};
      }
      const auto x = static_cast<double>(batch);
      theory.points.push_back({x, static_cast<double>(*row.theory_bytes)});
      predicted.points.push_back({x, static_cast<double>(*row.predicted_bytes)});
      if (row.measured_bytes) measured.points.push_back({x, static_cast<double>(*row.measured_bytes)});
      experiment.rows.push_back(row);
    }
    for (const Series& series : {theory, predicted, measured}) plot.series.push_back(series);
  }
  experiment.plots = {plot};
  return experiment;
}

/// Bytes of one transformer layer under several ways of keeping activations, and the whole step as bars.
inline Experiment gpt_layer() {
  Experiment experiment;
  experiment.name = "gpt-layer";
  experiment.title = "GPT: bytes of one layer";
  experiment.question = "What does one transformer layer keep for its backward pass, and how far down can it go?";
  experiment.theory = "s b h (34 + 5 a s / h) bytes at 16 bit; selective 34 s b h; full recompute 2 s b h";
  experiment.verdict =
      "The textbook build meets the published formula as an integer. The fused build stays below it at every length, "
      "and "
      "two configurations are off by the alignment of one buffer.";
  Plot plot{.name = "sequence",
            .title = "Activations of one layer against the sequence length",
            .caption = "Micro-batch 4, width 768, 12 heads, bf16.",
            .x = {.title = "sequence length", .unit = Unit::plain, .scale = Scale::linear},
            .y = {.title = "bytes per layer", .unit = Unit::bytes, .scale = Scale::linear},
            .series = {}};
  plot.series = {{"textbook, theory", Role::theory, {}, ""},
                 {"textbook", Role::other, {}, ""},
                 {"attention that never forms the matrix", Role::other, {}, ""},
                 {"selective recompute", Role::other, {}, ""},
                 {"full recompute", Role::other, {}, ""}};
  for (const std::int64_t s : {128, 256, 512, 768, 1024, 1536, 2048}) {
    constexpr std::int64_t b = 4, h = 768, a = 12;
    const std::int64_t textbook = 34 * s * b * h + 5 * a * s * s * b;
    const std::int64_t flash = 34 * s * b * h + 2 * s * b * h + 4 * a * s * b;
    const std::int64_t bytes[] = {textbook, textbook, flash, 34 * s * b * h, 2 * s * b * h};
    for (std::size_t i = 0; i < 5; ++i) {
      plot.series[i].points.push_back({static_cast<double>(s), static_cast<double>(bytes[i])});
    }
    const char* names[] = {"textbook", "fused", "selective", "full"};
    for (std::size_t i = 0; i < 4; ++i) {
      Row row;
      row.config = {{"build", std::string(names[i])}, {"sequence", s}, {"micro-batch", b}, {"width", h}};
      row.theory_bytes = bytes[i + 1];
      row.predicted_bytes = bytes[i + 1];
      row.measured_bytes = bytes[i + 1] + (i == 1 && s >= 1536 ? 64 : 0);
      if (s >= 512 && s != 768) experiment.rows.push_back(row);
    }
  }
  Bars bars{.name = "step",
            .title = "GPT-2 124M, peak of a training step by category",
            .caption = "Batch 8, sequence 1024, AdamW. The budget is 8 GiB.",
            .bars = {}};
  struct Way {
    const char* label;
    double activations, temporaries, gradients, workspace;
  };
  for (const Way& way :
       {Way{"keep everything (textbook)", 9.31, .62, .4636, .0625},
        Way{"keep everything (fused)", 5.04, .41, .4636, .0625}, Way{"selective recompute", 3.02, .44, .4636, .0625},
        Way{"checkpoint every block", 1.11, .71, .4636, .0625},
        Way{"checkpoint every block, optimizer step fused into backward", 1.11, .71, .1437, .0625},
        Way{"planned for 8 GiB", 6.1, .35, .4636, .0625}}) {
    CategoryBytes bytes{};
    const auto gib = [](double value) { return std::llround(value * 1073741824.0) / 64 * 64; };
    part(bytes, Category::parameter) = 124'439'808LL * 4;
    part(bytes, Category::optimizer) = 124'439'808LL * 8;
    part(bytes, Category::gradient) = gib(way.gradients);
    part(bytes, Category::activation) = gib(way.activations);
    part(bytes, Category::temporary) = gib(way.temporaries);
    part(bytes, Category::workspace) = gib(way.workspace);
    part(bytes, Category::input) = 8 * 1025 * 4;
    bars.bars.push_back(category_bar(way.label, bytes));
  }
  experiment.plots = {plot};
  experiment.bars = {bars};
  return experiment;
}

/// A training step of `blocks` blocks: about 24 events per block.
inline Timeline step_timeline(int blocks, std::int64_t budget_bytes) {
  Timeline timeline;
  timeline.name = "step";
  timeline.title = "One training step of ResNet-50, batch 32, event by event";
  timeline.caption =
      "Live bytes after every allocation and deallocation. Point at the picture, or select it and use the arrow keys, "
      "to see "
      "one event.";
  timeline.budget_bytes = budget_bytes;
  CategoryBytes now{};
  const auto event = [&](Category category, std::int64_t change, const std::string& path) {
    part(now, category) += change;
    timeline.events.push_back({now, path});
  };
  const auto mib = [](double value) { return std::llround(value * 16384.0) * 64; };
  part(now, Category::parameter) = 25'557'032LL * 4;
  part(now, Category::optimizer) = 25'557'032LL * 4;
  event(Category::input, 32LL * 224 * 224 * 3 * 4, "input");
  std::vector<std::vector<std::int64_t>> kept(static_cast<std::size_t>(blocks));
  const auto size = [&](int block) { return 6.0 + 22.0 * std::exp(-2.2 * block / blocks); };
  const auto path_of = [](int block, int layer) {
    return "resnet50.layer" + std::to_string(1 + block / 20) + "." + std::to_string(block % 20) + ".conv" +
           std::to_string(1 + layer);
  };
  for (int block = 0; block < blocks; ++block) {
    for (int layer = 0; layer < 3; ++layer) {
      const std::string path = path_of(block, layer);
      const std::int64_t saved = mib(size(block) * (layer == 2 ? 1.6 : .55) / 2.2);
      event(Category::workspace, mib(9 + 4 * std::sin(block)), path);
      event(Category::temporary, mib(size(block) * .8), path);
      event(Category::activation, saved, path);
      event(Category::temporary, -part(now, Category::temporary), path);
      event(Category::workspace, -part(now, Category::workspace), path);
      kept[static_cast<std::size_t>(block)].push_back(saved);
    }
  }
  std::int64_t gradients_left = 25'557'032LL * 4;
  for (int block = blocks - 1; block >= 0; --block) {
    for (int layer = 2; layer >= 0; --layer) {
      const std::string path = path_of(block, layer);
      const std::int64_t gradient = gradients_left / (3 * block + layer + 1);
      gradients_left -= gradient;
      event(Category::workspace, mib(14 + 5 * std::sin(block + .5)), path);
      event(Category::temporary, mib(size(block) * 1.5), path);
      event(Category::gradient, gradient, path);
      event(Category::activation, -kept[static_cast<std::size_t>(block)][static_cast<std::size_t>(layer)], path);
      event(Category::temporary, -part(now, Category::temporary) / 2, path);
      event(Category::workspace, -part(now, Category::workspace), path);
    }
  }
  event(Category::temporary, -part(now, Category::temporary), "");
  std::int64_t gradient = part(now, Category::gradient);
  for (int i = 40; i > 0; --i) {
    const std::int64_t piece = gradient / i;
    event(Category::gradient, -piece, "sgd");
    gradient -= piece;
  }
  return timeline;
}

inline Experiment timeline_experiment() {
  Experiment experiment;
  experiment.name = "timeline";
  experiment.title = "Where the peak is";
  experiment.question = "Which bytes are live when a training step needs the most, and who asked for them?";
  experiment.verdict =
      "The peak falls on the first steps of the backward pass, when every activation is still there and the workspace "
      "of a "
      "convolution is added.";
  Row row;
  row.config = {{"model", std::string("resnet50")}, {"batch", std::int64_t{32}}};
  Timeline timeline = step_timeline(61, 1'300'000'000);
  std::int64_t peak = 0;
  for (const Event& event : timeline.events) peak = std::max(peak, total(event.bytes));
  timeline.budget_bytes = peak + peak / 50;
  row.predicted_bytes = row.measured_bytes = peak;
  experiment.rows = {row};
  experiment.timelines = {timeline};
  return experiment;
}

/// Time against bytes: a scatter of predicted plans.
inline Experiment budget_experiment() {
  Experiment experiment;
  experiment.name = "budget";
  experiment.title = "Time for memory";
  experiment.question = "How much longer does a step take when it is given fewer bytes?";
  experiment.verdict =
      "Half of the bytes cost less than a tenth of the time. Nothing was run: times come from a roofline.";
  experiment.columns = {{"time_overhead", "time overhead", Unit::percent, 2}};
  Plot plot{.name = "frontier",
            .title = "Time overhead against the budget, ResNet-50 at batch 184",
            .caption = "Every point is a plan that the checker accepted.",
            .x = {.title = "budget", .unit = Unit::bytes, .scale = Scale::linear},
            .y = {.title = "time overhead", .unit = Unit::percent, .scale = Scale::linear},
            .series = {{"heterogeneous chain", Role::other, {}, ""},
                       {"square-root checkpointing", Role::measured, {}, ""},
                       {"known from the literature", Role::measured, {}, ""}}};
  for (int i = 0; i < 12; ++i) {
    const double gib = 14.73 - i * .95;
    const double overhead = i == 0 ? 0 : .011 * i + .35 * std::pow((14.73 - gib) / 14.73, 5);
    plot.series[0].points.push_back({gib * 1073741824.0, overhead});
    Row row;
    row.config = {
        {"model", std::string("resnet50")}, {"batch", std::int64_t{184}}, {"budget", std::llround(gib * 1073741824.0)}};
    row.predicted_bytes = std::llround(gib * 1073741824.0) / 512 * 512;
    row.numbers = {{"time_overhead", overhead}};
    experiment.rows.push_back(row);
  }
  plot.series[1].points = {{3.4 * 1073741824.0, .31}, {5.1 * 1073741824.0, .28}};
  plot.series[2].points = {{10.01 * 1073741824.0, .032}, {6.0 * 1073741824.0, .093}, {4.99 * 1073741824.0, .1195}};
  experiment.plots = {plot};
  return experiment;
}

inline Report sample_report() {
  Report report;
  report.environment = {.version = "0.1.0",
                        .device = "cpu",
                        .cpu = "AMD EPYC 9R14",
                        .threads = 16,
                        .date = "2025-11-20",
                        .details = {{"instruction set", "AVX-512 with bf16 dot products and VNNI"},
                                    {"compiler", "GCC 12.2.0, Release"},
                                    {"command", "thimble reproduce all --out report"}}};
  report.experiments = {resnet_batch(), gpt_layer(), timeline_experiment(), budget_experiment()};
  return report;
}

}  // namespace report_sample
