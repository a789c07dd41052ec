#include <thimble/core/kernels/isa.h>

#include <atomic>
#include <string>

#include <thimble/core/error.h>

namespace thimble::kernels {
namespace isa_detail {

std::atomic<Isa>& chosen() noexcept {
  static std::atomic<Isa> value{best_isa()};
  return value;
}

}  // namespace isa_detail

std::string_view to_string(Isa isa) noexcept {
  constexpr std::string_view names[] = {"generic", "avx2", "avx512"};
  return names[static_cast<int>(isa)];
}

Isa best_isa() noexcept {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    return Isa::avx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Isa::avx2;
#endif
  return Isa::generic;
}

Isa isa() noexcept { return isa_detail::chosen().load(std::memory_order_relaxed); }

void set_isa(Isa isa) {
  if (isa > best_isa()) {
    throw ValueError("isa: this CPU has no " + std::string(to_string(isa)) + ", its best is " +
                     std::string(to_string(best_isa())));
  }
  isa_detail::chosen().store(isa);
}

}  // namespace thimble::kernels
