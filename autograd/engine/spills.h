#pragma once
// Spilling: between forward and backward, bytes of saved tensors wait in a tier (memory/offload/offload.h) or packed,
// as the plan says (TapePlan::Spill).
//
// Invariants
// - A spill takes a whole storage with all of the tape's values on it. While it is *away* their slots are empty, their
//   Value::spill names it, and its members record each value's window on the bytes.
// - It takes only bytes that the tape holds exclusively and that are not overwritten meanwhile; others stay.
// - Spills act at ordinals that the plan names, so that allocations do not depend on a disk's speed.
// - Backward's first read of a member brings all members back. Tensors that a recomputed segment keeps are not spilled
//   again.
//
// Example: {node 0, result, offload, away_after 1, gone_after 3, back_before 4} of y, which node 0 makes
//
//   before(2)           node 1 was recorded: begins to write y, which is still here
//   before(4)           node 3 was recorded: waits for the write and frees y's bytes
//   prefetch_before(4)  backward is at node 4: takes memory again and begins to read
//   bring_back(y)       a backward needs y: waits for the read

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <thimble/autograd/engine/recorded.h>
#include <thimble/memory/offload/offload.h>

namespace thimble::tape_detail {

class Spills {
 public:
  Spills(Recorded& recorded, const TapePlan& plan, std::shared_ptr<memory::Tier> tier);

  /// Drops spilled bytes and prepares the next recording.
  void clear() noexcept;

  /// Notes the storages of a new node's tensors that are to be spilled.
  void note(std::uint32_t node, std::span<const Tensor> saved, const Tensor& output);
  /// Performs the spills due before the node `next` is recorded.
  void before(std::uint32_t next);
  /// Begins the reads due before the backward of a node.
  void prefetch_before(std::uint32_t node);

  // For a spilled value, whose Value::spill is set.

  /// Restores all values on its bytes to their slots.
  void bring_back(std::uint32_t value);
  /// Drops a value without readers; dropping the last value on the bytes drops them.
  void forget(std::uint32_t value) noexcept;
  /// The storage's version when it was spilled.
  std::uint32_t version(std::uint32_t value) const { return entry_of(value).version; }
  KeptTensor kept_tensor(std::uint32_t value) const;

  /// Bytes here of packed tensors and of running reads, which no slot holds.
  std::size_t bytes_here() const;

 private:
  enum class State : std::uint8_t {
    here,     // not spilled yet, or back
    writing,  // here, being written to the tier
    away      // out of the tape's slots
  };
  // A value on the spilled bytes, and its window on them.
  struct Member {
    std::uint32_t value;
    Shape shape, strides;
    std::int64_t offset;
  };
  struct Entry {
    TapePlan::Spill plan;
    std::weak_ptr<memory::Storage> storage = {};  // until it is away
    State state = State::here;
    std::vector<Member> members = {};  // while it is away
    std::uint32_t version = 0;         // of the storage when it was spilled
    PathId path = 0;
    DType dtype = DType::f32;
    memory::Offloaded offloaded = {};
    Tensor packed = {};

    const Member& member(std::uint32_t value) const;
  };
  enum class Action : std::uint8_t { complete_earlier, begin, complete };
  struct Event {
    std::uint32_t after;  // a node
    Action action;
    std::uint32_t entry;
  };

  const Entry& entry_of(std::uint32_t value) const {
    return entries_[static_cast<std::size_t>(recorded_.values[value].spill)];
  }
  std::vector<std::uint32_t> values_on(const memory::Storage* storage) const;
  void begin(std::uint32_t index);
  void complete(std::uint32_t index);
  void leave(std::uint32_t index, std::span<const std::uint32_t> values);

  Recorded& recorded_;
  std::shared_ptr<memory::Tier> tier_;
  std::vector<Entry> entries_;          // by node
  std::vector<Event> events_;           // of the forward, in order
  std::vector<std::uint32_t> returns_;  // entries in the order in which backward reads them back
  std::size_t next_event_ = 0, next_return_ = 0;
};

}  // namespace thimble::tape_detail
