#include <thimble/core/launch/launch_graph.h>

#include <string>

#include <thimble/core/error.h>
#include <thimble/core/kernels/device_runtime.h>

namespace thimble {

LaunchGraph::LaunchGraph(memory::Device device, const std::vector<Tensor>& uses, FunctionRef<void()> work, Cut* cut)
    : device_(device) {
  const kernels::DeviceRuntime& runtime = kernels::device_runtime(device);
  for (const Tensor& t : uses) pins_.push_back(std::make_unique<memory::Pin>(t));
  runtime.begin_capture(device);
  if (cut != nullptr) cut->graph_ = this;
  try {
    work();
    if (cut != nullptr) cut->graph_ = nullptr;
  } catch (...) {
    if (cut != nullptr) cut->graph_ = nullptr;
    runtime.end_capture(device, false);
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
  for (void* const capture : captures_) kernels::device_runtime(device_).forget(device_, capture);
  captures_.clear();
}

void LaunchGraph::end_part() {
  const kernels::DeviceRuntime& runtime = kernels::device_runtime(device_);
  captures_.reserve(captures_.size() + 1);
  captures_.push_back(runtime.end_capture(device_, true));
  launches_ += runtime.captured_launches(captures_.back());
}

void LaunchGraph::Cut::operator()() const {
  if (graph_ == nullptr) throw Error("launch_graph: a cut outside a capture; call it in the work of its graph");
  graph_->end_part();
  kernels::device_runtime(graph_->device_).begin_capture(graph_->device_);
}

void LaunchGraph::replay() {
  for (void* const capture : captures_) kernels::device_runtime(device_).replay(device_, capture);
}

void LaunchGraph::replay(std::size_t part) {
  if (part >= captures_.size()) {
    throw ValueError("launch_graph: part " + std::to_string(part) + " of " + std::to_string(captures_.size()) +
                     "; the first is part 0");
  }
  kernels::device_runtime(device_).replay(device_, captures_[part]);
}

}  // namespace thimble
