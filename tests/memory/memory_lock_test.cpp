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

using thimble::Block;
using thimble::ResourceLock;

/// A resource of a user's own: no lock, no arena, one block.
class OneBlock final : public thimble::Resource {
 public:
  Block* allocate(const thimble::Request& request) override {
    block_.bytes = request.bytes;
    block_.category = request.category;
    block_.path = request.path;
    return &block_;
  }
  void deallocate(Block*, thimble::Stream) noexcept override { ++frees; }
  void relabel(Block* block, thimble::Category category) noexcept override { block->category = category; }
  thimble::Device device() const noexcept override { return thimble::cpu; }

  int frees = 0;

 private:
  Block block_;
};

}  // namespace

TEST_CASE("memory lock: excludes while the bias is there, while it is revoked, and after", "[memory][lock]") {
  // Every lock is revoked once, in the midst of its owner's work; a counter without atomics shows a lost update.
  constexpr int rounds = 300, increments = 2000, helpers = 2;
  int wrong = 0, still_biased = 0, was_biased = 0;
  for (int round = 0; round < rounds; ++round) {
    ResourceLock lock;
    long count = 0;
    const auto work = [&] {
      for (int i = 0; i < increments; ++i) {
        const std::lock_guard guard(lock);
        count = count + 1;
      }
    };
    work();
    was_biased += lock.is_biased() ? 1 : 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < helpers; ++i) threads.emplace_back(work);
    work();
    for (std::thread& thread : threads) thread.join();
    if (count != long{increments} * (helpers + 2)) ++wrong;
    still_biased += lock.is_biased() ? 1 : 0;
  }
  CHECK(wrong == 0);
  CHECK(still_biased == 0);
  CHECK((was_biased == 0 || was_biased == rounds));  // 0 where the kernel offers no membarrier
}

TEST_CASE("memory lock: a revoker waits until the owner is outside", "[memory][lock]") {
  ResourceLock lock;
  lock.lock();
  lock.unlock();
  lock.lock();  // by bias, where there is one
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

TEST_CASE("memory lock: owner and revoker never meet inside", "[memory][lock]") {
  // Both go for each lock at the same moment: without the barrier, the owner's store may still wait in its processor's
  // store buffer while the revoker looks.
  constexpr std::size_t count = 20000;
  const auto locks = std::make_unique<ResourceLock[]>(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::lock_guard guard(locks[i]);
  }
  std::atomic<std::size_t> arrived{0};
  volatile long inside = 0;
  std::atomic<long> met{0};
  const auto work = [&](int times) {
    for (std::size_t i = 0; i < count; ++i) {
      ++arrived;
      for (int spins = 0; arrived < 2 * (i + 1); ++spins) {
        if (spins > 1000) std::this_thread::yield();
      }
      for (int k = 0; k < times; ++k) {
        const std::lock_guard guard(locks[i]);
        const long before = inside;
        inside = before + 1;
        if (inside != before + 1) ++met;
      }
    }
  };
  std::thread revoker([&] { work(1); });
  work(20);
  revoker.join();
  CHECK(met == 0);
  CHECK(inside == static_cast<long>(count) * 21);
}

TEST_CASE("memory lock: a stack shares one, a resource without a lock is given one", "[memory][lock]") {
  const auto arena = std::make_shared<thimble::Arena>(thimble::make_dry_backing(thimble::cpu));
  const auto inner = std::make_shared<thimble::Ledger>(arena);
  const auto outer = std::make_shared<thimble::Ledger>(inner);
  CHECK(inner->lock() == arena->lock());
  CHECK(outer->lock() == arena->lock());

  const auto own = std::make_shared<OneBlock>();
  const auto ledger = std::make_shared<thimble::Ledger>(own);
  REQUIRE(ledger->lock() != nullptr);
  Block* const block = ledger->allocate({.bytes = 12, .category = thimble::Category::input});
  CHECK(ledger->bytes(thimble::Category::input) == 12);
  ledger->relabel(block, thimble::Category::workspace);
  CHECK(ledger->bytes(thimble::Category::workspace) == 12);
  ledger->deallocate(block, nullptr);
  ledger->deallocate(nullptr, nullptr);
  CHECK(ledger->bytes() == 0);
  CHECK(own->frees == 1);
}
