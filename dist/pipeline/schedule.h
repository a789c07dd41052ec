#pragma once
// Pipeline schedules as plain data: the actions of each stage, in order. A model is cut into `stages` times `chunks`
// pieces of layers, in the order of the model; piece c stages + r is stage r's chunk c. A micro-batch passes all pieces
// forwards, then all backwards.
//
//   schedule     order of a stage                                         holds at most, in micro-batches of a piece
//   GPipe        all forwards, then all backwards                         m
//   1F1B         a forward per later stage, then one of each              min(p - r, m)
//   interleaved  1F1B over the v pieces of each stage                     2 (p - r - 1) + (v - 1) p + 1, at most v m
//
// p stages, r the stage, m micro-batches, v chunks. GPipe: Huang et al. 2018, arXiv:1811.06965. 1F1B and interleaved:
// Narayanan et al. 2021, arXiv:2104.04473, section 2.2.
//
// Worked example, p 2, m 3: 1F1B gives stage 0 F0 F1 B0 F2 B1 B2, and stage 1 F0 B0 F1 B1 F2 B2. Stage 0 holds two
// micro-batches, GPipe three.

#include <cstdint>
#include <string>
#include <vector>

namespace thimble::dist {

enum class Pass : std::uint8_t { forward, backward };

/// A micro-batch's pass through a piece, forwards or backwards.
struct Action {
  Pass pass = Pass::forward;
  int micro_batch = 0;
  int chunk = 0;
  friend bool operator==(const Action&, const Action&) = default;
};

/// "F3" or "B0"; "F3.1" for chunk 1.
std::string to_string(const Action& action);

struct Schedule {
  int stages = 1, chunks = 1, micro_batches = 1;
  std::vector<std::vector<Action>> of_stage;  ///< actions of each stage, in order

  int pieces() const noexcept { return stages * chunks; }
};

/// Throw ValueError for a number below 1; interleaved also if the stages do not divide the micro-batches, or for a
/// single chunk.
Schedule gpipe(int stages, int micro_batches);
Schedule one_forward_one_backward(int stages, int micro_batches);
Schedule interleaved(int stages, int micro_batches, int chunks);

/// Proves a schedule: each stage passes each micro-batch through each of its chunks once forwards and once backwards;
/// backward passes of a chunk are in the order of micro-batches, so that gradients are summed as on one stage; and no
/// stage waits forever for a message. Throws PlanError that names the stage and the action.
void check_schedule(const Schedule& schedule);

/// Proves that PipelineStage cannot deadlock on this schedule. There a stage waits before its n-th next pass until a
/// result is taken, and before it sends the n-th next gradient until a gradient is taken; between two stages tensors
/// must be taken in the order of sending. Returns the least n that works: 1 for GPipe and 1F1B; for interleaved 1F1B 2
/// with one micro-batch per stage, 3 with more. Throws PlanError that names the stage and the action.
int check_hand_over(const Schedule& schedule);

/// Seconds of a step's actions.
struct PipelineCosts {
  std::vector<double> forward_s, backward_s;  ///< per piece, for a micro-batch; a single number applies to all pieces
  double link_s = 0;                          ///< from a stage to the next, in either direction
};

struct TimedAction {
  Action action;
  double begin_s = 0, end_s = 0;
};

struct PipelineRun {
  std::vector<std::vector<TimedAction>> of_stage;
  double step_s = 0;           ///< from the first start to the last end
  std::vector<double> busy_s;  ///< per stage
  std::vector<int> in_flight;  ///< per stage: most forwards awaiting their backward at a time, over all its chunks
  /// Idle over busy time of all stages. With equal times and free links (p - 1) / m; interleaved (p - 1) / (v m).
  double bubble = 0;
};

/// Runs a schedule: a stage begins its next action when it is free and the action's input is ready. Throws ValueError
/// for costs of another number of pieces or below 0, and as check_schedule does.
PipelineRun simulate(const Schedule& schedule, const PipelineCosts& costs);

}  // namespace thimble::dist
