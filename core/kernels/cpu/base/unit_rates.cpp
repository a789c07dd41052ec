#include <thimble/core/kernels/cpu/base/unit_rates.h>

#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace thimble::kernels {
namespace unit_rates_detail {

struct Row {
  std::string_view vendor;
  unsigned first_family, last_family;
  DotUnit unit;
  Product product;
  UnitRate rate;
};

constexpr std::string_view intel = "GenuineIntel", amd = "AuthenticAMD";
constexpr unsigned p6 = 6, zen4 = 0x19, zen5 = 0x1A;
constexpr bool on_unit = true, converted = false, measured = true, guess = false;

// Step times are of one training step on two threads. The first matching row counts.
constexpr Row rows[] = {
    {intel,
     p6,
     p6,
     DotUnit::amx,
     Product::gemm,
     {on_unit, measured,
      "Emerald Rapids: 1327 Gop/s with the right operand packed before, f32's ceiling is 176 (one thread)"}},
    {intel,
     p6,
     p6,
     DotUnit::amx,
     Product::conv_forward,
     {on_unit, measured,
      "Xeon with AMX: ResNet-50's step, batch 2, takes 0.84 of f32's with forward on AMX, 0.98 all converted (one "
      "thread)"}},
    {intel,
     p6,
     p6,
     DotUnit::amx,
     Product::conv_backward,
     {on_unit, measured,
      "Xeon with AMX: ResNet-50's step, batch 2, takes 0.50 of f32's with gradients on AMX too, 0.84 without (one "
      "thread)"}},
    {intel,
     p6,
     p6,
     DotUnit::avx512,
     Product::gemm,
     {converted, measured, "Emerald Rapids: vdpbf16ps makes 85 Gop/s on one thread, f32 176"}},
    {intel,
     p6,
     p6,
     DotUnit::avx512,
     Product::conv_forward,
     {converted, measured, "Emerald Rapids: 77 to 82 Gop/s on vdpbf16ps, 137 to 250 converted (3x3 of ResNet-50)"}},
    {intel,
     p6,
     p6,
     DotUnit::avx512,
     Product::conv_backward,
     {converted, measured, "Emerald Rapids: 65 to 82 Gop/s on vdpbf16ps, 137 to 250 converted (3x3 of ResNet-50)"}},
    {amd,
     zen5,
     zen5,
     DotUnit::avx512,
     Product::gemm,
     {on_unit, measured, "Zen 5: vdpbf16ps has twice the rate of f32"}},
    {amd,
     zen5,
     zen5,
     DotUnit::avx512,
     Product::conv_forward,
     {on_unit, guess, "Zen 5: 227 ms of ResNet-50's forward, batch 8, on the unit; converted it was not timed alone"}},
    {amd,
     zen5,
     zen5,
     DotUnit::avx512,
     Product::conv_backward,
     {converted, measured, "Zen 5: 743 ms of ResNet-50, batch 8, on the unit: the step 1340 ms, in f32 960"}},
    {amd,
     zen4,
     zen4,
     DotUnit::avx512,
     Product::gemm,
     {on_unit, measured,
      "Zen 4: 177 to 220 Gop/s on vdpbf16ps (GPT, BERT), 96 to 114 in f32; ceilings 236 and 118 (one thread)"}},
    {amd,
     zen4,
     zen4,
     DotUnit::avx512,
     Product::conv_forward,
     {on_unit, measured,
      "Zen 4: ResNet-50's forward, batch 2, 85 ms on vdpbf16ps, 140 converted, 138 in f32 (one thread)"}},
    {amd,
     zen4,
     zen4,
     DotUnit::avx512,
     Product::conv_backward,
     {on_unit, measured,
      "Zen 4: ResNet-50's gradients, batch 2, 177 ms on vdpbf16ps, 282 converted, 281 in f32 (one thread)"}},
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
    if (row.unit == unit && row.product == product && processor.vendor == row.vendor &&
        processor.family >= row.first_family && processor.family <= row.last_family) {
      return row.rate;
    }
  }
  return {false, false, "this kind of processor is not in the table (core/kernels/cpu/base/unit_rates.cpp)"};
}

}  // namespace thimble::kernels
