#include <thimble/nn/quant/calibrate.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/tensor/context.h>
#include <thimble/memory/units.h>

namespace thimble::nn::quant {

namespace {

std::string name_of(const Program& program, int value) {
  return value == 0 ? "the input" : program.steps[static_cast<std::size_t>(value - 1)].name;
}

std::size_t bin_of(double x, double low, double width) noexcept {
  const double bin = width > 0 ? (x - low) / width : 0;
  return static_cast<std::size_t>(std::clamp(bin, 0.0, static_cast<double>(calibration_bins - 1)));
}

/// Kullback-Leibler divergence between the first `count` bins, with the mass of all later bins in the last, and their
/// image in 128 codes, which spreads each code's mass evenly over its nonempty bins. Infinite if a bin with mass gets
/// none.
double divergence(const std::vector<std::int64_t>& bins, int count) {
  double behind = 0, total = 0, kept = 0;
  for (int i = 0; i < calibration_bins; ++i)
    (i < count ? kept : behind) += static_cast<double>(bins[static_cast<std::size_t>(i)]);
  total = kept + behind;
  if (!(kept > 0)) return std::numeric_limits<double>::infinity();
  double sum = 0;
  for (int code = 0; code < entropy_codes; ++code) {
    const int begin = code * count / entropy_codes, end = (code + 1) * count / entropy_codes;
    double mass = 0;
    int filled = 0;
    for (int i = begin; i < end; ++i) {
      mass += static_cast<double>(bins[static_cast<std::size_t>(i)]);
      filled += bins[static_cast<std::size_t>(i)] > 0;
    }
    for (int i = begin; i < end; ++i) {
      const auto own = static_cast<double>(bins[static_cast<std::size_t>(i)]);
      const double p = (own + (i + 1 == count ? behind : 0)) / total;
      if (p == 0) continue;
      const double q = own > 0 ? mass / filled / kept : 0;
      if (q == 0) return std::numeric_limits<double>::infinity();
      sum += p * std::log(p / q);
    }
  }
  return sum;
}

}  // namespace

std::string_view to_string(Calibrator calibrator) noexcept {
  switch (calibrator) {
    case Calibrator::max:
      return "max";
    case Calibrator::percentile:
      return "percentile";
    case Calibrator::entropy:
      return "entropy";
    case Calibrator::mse:
      return "mse";
  }
  return "?";
}

Calibrator parse_calibrator(std::string_view name) {
  std::string known;
  for (const Calibrator calibrator : calibrators) {
    if (to_string(calibrator) == name) return calibrator;
    known += (known.empty() ? "" : ", ") + std::string(to_string(calibrator));
  }
  throw ValueError("calibrator: " + quote(name) + " is not one of " + known);
}

Scales calibrate(FoldedNet& net, std::int64_t count, const CalibrationBatch& batch, const CalibrationOptions& options) {
  const Program& program = net.program();
  if (count < 1) throw ValueError("calibrate: " + std::to_string(count) + " batches; at least 1 is needed");
  net.fake_quantize({});
  const NoGrad off;
  const std::vector<int> groups = program.scale_groups();
  std::vector<Histogram> histograms(groups.size());
  for (const bool counts : {false, true}) {
    for (std::int64_t i = 0; i < count; ++i) {
      const Tensor x = batch(i);
      if (x.device().is_dry) throw DeviceError("calibrate: a dry device has no numbers to calibrate with");
      if (x.dtype() != DType::f32) throw DTypeError("calibrate: the batch is " + describe(x) + "; f32 is needed");
      net.run(x, [&](int value, const Tensor& t) {
        const auto numbers = to_host<float>(t);
        Histogram& histogram = histograms[static_cast<std::size_t>(groups[static_cast<std::size_t>(value)])];
        counts ? histogram.count(numbers) : histogram.widen(numbers, name_of(program, value));
      });
    }
  }
  Scales scales{std::vector<CodeScale>(groups.size()), options.activations, options.weights};
  for (std::size_t v = 0; v < groups.size(); ++v) {
    const auto group = static_cast<std::size_t>(groups[v]);
    if (group != v) {
      scales.values[v] = scales.values[group];
      continue;
    }
    // Images have spikes (a background) in place of a tail, and the divergence takes a spike for the end of the tail.
    const bool takes_all = v == 0 && options.calibrator == Calibrator::entropy;
    const Histogram::Range range =
        histograms[v].range(takes_all ? Calibrator::max : options.calibrator, options.activations, options.percent);
    scales.values[v] = code_scale(range.low, range.high, options.activations, name_of(program, static_cast<int>(v)));
  }
  return scales;
}

Scales unit_scales(const Program& program, Activations activations) {
  CodeScale one;
  if (activations == Activations::symmetric) one = {1, 128, 1, 255};
  return {std::vector<CodeScale>(static_cast<std::size_t>(program.values()), one), activations,
          WeightScales::per_channel};
}

void Histogram::widen(std::span<const float> x, std::string_view what) {
  for (const float v : x) {
    if (!std::isfinite(v)) {
      throw ValueError("calibrate: " + std::string(what) + " has the value " + format_short(v) +
                       "; expected finite numbers");
    }
    const auto d = static_cast<double>(v);
    low_ = is_widened_ ? std::min(low_, d) : d;
    high_ = is_widened_ ? std::max(high_, d) : d;
    is_widened_ = true;
  }
}

void Histogram::count(std::span<const float> x) {
  bins_.resize(calibration_bins);
  magnitude_.resize(calibration_bins);
  const double low = bin_low(), width = bin_width();
  const double magnitude_width = std::max(std::fabs(low_), std::fabs(high_)) / calibration_bins;
  for (const float v : x) {
    const auto d = static_cast<double>(v);
    ++bins_[bin_of(d, low, width)];
    ++magnitude_[bin_of(std::fabs(d), 0, magnitude_width)];
  }
}

Histogram::Range Histogram::range(Calibrator calibrator, Activations activations, double percent) const {
  if (calibrator == Calibrator::max || bins_.empty() || (low_ == 0 && high_ == 0)) return seen();
  if (calibrator == Calibrator::mse) return least_error(activations);
  const Range clipped = calibrator == Calibrator::percentile ? percentile(percent) : entropy();
  // If all numbers are nearly equal, one end may be clipped beyond the other.
  return {std::min(clipped.low, std::max(clipped.high, 0.0)), std::max(clipped.high, std::min(clipped.low, 0.0))};
}

Histogram::Range Histogram::percentile(double percent) const {
  if (!(percent > 0 && percent <= 100)) {
    throw ValueError("calibrate: percentile " + format_short(percent) + " is not in (0, 100]");
  }
  double total = 0;
  for (const std::int64_t n : bins_) total += static_cast<double>(n);
  const bool has_both = low_ < 0 && high_ > 0;
  const double cut = total * (100 - percent) / 100 / (has_both ? 2 : 1);
  // Numbers are assumed to spread evenly within a bin.
  const auto edge = [&](bool from_above) {
    double passed = 0;
    for (int i = 0; i < calibration_bins; ++i) {
      const int bin = from_above ? calibration_bins - 1 - i : i;
      const auto n = static_cast<double>(bins_[static_cast<std::size_t>(bin)]);
      if (passed + n > cut) {
        const double part = (cut - passed) / n;
        return bin_low() + bin_width() * (from_above ? bin + 1 - part : bin + part);
      }
      passed += n;
    }
    return from_above ? high_ : low_;
  };
  return {low_ < 0 ? std::max(low_, std::min(edge(false), 0.0)) : low_,
          high_ > 0 ? std::min(high_, std::max(edge(true), 0.0)) : high_};
}

Histogram::Range Histogram::entropy() const {
  double best = std::numeric_limits<double>::infinity();
  int chosen = calibration_bins;
  std::vector<std::int64_t> bins = magnitude_;
  bins[0] = bins[1];  // a relu makes many zeros, and zero has a code in every range
  double total = 0, kept = 0;
  for (const std::int64_t n : bins) total += static_cast<double>(n);
  for (int count = 1; count <= calibration_bins; ++count) {
    kept += static_cast<double>(bins[static_cast<std::size_t>(count - 1)]);
    if (count < entropy_first_bin || (total - kept) > entropy_most_clipped * total) continue;
    const double d = divergence(bins, count);
    if (d >= best) continue;
    best = d;
    chosen = count;
  }
  const double largest = std::max(std::fabs(low_), std::fabs(high_));
  const double t = largest * chosen / calibration_bins;
  return {std::max(low_, -t), std::min(high_, t)};
}

double Histogram::error(Range range, Activations activations) const {
  const CodeScale s = code_scale(range.low, range.high, activations, "a histogram");
  const auto scale = static_cast<double>(s.scale);
  double sum = 0;
  for (int i = 0; i < calibration_bins; ++i) {
    const auto n = static_cast<double>(bins_[static_cast<std::size_t>(i)]);
    if (n == 0) continue;
    const double x = bin_low() + bin_width() * (i + 0.5);
    const double code =
        std::clamp(std::nearbyint(x / scale) + s.zero, static_cast<double>(s.low), static_cast<double>(s.high));
    const double difference = (code - s.zero) * scale - x;
    sum += n * difference * difference;
  }
  return sum;
}

Histogram::Range Histogram::least_error(Activations activations) const {
  const Range all = seen();
  // If the whole range has no scale, the caller throws: it knows the layer.
  if (!has_code_scale(all.low, all.high, activations)) return all;
  Range best = all;
  double least = error(all, activations);
  const auto attempt = [&](Range range) {
    if (!has_code_scale(range.low, range.high, activations)) return;
    const double e = error(range, activations);
    if (e >= least) return;
    least = e;
    best = range;
  };
  if (activations == Activations::symmetric) {
    for (int percent = 99; percent > 0; --percent) attempt({all.low * percent / 100, all.high * percent / 100});
    return best;
  }
  for (int percent = 99; percent > 0 && all.high > 0; --percent) attempt({all.low, all.high * percent / 100});
  const double high = best.high;
  for (int percent = 99; percent > 0 && all.low < 0; --percent) attempt({all.low * percent / 100, high});
  return best;
}

}  // namespace thimble::nn::quant
