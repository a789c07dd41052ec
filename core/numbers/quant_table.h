#pragma once
// The table of dynamic codes (core/numbers/quant_code.h) as a constant expression; each device keeps a copy.

#include <cstddef>
#include <limits>

#include <thimble/core/numbers/quant_code.h>

namespace thimble::quant {

constexpr DynamicTable make_dynamic_table(bool is_signed) noexcept {
  constexpr double decades[] = {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1};
  DynamicTable table{};
  std::array<double, 256> magnitudes{};  // 0 first
  std::size_t count = 1;
  for (std::size_t e = 0; e < 7; ++e) {
    const int parts = 1 << (e + (is_signed ? 0 : 1));
    for (int k = 0; k < parts; ++k) magnitudes[count++] = decades[e] * (0.1 + 0.9 * (2 * k + 1) / (2.0 * parts));
  }
  magnitudes[count++] = 1;
  table.magnitudes = static_cast<int>(count);
  for (std::size_t m = 0; m < count; ++m) {
    const auto value = static_cast<float>(magnitudes[m]);
    table.values[is_signed ? 127 + m : m] = value;
    if (is_signed && m > 0 && m < 128) table.values[127 - m] = -value;
    table.borders[m] = m + 1 < count ? static_cast<float>((magnitudes[m] + magnitudes[m + 1]) / 2)
                                     : std::numeric_limits<float>::infinity();
  }
  std::size_t m = 0;
  for (std::size_t i = 0; i < table.places.size(); ++i) {
    const auto low =
        bit_cast<float>((static_cast<std::uint32_t>(i) + DynamicTable::first_bucket) << DynamicTable::shift);
    while (low >= table.borders[m]) ++m;
    table.places[i] = static_cast<std::uint32_t>(m);
  }
  return table;
}

}  // namespace thimble::quant
