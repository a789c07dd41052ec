#include <thimble/core/launch_graph.h>

#include <thimble/core/kernels/device_runtime.h>

namespace thimble {

LaunchGraph::LaunchGraph(Device device, const std::vector<Tensor>& uses, FunctionRef<void()> work) : device_(device) {
  const kernels::DeviceRuntime& runtime = kernels::device_runtime(device);
  for (const Tensor& t : uses) pins_.push_back(std::make_unique<Pin>(t));
  runtime.begin_recording(device);
  try {
    work();
  } catch (...) {
    runtime.end_recording(device, false);
    throw;
  }
  recording_ = runtime.end_recording(device, true);
  launches_ = runtime.recorded_launches(recording_);
}

LaunchGraph::~LaunchGraph() { kernels::device_runtime(device_).forget(device_, recording_); }

void LaunchGraph::replay() { kernels::device_runtime(device_).replay(device_, recording_); }

}  // namespace thimble
