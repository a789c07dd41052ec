// How fast convolution's CPU kernels are: `conv_benchmark [--threads N] [--isa NAME] [--seconds S] [--only TEXT]`.
// The cases are the nine convolutions that a ResNet-50 spends most of its time in, eight images each. Each runs again
// and again for S seconds and its best time counts, because other work on the machine only ever makes a run slower.
// Rates are multiply-adds, with the products of the padding counted. The first line says what the machine gives: a
// matmul, and an FMA loop in registers (bench/timing/ceiling.h).

#include <algorithm>
#include <cstdint>
#include <cstdio>

#include <thimble/bench/timing/kernel_timing.h>
#include <thimble/core/kernels/conv.h>

namespace {

using namespace thimble;
using namespace thimble::bench;
using kernels::ConvShape;

struct Case {
  const char* name;
  std::int64_t size, channels, filters, kernel, stride, pad;
};

constexpr std::int64_t images = 8;
constexpr Case cases[] = {
    {"7x7 /2, 3 to 64, 224", 224, 3, 64, 7, 2, 3},         {"3x3, 64 to 64, 56", 56, 64, 64, 3, 1, 1},
    {"1x1, 256 to 64, 56", 56, 256, 64, 1, 1, 0},          {"1x1, 64 to 256, 56", 56, 64, 256, 1, 1, 0},
    {"3x3, 128 to 128, 28", 28, 128, 128, 3, 1, 1},        {"3x3 /2, 128 to 128, 56", 56, 128, 128, 3, 2, 1},
    {"1x1, 1024 to 256, 14", 14, 1024, 256, 1, 1, 0},      {"3x3, 256 to 256, 14", 14, 256, 256, 3, 1, 1},
    {"3x3, 512 to 512, 7", 7, 512, 512, 3, 1, 1},          {"1x1 /2, 256 to 512, 56", 56, 256, 512, 1, 2, 0},
    {"1x1 /2, 1024 to 2048, 14", 14, 1024, 2048, 1, 2, 0},
};
constexpr std::size_t summed_cases = 9;  // the strided 1x1 stand beside the nine

ConvShape shape_of(const Case& c) {
  ConvShape s;
  s.images = images;
  s.height = s.width = c.size;
  s.channels = c.channels;
  s.filters = c.filters;
  s.kernel_h = s.kernel_w = c.kernel;
  s.stride_h = s.stride_w = c.stride;
  s.pad_top = s.pad_bottom = s.pad_left = s.pad_right = c.pad;
  return s;
}

struct Times {
  double forward = 0, input_grad = 0, weight_grad = 0;
};

struct Bytes {
  std::size_t forward, input_grad, weight_grad;
};

void print(const char* name, const Times& ms, double multiply_adds) {
  std::printf("%-26s", name);
  for (const double t : {ms.forward, ms.input_grad, ms.weight_grad}) {
    std::printf(" | %8.3f %8.1f", t, multiply_adds / t * 1e-6);
  }
}

Times run(const Case& c, int threads, double seconds) {
  const ConvShape s = shape_of(c);
  const std::int64_t inputs = s.images * s.height * s.width * s.channels;
  const std::int64_t outputs = s.images * s.out_height() * s.out_width() * s.filters;
  const std::int64_t taps = s.kernel_h * s.kernel_w * s.channels;
  Lines x = normal_lines(inputs), weight = normal_lines(s.filters * taps), y = normal_lines(outputs);
  kernels::ConvForwardArgs forward;
  kernels::ConvInputGradArgs input_grad;
  kernels::ConvWeightGradArgs weight_grad;
  forward.shape = input_grad.shape = weight_grad.shape = s;
  const Bytes bytes{kernels::conv_workspace_bytes(forward, threads), kernels::conv_workspace_bytes(input_grad, threads),
                    kernels::conv_workspace_bytes(weight_grad, threads)};
  Lines space = lines(std::max({bytes.forward, bytes.input_grad, bytes.weight_grad, std::size_t{1}}));
  forward.x = floats(x), forward.weight = floats(weight), forward.y = floats(y);
  Times ms;
  ms.forward = best_ms(seconds, [&] { kernels::conv_forward(forward, space.data(), threads); });
  Lines dy = normal_lines(outputs), result = normal_lines(std::max(inputs, s.filters * taps));
  input_grad.dy = weight_grad.dy = floats(dy);
  input_grad.weight = floats(weight), input_grad.dx = floats(result);
  weight_grad.x = floats(x), weight_grad.dweight = floats(result);
  ms.input_grad = best_ms(seconds, [&] { kernels::conv_input_grad(input_grad, space.data(), threads); });
  ms.weight_grad = best_ms(seconds, [&] { kernels::conv_weight_grad(weight_grad, space.data(), threads); });
  print(c.name, ms, static_cast<double>(outputs * taps));
  std::printf(" | %9zu %9zu %9zu\n", bytes.forward, bytes.input_grad, bytes.weight_grad);
  return ms;
}

}  // namespace

int main(int argc, char** argv) {
  return time_kernels(argc, argv, "Speed of convolution's CPU kernels", [](const KernelTiming& options) {
    std::printf("%-26s | %17s | %17s | %17s | %29s\n", "", "forward", "input gradient", "weight gradient",
                "workspace bytes");
    std::printf("%-26s", "");
    for (int i = 0; i < 3; ++i) std::printf(" | %8s %8s", "ms", "G/s");
    std::printf(" | %9s %9s %9s\n", "forward", "input", "weight");
    Times sum;
    for (std::size_t i = 0; i < std::size(cases); ++i) {
      if (!options.takes(cases[i].name)) continue;
      const Times ms = run(cases[i], options.threads, options.seconds);
      if (i >= summed_cases) continue;
      sum.forward += ms.forward, sum.input_grad += ms.input_grad, sum.weight_grad += ms.weight_grad;
    }
    std::printf("%-26s | %8.3f %8s | %8.3f %8s | %8.3f\n", "sum of the first nine", sum.forward, "", sum.input_grad, "",
                sum.weight_grad);
  });
}
