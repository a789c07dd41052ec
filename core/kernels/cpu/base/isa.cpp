#include <thimble/core/kernels/cpu/base/isa.h>

#include <string>

#include <thimble/core/error.h>
#include <thimble/core/settings.h>

namespace thimble::kernels {
std::string_view to_string(Isa isa) noexcept {
  constexpr std::string_view names[isa_count] = {"generic", "avx2", "avx512"};
  return names[static_cast<int>(isa)];
}

bool is_supported(Isa isa) noexcept {
#if defined(__x86_64__)
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  switch (isa) {
    case Isa::generic:
      return true;
    case Isa::avx2:
      return has_avx2;
    case Isa::avx512:
      return has_avx512;
  }
  return false;
#else
  return isa == Isa::generic;
#endif
}

Isa best_isa() noexcept {
  if (is_supported(Isa::avx512)) return Isa::avx512;
  return is_supported(Isa::avx2) ? Isa::avx2 : Isa::generic;
}

Isa isa() noexcept { return static_cast<Isa>(settings().isa.load(std::memory_order_relaxed)); }

void set_isa(Isa isa) {
  if (!is_supported(isa)) {
    throw ValueError("set_isa: this machine does not support " + std::string(to_string(isa)) + ", its best is " +
                     std::string(to_string(best_isa())));
  }
  settings().isa.store(static_cast<int>(isa), std::memory_order_relaxed);
}

}  // namespace thimble::kernels
