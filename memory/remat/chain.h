#pragma once
// A chain of stages as plain numbers, the schedule solvers' view of a network.
//
// Stage i reads activation a_i and makes a_{i+1}; its backward reads the gradient d_{i+1} and makes d_i.
//
// Accounting
// - a_i counts once, in the chain: from its forward until the backward of stage i has run, or until a forward that
//   records nothing passes over stage i and drops it. a_0 is the chain's input and exists at the start.
// - An option's kept_bytes count the inner tensors that it saves, without the stage's input and output.
// - d_i lives from the backward of stage i to the backward of stage i - 1. d_n, the gradient of the last output, is
//   made when the first backward begins; d_0 and the parameters' gradients remain at the end.
// - An operation's peak is its largest need beyond the held bytes and its results: 0 without temporaries.
// - A shared tensor leaves stage m and is read beyond stage m + 1: the skip of a U-Net, a tensor that conditions all
//   blocks, the result of each recurrent step. It adds to the activations at every boundary that it crosses, from its
//   forward until the last backward or re-run that reads it. Its gradient lives from the backward of its last reader
//   to the backward of its maker.
// - Tensors that live all through the step (parameters, optimizer state, a loss that the caller holds) are not in the
//   chain.
//
// Terms
//   option      one way of recording one or several stages: which inner tensors are kept until the backward
//   span        number of stages that an option records; the activations between them count as inner tensors
//   record      run a stage's forward so that its backward can run later
//   time        an integer in any unit (nanoseconds, floating-point operations), so that sums are exact

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <thimble/core/error.h>

namespace thimble::remat {

using Bytes = std::int64_t;  ///< signed, for differences of budgets
using Time = std::int64_t;

/// In a valid chain or graph, no number and no sum of numbers is above this.
inline constexpr std::int64_t largest_total = std::int64_t{1} << 60;

/// One way of recording stage i and the span - 1 stages after it as if they were one: the input is a_i, the output
/// a_{i + span}, the parameters' gradients belong to all of these stages. All bytes and times are >= 0.
struct Option {
  std::string name;
  Bytes kept_bytes = 0;       ///< held from this forward to the backward, without the stage's input and output
  bool keeps_input = true;    ///< a_i stays until the backward; otherwise it is packed or offloaded after the forward
  bool keeps_output = false;  ///< the backward reads the output, which then outlives the backward of the next stage
  std::vector<std::uint32_t> kept_shared = {};    ///< kept shared tensors that are made here and read later; rising
  std::vector<std::uint32_t> unread_shared = {};  ///< shared tensors from before that only the forward reads; rising
  bool is_first_visit_only = false;               ///< usable in the forward before the first backward, not in a re-run
  std::uint32_t span = 1;                         ///< stages recorded at once, >= 1, within the chain
  Time forward_time = 0;                          ///< recording forward, packing and offloading included
  Time recompute_time = 0;                        ///< before the backward: recomputing, unpacking or fetching
  Time backward_time = 0;                         ///< once everything is in place
  Bytes forward_peak_bytes = 0;                   ///< beyond the held bytes, the output and kept_bytes
  Bytes recompute_peak_bytes = 0;                 ///< beyond the held bytes; d_i does not exist yet
  /// Beyond the held bytes, d_i and the parameters' gradients. Recomputed and fetched tensors count, the input among
  /// them when keeps_input is false.
  Bytes backward_peak_bytes = 0;

  friend bool operator==(const Option&, const Option&) = default;
};

/// One stage: its output, its forward without recording, and the ways of recording it.
struct Stage {
  std::string name;
  Bytes output_bytes = 0;              ///< a_{i+1}
  Bytes output_gradient_bytes = 0;     ///< d_{i+1}
  Bytes parameter_gradient_bytes = 0;  ///< made by the backward, alive to the end; 0 if they exist already
  Time forward_time = 0;               ///< without recording
  Bytes forward_peak_bytes = 0;        ///< without recording, beyond the held bytes and the output
  std::vector<Option> options;         ///< at least one has span 1 and is usable on any visit

  friend bool operator==(const Stage&, const Stage&) = default;
};

/// A tensor with readers beyond the stage after its maker.
struct SharedTensor {
  std::uint32_t maker = 0;
  std::vector<std::uint32_t> readers;  ///< at least one stage after the maker, rising
  Bytes bytes = 0, gradient_bytes = 0;

  /// Whether a stage in [begin, end) reads it.
  bool is_read_in(std::size_t begin, std::size_t end) const;
  friend bool operator==(const SharedTensor&, const SharedTensor&) = default;
};

struct Chain {
  Bytes input_bytes = 0;           ///< a_0
  Bytes input_gradient_bytes = 0;  ///< d_0; 0 if the input needs no gradient
  std::vector<Stage> stages;
  std::vector<SharedTensor> shared = {};  ///< sorted by maker

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

/// No schedule of the requested kind fits the budget.
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
/// visit, a span is 0 or leaves the chain, a number is negative, the sum of all bytes or n + 1 times the sum of all
/// times passes largest_total, the shared tensors are out of order, or an option lists a shared tensor wrongly.
void validate(const Chain& chain);

/// The chain of the theory: n equal stages with one option that keeps kept_bytes, activations and gradients of
/// activation_bytes, no peaks and no parameter gradients.
Chain homogeneous_chain(std::size_t n, Bytes activation_bytes, Bytes kept_bytes, Time forward_time, Time backward_time);

}  // namespace thimble::remat
