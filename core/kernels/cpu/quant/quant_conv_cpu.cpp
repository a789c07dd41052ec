// Packing, bands and loops of quant_conv.h.

#include <thimble/core/kernels/quant_conv.h>

#include <algorithm>
#include <cstring>

#include <thimble/core/kernels/cpu/base/units.h>
#include <thimble/core/kernels/cpu/quant/quant_conv_kernel.h>
#include <thimble/core/kernels/table_for.h>
#include <thimble/core/threads/parallel.h>

namespace thimble::kernels {
namespace quant_conv_detail {

using namespace quant_detail;

inline constexpr std::int64_t band_bytes = 64 * 1024;  // of input lines; twice the first-level cache at most
inline constexpr int lanes = 16;

std::int64_t quotient_up(std::int64_t a, std::int64_t b) noexcept { return (a + b - 1) / b; }

/// How weights are packed.
struct Packing {
  bool is_narrow;
  std::int64_t runs, run_elements, run_groups, depth;

  explicit Packing(const ConvShape& s) noexcept
      : is_narrow(s.filters <= narrow_filters),
        runs(quant_runs(s)),
        run_elements(s.dilation_w == 1 ? s.kernel_w * s.channels : s.channels),
        run_groups(0),
        depth(is_narrow ? 8 : 4) {
    run_groups = quotient_up(run_elements, depth);
  }
  std::int64_t run_bytes() const noexcept { return run_groups * depth; }
  std::int64_t block_filters() const noexcept { return is_narrow ? lanes / 2 : lanes; }
  std::int64_t bytes_per_block() const noexcept { return runs * run_groups * block_bytes; }
};

/// Blocks of the panel that begins with `left` filters to go.
int panel_blocks(std::int64_t left) noexcept { return left > 3 * lanes ? 4 : left > lanes ? 2 : 1; }

/// Calls f(byte in packed, element of the dense weight) for every element.
template <class F>
void for_each_weight(const ConvShape& s, F&& f) noexcept {
  const Packing packing(s);
  const std::int64_t filter_elements = packing.runs * packing.run_elements;
  std::int64_t panel = 0;
  for (std::int64_t first = 0; first < s.filters;) {
    const int blocks = packing.is_narrow ? 1 : panel_blocks(s.filters - first);
    const std::int64_t count = std::min<std::int64_t>(blocks * packing.block_filters(), s.filters - first);
    for (std::int64_t o = 0; o < count; ++o) {
      const std::int64_t block = o / packing.block_filters(), column = o % packing.block_filters();
      for (std::int64_t run = 0; run < packing.runs; ++run) {
        for (std::int64_t e = 0; e < packing.run_elements; ++e) {
          const std::int64_t group = run * packing.run_groups + e / packing.depth;
          const std::int64_t at =
              panel + (group * blocks + block) * block_bytes + column * packing.depth + e % packing.depth;
          f(at, (first + o) * filter_elements + run * packing.run_elements + e);
        }
      }
    }
    first += count;
    panel += blocks * packing.bytes_per_block();
  }
}

/// How outputs are cut into bands, and the layout of a band's input.
struct Bands {
  bool is_direct;      ///< lines are read in place
  std::int64_t line;   ///< bytes from one input line to the next
  std::int64_t image;  ///< bytes from one image to the next
  std::int64_t out_h, out_w;
  std::int64_t images, lines;  ///< of a band, outputs
  std::int64_t in_lines;       ///< of an image in a copied band
  std::int64_t bands_per_image, count;

  Bands(const ConvShape& s, int threads) noexcept : out_h(s.out_height()), out_w(s.out_width()) {
    const Packing packing(s);
    is_direct = s.pad_top == 0 && s.pad_bottom == 0 && s.pad_left == 0 && s.pad_right == 0 &&
                packing.run_elements % packing.depth == 0;
    line = (is_direct ? s.width : s.pad_left + s.width + s.pad_right) * s.channels;
    const std::int64_t whole = input_lines(s, out_h) * line;
    const std::int64_t share = std::max<std::int64_t>(1, quotient_up(s.images, std::max(threads, 1)));
    if (whole <= band_bytes) {
      images = std::clamp<std::int64_t>(band_bytes / std::max<std::int64_t>(whole, 1), 1, share);
      lines = out_h;
    } else {
      images = 1;
      lines = out_h;
      while (lines > 1 && input_lines(s, lines) * line > band_bytes) --lines;
    }
    // Threads share a single image, too.
    if (images == 1 && s.images < threads) {
      lines = std::min(lines, std::max<std::int64_t>(1, quotient_up(out_h * s.images, threads)));
    }
    in_lines = input_lines(s, lines);
    image = is_direct ? s.height * line : in_lines * line;
    bands_per_image = quotient_up(out_h, std::max<std::int64_t>(lines, 1));
    count = quotient_up(s.images, images) * bands_per_image;
  }
  static std::int64_t input_lines(const ConvShape& s, std::int64_t lines) noexcept {
    return (lines - 1) * s.stride_h + (s.kernel_h - 1) * s.dilation_h + 1;
  }
  /// With room for the last group's bytes behind the last run.
  std::int64_t copied_bytes() const noexcept {
    return is_direct ? 0 : quotient_up(images * image + 2 * narrow_filters, 64) * 64;
  }
};

/// One thread's bands.
class Worker {
 public:
  Worker(const QuantConvArgs& args, const Bands& bands, QuantKernel kernel, std::uint8_t* copy) noexcept
      : args_(args), bands_(bands), packing_(args.shape), kernel_(kernel), copy_(copy) {
    const ConvShape& s = args.shape;
    const bool is_dilated = packing_.runs != s.kernel_h;
    for (std::int64_t run = 0; run < packing_.runs; ++run) {
      const std::int64_t h = is_dilated ? run / s.kernel_w : run, w = is_dilated ? run % s.kernel_w : 0;
      runs_[run] = h * s.dilation_h * bands.line + w * s.dilation_w * s.channels;
    }
    tile_.runs = runs_;
    tile_.run_count = packing_.runs;
    tile_.run_bytes = packing_.run_bytes();
    tile_.stride = s.filters;
  }

  void compute(std::int64_t band) noexcept {
    const ConvShape& s = args_.shape;
    const std::int64_t image = band / bands_.bands_per_image * bands_.images;
    const std::int64_t line = band % bands_.bands_per_image * bands_.lines;
    const std::int64_t images = std::min(bands_.images, s.images - image);
    lines_ = std::min(bands_.lines, bands_.out_h - line);
    if (bands_.is_direct) {
      input_ = args_.x + image * bands_.image + line * s.stride_h * bands_.line;
    } else {
      copy(image, images, line * s.stride_h - s.pad_top);
      input_ = copy_;
    }
    const std::int64_t first = (image * bands_.out_h + line) * bands_.out_w;
    pixels_ = images * lines_ * bands_.out_w;
    const auto* panel = static_cast<const std::uint8_t*>(args_.packed);
    for (std::int64_t o = 0; o < s.filters;) {
      tile_.blocks = packing_.is_narrow ? 1 : panel_blocks(s.filters - o);
      tile_.filters = static_cast<int>(std::min<std::int64_t>(tile_.blocks * packing_.block_filters(), s.filters - o));
      tile_.panel = panel;
      tile_.bias = args_.bias + o;
      tile_.scale = args_.scale + o;
      multiply(first * s.filters + o);
      panel += tile_.blocks * packing_.bytes_per_block();
      o += tile_.filters;
    }
  }

 private:
  /// Lines of `images` images from `top` on, zero points around them.
  void copy(std::int64_t image, std::int64_t images, std::int64_t top) noexcept {
    const ConvShape& s = args_.shape;
    const std::int64_t left = s.pad_left * s.channels, inside = s.width * s.channels;
    std::uint8_t* to = copy_;
    for (std::int64_t n = 0; n < images; ++n) {
      for (std::int64_t i = 0; i < Bands::input_lines(s, lines_); ++i, to += bands_.line) {
        const std::int64_t y = top + i;
        if (y < 0 || y >= s.height) {
          std::memset(to, args_.x_zero, static_cast<std::size_t>(bands_.line));
          continue;
        }
        std::memset(to, args_.x_zero, static_cast<std::size_t>(left));
        std::memcpy(to + left, args_.x + ((image + n) * s.height + y) * inside, static_cast<std::size_t>(inside));
        std::memset(to + left + inside, args_.x_zero, static_cast<std::size_t>(s.pad_right * s.channels));
      }
    }
    std::memset(to, 0, 2 * narrow_filters);
  }

  void multiply(std::int64_t out) noexcept {
    const ConvShape& s = args_.shape;
    const int rows = rows_of(tile_.blocks);
    const std::int64_t step_w = s.stride_w * s.channels, step_h = s.stride_h * bands_.line;
    const std::int64_t image = bands_.is_direct ? bands_.image : Bands::input_lines(s, lines_) * bands_.line;
    const std::uint8_t* at_line = input_;
    const std::uint8_t* at_image = input_;
    const std::uint8_t* at = input_;
    std::int64_t left_in_line = bands_.out_w, left_lines = lines_;
    for (std::int64_t p = 0; p < pixels_; p += tile_.count) {
      tile_.count = static_cast<int>(std::min<std::int64_t>(rows, pixels_ - p));
      for (int r = 0; r < tile_.count; ++r) {
        tile_.rows[r] = at;
        at += step_w;
        if (--left_in_line > 0) continue;
        left_in_line = bands_.out_w;
        at = at_line += step_h;
        if (--left_lines > 0) continue;
        left_lines = lines_;
        at = at_line = at_image += image;
      }
      for (int r = tile_.count; r < rows; ++r) tile_.rows[r] = tile_.rows[0];
      const std::int64_t first = out + p * s.filters;
      tile_.y = args_.y_dtype == DType::f32 ? static_cast<void*>(static_cast<float*>(args_.y) + first)
                                            : static_cast<std::uint8_t*>(args_.y) + first;
      tile_.residual = args_.residual != nullptr ? args_.residual + first : nullptr;
      kernel_(args_, tile_);
    }
  }

  const QuantConvArgs& args_;
  const Bands& bands_;
  Packing packing_;
  QuantKernel kernel_;
  std::uint8_t* copy_;
  const std::uint8_t* input_ = nullptr;
  std::int64_t lines_ = 0, pixels_ = 0;
  std::int64_t runs_[quant_max_runs] = {};
  QuantTile tile_{};
};

}  // namespace quant_conv_detail

std::int64_t quant_runs(const ConvShape& shape) noexcept {
  return shape.dilation_w == 1 ? shape.kernel_h : shape.kernel_h * shape.kernel_w;
}

std::int64_t quant_padded_filters(const ConvShape& shape) noexcept {
  using namespace quant_conv_detail;
  std::int64_t filters = 0;
  while (filters < shape.filters) filters += panel_blocks(shape.filters - filters) * lanes;
  return filters;
}

std::size_t quant_packed_bytes(const ConvShape& shape) noexcept {
  using namespace quant_conv_detail;
  const Packing packing(shape);
  const std::int64_t blocks = packing.is_narrow ? 1 : quant_padded_filters(shape) / lanes;
  return static_cast<std::size_t>(blocks * packing.bytes_per_block());
}

void pack_quant_weight(const ConvShape& shape, const std::int8_t* weight, void* packed) noexcept {
  auto* const to = static_cast<std::int8_t*>(packed);
  std::memset(to, 0, quant_packed_bytes(shape));
  quant_conv_detail::for_each_weight(shape, [&](std::int64_t at, std::int64_t element) { to[at] = weight[element]; });
}

void unpack_quant_weight(const ConvShape& shape, const void* packed, std::int8_t* weight) noexcept {
  const auto* const from = static_cast<const std::int8_t*>(packed);
  quant_conv_detail::for_each_weight(shape, [&](std::int64_t at, std::int64_t element) { weight[element] = from[at]; });
}

std::size_t quant_conv_workspace_bytes(const ConvShape& shape, int threads) noexcept {
  const quant_conv_detail::Bands bands(shape, threads);
  return static_cast<std::size_t>(bands.copied_bytes() * std::clamp<std::int64_t>(bands.count, 1, threads));
}

void quant_conv(const QuantConvArgs& args, void* workspace, int threads, DotUnit unit) noexcept {
  using namespace quant_conv_detail;
  const Bands bands(args.shape, threads);
  const QuantKernel kernel = quant_kernel(unit, Packing(args.shape).is_narrow);
  const int used = static_cast<int>(std::clamp<std::int64_t>(bands.count, 1, threads));
  parallel_threads(used, [&](int thread) {
    Worker worker(args, bands, kernel, static_cast<std::uint8_t*>(workspace) + thread * bands.copied_bytes());
    const std::int64_t first = bands.count * thread / used, last = bands.count * (thread + 1) / used;
    for (std::int64_t band = first; band < last; ++band) worker.compute(band);
  });
}

namespace quant_conv_detail {

void conv(const QuantConvArgs& args, void* workspace, int threads) {
  quant_conv(args, workspace, threads, int8_unit());
}

}  // namespace quant_conv_detail

const QuantConvKernels quant_conv_cpu{
    .packed_bytes = quant_packed_bytes,
    .pack = pack_quant_weight,
    .unpack = unpack_quant_weight,
    .workspace_bytes = quant_conv_workspace_bytes,
    .conv = quant_conv_detail::conv,
};

const QuantConvKernels& quant_conv_kernels(memory::Device device) {
  return table_for(device, "conv of codes", quant_conv_cpu, quant_conv_cuda, quant_conv_cuda_sizes);
}

void quant_conv_reference(const QuantConvArgs& args, const std::int8_t* weight) noexcept {
  const ConvShape& s = args.shape;
  std::int64_t at = 0;
  for (std::int64_t n = 0; n < s.images; ++n) {
    for (std::int64_t oh = 0; oh < s.out_height(); ++oh) {
      for (std::int64_t ow = 0; ow < s.out_width(); ++ow) {
        for (std::int64_t o = 0; o < s.filters; ++o, ++at) {
          std::int64_t sum = args.bias[o];
          for (std::int64_t kh = 0; kh < s.kernel_h; ++kh) {
            for (std::int64_t kw = 0; kw < s.kernel_w; ++kw) {
              const std::int64_t ih = oh * s.stride_h + kh * s.dilation_h - s.pad_top;
              const std::int64_t iw = ow * s.stride_w + kw * s.dilation_w - s.pad_left;
              const bool is_inside = ih >= 0 && ih < s.height && iw >= 0 && iw < s.width;
              for (std::int64_t c = 0; c < s.channels; ++c) {
                const int x = is_inside ? args.x[((n * s.height + ih) * s.width + iw) * s.channels + c] : args.x_zero;
                sum += x * weight[((o * s.kernel_h + kh) * s.kernel_w + kw) * s.channels + c];
              }
            }
          }
          quant_detail::store_quant_conv(args, at, o, static_cast<std::int32_t>(sum));
        }
      }
    }
  }
}

}  // namespace thimble::kernels
