// Pictures of numbers: codes, rounding losses, and the error of a net in 8 bits.

#include <cmath>
#include <cstring>
#include <random>

#include <thimble/bench/book/drawing.h>
#include <thimble/bench/book/figures.h>
#include <thimble/bench/report/figures.h>
#include <thimble/core/numbers/minifloat.h>
#include <thimble/core/ops/copy.h>
#include <thimble/models/model.h>
#include <thimble/nn/quant/calibrate.h>
#include <thimble/nn/quant/error_report.h>
#include <thimble/nn/quant/quantized_model.h>

namespace thimble::bench {
namespace {

using report::Svg;
namespace paints = report::paints;

float e4m3(unsigned code) { return f8e4m3::Format::decode(static_cast<std::uint8_t>(code)); }

std::string value_text(float value) {
  if (std::isnan(value)) return "NaN";
  char text[24];
  std::snprintf(text, sizeof text, "%.4g", static_cast<double>(value));
  return text;
}

float round_bf16(float x) { return bf16::Format::decode(bf16::Format::encode(x, Fp8Overflow::nonfinite)); }

}  // namespace

std::string draw_fp8_grid() {
  const double left = 116, top = report::title_height(report::Medium::file) + 44, cell = 101, row = 27;
  const double line = top + 16 * row + 62;
  Svg svg(report::Medium::file, report::figure_width, line + 62, "The 128 positive numbers of E4M3",
          "A row for each exponent, a column for each fraction; below, all of them on a line.");
  report::draw_title(svg, "The 128 codes of E4M3 that have no sign");
  svg.text(left - 14, top - 8, "exponent", {.fill = paints::muted, .size = 12, .anchor = "end"});
  for (unsigned f = 0; f < 8; ++f) {
    const std::string bits = {static_cast<char>('0' + (f >> 2)), static_cast<char>('0' + (f >> 1 & 1)),
                              static_cast<char>('0' + (f & 1))};
    svg.text(left + (f + 0.5) * cell, top - 8, "fraction " + bits,
             {.fill = paints::muted, .size = 12, .anchor = "middle"});
  }
  for (unsigned e = 0; e < 16; ++e) {
    const double y = top + e * row;
    std::string name = e == 0 ? "0, subnormal" : std::to_string(e) + ", 2^" + std::to_string(static_cast<int>(e) - 7);
    svg.text(left - 14, y + 18, name, {.size = 12, .anchor = "end"});
    for (unsigned f = 0; f < 8; ++f) {
      const float value = e4m3(e * 8 + f);
      const bool is_nan = std::isnan(value);
      const report::Paint paint = is_nan ? paints::alarm : e == 0 ? report::series_paints[3] : report::series_paints[0];
      svg.rectangle(left + f * cell + 1, y + 1, cell - 2, row - 2, {.fill = paint, .opacity = is_nan ? 0.55 : 0.25}, 3);
      svg.text(left + (f + 0.5) * cell, y + 18, value_text(value),
               {.size = 12.5, .anchor = "middle", .is_bold = value == 448});
    }
  }
  svg.text(left, line - 34, "The same numbers between 0 and 32: eight to each power of two, so steps double with size",
           {.size = 12.5});
  const double width = 8 * cell;
  svg.line(left, line, left + width, line, {.stroke = paints::axis});
  for (unsigned code = 0; code < 0x7F; ++code) {
    const float value = e4m3(code);
    if (value > 32) break;
    const double x = left + width * static_cast<double>(value) / 32;
    const bool is_power = (code & 7) == 0 && value >= 1;
    svg.line(x, line - (is_power ? 20 : 12), x, line, {.stroke = is_power ? paints::ink : report::series_paints[0]});
    if (is_power) svg.text(x, line + 18, value_text(value), {.size = 12, .anchor = "middle"});
  }
  svg.text(left, line + 18, "0", {.size = 12, .anchor = "middle"});
  return svg.finish();
}

std::string draw_lost_updates() {
  constexpr int steps = 2000;
  constexpr float update = 1.0f / 1024;  // an eighth of 2^-7, bf16's spacing above 1
  float plain = 1, kahan = 1, lost = 0, master = 1;
  std::vector<float> stochastic(64, 1.0f);
  std::mt19937 random(1);
  report::Plot plot;
  plot.name = "updates";
  plot.title = "A weight that begins at 1 and gets 1/1024 two thousand times";
  plot.caption = "In bf16 alone it never moves; a master copy, Kahan's sum and stochastic rounding arrive.";
  plot.x = {.title = "steps"};
  plot.y = {.title = "the weight, in bf16", .from_zero = false};
  report::Series a{"f32 master copy", report::Role::theory, {}, "master"};
  report::Series b{"bf16 alone", report::Role::other, {}, "plain"};
  report::Series c{"bf16 with Kahan's sum", report::Role::other, {}, "kahan"};
  report::Series d{"stochastic rounding, mean of 64", report::Role::other, {}, "stochastic"};
  for (int step = 0; step <= steps; ++step) {
    if (step % 200 == 0) {
      const auto x = static_cast<double>(step);
      a.points.push_back({x, static_cast<double>(round_bf16(master))});
      b.points.push_back({x, static_cast<double>(plain)});
      c.points.push_back({x, static_cast<double>(kahan)});
      double mean = 0;
      for (const float w : stochastic) mean += static_cast<double>(w) / 64;
      d.points.push_back({x, mean});
    }
    master += update;
    plain = round_bf16(plain + update);
    const float wanted = update + lost, sum = round_bf16(kahan + wanted);
    lost = round_bf16(wanted - (sum - kahan));
    kahan = sum;
    // Stochastic rounding: add 16 random bits below bf16's last bit, then truncate.
    for (float& w : stochastic) {
      std::uint32_t bits = 0;
      const float exact = w + update;
      std::memcpy(&bits, &exact, 4);
      bits = (bits + (random() & 0xFFFF)) & 0xFFFF0000u;
      std::memcpy(&w, &bits, 4);
    }
  }
  plot.series = {a, b, c, d};
  return report::svg_file(plot);
}

std::string draw_layer_errors() {
  using namespace nn::quant;
  models::ModelOptions sizes;
  sizes.image = 16, sizes.channels = 3, sizes.width = 8;
  RandomGenerator generator(1);
  const GeneratorScope scope(generator);
  const auto model = models::make_model("resnet18", sizes);
  model->eval();
  std::mt19937 random(7);
  std::vector<double> pixels(std::size_t{8} * 16 * 16 * 3);
  for (double& pixel : pixels) pixel = static_cast<double>(random() % 2001) / 1000 - 1;
  const Tensor x = to_dtype(from_host(pixels, {8, 16, 16, 3}), DType::f32);
  FoldedNet folded(
      *model, [&](const Tensor& t) { return model->forward(t); }, x);
  report::Plot plot;
  plot.name = "errors";
  plot.title = "A ResNet-18 in 8 bits: signal over error, layer by layer";
  plot.caption = "Ten times the decimal logarithm of signal over error after each step of the net.";
  plot.x = {.title = "step of the net"};
  plot.y = {.title = "signal to noise in dB"};
  for (const WeightScales weights : {WeightScales::per_channel, WeightScales::per_tensor}) {
    CalibrationOptions options;
    options.weights = weights;
    QuantizedModel quantized(folded, calibrate(
                                         folded, 1, [&](std::int64_t) { return x; }, options));
    const bool is_fine = weights == WeightScales::per_channel;
    report::Series series{is_fine ? "a scale for each filter" : "a scale for each layer",
                          report::Role::other,
                          {},
                          is_fine ? "channel" : "tensor"};
    const std::vector<StepError> errors = compare(folded, quantized, x);
    for (std::size_t i = 0; i < errors.size(); ++i) {
      // Round to 0.1 dB: further digits depend on the processor's order of summation.
      series.points.push_back({static_cast<double>(i), std::round(errors[i].signal_to_noise_db * 10) / 10});
    }
    plot.series.push_back(series);
  }
  return report::svg_file(plot);
}

}  // namespace thimble::bench
