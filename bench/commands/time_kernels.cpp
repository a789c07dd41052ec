// The main() of the benchmarks of single kernels.

#include <thimble/bench/timing/kernel_timing.h>

#include <cstdio>
#include <filesystem>

#include <CLI/CLI.hpp>

#include <thimble/bench/commands.h>
#include <thimble/bench/timing/ceiling.h>
#include <thimble/core/error.h>
#include <thimble/core/kernels/cpu/base/units.h>
#include <thimble/core/kernels/cpu/matmul/gemm.h>
#include <thimble/core/threads/parallel.h>

namespace thimble::bench {
namespace time_kernels_detail {

// Multiply-adds per second / 1e9 of a square matmul.
double matmul_rate(const KernelTiming& options) {
  constexpr std::int64_t n = 768;
  Lines a = normal_lines(n * n), b = normal_lines(n * n), c = normal_lines(n * n);
  kernels::GemmArgs args;
  args.m = args.n = args.k = n;
  args.a = floats(a), args.b = floats(b), args.c = floats(c);
  args.a_row_stride = args.b_row_stride = args.c_row_stride = n;
  Lines space = lines(kernels::gemm_workspace_bytes(args, options.threads));
  const double ms = best_ms(options.seconds, [&] { kernels::gemm(args, space.data(), options.threads); });
  return static_cast<double>(n * n * n) / ms * 1e-6;
}

}  // namespace time_kernels_detail

int time_kernels(int argc, char** argv, const char* about, const std::function<void(const KernelTiming&)>& run) {
  KernelTiming options;
  CLI::App app(about);
  app.add_option("--seconds", options.seconds, "Time for each figure")->check(CLI::NonNegativeNumber);
  app.add_option("--only", options.only, "The cases whose name contains this text");
  try {
    set_thread_count(options.threads);
    kernels::set_from_environment();
    add_compute_flags(app);
    CLI11_PARSE(app, argc, argv);
    options.threads = thread_count();
    const double ceiling = ceiling_gflops(kernels::isa(), options.threads, options.seconds) / 2;
    std::printf("f32, %s, threads: %d; matmul (768, 768) by (768, 768): %.1f of the ceiling's %.1f G multiply-adds/s\n",
                std::string(to_string(kernels::isa())).c_str(), options.threads,
                time_kernels_detail::matmul_rate(options), ceiling);
    run(options);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s: %s\n", std::filesystem::path(argv[0]).filename().c_str(), error.what());
    return 2;
  }
  return 0;
}

}  // namespace thimble::bench
