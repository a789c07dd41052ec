#pragma once
// Tensors in flight between ranks: pinned until they have arrived.

#include <deque>
#include <vector>

#include <thimble/core/launch/launch.h>
#include <thimble/dist/communicator.h>

namespace thimble::dist {

/// Add sends and receives of dense tensors, then begin() and wait(). On a dry device nothing has an address, so the
/// communicator must be dry or have one rank. Move-only; the destructor acts as Transfer's.
class Transit {
 public:
  void send(int to, const Tensor& tensor);
  void receive(int from, const Tensor& tensor);
  /// Into bytes that the caller has pinned.
  void receive(int from, void* at, std::size_t bytes);
  /// Throws as Communicator::exchange does.
  void begin(Communicator& ranks);
  /// Makes progress without waiting. Throws RankError.
  void advance() { transfer_.is_done(); }
  /// Throws RankError.
  void wait();

 private:
  std::deque<memory::Pin> read_;
  std::deque<memory::WritePin> written_;
  std::vector<Send> sends_;
  std::vector<Receive> receives_;
  Transfer transfer_;  // destroyed before the pins
};

/// All-gather in place: each rank has filled its one of size() equal ranges of a dense tensor and receives the others.
/// Throws RankError.
void all_gather(Communicator& ranks, const Tensor& all);

}  // namespace thimble::dist
