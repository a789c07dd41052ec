#pragma once
// What verdicts on rules of thumb are computed from: how curves grow, and where they cross.

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include <thimble/bench/report/experiment.h>

namespace thimble::bench {

/// p where y grows as constant + x^p: from the last three points, whose x are a geometric sequence,
/// log((y3 - y2) / (y2 - y1)) / log(x3 / x2). 0 for y that grows by the same amount for every such step (a logarithm);
/// nullopt for y that does not grow. Throws ValueError for fewer points or another sequence.
std::optional<double> growth_exponent(std::span<const report::Point> points);

/// "O(layers)", "O(sqrt(layers))", "O(log layers)", "O(layers^2)", "O(1)": the one of these that the exponent is next
/// to, and the exponent.
std::string growth_in_words(std::optional<double> exponent, const std::string& x);

/// A batch with and without checkpointing: live bytes at the peak of a step, and its time.
struct CheckpointedBatch {
  std::int64_t batch = 0;
  double plain_bytes = 0, checkpointed_bytes = 0;
  double plain_ms = 0, checkpointed_ms = 0;
};
/// From which batch on checkpointing saves, how much, at what cost in time, and whether that begins at 16. `batches`
/// are by rising size.
std::string checkpoint_batch_verdict(std::span<const CheckpointedBatch> batches);

/// A plan of GPT: what its layers keep, as shares of two builds that keep everything, and its time.
struct CurvePoint {
  double of_textbook = 0, of_fused = 0;
  double time_overhead = 0;
};
/// The least that is kept at +5 % time, and the time of keeping 85 % less than the textbook build.
std::string gpt_curve_verdict(std::span<const CurvePoint> curve);

}  // namespace thimble::bench
