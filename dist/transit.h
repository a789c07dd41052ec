#pragma once
// Tensors on their way between ranks: pinned where they lie until they have come.

#include <deque>
#include <vector>

#include <thimble/core/launch/launch.h>
#include <thimble/dist/communicator.h>

namespace thimble::dist {

/// Name what goes and what comes, begin() it, and wait(). All tensors are dense. On a dry device nothing has an
/// address, so the communicator must be dry, or have one rank. Move-only; ends as its Transfer does.
class Transit {
 public:
  void send(int to, const Tensor& tensor) {
    if (tensor.bytes() > 0) sends_.push_back({to, address(tensor, read_), tensor.bytes()});
  }
  void receive(int from, const Tensor& tensor) {
    if (tensor.bytes() > 0) receives_.push_back({from, address(tensor, written_), tensor.bytes()});
  }
  /// Into bytes that the caller has pinned.
  void receive(int from, void* at, std::size_t bytes) {
    if (bytes > 0) receives_.push_back({from, at, bytes});
  }
  /// Throws what Communicator::exchange throws.
  void begin(Communicator& ranks) { transfer_ = ranks.exchange(sends_, receives_); }
  /// Throws RankError.
  void wait() {
    transfer_.wait();
    read_.clear(), written_.clear();
    sends_.clear(), receives_.clear();
  }

 private:
  template <class P>
  static void* address(const Tensor& tensor, std::deque<P>& pins) {
    if (tensor.device().is_dry) return nullptr;
    return const_cast<void*>(static_cast<const Pin&>(pins.emplace_back(tensor)).data());
  }

  std::deque<Pin> read_;
  std::deque<WritePin> written_;
  std::vector<Send> sends_;
  std::vector<Receive> receives_;
  Transfer transfer_;  // ends before the pins go
};

}  // namespace thimble::dist
