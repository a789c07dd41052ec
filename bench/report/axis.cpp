#include <thimble/bench/report/axis.h>

#include <algorithm>
#include <array>
#include <cmath>

#include <thimble/bench/report/text.h>

namespace thimble::report {
namespace axis_detail {

constexpr std::array<const char*, 7> byte_units = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};

// The index of the largest binary unit that is not above `bytes`.
int byte_unit(double bytes) {
  int unit = 0;
  while (unit + 1 < static_cast<int>(byte_units.size()) && bytes >= std::ldexp(1.0, 10 * (unit + 1))) ++unit;
  return unit;
}

std::string byte_label(double bytes, int unit) {
  if (bytes == 0) return "0";
  return format_trimmed(std::ldexp(bytes, -10 * unit), 6) + " " + byte_units[static_cast<std::size_t>(unit)];
}

std::string label(double value, Unit unit, int decimals) {
  switch (unit) {
    case Unit::bytes:
      return byte_label(value, byte_unit(std::abs(value)));
    case Unit::milliseconds:
      return format_fixed(value, decimals) + " ms";
    case Unit::percent:
      return format_fixed(value * 100, std::max(0, decimals - 2)) + " %";
    case Unit::plain:
      break;
  }
  if (std::abs(value) >= 1e9) return format_trimmed(value * 1e-9, 3) + " G";
  if (std::abs(value) >= 1e6) return format_trimmed(value * 1e-6, 3) + " M";
  return format_fixed(value, decimals);
}

// The smallest 1, 2 or 5 times a power of ten (for bytes: the smallest power of two) that is at least `least`.
double nice_step(double least, Unit unit) {
  if (unit == Unit::bytes) return std::exp2(std::max(0.0, std::ceil(std::log2(least))));
  const double decade = std::pow(10.0, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    // The tolerance keeps 0.2 from becoming 0.5 when the division was rounded up.
    if (factor * decade >= least * (1 - 1e-9)) return factor * decade;
  }
  return 10 * decade;
}

AxisTicks linear_ticks(double low, double high, const Axis& axis, int target) {
  if (axis.from_zero && low > 0) low = 0;
  if (axis.from_zero && high < 0) high = 0;
  if (!(high > low)) high = low + (axis.unit == Unit::bytes ? 1024.0 : std::max(1.0, std::abs(low)));
  const double step = nice_step((high - low) / target, axis.unit);
  const auto first = std::floor(low / step * (1 + 1e-12));
  const auto last = std::ceil(high / step * (1 - 1e-12));
  AxisTicks result{first * step, last * step, Scale::linear, {}};
  const int decimals = std::max(0, static_cast<int>(std::ceil(-std::log10(step) - 1e-9)));
  const int unit = byte_unit(std::max(std::abs(result.low), std::abs(result.high)));
  for (double i = first; i <= last; ++i) {
    const double value = i * step;
    result.ticks.push_back(
        {value, axis.unit == Unit::bytes ? byte_label(value, unit) : label(value, axis.unit, decimals)});
  }
  return result;
}

AxisTicks logarithmic_ticks(double low, double high, const Axis& axis, int target) {
  const int first = static_cast<int>(std::floor(std::log2(low) + 1e-9));
  const int last = std::max(first + 1, static_cast<int>(std::ceil(std::log2(high) - 1e-9)));
  int stride = 1;
  while ((last - first) / stride > target) ++stride;
  AxisTicks result{std::exp2(first), std::exp2(last), Scale::log2, {}};
  for (int exponent = first; exponent <= last; exponent += stride) {
    const double value = std::exp2(exponent);
    result.ticks.push_back({value, label(value, axis.unit, std::max(0, -exponent))});
  }
  return result;
}

}  // namespace axis_detail

AxisTicks make_ticks(double low, double high, const Axis& axis, int target) {
  if (axis.scale == Scale::linear) return axis_detail::linear_ticks(low, high, axis, target);
  return axis_detail::logarithmic_ticks(low, high, axis, target);
}

AxisMap::AxisMap(const AxisTicks& ticks, double from, double to)
    : is_logarithmic_(ticks.scale != Scale::linear),
      low_(is_logarithmic_ ? std::log2(ticks.low) : ticks.low),
      span_((is_logarithmic_ ? std::log2(ticks.high) : ticks.high) - low_),
      from_(from),
      to_(to) {}

double AxisMap::operator()(double value) const noexcept {
  const double at = ((is_logarithmic_ ? std::log2(value) : value) - low_) / span_;
  return from_ + (to_ - from_) * at;
}

}  // namespace thimble::report
