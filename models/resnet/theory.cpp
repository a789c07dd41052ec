#include <thimble/models/resnet/theory.h>

#include <thimble/core/numbers/integers.h>
#include <thimble/models/resnet/resnet.h>

namespace thimble::models::theory {
namespace resnet_theory_detail {

/// Sums over the convolutions, each with a batch norm after it, of one network.
struct Totals {
  std::int64_t conv_outputs = 0;  // elements for each sample, as all up to `features`
  std::int64_t relu_outputs = 0;
  std::int64_t pool_output = 0;
  std::int64_t features = 0;  // of the head's input
  std::int64_t weights = 0;   // elements of the convolutions' weights
  std::int64_t norms = 0;     // how many batch norms
  std::int64_t channels = 0;  // of all batch norms together
  std::int64_t in_codes = 0;  // bytes of the convolutions in 8 bits
};

/// Bytes of `filters` filters in 8 bits, each of so many lines: codes in panels of 64, 32 or 16 filters (8 where there
/// are no more), in which a line takes whole groups of 4 numbers (8); a scale for each; and for each place in a panel
/// of at least 16 the bias (i32) and the factor from sums to results (f32).
std::int64_t code_bytes(std::int64_t filters, std::int64_t lines, std::int64_t line_elements) {
  constexpr std::int64_t narrow = 8;
  std::int64_t places = 0;
  while (places < filters) places += filters - places > 48 ? 64 : filters - places > 16 ? 32 : 16;
  const std::int64_t codes =
      filters <= narrow ? narrow * lines * round_up(line_elements, 8) : places * lines * round_up(line_elements, 4);
  return codes + 4 * filters + (4 + 4) * places;
}

/// The image as it passes: size and channels, and what was met on the way.
class Walk {
 public:
  Walk(std::int64_t image, std::int64_t channels) : image_(image), channels_(channels) {}

  // Square kernels are padded so that a stride of 1 keeps the size: output = (size + 2 (k / 2) - k) / stride + 1.
  static std::int64_t output_size(std::int64_t size, std::int64_t kernel, std::int64_t stride) {
    return (size + 2 * (kernel / 2) - kernel) / stride + 1;
  }
  void conv(std::int64_t out, std::int64_t kernel, std::int64_t stride) {
    totals.weights += out * kernel * kernel * channels_;
    totals.in_codes += code_bytes(out, kernel, kernel * channels_);
    image_ = output_size(image_, kernel, stride);
    channels_ = out;
    totals.conv_outputs += elements();
    totals.norms += 1;
    totals.channels += out;
  }
  void relu() { totals.relu_outputs += elements(); }
  void pool(std::int64_t kernel, std::int64_t stride) {
    image_ = output_size(image_, kernel, stride);
    totals.pool_output = elements();
  }
  void block(const ResnetArchitecture& architecture, std::int64_t planes, std::int64_t stride) {
    const std::int64_t out = planes * architecture.expansion();
    Walk shortcut(image_, channels_);
    const bool has_downsample = stride != 1 || channels_ != out;
    if (architecture.is_bottleneck) {
      conv(planes, 1, 1), relu();
      conv(planes, 3, stride), relu();
      conv(out, 1, 1);
    } else {
      conv(planes, 3, stride), relu();
      conv(out, 3, 1);
    }
    if (has_downsample) {
      shortcut.conv(out, 1, stride);
      totals.conv_outputs += shortcut.totals.conv_outputs;
      totals.weights += shortcut.totals.weights;
      totals.in_codes += shortcut.totals.in_codes;
      totals.norms += shortcut.totals.norms;
      totals.channels += shortcut.totals.channels;
    }
    relu();
  }
  void finish() { totals.features = channels_; }

  Totals totals;

 private:
  std::int64_t elements() const { return image_ * image_ * channels_; }
  std::int64_t image_, channels_;
};

Totals walk(std::string_view name, const ModelOptions& options) {
  const ResnetArchitecture& architecture = resnet_architecture(name);
  Walk walk(options.image, options.channels);
  const bool is_small = has_small_stem(options.image);
  walk.conv(options.width, is_small ? 3 : 7, is_small ? 1 : 2);
  walk.relu();
  if (!is_small) walk.pool(3, 2);
  std::int64_t planes = options.width;
  for (const std::int64_t blocks : architecture.blocks) {
    for (std::int64_t b = 0; b < blocks; ++b) {
      walk.block(architecture, planes, b == 0 && planes != options.width ? 2 : 1);
    }
    planes *= 2;
  }
  walk.finish();
  return walk.totals;
}

}  // namespace resnet_theory_detail

std::vector<Term> resnet_kept(std::string_view name, const ModelOptions& options, DType dtype) {
  const ModelOptions sizes = resnet_options(name, options);
  const auto totals = resnet_theory_detail::walk(name, sizes);
  const DType statistic = statistic_of(dtype);
  std::vector<Term> terms = {
      {"input", Category::input, dtype, sizes.image * sizes.image * sizes.channels, 0},
      {"conv outputs", Category::activation, dtype, totals.conv_outputs, 0},
      {"batch-norm mean", Category::activation, statistic, 0, totals.channels},
      {"batch-norm rstd", Category::activation, statistic, 0, totals.channels},
      {"relu outputs", Category::activation, dtype, totals.relu_outputs, 0},
  };
  if (totals.pool_output > 0) terms.push_back({"pool output", Category::activation, dtype, totals.pool_output, 0});
  terms.push_back({"fc input", Category::activation, dtype, totals.features, 0});
  terms.push_back({"logits", Category::activation, dtype, sizes.classes, 0});
  terms.push_back({"logsumexp", Category::activation, statistic, 1, 0});
  terms.push_back({"targets", Category::input, DType::i64, 1, 0});
  return terms;
}

ModelState resnet_state(std::string_view name, const ModelOptions& options, std::int64_t moments, DType dtype) {
  const ModelOptions sizes = resnet_options(name, options);
  const auto totals = resnet_theory_detail::walk(name, sizes);
  const std::int64_t elements =
      totals.weights + 2 * totals.channels + totals.features * sizes.classes + sizes.classes;  // fc: weight and bias
  return state_of("resnet_state", elements, moments, dtype, totals.channels, totals.norms);
}

std::int64_t resnet_int8_bytes(std::string_view name, const ModelOptions& options) {
  namespace detail = resnet_theory_detail;
  const ModelOptions sizes = resnet_options(name, options);
  const detail::Totals totals = detail::walk(name, sizes);
  return totals.in_codes + detail::code_bytes(sizes.classes, 1, totals.features);
}

}  // namespace thimble::models::theory
