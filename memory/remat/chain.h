#pragma once
// A chain of stages as plain numbers, the schedule solvers' view of a network.
//
// Stage i reads activation a_i and makes a_{i+1}; its backward reads the gradient d_{i+1} and makes d_i.
//
// Who pays
// - a_i belongs to the chain, once, whoever made it: from when it is made until the backward of stage i has run, or
//   until a stage that only passes over it drops it. a_0 is the chain's input and exists at the start.
// - kept_bytes of an option count the inner tensors that a stage saves, and neither its input nor its output.
// - d_i lives from the backward of stage i to the backward of stage i - 1. d_n, the gradient of the last output, is
//   made when the first backward begins; d_0 is left at the end, with the parameters' gradients.
// - An operation's peak is its need at its worst moment, beyond the held bytes and its results.
//   It is therefore never negative, and 0 for an operation without temporaries.
// - A shared tensor is one that stage m makes and that not only stage m + 1 reads: the skip of a U-Net, a tensor that
//   conditions all blocks, the result of each recurrent step. It is beside the activations where a boundary is crossed,
//   from its forward until the last backward, or re-run, that reads it; its gradient from the backward of its last
//   reader until its maker's.
// - Whatever lives all through the step (parameters, optimizer state, a loss that the caller holds) is not in the
//   chain.
//
// Terms
//   option      one way of recording a stage, or several at once: what of the inside is kept until the backward
//   span        how many stages an option records: its inner activations are not the chain's, they count as inside
//   record      run a stage's forward so that its backward can run later
//   time        an integer in any one unit (nanoseconds, floating-point operations), so that sums are exact

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <thimble/core/error.h>

namespace thimble::remat {

using Bytes = std::int64_t;  ///< signed, because differences of budgets are formed
using Time = std::int64_t;   ///< any one unit

/// Validated chains and graphs hold no number, and no sum of numbers, above this.
inline constexpr std::int64_t largest_total = std::int64_t{1} << 60;

/// One way of recording the stage that it belongs to and the span - 1 stages after it, as if they were one: the input
/// is a_i, the output a_{i + span}, the parameters' gradients are those of all of them. All bytes and times are >= 0.
struct Option {
  std::string name;
  Bytes kept_bytes = 0;       ///< held from this forward to the backward; input and output of the stage excluded
  bool keeps_input = true;    ///< a_i stays until the backward. False: packed or offloaded, a_i goes after the forward
  bool keeps_output = false;  ///< the backward reads the output, which then outlives the backward of the next stage
  std::vector<std::uint32_t> kept_shared = {};    ///< shared tensors made here, and read further on, that are kept
  std::vector<std::uint32_t> unread_shared = {};  ///< earlier ones that only its forward reads; both rising
  bool is_first_visit_only = false;  ///< recorded in the forward before the first backward, never when run again
  std::uint32_t span = 1;            ///< stages that are recorded at once, >= 1, inside of the chain
  Time forward_time = 0;             ///< forward while keeping this much; packing and offloading included
  Time recompute_time = 0;           ///< before the backward: running again, unpacking or fetching
  Time backward_time = 0;            ///< with everything in place
  Bytes forward_peak_bytes = 0;      ///< beyond the held bytes, the output and kept_bytes
  Bytes recompute_peak_bytes = 0;    ///< beyond the held bytes; d_i does not exist yet
  /// Beyond what is held, d_i and the parameters' gradients. What was recomputed or fetched (the input too, when
  /// keeps_input is false) is alive here and counts.
  Bytes backward_peak_bytes = 0;

  friend bool operator==(const Option&, const Option&) = default;
};

/// One stage: its output, its forward when nothing is recorded, and the ways of recording it.
struct Stage {
  std::string name;
  Bytes output_bytes = 0;              ///< a_{i+1}
  Bytes output_gradient_bytes = 0;     ///< d_{i+1}
  Bytes parameter_gradient_bytes = 0;  ///< made by the backward and left to the end; 0 where they exist already
  Time forward_time = 0;               ///< forward that records nothing
  Bytes forward_peak_bytes = 0;        ///< of that forward, beyond the held bytes and the output
  std::vector<Option> options;         ///< at least one of span 1 for any visit

  friend bool operator==(const Stage&, const Stage&) = default;
};

/// A tensor that not only the stage after its maker reads.
struct SharedTensor {
  std::uint32_t maker = 0;
  std::vector<std::uint32_t> readers;  ///< stages after the maker, rising, at least one
  Bytes bytes = 0, gradient_bytes = 0;

  /// Whether a stage from `begin` to before `end` reads it.
  bool is_read_in(std::size_t begin, std::size_t end) const;
  friend bool operator==(const SharedTensor&, const SharedTensor&) = default;
};

struct Chain {
  Bytes input_bytes = 0;           ///< a_0
  Bytes input_gradient_bytes = 0;  ///< d_0; 0 when the input needs no gradient
  std::vector<Stage> stages;
  std::vector<SharedTensor> shared = {};  ///< in order of their makers

  std::size_t size() const noexcept { return stages.size(); }

  /// Bytes of a_i and d_i, i in [0, size()].
  Bytes activation_bytes(std::size_t i) const { return i == 0 ? input_bytes : stages[i - 1].output_bytes; }
  Bytes gradient_bytes(std::size_t i) const {
    return i == 0 ? input_gradient_bytes : stages[i - 1].output_gradient_bytes;
  }
  /// The boundary at the end of an option's stages: i + span.
  std::size_t end_of(std::size_t i, std::size_t option) const { return i + stages[i].options[option].span; }

  friend bool operator==(const Chain&, const Chain&) = default;
};

/// No schedule of the kind that was asked for fits the budget.
class InfeasibleBudget : public PlanError {
 public:
  InfeasibleBudget(const std::string& message, Bytes budget_bytes, Bytes smallest_bytes)
      : PlanError(message), budget_bytes_(budget_bytes), smallest_bytes_(smallest_bytes) {}
  Bytes budget_bytes() const noexcept { return budget_bytes_; }
  Bytes smallest_bytes() const noexcept { return smallest_bytes_; }  ///< the smallest feasible budget

 private:
  Bytes budget_bytes_;
  Bytes smallest_bytes_;
};

/// Throws ValueError, naming stage, field and value, when the chain is empty, a stage has no option of span 1 for any
/// visit, a span is 0 or leaves the chain, a number is negative, or the sum of all bytes passes largest_total, or n + 1
/// times the sum of all times does, and when the shared tensors are out of order or an option names others than it may.
void validate(const Chain& chain);

/// n equal stages with one option that keeps kept_bytes. Every activation and gradient has activation_bytes; forward
/// and backward take the times given; there are no peaks and no parameter gradients. The chain of the theory.
Chain homogeneous_chain(std::size_t n, Bytes activation_bytes, Bytes kept_bytes, Time forward_time, Time backward_time);

}  // namespace thimble::remat
