#include <thimble/core/kernels/cpu/conv/conv_driver.h>

#include <algorithm>
#include <cstring>

#include <thimble/core/kernels/cpu/matmul/gemm_bf16.h>

namespace thimble::kernels::conv_detail {
namespace conv_bf16_detail {

using gemm_detail::Bf16Operands;
using gemm_detail::Bf16Place;

/// A matrix with a row for every pixel of a map: the elements that the pixel's window sees in some channels, in the
/// order (kh, kw, c), zeros outside the image.
struct Patches {
  const std::uint16_t* image = nullptr;  // first used channel
  std::int64_t height = 0, width = 0;    // of an image
  std::int64_t pixel = 0;                // channels of the image, the step from pixel to pixel
  std::int64_t channels = 0;             // used
  std::int64_t kernel_h = 1, kernel_w = 1, stride_h = 1, stride_w = 1, dilation_h = 1, dilation_w = 1;
  std::int64_t top = 0, left = 0;  // of the window of pixel (0, 0)
  std::int64_t map_height = 0, map_width = 0;

  std::int64_t elements() const noexcept { return kernel_h * kernel_w * channels; }
  /// Every window is a single pixel, and the map is the image.
  bool is_image() const noexcept {
    return kernel_h == 1 && kernel_w == 1 && stride_h == 1 && stride_w == 1 && top == 0 && left == 0 &&
           map_height == height && map_width == width;
  }

  /// Elements [p, p + count) of a row. Copies contiguous runs at once: the taps of a line, where all channels are used.
  void copy(std::int64_t row, std::int64_t p, std::int64_t count, std::uint16_t* out) const noexcept {
    const std::int64_t taps = dilation_w == 1 && channels == pixel ? kernel_w : 1;  // in a run
    const std::int64_t run = taps * channels, runs_of_line = kernel_w / taps;
    const std::int64_t line = row / map_width, first_h = top + line % map_height * stride_h;
    const std::int64_t first_w = left + row % map_width * stride_w;
    const std::uint16_t* const of_image = image + line / map_height * height * width * pixel;
    while (count > 0) {
      const std::int64_t index = p / run, begin = p - index * run, end = std::min(run, begin + count);
      const std::int64_t h = first_h + index / runs_of_line * dilation_h;
      const std::int64_t w = first_w + index % runs_of_line * dilation_w;
      const bool is_inside = h >= 0 && h < height;
      const std::int64_t low = is_inside ? std::clamp(-w * channels, begin, end) : end;
      const std::int64_t high = is_inside ? std::clamp((width - w) * channels, low, end) : end;
      out = std::fill_n(out, low - begin, std::uint16_t{0});
      if (high > low) {
        const std::uint16_t* const from = of_image + (h * width + w) * pixel + low;
        std::memcpy(out, from, static_cast<std::size_t>(high - low) * 2);
      }
      out = std::fill_n(out + (high - low), end - high, std::uint16_t{0});
      p += end - begin, count -= end - begin;
    }
  }
};

/// The windows of a convolution over its input, of a group's channels.
Patches input_patches(const ConvShape& s, const void* x) noexcept {
  Patches p;
  p.image = static_cast<const std::uint16_t*>(x);
  p.height = s.height, p.width = s.width;
  p.pixel = s.channels, p.channels = s.channels / s.groups;
  p.kernel_h = s.kernel_h, p.kernel_w = s.kernel_w, p.stride_h = s.stride_h, p.stride_w = s.stride_w;
  p.dilation_h = s.dilation_h, p.dilation_w = s.dilation_w;
  p.top = -s.pad_top, p.left = -s.pad_left;
  p.map_height = s.out_height(), p.map_width = s.out_width();
  return p;
}

/// A phase of the input's gradient: its pixels, and the taps that reach them, on both axes.
struct Phases {
  Phase h, w;

  std::int64_t taps() const noexcept { return h.axis.taps * w.axis.taps; }
  std::int64_t pixels(const ConvShape& s) const noexcept { return s.images * h.axis.grid * w.axis.grid; }
};

/// The windows of dy that a phase's pixels see. With stride 1 they are the windows of another convolution, whose taps
/// come in reverse.
Patches turned_patches(const ConvShape& s, const void* dy, const Phases& phases) noexcept {
  const WindowAxis &h = phases.h.axis, &w = phases.w.axis;
  Patches p;
  p.image = static_cast<const std::uint16_t*>(dy);
  p.height = h.size, p.width = w.size;
  p.pixel = s.filters, p.channels = s.filters / s.groups;
  p.kernel_h = h.taps, p.kernel_w = w.taps;
  p.dilation_h = h.tap_step, p.dilation_w = w.tap_step;
  p.top = h.origin, p.left = w.origin;
  p.map_height = h.grid, p.map_width = w.grid;
  return p;
}

/// A left operand of patches, read in place where every window is one pixel.
class PatchRows : public Bf16Operands {
 public:
  PatchRows(const Patches& patches, std::int64_t images) noexcept : patches_(patches) {
    m = images * patches.map_height * patches.map_width;
    k = patches.elements();
    reads_left = patches.is_image();
    a = patches.image, a_stride = patches.pixel;
  }
  void copy_left(std::int64_t row, int rows, std::int64_t p, std::int64_t depth, std::int64_t filled,
                 std::uint16_t* out) const noexcept override {
    for (int r = 0; r < rows; ++r, out += filled) {
      patches_.copy(row + r, p, depth, out);
      std::fill(out + depth, out + filled, std::uint16_t{0});
    }
  }

 protected:
  Patches patches_;
};

/// (pixels, taps and channels) x (taps and channels, filters).
class Forward final : public PatchRows {
 public:
  Forward(const ConvForwardArgs& args, std::int64_t group) noexcept
      : PatchRows(input_patches(args.shape, args.x), args.shape.images) {
    const Group sizes(args.shape);
    n = sizes.filters;
    reads_right = true;
    b = static_cast<const std::uint16_t*>(args.weight) + group * sizes.weights();
    b_row_stride = 1, b_column_stride = sizes.filter_elements;
    patches_.image += group * sizes.channels;
    a += group * sizes.channels;
  }
  void copy_right(std::int64_t, std::int64_t, std::int64_t, std::uint16_t*) const noexcept override {}
};

/// (pixels of a phase, taps and filters) x (taps and filters, channels), the last tap first.
class InputGrad final : public PatchRows {
 public:
  InputGrad(const ConvInputGradArgs& args, std::int64_t group, const Phases& phases) noexcept
      : PatchRows(turned_patches(args.shape, args.dy, phases), args.shape.images),
        sizes_(args.shape),
        phases_(phases),
        kernel_w_(args.shape.kernel_w),
        weight_(static_cast<const std::uint16_t*>(args.weight) + group * sizes_.weights()) {
    n = sizes_.channels;
    patches_.image += group * sizes_.filters;
    a += group * sizes_.filters;
  }
  void copy_right(std::int64_t p, std::int64_t column, std::int64_t columns,
                  std::uint16_t* out) const noexcept override {
    const std::int64_t tap = p / sizes_.filters, filter = p % sizes_.filters, taps_w = phases_.w.axis.taps;
    const std::int64_t h = phases_.h.last_tap - tap / taps_w * phases_.h.tap_stride;
    const std::int64_t w = phases_.w.last_tap - tap % taps_w * phases_.w.tap_stride;
    const std::int64_t at = filter * sizes_.filter_elements + (h * kernel_w_ + w) * sizes_.channels;
    std::memcpy(out, weight_ + at + column, static_cast<std::size_t>(columns) * 2);
  }

 private:
  Group sizes_;
  Phases phases_;
  std::int64_t kernel_w_;
  const std::uint16_t* weight_;
};

/// (filters, pixels) x (pixels, taps and channels).
class WeightGrad final : public Bf16Operands {
 public:
  WeightGrad(const ConvWeightGradArgs& args, std::int64_t group) noexcept
      : patches_(input_patches(args.shape, args.x)), stride_(args.shape.filters) {
    const Group sizes(args.shape);
    m = sizes.filters, n = sizes.filter_elements, k = out_pixels(args.shape);
    dy_ = static_cast<const std::uint16_t*>(args.dy) + group * sizes.filters;
    patches_.image += group * sizes.channels;
    reads_right = patches_.is_image();
    b = patches_.image, b_row_stride = patches_.pixel, b_column_stride = 1;
  }
  void copy_left(std::int64_t row, int rows, std::int64_t p, std::int64_t depth, std::int64_t filled,
                 std::uint16_t* out) const noexcept override {
    gemm_detail::copy_bf16_rows(dy_ + row + p * stride_, 1, stride_, rows, depth, filled, out);
  }
  void copy_right(std::int64_t p, std::int64_t column, std::int64_t columns,
                  std::uint16_t* out) const noexcept override {
    patches_.copy(p, column, columns, out);
  }

 private:
  Patches patches_;
  const std::uint16_t* dy_;
  std::int64_t stride_;
};

template <class Args>
gemm_detail::Output<float> output_of(const Args& args, void* c, std::int64_t row) noexcept {
  gemm_detail::Output<float> output;
  output.c = c;
  output.dtype = args.out_dtype;
  output.rows.pixel = row;
  return output;
}

/// Runs all groups, whose results are `step` elements apart.
template <class Operands, class Args, class... Part>
void multiply(const Args& args, const gemm_detail::Output<float>& output, const Bf16Place& place, std::int64_t step,
              void* workspace, int threads, DotUnit unit, const Part&... part) noexcept {
  for (std::int64_t group = 0; group < args.shape.groups; ++group) {
    const Operands operands(args, group, part...);
    const Bf16Place at{place.c_offset + group * step, place.bias_offset + group * step};
    gemm_detail::bf16_product(operands, output, at, workspace, threads, unit);
  }
}

/// Calls body(y, x, phases) for every phase with pixels that a tap reaches.
template <class Body>
void for_phases(const ConvShape& s, Body&& body) noexcept {
  for (std::int64_t y = 0; y < s.stride_h; ++y) {
    for (std::int64_t x = 0; x < s.stride_w; ++x) {
      const Phases phases{phase_h(s, y), phase_w(s, x)};
      if (phases.pixels(s) > 0 && phases.taps() * s.filters > 0) body(y, x, phases);
    }
  }
}

}  // namespace conv_bf16_detail

bool is_for_bf16_unit(const ConvForwardArgs& args) noexcept { return args.dtype == DType::bf16; }
bool is_for_bf16_unit(const ConvInputGradArgs& args) noexcept {
  return args.dtype == DType::bf16 && !folds_phases(args.shape);
}
bool is_for_bf16_unit(const ConvWeightGradArgs& args) noexcept { return args.dtype == DType::bf16; }

std::size_t bf16_workspace_bytes(const ConvForwardArgs& args, int threads) noexcept {
  return gemm_detail::bf16_product_bytes(conv_bf16_detail::Forward(args, 0), threads);
}
std::size_t bf16_workspace_bytes(const ConvInputGradArgs& args, int threads) noexcept {
  std::size_t bytes = 0;
  conv_bf16_detail::for_phases(args.shape, [&](std::int64_t, std::int64_t, const conv_bf16_detail::Phases& phases) {
    bytes = std::max(bytes, gemm_detail::bf16_product_bytes(conv_bf16_detail::InputGrad(args, 0, phases), threads));
  });
  return bytes;
}
std::size_t bf16_workspace_bytes(const ConvWeightGradArgs& args, int threads) noexcept {
  return gemm_detail::bf16_product_bytes(conv_bf16_detail::WeightGrad(args, 0), threads);
}

void compute_bf16(const ConvForwardArgs& args, void* workspace, int threads, DotUnit unit) noexcept {
  using namespace conv_bf16_detail;
  gemm_detail::Output<float> output = output_of(args, args.y, args.shape.filters);
  output.pre_activation = args.pre_activation;
  output.bias = args.bias;
  output.activation = args.activation;
  multiply<Forward>(args, output, {}, Group(args.shape).filters, workspace, threads, unit);
}

void compute_bf16(const ConvInputGradArgs& args, void* workspace, int threads, DotUnit unit) noexcept {
  using namespace conv_bf16_detail;
  const ConvShape& s = args.shape;
  gemm_detail::Output<float> output = output_of(args, args.dx, s.stride_w * s.channels);
  output.accumulate = args.accumulate;
  if (!args.accumulate) clear_unreached(args);
  for_phases(s, [&](std::int64_t y, std::int64_t x, const Phases& phases) {
    if (s.stride_h != 1 || s.stride_w != 1) {
      output.rows.width = phases.w.axis.grid;
      output.rows.height = phases.h.axis.grid;
      output.rows.line = s.stride_h * s.width * s.channels;
      output.rows.image = s.height * s.width * s.channels;
    }
    const Bf16Place place{(y * s.width + x) * s.channels, 0};
    multiply<InputGrad>(args, output, place, Group(s).channels, workspace, threads, unit, phases);
  });
}

void compute_bf16(const ConvWeightGradArgs& args, void* workspace, int threads, DotUnit unit) noexcept {
  using namespace conv_bf16_detail;
  const Group sizes(args.shape);
  gemm_detail::Output<float> output = output_of(args, args.dweight, sizes.filter_elements);
  output.accumulate = args.accumulate;
  multiply<WeightGrad>(args, output, {}, sizes.weights(), workspace, threads, unit);
}

}  // namespace thimble::kernels::conv_detail
