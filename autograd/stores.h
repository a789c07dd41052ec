#pragma once
// What became of the stores of the plan that a tape follows (autograd/plan.h). For the tape's own files.

#include <cstdint>
#include <memory>
#include <vector>

#include <thimble/autograd/tape.h>
#include <thimble/memory/offload/offload.h>

namespace thimble {

struct Tape::Stores {
  enum class State : std::uint8_t {
    here,     // nothing was done, or all is back
    writing,  // here, and on its way to the tier
    away      // no value of the tape has its bytes
  };
  // A value of the tape on the stored bytes, and its window on them.
  struct Member {
    std::uint32_t value;
    Shape shape, strides;
    std::int64_t offset;
  };
  struct Entry {
    TapePlan::Store plan;
    std::weak_ptr<Storage> storage = {};  // until it is away
    State state = State::here;
    std::vector<Member> members = {};  // while it is away
    std::uint32_t version = 0;         // of the storage when it went
    PathId path = 0;
    DType dtype = DType::f32;
    memory::Offloaded offloaded = {};
    Tensor packed = {};
  };
  enum class Action : std::uint8_t { complete_earlier, put_away, complete };
  struct Event {
    std::uint32_t after;  // a node
    Action action;
    std::uint32_t store;
  };

  Stores(const TapePlan& plan, std::shared_ptr<Tier> to);
  // Ready for the next recording.
  void reset() noexcept;

  std::shared_ptr<Tier> tier;
  std::vector<Entry> entries;          // by node
  std::vector<Event> events;           // of the forward, in order
  std::vector<std::uint32_t> returns;  // of the backward: stores, the first to come back at the front
  std::size_t next_event = 0, next_return = 0;
};

}  // namespace thimble
