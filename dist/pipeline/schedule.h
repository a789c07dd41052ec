#pragma once
// Pipeline schedules as plain data: the actions of each stage, in order. A model is cut into `stages` times `chunks`
// pieces of layers, in the order of the model; piece c stages + r is stage r's chunk c. A micro-batch passes all pieces
// forwards, then all backwards.
//
//   schedule     a stage does                                             holds at most, in micro-batches of a piece
//   GPipe        all forwards, then all backwards                         m
//   1F1B         as many forwards as stages follow, then one of each      min(p - r, m)
//   interleaved  the same over v pieces of each stage                     2 (p - r - 1) + (v - 1) p + 1, at most v m
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

/// A micro-batch through a piece, one way.
struct Action {
  Pass pass = Pass::forward;
  int micro_batch = 0;
  int chunk = 0;
  friend bool operator==(const Action&, const Action&) = default;
};

/// "F3" or "B0"; "F3.1" of chunk 1.
std::string to_string(const Action& action);

struct Schedule {
  int stages = 1, chunks = 1, micro_batches = 1;
  std::vector<std::vector<Action>> of_stage;  ///< the actions of each, in order

  int pieces() const noexcept { return stages * chunks; }
};

/// Throw ValueError for a number below 1; interleaved also where the stages do not divide the micro-batches, or with a
/// single chunk.
Schedule gpipe(int stages, int micro_batches);
Schedule one_forward_one_backward(int stages, int micro_batches);
Schedule interleaved(int stages, int micro_batches, int chunks);

/// Proves a schedule: each stage passes each micro-batch once each way through each of its chunks; through a chunk
/// backwards in the order of micro-batches, so that gradients are summed as on one stage; and no stage waits forever
/// for a message. Throws PlanError that names the stage and the action.
void check_schedule(const Schedule& schedule);

/// Proves that no stage waits forever where stages hand over as PipelineStage does, each send ending when its tensor is
/// taken: a result is taken before its stage begins the n-th next pass, and a gradient before the n-th next one is
/// sent; and that between two stages tensors are taken in the order of sending. Returns the least n: 1 of GPipe and
/// 1F1B, of interleaved 1F1B 2 for as many micro-batches as stages, and 3 for more. Throws PlanError that names the
/// stage and the action.
int check_hand_over(const Schedule& schedule);

/// Seconds of a step's actions.
struct PipelineCosts {
  std::vector<double> forward_s, backward_s;  ///< of each piece, for a micro-batch; a single number applies to all
  double link_s = 0;                          ///< from one stage to the next, forwards or backwards
};

struct TimedAction {
  Action action;
  double begin_s = 0, end_s = 0;
};

struct PipelineRun {
  std::vector<std::vector<TimedAction>> of_stage;
  double step_s = 0;           ///< from the first begin to the last end
  std::vector<double> busy_s;  ///< of each stage
  std::vector<int> in_flight;  ///< of each stage: most forwards without their backward at a time, over all its chunks
  /// Idle time over busy time, of all stages. With equal times and no links (p - 1) / m, interleaved (p - 1) / (v m).
  double bubble = 0;
};

/// Runs a schedule: a stage begins its next action when it is free and the action's input is ready. Throws ValueError
/// for costs of another number of pieces or below 0, and as check_schedule.
PipelineRun simulate(const Schedule& schedule, const PipelineCosts& costs);

}  // namespace thimble::dist
