#include <thimble/core/kernels/cpu/base/dot_unit.h>

#include <thimble/core/kernels/cpu/base/isa.h>

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

namespace thimble::kernels {
namespace dot_unit_detail {

#if defined(__x86_64__)
/// Bits of CPUID leaf 7: the compilers' test does not know them all. Linux grants tile registers on request.
bool has_amx_bf16() noexcept {
#if defined(__linux__)
  static const bool is_there = [] {
    constexpr long request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    constexpr unsigned tile = 1U << 24, bf16 = 1U << 22;
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
    return (d & tile) != 0 && (d & bf16) != 0 && syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
  }();
  return is_there;
#else
  return false;
#endif
}
#endif

}  // namespace dot_unit_detail

std::string_view to_string(DotUnit unit) noexcept {
  constexpr std::string_view names[] = {"generic", "avx2", "avx512", "amx"};
  return names[static_cast<int>(unit)];
}

bool is_supported(DotUnit unit, [[maybe_unused]] DType dtype) noexcept {
  if (unit == DotUnit::generic) return true;
#if defined(__x86_64__)
  const bool is_bf16 = dtype == DType::bf16;
  if (unit == DotUnit::avx2) return !is_bf16 && is_supported(Isa::avx2);
  if (!is_supported(Isa::avx512)) return false;
  if (unit == DotUnit::amx) return is_bf16 && dot_unit_detail::has_amx_bf16();
  return is_bf16 ? __builtin_cpu_supports("avx512bf16") != 0 : __builtin_cpu_supports("avx512vnni") != 0;
#else
  return false;
#endif
}

std::optional<DotUnit> best_dot_unit(DType dtype) noexcept {
  if (isa() == Isa::avx512) {
    for (const DotUnit unit : {DotUnit::amx, DotUnit::avx512}) {
      if (is_supported(unit, dtype)) return unit;
    }
  }
  if (dtype == DType::bf16) return std::nullopt;
  return isa() >= Isa::avx2 && is_supported(DotUnit::avx2, dtype) ? DotUnit::avx2 : DotUnit::generic;
}

}  // namespace thimble::kernels
