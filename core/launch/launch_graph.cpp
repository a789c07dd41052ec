#include <thimble/core/launch/launch_graph.h>

#include <string>

#include <thimble/core/error.h>
#include <thimble/core/kernels/device_runtime.h>

namespace thimble {

LaunchGraph::LaunchGraph(Device device, const std::vector<Tensor>& uses, FunctionRef<void()> work, Cut* cut)
    : device_(device) {
  const kernels::DeviceRuntime& runtime = kernels::device_runtime(device);
  for (const Tensor& t : uses) pins_.push_back(std::make_unique<Pin>(t));
  runtime.begin_recording(device);
  if (cut != nullptr) cut->graph_ = this;
  try {
    work();
    if (cut != nullptr) cut->graph_ = nullptr;
  } catch (...) {
    if (cut != nullptr) cut->graph_ = nullptr;
    runtime.end_recording(device, false);
    forget();
    throw;
  }
  try {
    end_part();
  } catch (...) {
    forget();
    throw;
  }
}

LaunchGraph::~LaunchGraph() { forget(); }

void LaunchGraph::forget() noexcept {
  for (void* const recording : recordings_) kernels::device_runtime(device_).forget(device_, recording);
  recordings_.clear();
}

void LaunchGraph::end_part() {
  const kernels::DeviceRuntime& runtime = kernels::device_runtime(device_);
  recordings_.reserve(recordings_.size() + 1);
  recordings_.push_back(runtime.end_recording(device_, true));
  launches_ += runtime.recorded_launches(recordings_.back());
}

void LaunchGraph::Cut::operator()() const {
  if (graph_ == nullptr) throw Error("launch_graph: a cut where nothing is recorded; allowed in the work of its graph");
  graph_->end_part();
  kernels::device_runtime(graph_->device_).begin_recording(graph_->device_);
}

void LaunchGraph::replay() {
  for (void* const recording : recordings_) kernels::device_runtime(device_).replay(device_, recording);
}

void LaunchGraph::replay(std::size_t part) {
  if (part >= recordings_.size()) {
    throw ValueError("launch_graph: part " + std::to_string(part) + " of " + std::to_string(recordings_.size()) +
                     "; the first is part 0");
  }
  kernels::device_runtime(device_).replay(device_, recordings_[part]);
}

}  // namespace thimble
