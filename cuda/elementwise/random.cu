// Random fills and dropout on CUDA devices: a thread for each Philox block. The numbers equal the CPU's: uniform,
// Bernoulli and f32 normal ones bit by bit, normal ones in f64 and truncated ones up to the device's cos, sin and log.

#include <cmath>

#include <thimble/core/kernels/random.h>
#include <thimble/core/kernels/shared/normal_quantile.h>
#include <thimble/core/kernels/shared/random_bits.h>
#include <thimble/cuda/kernel/element.h>
#include <thimble/cuda/kernel/step_argument.h>
#include <thimble/cuda/kernel/words.h>

namespace thimble::kernels {
namespace random_cuda_detail {

using namespace cuda_kernels;

// The numbers of one block: four in f32, two in f64.
template <class T>
struct Numbers {
  static constexpr int count = 16 / (4 * (sizeof(T) / 4));
  T value[4];
};

template <class T>
THIMBLE_DEVICE inline T unit(const PhiloxBlock& block, int i) {
  if constexpr (std::is_same_v<T, double>) {
    return uniform_double(block.word[2 * i], block.word[2 * i + 1]);
  } else {
    return uniform_float(block.word[i]);
  }
}

template <class T>
THIMBLE_DEVICE inline void draw_normal(const PhiloxBlock& block, Numbers<T>& to) {
  if constexpr (std::is_same_v<T, double>) {
    const double radius = std::sqrt(-2 * std::log(1 - unit<double>(block, 0)));
    const double angle = 6.283185307179586 * unit<double>(block, 1);
    to.value[0] = radius * std::cos(angle);
    to.value[1] = radius * std::sin(angle);
  } else {
    for (int i = 0; i < 4; i += 2) {
      const NormalPair pair = normal_pair(block.word[i], block.word[i + 1]);
      to.value[i] = pair.first;
      to.value[i + 1] = pair.second;
    }
  }
}

// Inverts the distribution in double for every T; u is the middle of its interval.
template <class T>
THIMBLE_DEVICE inline T truncated_normal(const PhiloxBlock& block, int i, double cdf_low, double cdf_high, double low,
                                         double high) {
  double u;
  if constexpr (std::is_same_v<T, double>) {
    u = unit<double>(block, i) + 0x1p-54;
  } else {
    u = (block.word[i] + 0.5) * 0x1p-32;
  }
  double p = cdf_low + u * (cdf_high - cdf_low);
  if (p > 1 - 0x1p-53) p = 1 - 0x1p-53;
  double z = normal_quantile(p);
  if (z < low) z = low;
  return static_cast<T>(z > high ? high : z);
}

template <class T>
struct Fill {
  Distribution distribution;
  double offset, factor, low, high, cdf_low, cdf_high, probability;
  StepArgument<RandomSite> site_argument;
  void* out;
  DType dtype;
  std::int64_t elements, first_element, first_block;

  THIMBLE_DEVICE void operator()(std::int64_t item) const {
    const std::int64_t number = first_block + item;
    const PhiloxBlock block =
        random_block(site_argument.get(), static_cast<std::uint32_t>(number), static_cast<std::uint32_t>(number >> 32));
    const bool is_bernoulli = distribution == Distribution::bernoulli;
    const int count = is_bernoulli ? 4 : Numbers<T>::count;
    Numbers<T> numbers;
    if (distribution == Distribution::normal) {
      draw_normal(block, numbers);
    } else {
      for (int i = 0; i < count; ++i) {
        if (is_bernoulli) {
          numbers.value[i] = block.word[i] * 0x1p-32 < probability ? T(1) : T(0);
        } else if (distribution == Distribution::uniform) {
          numbers.value[i] = unit<T>(block, i);
        } else {
          numbers.value[i] = truncated_normal<T>(block, i, cdf_low, cdf_high, low, high);
        }
      }
    }
    for (int i = 0; i < count; ++i) {
      const std::int64_t at = number * count + i - first_element;
      if (at < 0) continue;
      if (at >= elements) return;
      const T x = numbers.value[i];
      store<T>(out, dtype, at, is_bernoulli ? x : static_cast<T>(offset) + static_cast<T>(factor) * x);
    }
  }
};

void fill(const RandomFillArgs& args) {
  with_compute_type(args.dtype, [&]<class T>() {
    const std::int64_t count = args.distribution == Distribution::bernoulli ? 4 : Numbers<T>::count;
    const std::int64_t first_block = args.first_element / count;
    for_each_item((args.first_element + args.elements + count - 1) / count - first_block,
                  Fill<T>{args.distribution, args.offset, args.factor, args.low, args.high, args.cdf_low, args.cdf_high,
                          args.probability, step_argument(args.site), args.out, args.dtype, args.elements,
                          args.first_element, first_block});
  });
}

// Four elements of one sample.
template <class T>
struct Drop {
  std::int64_t sample_elements, sample_blocks, first_block;
  StepArgument<RandomSite> site_argument;
  std::uint32_t threshold;
  T scale;
  const void* in;
  void* out;
  DType dtype;
  std::uint8_t* mask;

  THIMBLE_DEVICE void operator()(std::int64_t number) const {
    const std::int64_t sample = number / sample_blocks, in_sample = number % sample_blocks;
    const RandomSite& site = site_argument.get();
    const PhiloxBlock block = random_block(site, static_cast<std::uint32_t>(first_block + in_sample),
                                           static_cast<std::uint32_t>(site.first_sample + sample));
    for (int i = 0; i < 4; ++i) {
      if (4 * in_sample + i >= sample_elements) return;
      const std::int64_t at = sample * sample_elements + 4 * in_sample + i;
      const bool is_dropped = block.word[i] < threshold;
      store<T>(out, dtype, at, is_dropped ? T(0) : load<T>(in, dtype, at) * scale);
      if (mask) mask[at] = is_dropped ? 0 : 1;
    }
  }
};

// Four contiguous elements, in words.
template <class S>
struct DropWords {
  std::int64_t sample_blocks, first_block;
  StepArgument<RandomSite> site_argument;
  std::uint32_t threshold;
  float scale;
  const S* in;
  S* out;
  std::uint8_t* mask;

  THIMBLE_DEVICE void operator()(std::int64_t number) const {
    const std::int64_t sample = number / sample_blocks, in_sample = number % sample_blocks;
    const RandomSite& site = site_argument.get();
    const PhiloxBlock block = random_block(site, static_cast<std::uint32_t>(first_block + in_sample),
                                           static_cast<std::uint32_t>(site.first_sample + sample));
    const auto words = words_at<4>(in, 4 * number);
    float results[4];
    Words<std::uint8_t, 4> kept;
    THIMBLE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const bool is_dropped = block.word[i] < threshold;
      results[i] = is_dropped ? 0.0f : widened(words.values[i]) * scale;
      kept.values[i] = is_dropped ? 0 : 1;
    }
    put_words(out, 4 * number, narrowed<S>(results));
    if (mask) put_words(mask, 4 * number, kept);
  }
};

template <class S>
void drop_words(const DropoutArgs& args) {
  const std::int64_t blocks = args.sample_elements / 4;
  for_each_item(args.samples * blocks, DropWords<S>{blocks, args.first_block, step_argument(args.site), args.threshold,
                                                    static_cast<float>(args.scale), static_cast<const S*>(args.in),
                                                    static_cast<S*>(args.out), args.mask});
}

void dropout(const DropoutArgs& args) {
  if (args.sample_elements % 4 == 0 && are_aligned({args.in, args.out, args.mask})) {
    if (args.dtype == DType::f32) return drop_words<float>(args);
    if (args.dtype == DType::bf16) return drop_words<bf16>(args);
    if (args.dtype == DType::f16) return drop_words<f16>(args);
  }
  const std::int64_t blocks = (args.sample_elements + 3) / 4;
  with_compute_type(args.dtype, [&]<class T>() {
    for_each_item(args.samples * blocks,
                  Drop<T>{args.sample_elements, blocks, args.first_block, step_argument(args.site), args.threshold,
                          static_cast<T>(args.scale), args.in, args.out, args.dtype, args.mask});
  });
}

template <class T>
struct Mask {
  const std::uint8_t* mask;
  T scale;
  const void* in;
  void* out;
  DType dtype;
  THIMBLE_DEVICE void operator()(std::int64_t i) const {
    store<T>(out, dtype, i, mask[i] ? load<T>(in, dtype, i) * scale : T(0));
  }
};

void apply_mask(const MaskArgs& args) {
  with_compute_type(args.dtype, [&]<class T>() {
    for_each_item(args.elements, Mask<T>{args.mask, static_cast<T>(args.scale), args.in, args.out, args.dtype});
  });
}

constexpr RandomKernels table{fill, dropout, apply_mask};

}  // namespace random_cuda_detail

const RandomKernels* const random_cuda = &random_cuda_detail::table;

}  // namespace thimble::kernels
