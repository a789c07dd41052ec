#include <thimble/bench/timing/kernel_timing.h>

#include <ctime>

#include <thimble/core/random/random.h>
#include <thimble/core/tensor/copy.h>
#include <thimble/core/tensor/tensor.h>

namespace thimble::bench {

double clock_ms(int threads) {
  std::timespec now{};
  clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
}

Lines lines(std::size_t bytes) { return Lines((bytes + sizeof(Line) - 1) / sizeof(Line)); }

Lines normal_lines(std::int64_t elements) {
  const std::vector<float> values = to_host<float>(randn({elements}));
  Lines memory = lines(values.size() * sizeof(float));
  std::copy(values.begin(), values.end(), floats(memory));
  return memory;
}

}  // namespace thimble::bench
