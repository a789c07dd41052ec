#include <thimble/cuda/graph.h>

#include <thimble/cuda/runtime.h>

namespace thimble::gpu {

struct Graph::Handles {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  ~Handles() {
    if (executable) cudaGraphExecDestroy(executable);
    if (graph) cudaGraphDestroy(graph);
  }
};

Graph::Graph(Device device, const std::vector<Tensor>& uses, const std::function<void()>& work)
    : device_(device), handles_(std::make_unique<Handles>()) {
  for (const Tensor& t : uses) pins_.push_back(std::make_unique<Pin>(t));
  const cudaStream_t stream = compute_stream(device);
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture", "compute");
  try {
    work();
  } catch (...) {
    cudaStreamEndCapture(stream, &handles_->graph);
    throw;
  }
  check(cudaStreamEndCapture(stream, &handles_->graph), "cudaStreamEndCapture", "compute");
  check(cudaGraphInstantiate(&handles_->executable, handles_->graph, 0), "cudaGraphInstantiate");
  check(cudaGraphGetNodes(handles_->graph, nullptr, &nodes_), "cudaGraphGetNodes");
}

Graph::~Graph() {
  try {
    synchronize(device_);  // a replay may be under way
  } catch (const DeviceError&) {
  }
}

void Graph::replay() {
  check(cudaGraphLaunch(handles_->executable, compute_stream(device_)), "cudaGraphLaunch", nodes_);
}

}  // namespace thimble::gpu
