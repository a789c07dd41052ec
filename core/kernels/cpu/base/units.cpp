#include <thimble/core/kernels/cpu/base/units.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

#include <thimble/core/error.h>
#include <thimble/core/settings.h>
#include <thimble/core/threads/parallel.h>

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

#if defined(__x86_64__)
#endif

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

namespace dot_unit_detail {

#if defined(__x86_64__)
/// Bits of CPUID leaf 7, some of which the compilers' test does not know. Linux grants tile registers on request.
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

namespace unit_rates_detail {

struct Row {
  std::string_view vendor;
  unsigned family;
  DotUnit unit;
  Product product;
  bool is_on_unit, is_measured;
  std::string_view origin;
};

constexpr std::string_view intel = "GenuineIntel", amd = "AuthenticAMD";
constexpr unsigned p6 = 6, zen4 = 0x19, zen5 = 0x1A;
constexpr bool on_unit = true, converted = false, measured = true, guess = false;

// Times are for one training step on two threads. The first matching row counts.
constexpr Row rows[] = {
    {intel, p6, DotUnit::amx, Product::gemm, on_unit, measured,
     "Emerald Rapids: 1327 Gop/s with the right operand packed before, f32's ceiling is 176 (one thread)"},
    {intel, p6, DotUnit::amx, Product::conv_forward, on_unit, measured,
     "Xeon with AMX: ResNet-50's step, batch 2, takes 0.84 of f32's with forward on AMX, 0.98 all converted (one "
     "thread)"},
    {intel, p6, DotUnit::amx, Product::conv_backward, on_unit, measured,
     "Xeon with AMX: ResNet-50's step, batch 2, takes 0.50 of f32's with gradients on AMX too, 0.84 without (one "
     "thread)"},
    {intel, p6, DotUnit::avx512, Product::gemm, converted, measured,
     "Emerald Rapids: vdpbf16ps makes 85 Gop/s on one thread, f32 176"},
    {intel, p6, DotUnit::avx512, Product::conv_forward, converted, measured,
     "Emerald Rapids: 77 to 82 Gop/s on vdpbf16ps, 137 to 250 converted (3x3 of ResNet-50)"},
    {intel, p6, DotUnit::avx512, Product::conv_backward, converted, measured,
     "Emerald Rapids: 65 to 82 Gop/s on vdpbf16ps, 137 to 250 converted (3x3 of ResNet-50)"},
    {amd, zen5, DotUnit::avx512, Product::gemm, on_unit, measured, "Zen 5: vdpbf16ps has twice the rate of f32"},
    {amd, zen5, DotUnit::avx512, Product::conv_forward, on_unit, guess,
     "Zen 5: 227 ms of ResNet-50's forward, batch 8, on the unit; converted it was not timed alone"},
    {amd, zen5, DotUnit::avx512, Product::conv_backward, converted, measured,
     "Zen 5: 743 ms of ResNet-50, batch 8, on the unit: the step 1340 ms, in f32 960"},
    {amd, zen4, DotUnit::avx512, Product::gemm, on_unit, measured,
     "Zen 4: 177 to 220 Gop/s on vdpbf16ps (GPT, BERT), 96 to 114 in f32; ceilings 236 and 118 (one thread)"},
    {amd, zen4, DotUnit::avx512, Product::conv_forward, on_unit, measured,
     "Zen 4: ResNet-50's forward, batch 2, 85 ms on vdpbf16ps, 140 converted, 138 in f32 (one thread)"},
    {amd, zen4, DotUnit::avx512, Product::conv_backward, on_unit, measured,
     "Zen 4: ResNet-50's gradients, batch 2, 177 ms on vdpbf16ps, 282 converted, 281 in f32 (one thread)"},
};

Processor read() noexcept {
  Processor p;
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(0, &a, &b, &c, &d) == 0) return p;
  std::memcpy(p.vendor, &b, 4);
  std::memcpy(p.vendor + 4, &d, 4);
  std::memcpy(p.vendor + 8, &c, 4);
  if (__get_cpuid(1, &a, &b, &c, &d) == 0) return p;
  const unsigned base = a >> 8 & 0xFU, extended_model = (a >> 16 & 0xFU) << 4;
  p.family = base == 0xFU ? base + (a >> 20 & 0xFFU) : base;
  p.model = (a >> 4 & 0xFU) + (base == 6 || base == 0xFU ? extended_model : 0);
  p.has_f16c = (c >> 29 & 1U) != 0;  // clang 14 does not know the name for __builtin_cpu_supports
#endif
  return p;
}

}  // namespace unit_rates_detail

std::string_view to_string(Product product) noexcept {
  constexpr std::string_view names[] = {"gemm", "conv forward", "conv backward"};
  return names[static_cast<int>(product)];
}

const Processor& this_processor() noexcept {
  static const Processor processor = unit_rates_detail::read();
  return processor;
}

UnitRate unit_rate(const Processor& processor, DotUnit unit, Product product) noexcept {
  for (const unit_rates_detail::Row& row : unit_rates_detail::rows) {
    const bool is_row =
        row.unit == unit && row.product == product && row.vendor == processor.vendor && row.family == processor.family;
    if (is_row) return {row.is_on_unit, row.is_measured, row.origin};
  }
  return {false, false, "this kind of processor is not in the table (core/kernels/cpu/base/units.cpp)"};
}

namespace units_detail {

std::atomic<int>& chosen(DType dtype) noexcept {
  return dtype == DType::bf16 ? settings().bf16_unit : settings().int8_unit;
}

std::string units_of(DType dtype) {
  std::string list;
  for (const DotUnit unit : dot_units) {
    if (is_supported(unit, dtype)) list += (list.empty() ? "" : ", ") + std::string(to_string(unit));
  }
  return list;
}

/// The best unit within isa(), excluding plain code and units that are part of the instruction set.
std::optional<DotUnit> real_unit(DType dtype) noexcept {
  const std::optional<DotUnit> unit = best_dot_unit(dtype);
  return unit && *unit >= DotUnit::avx512 ? unit : std::nullopt;
}

DotUnit plain_int8() noexcept { return isa() >= Isa::avx2 ? DotUnit::avx2 : DotUnit::generic; }

std::string quoted(std::string_view where, std::string_view text) {
  return std::string(where) + ": '" + std::string(text) + "'";
}

}  // namespace units_detail

UnitChoice unit_choice(DType dtype) noexcept {
  const int code = units_detail::chosen(dtype).load(std::memory_order_relaxed);
  if (code == Settings::automatic_unit) return {};
  return code == Settings::no_unit ? UnitChoice::none() : UnitChoice::on(static_cast<DotUnit>(code));
}

void set_unit_choice(DType dtype, UnitChoice choice) {
  if (dtype != DType::bf16 && dtype != DType::i8) {
    throw ValueError("set_unit_choice: " + std::string(to_string(dtype)) + " has no units; expected bf16 or i8");
  }
  if (!choice.is_automatic && choice.unit && !is_supported(*choice.unit, dtype)) {
    throw ValueError("set_unit_choice: this machine has no " + std::string(to_string(dtype)) + " products on unit " +
                     std::string(to_string(*choice.unit)) + "; it has " + units_detail::units_of(dtype));
  }
  const int code = choice.is_automatic ? Settings::automatic_unit
                   : choice.unit       ? static_cast<int>(*choice.unit)
                                       : Settings::no_unit;
  units_detail::chosen(dtype).store(code, std::memory_order_relaxed);
}

std::optional<DotUnit> bf16_unit(Product product) noexcept {
  const UnitChoice choice = unit_choice(DType::bf16);
  if (!choice.is_automatic) return choice.unit;
  const std::optional<DotUnit> unit = best_dot_unit(DType::bf16);
  if (!unit || !unit_rate(this_processor(), *unit, product).is_on_unit) return std::nullopt;
  return unit;
}

DotUnit int8_unit() noexcept {
  const UnitChoice choice = unit_choice(DType::i8);
  if (choice.is_automatic) return best_dot_unit(DType::i8).value_or(DotUnit::generic);
  return choice.unit.value_or(units_detail::plain_int8());
}

void set_isa(std::string_view where, std::string_view text) {
  std::string there;
  for (const Isa set : isas) {
    if (!is_supported(set)) continue;
    if (text == to_string(set)) return set_isa(set);
    there += (there.empty() ? "" : ", ") + std::string(to_string(set));
  }
  for (const Isa set : isas) {
    if (text != to_string(set)) continue;
    throw ValueError(units_detail::quoted(where, text) + " is not on this machine, which has " + there);
  }
  throw ValueError(units_detail::quoted(where, text) + " is no instruction set; this machine has " + there);
}

std::string available_units() {
  const bool has_bf16 = units_detail::real_unit(DType::bf16).has_value();
  const bool has_int8 = units_detail::real_unit(DType::i8).has_value();
  return std::string("auto, none") + (has_bf16 ? ", bf16" : "") + (has_int8 ? ", int8" : "") +
         (has_bf16 && has_int8 ? ", bf16,int8" : "");
}

void set_units(std::string_view where, std::string_view text) {
  UnitChoice bf16 = UnitChoice::none(), int8 = UnitChoice::none();
  if (text == "auto") bf16 = int8 = UnitChoice{};
  for (std::size_t begin = 0; text != "auto" && text != "none" && begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view name = text.substr(begin, end - begin);
    begin = end + 1;
    const bool is_bf16 = name == "bf16";
    if (!is_bf16 && name != "int8") {
      throw ValueError(units_detail::quoted(where, name) + " is no unit; within " + std::string(to_string(isa())) +
                       " this machine takes " + available_units());
    }
    const std::optional<DotUnit> unit = units_detail::real_unit(is_bf16 ? DType::bf16 : DType::i8);
    if (!unit) {
      throw ValueError(units_detail::quoted(where, name) + " is not on this machine within " +
                       std::string(to_string(isa())) + ", which takes " + available_units());
    }
    (is_bf16 ? bf16 : int8) = UnitChoice::on(*unit);
  }
  set_unit_choice(DType::bf16, bf16);
  set_unit_choice(DType::i8, int8);
}

void set_from_environment() {
  const auto apply = [](const char* name, auto&& set) {
    const char* const text = std::getenv(name);
    if (text != nullptr && *text != '\0') set(std::string_view(name), std::string_view(text));
  };
  apply("THIMBLE_ISA", [](std::string_view name, std::string_view text) { set_isa(name, text); });
  apply("THIMBLE_UNITS", [](std::string_view name, std::string_view text) { set_units(name, text); });
}

std::string describe_bf16() {
  std::optional<DotUnit> unit;
  std::string on_unit;
  bool is_all = true;
  for (const Product product : products) {
    if (const std::optional<DotUnit> used = bf16_unit(product)) {
      unit = used;
      on_unit += (on_unit.empty() ? "" : ", ") + std::string(to_string(product));
    } else {
      is_all = false;
    }
  }
  if (!unit) return "bf16 converted";
  return "bf16 on " + std::string(to_string(*unit)) + (is_all ? "" : " (" + on_unit + "), else converted");
}

std::string describe_compute() {
  const int threads = thread_count();
  return std::string(to_string(isa())) + ", " + describe_bf16() + ", int8 on " + std::string(to_string(int8_unit())) +
         ", " + std::to_string(threads) + (threads == 1 ? " thread" : " threads");
}

}  // namespace thimble::kernels
