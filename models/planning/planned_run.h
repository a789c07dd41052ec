#pragma once
// What make_plan plans: the program of a training run with the same setup, its evaluation included, on data of which
// the sizes alone matter. Blocks lie where that program asks for them, so its plan is that of the run.

#include <cstdint>
#include <memory>
#include <string>

#include <thimble/models/datasets/dataset.h>
#include <thimble/models/techniques/setup.h>

namespace thimble::models {

class PlannedRuns {
 public:
  /// `data` is a path as TrainOptions has it: sizes that follow from it (vocabulary; image, channels, classes) are
  /// filled in to `setup`, after those of its weights (follow_weights). Empty: the model's own sizes. Throws what
  /// follow_weights, open_dataset and make_model throw.
  PlannedRuns(Setup& setup, memory::Device device, const std::string& data);

  /// Runs of a setup with these data: two steps, of which each makes its batch and reads its loss, and an evaluation in
  /// batches as they are. It must outlive the runs that it makes. Throws ValueError where the data are too few to be
  /// cut into two parts.
  nn::MakeRun of(const Setup& setup) const;
  /// Dataset::heap_bytes of the data; 0 where none are named.
  std::size_t data_bytes() const { return data_ ? data_->heap_bytes() : 0; }

 private:
  memory::Device device_;
  std::shared_ptr<Dataset> data_;  // null: none are named
};

}  // namespace thimble::models
