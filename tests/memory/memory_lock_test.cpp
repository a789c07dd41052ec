#include <thimble/memory/arena/lock.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <thimble/memory/arena/arena.h>
#include <thimble/memory/policies/ledger.h>

#include "support/catch.h"

namespace {

using thimble::memory::Block;
using thimble::memory::ResourceLock;

/// A user's resource: one block, no lock, no arena.
class OneBlock final : public thimble::memory::Resource {
 public:
  Block* allocate(const thimble::memory::Request& request) override {
    block_.bytes = request.bytes;
    block_.category = request.category;
    block_.path = request.path;
    return &block_;
  }
  void deallocate(Block*, thimble::memory::Stream) noexcept override { ++frees; }
  void relabel(Block* block, thimble::memory::Category category) noexcept override { block->category = category; }
  thimble::memory::Device device() const noexcept override { return thimble::cpu; }

  int frees = 0;

 private:
  Block block_;
};

}  // namespace

TEST_CASE("memory lock: one thread at a time is inside", "[memory][lock]") {
  // A plain counter reveals lost updates.
  constexpr int increments = 200'000, helpers = 3;
  ResourceLock lock;
  volatile long count = 0;
  const auto work = [&] {
    for (int i = 0; i < increments; ++i) {
      const std::lock_guard guard(lock);
      count = count + 1;
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < helpers; ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  CHECK(count == long{increments} * (helpers + 1));
}

TEST_CASE("memory lock: who comes later waits until the holder is outside", "[memory][lock]") {
  ResourceLock lock;
  lock.lock();
  std::atomic<bool> is_inside{false};
  std::thread other([&] {
    const std::lock_guard guard(lock);
    is_inside = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  CHECK_FALSE(is_inside);
  lock.unlock();
  other.join();
  CHECK(is_inside);
}

TEST_CASE("memory lock: a stack shares one, a resource without a lock is given one", "[memory][lock]") {
  const auto arena = std::make_shared<thimble::memory::Arena>(thimble::memory::make_dry_backing(thimble::cpu));
  const auto inner = std::make_shared<thimble::memory::Ledger>(arena);
  const auto outer = std::make_shared<thimble::memory::Ledger>(inner);
  CHECK(inner->lock() == arena->lock());
  CHECK(outer->lock() == arena->lock());

  const auto own = std::make_shared<OneBlock>();
  const auto ledger = std::make_shared<thimble::memory::Ledger>(own);
  REQUIRE(ledger->lock() != nullptr);
  Block* const block = ledger->allocate({.bytes = 12, .category = thimble::memory::Category::input});
  CHECK(ledger->bytes(thimble::memory::Category::input) == 12);
  ledger->relabel(block, thimble::memory::Category::workspace);
  CHECK(ledger->bytes(thimble::memory::Category::workspace) == 12);
  ledger->deallocate(block, nullptr);
  ledger->deallocate(nullptr, nullptr);
  CHECK(ledger->bytes() == 0);
  CHECK(own->frees == 1);
}
