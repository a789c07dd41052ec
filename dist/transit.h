#pragma once
// Tensors on their way between ranks: pinned where they lie until they have come.

#include <deque>
#include <vector>

#include <thimble/core/launch/launch.h>
#include <thimble/dist/communicator.h>

namespace thimble::dist {

/// Name the sends and receives, begin() them, and wait(). All tensors are dense. On a dry device nothing has an
/// address, so the communicator must be dry, or have one rank. Move-only; ends as its Transfer does.
class Transit {
 public:
  void send(int to, const Tensor& tensor);
  void receive(int from, const Tensor& tensor);
  /// Into bytes that the caller has pinned.
  void receive(int from, void* at, std::size_t bytes);
  /// Throws what Communicator::exchange throws.
  void begin(Communicator& ranks);
  /// Moves what can be moved now, without waiting. Throws RankError.
  void advance() { transfer_.is_done(); }
  /// Throws RankError.
  void wait();

 private:
  std::deque<Pin> read_;
  std::deque<WritePin> written_;
  std::vector<Send> sends_;
  std::vector<Receive> receives_;
  Transfer transfer_;  // ends before the pins go
};

/// A dense tensor of as many equal stretches as there are ranks, of which each has made its own: now each has all.
/// Throws RankError.
void gather_stretches(Communicator& ranks, const Tensor& all);

}  // namespace thimble::dist
