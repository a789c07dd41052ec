// Messages between GPUs. Compiled with CUDA, where NCCL's header is present.
//
// NCCL's communicator does not block: a call returns while its work goes on, and no other call may be made until
// ncclCommGetAsyncError reports completion. So exchanges are queued, and each goes through these states, driven by
// calls for progress:
//
//   waiting    behind others; its `ready` event follows the kernels launched before it
//   launching  its group of sends and receives is with NCCL, which may still make connections
//   running    on the stream, before its `done` event

#include <thimble/dist/nccl.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <thread>
#include <type_traits>
#include <utility>

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>

#include <thimble/cuda/runtime/runtime.h>
#include <thimble/dist/transport.h>

namespace thimble::dist {
namespace {

constexpr std::chrono::minutes most_time_to_start{10};

/// The functions of libnccl.so.2, which is loaded at first use, and stays.
struct Nccl {
  decltype(&ncclGetUniqueId) get_unique_id;
  decltype(&ncclCommInitRankConfig) init;
  decltype(&ncclCommGetAsyncError) get_async_error;
  decltype(&ncclCommDestroy) destroy;
  decltype(&ncclCommAbort) abort;
  decltype(&ncclGetErrorString) error_string;
  decltype(&ncclGetLastError) last_error;
  decltype(&ncclGroupStart) group_start;
  decltype(&ncclGroupEnd) group_end;
  decltype(&ncclSend) send;
  decltype(&ncclRecv) receive;

  Nccl() {
    void* const library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw DeviceError("NCCL: " + std::string(dlerror()));
    const auto find = [library](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      if (function == nullptr) throw DeviceError("NCCL: " + std::string(dlerror()));
    };
    find(get_unique_id, "ncclGetUniqueId");
    find(init, "ncclCommInitRankConfig");
    find(get_async_error, "ncclCommGetAsyncError");
    find(destroy, "ncclCommDestroy");
    find(abort, "ncclCommAbort");
    find(error_string, "ncclGetErrorString");
    find(last_error, "ncclGetLastError");
    find(group_start, "ncclGroupStart");
    find(group_end, "ncclGroupEnd");
    find(send, "ncclSend");
    find(receive, "ncclRecv");
  }
};

const Nccl& nccl() {
  static const Nccl functions;
  return functions;
}

void check_nccl(ncclResult_t result, ncclComm_t communicator, const char* call) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  throw DeviceError(std::string(call) + ": " + nccl().error_string(result) + ": " + nccl().last_error(communicator));
}

bool is_on_host(const Part& part) {
  if (part.bytes == 0) return true;
  cudaPointerAttributes facts;
  gpu::check(cudaPointerGetAttributes(&facts, part.data), "cudaPointerGetAttributes", part.data);
  return facts.type != cudaMemoryTypeDevice && facts.type != cudaMemoryTypeManaged;
}

/// The resources of an exchange, reused with it.
struct Flight {
  enum class State { waiting, launching, running, done };
  State state = State::done;
  Transfer host;
  std::vector<Part*> parts;  // the parts that go through NCCL
  cudaEvent_t ready = nullptr, done = nullptr;

  Flight() {
    gpu::check(cudaEventCreateWithFlags(&ready, cudaEventDisableTiming), "cudaEventCreateWithFlags", "ready");
    gpu::check(cudaEventCreateWithFlags(&done, cudaEventDisableTiming), "cudaEventCreateWithFlags", "done");
  }
  ~Flight() {
    cudaEventDestroy(ready);
    cudaEventDestroy(done);
  }
  Flight(const Flight&) = delete;
  Flight& operator=(const Flight&) = delete;
};

class NcclTransport final : public Transport {
 public:
  NcclTransport(std::unique_ptr<Communicator> host, std::shared_ptr<Transport> below, memory::Device device)
      : Transport(host->rank(), host->size()), host_(std::move(host)), below_(std::move(below)), device_(device) {
    gpu::make_current(device_);
    ncclUniqueId id{};
    if (rank == 0) check_nccl(nccl().get_unique_id(&id), nullptr, "ncclGetUniqueId");
    host_->broadcast(&id, sizeof(id), 0);
    gpu::check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags", device_);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    check_nccl(nccl().init(&nccl_, size, id, rank, &config), nccl_, "ncclCommInitRankConfig");
    const auto deadline = std::chrono::steady_clock::now() + most_time_to_start;
    for (; !is_settled(); std::this_thread::yield()) {
      if (std::chrono::steady_clock::now() < deadline) continue;
      throw RankError(rank, "ncclCommInitRankConfig: rank " + std::to_string(rank) + " has waited 10 minutes for the " +
                                std::to_string(size - 1) + " other ranks");
    }
    host_->barrier();
  }

  ~NcclTransport() override {
    if (nccl_ != nullptr) broken ? nccl().abort(nccl_) : nccl().destroy(nccl_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  void begin(Exchange& exchange) override {
    gpu::make_current(device_);
    Flight& flight = flights_[&exchange];
    flight.parts.clear();
    sends_.clear();
    receives_.clear();
    for (Part& part : exchange.parts) {
      if (!is_on_host(part)) {
        flight.parts.push_back(&part);
      } else if (part.is_send) {
        sends_.push_back({part.peer, part.data, part.bytes});
      } else {
        receives_.push_back({part.peer, part.data, part.bytes});
      }
    }
    flight.host = host_->exchange(sends_, receives_);
    flight.state = Flight::State::done;
    if (flight.parts.empty()) return;
    const cudaStream_t compute = gpu::compute_stream(device_);
    gpu::check(cudaEventRecord(flight.ready, compute), "cudaEventRecord", "ready", device_);
    flight.state = Flight::State::waiting;
    queue_.push_back(&flight);
  }

  bool progress(Exchange& exchange) override {
    advance_queue();
    Flight& flight = flights_[&exchange];
    const bool is_host_done = flight.host.is_done();
    for (Part& part : exchange.parts) {
      const bool is_ours = std::find(flight.parts.begin(), flight.parts.end(), &part) != flight.parts.end();
      const bool is_done = is_ours ? flight.state == Flight::State::done : is_host_done;
      if (!is_done || part.state == Part::State::done) continue;
      part.state = Part::State::done;
      --exchange.open;
    }
    return exchange.open == 0;
  }

  void pause(std::chrono::steady_clock::time_point) override { std::this_thread::yield(); }

  void give_up(Exchange& exchange) noexcept override {
    const auto found = flights_.find(&exchange);
    if (found == flights_.end()) return;
    Flight& flight = found->second;
    flight.host.give_up();
    if (flight.state == Flight::State::done) return;
    // Ends all work on the stream, so the queue is finished.
    if (nccl_ != nullptr) nccl().abort(std::exchange(nccl_, nullptr));
    cudaStreamSynchronize(stream_);
    for (Flight* const queued : queue_) queued->state = Flight::State::done;
    queue_.clear();
  }

  [[noreturn]] void end_all(int status) noexcept override {
    if (below_) below_->end_all(status);
    std::_Exit(status);
  }

 private:
  /// True if NCCL can take a call. Throws its asynchronous errors.
  bool is_settled() const {
    if (nccl_ == nullptr) throw RankError(rank, "NCCL: this rank has given up");
    ncclResult_t state = ncclSuccess;
    check_nccl(nccl().get_async_error(nccl_, &state), nccl_, "ncclCommGetAsyncError");
    if (state == ncclSuccess) return true;
    if (state == ncclInProgress) return false;
    throw RankError(rank, "NCCL, rank " + std::to_string(rank) + ": " + nccl().error_string(state) + ": " +
                              nccl().last_error(nccl_));
  }

  void launch(Flight& flight) {
    gpu::check(cudaStreamWaitEvent(stream_, flight.ready, 0), "cudaStreamWaitEvent", "messages", device_);
    check_nccl(nccl().group_start(), nccl_, "ncclGroupStart");
    for (const Part* const part : flight.parts) {
      check_nccl(part->is_send ? nccl().send(part->data, part->bytes, ncclUint8, part->peer, nccl_, stream_)
                               : nccl().receive(part->data, part->bytes, ncclUint8, part->peer, nccl_, stream_),
                 nccl_, part->is_send ? "ncclSend" : "ncclRecv");
    }
    check_nccl(nccl().group_end(), nccl_, "ncclGroupEnd");
    flight.state = Flight::State::launching;
  }

  void advance_queue() {
    while (!queue_.empty() && is_settled()) {
      gpu::make_current(device_);
      Flight& flight = *queue_.front();
      if (flight.state == Flight::State::waiting) {
        launch(flight);
      } else if (flight.state == Flight::State::launching) {
        gpu::check(cudaEventRecord(flight.done, stream_), "cudaEventRecord", "done", device_);
        flight.state = Flight::State::running;
      } else {
        const cudaError_t state = cudaEventQuery(flight.done);
        if (state == cudaErrorNotReady) return;
        gpu::check(state, "cudaEventQuery", "done", device_);
        flight.state = Flight::State::done;
        queue_.erase(queue_.begin());
      }
    }
  }

  std::unique_ptr<Communicator> host_;
  std::shared_ptr<Transport> below_;  // of host_
  const memory::Device device_;
  cudaStream_t stream_ = nullptr;
  ncclComm_t nccl_ = nullptr;  // null after an abort
  std::map<const Exchange*, Flight> flights_;
  std::vector<Flight*> queue_;
  std::vector<Send> sends_;
  std::vector<Receive> receives_;
};

}  // namespace

std::unique_ptr<Communicator> make_nccl(Communicator& over, memory::Device device) {
  auto host = over.split([](int rank) { return Communicator::Place{0, rank}; });
  if (over.is_dry()) return host;
  return std::make_unique<Communicator>(std::make_shared<NcclTransport>(std::move(host), over.transport_, device));
}

}  // namespace thimble::dist
