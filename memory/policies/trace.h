#pragma once
// A trace: every event of a resource in order.
//
// Policy
// - Events are recorded under the lock of the stack, so their order is the arena's.
// - Block ids count allocations from 0, so the traces of a dry and a real run can be compared event by event.
// - Only successful requests are recorded.
// - After restart() the trace begins with allocations of the live blocks, so that the trace of one step is complete.
//
// Terms
//   event      one allocate, free or relabel; its index is its time
//   lifetime   [lower, upper): from a block's allocation to its free, or to the end of the trace
//   load       largest sum of live bytes over time, a lower bound of any placement

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include <thimble/memory/arena/lock.h>
#include <thimble/memory/policies/ledger.h>

namespace thimble::memory {

class Trace final : public Decorator {
 public:
  enum class Action : std::uint8_t { allocate, free, relabel };

  struct Event {
    Action action = Action::allocate;
    Category category = Category::temporary;  ///< after the event
    PathId path = 0;
    std::uint32_t alignment = 0;  ///< of an allocation; 0 otherwise
    std::uint64_t block = 0;
    std::size_t bytes = 0;  ///< as requested

    friend bool operator==(const Event&, const Event&) = default;
  };

  struct Lifetime {
    std::uint64_t block;
    std::size_t lower, upper;  ///< event indices, half open
    std::size_t bytes;
    std::uint32_t alignment;
  };

  explicit Trace(std::shared_ptr<Resource> upstream);

  /// Discards all events and begins with the live blocks, oldest first, numbered from 0.
  void restart();

  /// A copy of the events so far. Throws OutOfMemory if the host had no memory to record one.
  std::vector<Event> events() const;

  /// Number of events so far: the next one's index in events().
  std::size_t event_count() const;

  /// Compares all events, including paths, categories and block ids.
  friend bool operator==(const Trace& a, const Trace& b) { return a.events() == b.events(); }

 private:
  Block* do_allocate(const Request& request) override;
  void do_deallocate(Block* block, Stream stream) noexcept override;
  void do_relabel(Block* block, Category category) noexcept override;

  void record(const Event& event) noexcept;

  struct Live {
    std::uint64_t id;
    std::uint32_t alignment;
  };

  std::vector<Event> events_;
  std::unordered_map<const Block*, Live> live_;
  std::uint64_t next_id_ = 0;
  bool is_complete_ = true;
};

/// Lifetimes in order of block ids.
std::vector<Trace::Lifetime> lifetimes(const std::vector<Trace::Event>& events);

/// Live bytes by category after every event.
std::vector<CategoryBytes> timeline(const std::vector<Trace::Event>& events);

/// The lifetimes as in public packing benchmarks: a header `id,lower,upper,size`, then a line per block.
std::string to_csv(const std::vector<Trace::Event>& events);

}  // namespace thimble::memory

namespace thimble {

using memory::lifetimes;
using memory::timeline;
using memory::to_csv;

}  // namespace thimble
