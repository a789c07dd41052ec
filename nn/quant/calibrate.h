#pragma once
// Post-training quantization: chooses the range of numbers that the codes of each value cover.
//
//   max         all numbers seen
//   percentile  from the (100 - p) / 2 to the 100 - (100 - p) / 2 percentile, p = 99.99; a value of one sign is clipped
//               only at its far end, by 100 - p percent
//   entropy     +- T with the smallest Kullback-Leibler divergence between the histogram of |x| clipped at T and its
//               image in 128 codes; T is tried from bin 128 of 2048 on, zeros do not count (Migacz 2017, "8-bit
//               inference with TensorRT"). Here T clips at most 0.1 % of the numbers, and the input keeps its whole
//               range: an image's background makes spikes that hide clipped numbers from the divergence
//   mse         the range with the smallest squared error over the histogram, in steps of 1 %, first of its upper, then
//               of its lower end

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <thimble/nn/quant/folded_net.h>
#include <thimble/nn/quant/program.h>

namespace thimble::nn::quant {

enum class Calibrator : std::uint8_t { max, percentile, entropy, mse };

inline constexpr Calibrator calibrators[] = {Calibrator::max, Calibrator::percentile, Calibrator::entropy,
                                             Calibrator::mse};

/// "max", "percentile", "entropy", "mse".
std::string_view to_string(Calibrator calibrator) noexcept;
/// Throws ValueError listing the names.
Calibrator parse_calibrator(std::string_view name);

inline constexpr int calibration_bins = 2048;
inline constexpr int entropy_first_bin = 128;
inline constexpr int entropy_codes = 128;
inline constexpr double entropy_most_clipped = 1e-3;  // of the numbers

/// The numbers of a value, in two passes: the range, then the counts.
class Histogram {
 public:
  /// First pass. Throws ValueError, naming the value, for a number that is not finite.
  void widen(std::span<const float> x, std::string_view what);
  /// Second pass, over the numbers of the first.
  void count(std::span<const float> x);

  struct Range {
    double low = 0, high = 0;
  };
  /// The range of all numbers so far; 0 to 0 before widen().
  Range seen() const noexcept { return {low_, high_}; }
  /// The range for codes to cover. Throws ValueError unless 0 < percent <= 100, if the calibrator is percentile.
  Range range(Calibrator calibrator, Activations activations, double percent) const;

 private:
  Range percentile(double percent) const;
  Range entropy() const;
  Range least_error(Activations activations) const;
  double error(Range range, Activations activations) const;
  double bin_low() const noexcept { return low_ < 0 ? low_ : 0; }
  double bin_width() const noexcept { return ((high_ > 0 ? high_ : 0) - bin_low()) / calibration_bins; }

  double low_ = 0, high_ = 0;
  bool is_widened_ = false;
  std::vector<std::int64_t> bins_;       // over [min(low, 0), max(high, 0)]
  std::vector<std::int64_t> magnitude_;  // of |x|, over [0, max(|low|, |high|)]
};

struct CalibrationOptions {
  Calibrator calibrator = Calibrator::mse;
  double percent = 99.99;
  Activations activations = Activations::asymmetric;
  WeightScales weights = WeightScales::per_channel;
};

/// Returns batch `index` (N, H, W, C); called twice for each.
using CalibrationBatch = std::function<Tensor(std::int64_t index)>;

/// Runs the net over `count` batches, twice, and chooses a scale for each of its values; values that share codes
/// (Program::scale_groups) share one. Throws ValueError: no batches, a number that is not finite, a value that is
/// always 0; DeviceError for a net on a dry device, DTypeError unless the values are f32.
Scales calibrate(FoldedNet& net, std::int64_t count, const CalibrationBatch& batch,
                 const CalibrationOptions& options = {});

/// Scales of 1 for all values: for dry runs, which have no numbers.
Scales unit_scales(const Program& program, Activations activations = Activations::asymmetric);

}  // namespace thimble::nn::quant
