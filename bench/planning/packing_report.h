#pragma once
// What plans pack, and what that does to gradients: for the commands to print.

#include <string>
#include <vector>

#include <thimble/bench/runs/training.h>
#include <thimble/nn/fit/fit.h>
#include <thimble/nn/precision/gradient_report.h>

namespace thimble::bench {

/// As JSON: [{"operator", "dtype", "tensors", "bytes", "packed_bytes"}], of a recording: a step or a micro-batch.
std::string to_json_text(const std::vector<nn::PackedResults>& packed);

/// The gradients of a run's next batch with the tensors of its plan packed, against the same plan without that: at the
/// parameters that the run begins with, those of a checkpoint that it goes on from. In an arena of its own, beside any
/// budget. A dynamic loss scale is halved until all gradients are finite, as training would. Nothing is trained on or
/// written. Throws what train() throws before its first step.
nn::GradientReport packing_gradients(const PreparedTraining& prepared);

/// As JSON: {"loss", "relative_error", "cosine", "parameters": [{"name", "norm", "relative_error", "cosine"}]}; an
/// error of a gradient that is zero without packing is null.
std::string to_json_text(const nn::GradientReport& report);

/// As a table, one line for each parameter and one for all.
std::string to_lines(const nn::GradientReport& report);

}  // namespace thimble::bench
