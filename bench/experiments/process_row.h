#pragma once
// The bytes of the process of an experiment, beside its promise: for whole runs and parts of a step.

#include <cstddef>
#include <optional>

#include <thimble/bench/report/experiment.h>
#include <thimble/memory/process/outside.h>
#include <thimble/models/training/training.h>
#include <thimble/nn/step/profile.h>

namespace thimble::bench {

/// What a run, or a part of one, takes of the process. A dry run has the first figure alone.
struct ProcessBytes {
  std::size_t arena_bytes = 0;   ///< committed by its arena at most
  memory::OutsideBytes outside;  ///< the bound of what is outside of the arena; of a run on a GPU nothing
  std::size_t peak_bytes = 0;    ///< resident in the process since the run's set-up; 0: not known
};
ProcessBytes process_bytes(const nn::MemoryProfile& profile);
ProcessBytes process_bytes(const models::TrainReport& report);

/// The process around a part of a step that an experiment runs alone, from the part's set-up on.
class PartWatch {
 public:
  /// To be made before the part's first tensor. Other arenas may exist: what they hold counts as outside.
  explicit PartWatch(memory::Device device);
  /// Of the part that ran in this arena and recorded so many nodes.
  ProcessBytes bytes(const Arena& arena, std::size_t nodes) const;

 private:
  std::optional<memory::ProcessWatch> watch_;  // none of a dry part, and on a GPU
};

/// The process of a run beside its promise: the predicted peak of the arena, and what is outside of it. A row of
/// several runs shows the one that came nearest to its promise. Where nothing is known, the row says why.
void add_process(report::Row& row, std::size_t predicted_bytes, const ProcessBytes& measured);

}  // namespace thimble::bench
