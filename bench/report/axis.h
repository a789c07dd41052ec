#pragma once
// Where marks go on an axis and how a value becomes a position.

#include <string>
#include <vector>

#include <thimble/bench/report/experiment.h>

namespace thimble::report {

struct Tick {
  double value = 0;
  std::string label;
};

/// An axis with its range rounded outwards to marks.
struct AxisTicks {
  double low = 0;
  double high = 1;
  Scale scale = Scale::linear;
  std::vector<Tick> ticks;  ///< ascending, within [low, high]
};

/// Marks for values from `low` to `high` (low <= high, positive on a logarithmic scale), about `target` of them. Steps
/// are 1, 2 or 5 times a power of ten; for bytes a power of two, all labels of an axis in one binary unit ("0.5 GiB");
/// on a logarithmic scale equal numbers of octaves.
AxisTicks make_ticks(double low, double high, const Axis& axis, int target);

/// Maps values linearly (or by logarithm) so that `ticks.low` is at `from` and `ticks.high` at `to`.
class AxisMap {
 public:
  AxisMap(const AxisTicks& ticks, double from, double to);
  double operator()(double value) const noexcept;

 private:
  bool is_logarithmic_;
  double low_, span_, from_, to_;
};

}  // namespace thimble::report
