#include <thimble/bench/experiments/advice.h>

#include <cmath>

#include <thimble/bench/report/text.h>
#include <thimble/core/error.h>
#include <thimble/memory/units.h>

namespace thimble::bench {

std::optional<double> growth_exponent(std::span<const report::Point> points) {
  if (points.size() < 3) {
    throw ValueError("growth_exponent: " + std::to_string(points.size()) + " points; at least 3 are needed");
  }
  const auto last = points.last(3);
  const double factor = last[2].x / last[1].x;
  if (!(factor > 1) || std::abs(last[1].x * factor - last[0].x * factor * factor) > 1e-9 * last[2].x) {
    throw ValueError("growth_exponent: x of " + format_real(last[0].x) + ", " + format_real(last[1].x) + ", " +
                     format_real(last[2].x) + " are not a rising geometric sequence");
  }
  const double before = last[1].y - last[0].y, after = last[2].y - last[1].y;
  if (before <= 0 || after <= 0) return std::nullopt;
  return std::log(after / before) / std::log(factor);
}

std::string growth_in_words(std::optional<double> exponent, const std::string& x) {
  if (!exponent) return "O(1)";
  const std::string exact = " (exponent " + report::format_fixed(*exponent, 2) + ")";
  if (*exponent < 0.25) return "O(log " + x + ")" + exact;
  if (*exponent < 0.75) return "O(sqrt(" + x + "))" + exact;
  if (*exponent < 1.5) return "O(" + x + ")" + exact;
  return "O(" + x + "^2)" + exact;
}

}  // namespace thimble::bench
