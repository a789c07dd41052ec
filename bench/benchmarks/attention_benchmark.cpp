// How fast attention's CPU kernels are: `attention_benchmark [--threads N] [--isa NAME] [--seconds S] [--only TEXT]`.
// Each case runs again and again for S seconds and its best time counts, because other work on the machine only ever
// makes a run slower. Rates are multiply-adds: of the (query, key) pairs whose score the kernels compute, and of those
// that the mask lets through; a pair costs 2 D of them forward and 5 D backward. The first line says what the machine
// gives: a matmul, and an FMA loop in registers (bench/timing/ceiling.h).

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>

#include <thimble/bench/timing/kernel_timing.h>
#include <thimble/core/kernels/cpu/attention/attention_cpu.h>

namespace {

using namespace thimble;
using namespace thimble::bench;
using kernels::AttentionProblem;

// `heads` of the `row_heads` that lie in a row of q, k and v: enough work for two threads, and short, so that some run
// meets no other work.
struct Case {
  const char* name;
  std::int64_t batch, heads, row_heads, length, width;
  bool is_causal;
  double dropout;
  std::int64_t window = 0;
};

constexpr Case cases[] = {
    {"T 1024", 1, 2, 12, 1024, 64, true, 0},
    {"T 1024, all keys", 1, 2, 12, 1024, 64, false, 0},
    {"T 1024, dropout 0.1", 1, 2, 12, 1024, 64, true, 0.1},
    {"T 256 (char-gpt)", 2, 6, 6, 256, 64, true, 0},
    {"T 256, dropout 0.1", 2, 6, 6, 256, 64, true, 0.1},
    {"T 197, all keys (vit)", 1, 12, 12, 197, 64, false, 0},
    {"T 512, head 80", 1, 4, 8, 512, 80, true, 0},
    {"T 1024, one head", 2, 1, 1, 1024, 64, false, 0},
    {"T 4096", 1, 2, 12, 4096, 64, true, 0},
    {"T 4096, window 1024", 1, 2, 12, 4096, 64, true, 0, 1024},
    {"T 4096, window 256", 1, 2, 12, 4096, 64, true, 0, 256},
};

// Pairs (query, key) of a head that are computed: whole panels of queries, as wide as a tile of the microkernel.
double computed_pairs(const AttentionProblem& p) {
  const std::int64_t panel = kernels::attention_detail::panel_queries<float>(kernels::isa());
  double pairs = 0;
  for (std::int64_t t = 0; t < p.queries; t += panel) {
    const std::int64_t queries = std::min(panel, p.queries - t);
    const std::int64_t begin = kernels::seen_range(p, 0, t).begin / kernels::attention_detail::key_block *
                               kernels::attention_detail::key_block;
    pairs += static_cast<double>(queries * (kernels::seen_range(p, 0, t + queries - 1).end - begin));
  }
  return pairs;
}

double needed_pairs(const AttentionProblem& p) {
  double pairs = 0;
  for (std::int64_t t = 0; t < p.queries; ++t) {
    const kernels::KeyRange seen = kernels::seen_range(p, 0, t);
    pairs += static_cast<double>(seen.end - seen.begin);
  }
  return pairs;
}

void print_rate(double ms, double pairs, double needed, double multiply_adds) {
  std::printf(" | %8.3f %8.1f %8.1f", ms, pairs * multiply_adds / ms * 1e-6, needed * multiply_adds / ms * 1e-6);
}

void run(const Case& c, int threads, double seconds) {
  const std::int64_t channels = c.row_heads * c.width;
  const std::int64_t elements = c.batch * c.length * channels;
  Lines qkv = normal_lines(3 * elements), dout = normal_lines(elements), out = normal_lines(elements),
        gradient = normal_lines(3 * elements);
  Lines lse = normal_lines(c.batch * c.heads * c.length);
  kernels::AttentionArgs forward;
  forward.batch = c.batch, forward.heads = c.heads, forward.width = c.width;
  forward.queries = forward.keys = c.length;
  forward.is_causal = c.is_causal;
  forward.window = c.window;
  forward.scale = 1 / std::sqrt(static_cast<double>(c.width));
  forward.has_dropout = c.dropout > 0;
  forward.threshold = static_cast<std::uint32_t>(c.dropout * 0x1p32);
  forward.keep_scale = 1 / (1 - c.dropout);
  const std::int64_t row = 3 * channels, batch = c.length * row;
  float* const at = floats(qkv);
  forward.q = {at, batch, row, c.width};
  forward.k = {at + channels, batch, row, c.width};
  forward.v = {at + 2 * channels, batch, row, c.width};
  forward.out = {floats(out), c.length * channels, channels, c.width};
  forward.lse = floats(lse);
  kernels::AttentionGradArgs backward;
  static_cast<AttentionProblem&>(backward) = forward;
  backward.out = {floats(out), c.length * channels, channels, c.width};
  backward.dout = {floats(dout), c.length * channels, channels, c.width};
  backward.lse = floats(lse);
  float* const d = floats(gradient);
  backward.dq = {d, batch, row, c.width};
  backward.dk = {d + channels, batch, row, c.width};
  backward.dv = {d + 2 * channels, batch, row, c.width};

  const kernels::AttentionKernels& k = kernels::attention_cpu;
  const std::size_t forward_bytes = k.forward_bytes(forward, threads);
  const std::size_t backward_bytes = k.backward_bytes(backward, threads);
  Lines forward_space = lines(forward_bytes), backward_space = lines(backward_bytes);
  const double forward_ms = best_ms(seconds, [&] { k.forward(forward, forward_space.data(), threads); });
  const double backward_ms = best_ms(seconds, [&] { k.backward(backward, backward_space.data(), threads); });
  const double heads = static_cast<double>(c.batch * c.heads), width = static_cast<double>(c.width);
  std::printf("%-22s", c.name);
  print_rate(forward_ms, heads * computed_pairs(forward), heads * needed_pairs(forward), 2 * width);
  print_rate(backward_ms, heads * computed_pairs(forward), heads * needed_pairs(forward), 5 * width);
  std::printf(" | %9zu %9zu\n", forward_bytes, backward_bytes);
}

}  // namespace

int main(int argc, char** argv) {
  return time_kernels(argc, argv, "Speed of attention's CPU kernels", [](const KernelTiming& options) {
    std::printf("%-22s | %26s | %26s | %19s\n", "", "forward", "backward", "workspace bytes");
    std::printf("%-22s | %8s %8s %8s | %8s %8s %8s | %9s %9s\n", "", "ms", "computed", "needed", "ms", "computed",
                "needed", "forward", "backward");
    for (const Case& c : cases) {
      if (options.takes(c.name)) run(c, options.threads, options.seconds);
    }
    std::printf("computed, needed: G multiply-adds/s of the pairs computed, and of those the mask lets through\n");
  });
}
