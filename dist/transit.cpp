#include <thimble/dist/transit.h>

#include <thimble/dist/window.h>

namespace thimble::dist {
namespace {

template <class P>
void* address(const Tensor& tensor, std::deque<P>& pins) {
  if (tensor.device().is_dry) return nullptr;
  return const_cast<void*>(static_cast<const memory::Pin&>(pins.emplace_back(tensor)).data());
}

}  // namespace

void Transit::send(int to, const Tensor& tensor) {
  if (tensor.bytes() > 0) sends_.push_back({to, address(tensor, read_), tensor.bytes()});
}

void Transit::receive(int from, const Tensor& tensor) {
  if (tensor.bytes() > 0) receives_.push_back({from, address(tensor, written_), tensor.bytes()});
}

void Transit::receive(int from, void* at, std::size_t bytes) {
  if (bytes > 0) receives_.push_back({from, at, bytes});
}

void Transit::begin(Communicator& ranks) { transfer_ = ranks.exchange(sends_, receives_); }

void Transit::wait() {
  transfer_.wait();
  read_.clear(), written_.clear();
  sends_.clear(), receives_.clear();
}

void all_gather(Communicator& ranks, const Tensor& all) {
  const std::int64_t n = all.elements() / ranks.size();
  Transit transit;
  for (int r = 0; r < ranks.size(); ++r) {
    if (r == ranks.rank()) continue;
    transit.send(r, window_of(all, ranks.rank() * n, {n}));
    transit.receive(r, window_of(all, r * n, {n}));
  }
  transit.begin(ranks);
  transit.wait();
}

}  // namespace thimble::dist
