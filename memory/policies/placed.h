#pragma once
// From a trace to a placement: the requests of a training step in order, and the offsets of its blocks.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <thimble/memory/arena/arena.h>
#include <thimble/memory/placement/placement.h>
#include <thimble/memory/policies/ledger.h>
#include <thimble/memory/policies/trace.h>

namespace thimble {

/// The events of one step in order, and the offsets of its blocks.
struct StepPlacement {
  static constexpr std::uint32_t not_placed = ~std::uint32_t{0};

  struct Event {
    std::size_t bytes = 0;                    ///< of an allocation, as requested; 0 for a free
    std::uint32_t alignment = 0;              ///< of an allocation
    std::uint32_t block = not_placed;         ///< index into `buffers`
    Category category = Category::temporary;  ///< of an allocation, as requested
    PathId path = 0;
    friend bool operator==(const Event&, const Event&) = default;
  };
  std::vector<Event> events;
  std::vector<memory::Buffer> buffers;  ///< the placed blocks; lifetimes are indices into `events`
  memory::Placement placement;          ///< of `buffers`
};

/// Of all these.
inline std::size_t event_count(const std::vector<StepPlacement>& plans) {
  std::size_t count = 0;
  for (const StepPlacement& plan : plans) count += plan.events.size();
  return count;
}

/// Places the blocks that are both allocated and freed in a step with these events, a section of a trace. Relabels are
/// left out. Throws ValueError for inconsistent events (a block allocated or freed twice), and as `place` does. If
/// `like` is given and places the same blocks in the same order of allocations and frees, its placement is reused
/// without a search.
StepPlacement make_step_placement(std::span<const memory::Trace::Event> events,
                                  const memory::PlacementOptions& options = {}, const StepPlacement* like = nullptr);

// ---- The placed arena: replays a training step at planned offsets.
//
// Policy
// - It is directly above the arena and holds one block of it, the region, as high as its plans. A block that the plan
//   places is a range of the region: an allocation compares the request with the plan's next event, and takes the
//   planned offset.
// - Frees are events too. As long as every event is the planned one, exactly the planned blocks live, so no two of them
//   overlap. From the first other event, and outside steps, requests go to the arena until the next step begins: slower
//   and higher, never wrong. Every such step is counted.
// - Blocks that live before or after the step are not placed; their frees are no events.
// - A step that begins while blocks of the step before still live in the region goes to the arena, and is counted.
// - Handles are stable. The region is pinned while it is held: the arena's compaction slides other blocks around it.
// - Outside a replay the region is given back to the arena before a request is refused for want of memory; the next
//   step takes it again.
//
// Terms
//   region      the arena's block that holds all placed blocks; as high as the highest plan
//   replay      from begin_step to end_step or the first deviation
//   deviation   an event that is not the planned one, or a step that ends before its plan; at most one per step
//   strict      a step that leaves its plan is an error instead

/// A step's first deviation: the plan's next event, and the step's.
struct PlanDeviation {
  enum class Event : std::uint8_t { allocation, free, end };
  struct Side {
    Event event = Event::end;
    std::size_t bytes = 0;
    Category category = Category::temporary;  ///< of the block, as requested
    PathId path = 0;                          ///< the same
    friend bool operator==(const Side&, const Side&) = default;
  };
  std::uint64_t step = 0;  ///< from 0, of all begun steps
  std::size_t event = 0;   ///< index in its plan
  Side planned, done;
  friend bool operator==(const PlanDeviation&, const PlanDeviation&) = default;
};
/// "step 3, event 17: the plan allocates 4096 bytes of activation in 'gpt.h.0', the step allocates 64 bytes of
/// workspace in 'gpt.h.1'"
std::string to_string(const PlanDeviation& deviation);

class PlacedArena final : public Decorator {
 public:
  struct Statistics {
    std::uint64_t steps = 0;          ///< begun
    std::uint64_t dynamic_steps = 0;  ///< of these, begun while blocks in the region lived: not replayed
    std::uint64_t deviations = 0;     ///< of these, replayed until an event was not the planned one
    std::size_t last_deviation = 0;   ///< the last deviation's event, an index in its plan
    std::size_t region_bytes = 0;     ///< height of the plans, and of the arena's block while it is held
    std::size_t live_blocks = 0;      ///< in the region
    bool is_region_held = false;
    std::optional<PlanDeviation> first_deviation;  ///< nullopt while every replayed step kept its plan
    /// The peak of the bytes that steps requested from the arena after leaving their plans, less the bytes they gave
    /// back.
    std::size_t bytes_above_plan = 0;

    friend bool operator==(const Statistics&, const Statistics&) = default;
  };

  /// Step i replays plan i; later steps repeat the last plan. Throws ValueError without plans, or for an inconsistent
  /// one (an event without its block, offsets that overlap).
  PlacedArena(std::shared_ptr<memory::Resource> upstream, std::vector<StepPlacement> plans);
  ~PlacedArena() override;
  PlacedArena(const PlacedArena&) = delete;
  PlacedArena& operator=(const PlacedArena&) = delete;

  memory::Block* allocate(const Request& request) override;
  void deallocate(memory::Block* block, Stream stream) noexcept override;

  /// Begins a step, ending an unfinished one. Replays the plan of that index (the last plan where there are fewer),
  /// which defaults to the step's number. Takes the region unless it is held; on OutOfMemory nothing has changed.
  void begin_step();
  void begin_step(std::size_t plan);

  /// From now on a step that leaves its plan is an error: the first request that is not the planned one, and all after
  /// it, throw PlanError, and so does a step that begins while blocks of the step before live in the region.
  /// require_kept() finds deviations without a request (a block freed elsewhere, a step that is too short).
  void set_strict(bool is_strict);
  /// Called after a step. Throws PlanError when it left its plan and that is an error.
  void require_kept() const;

  /// Replays these plans from the next step on, as if constructed with them; the count of steps continues. Throws
  /// PlanError during a step, or while a block lives in the region or a Hold exists, ValueError as the constructor
  /// does; nothing has changed then.
  void set_plans(const std::vector<StepPlacement>& plans);

  /// Ends the step; does nothing without one.
  void end_step() noexcept;

  /// Whether a step has begun and not ended, replayed or not.
  bool is_in_step() const;

  /// Gives the region back to the arena unless a block lives in it, a Hold exists or a plan is being replayed. Returns
  /// its bytes, 0 if it stays.
  std::size_t release_region() noexcept;

  Statistics statistics() const;

  /// Whether the current step has kept its plan so far: placed blocks then take nothing from the arena.
  bool is_replaying() const;

  /// The placed arena that `resource` is or contains; null without one.
  static const PlacedArena* find(const memory::Resource& resource) noexcept;
  static PlacedArena* find(memory::Resource& resource) noexcept;

  /// While one lives the region stays, and no block of the arena below moves: the addresses of a step stay valid
  /// (nn/step/captured_step.h). Takes the region: throws OutOfMemory.
  class Hold {
   public:
    explicit Hold(PlacedArena& placed);
    ~Hold();
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

   private:
    PlacedArena& placed_;
    std::unique_ptr<Arena::Freeze> freeze_;  // null without an arena
  };

  /// A step as a scope: ended when it is left, also by an exception.
  class Step {
   public:
    explicit Step(PlacedArena& placed) : placed_(placed) { placed_.begin_step(); }
    Step(PlacedArena& placed, std::size_t plan) : placed_(placed) { placed_.begin_step(plan); }
    ~Step() { placed_.end_step(); }
    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;

   private:
    PlacedArena& placed_;
  };

 private:
  memory::Block* do_allocate(const Request& request) override;
  void do_deallocate(memory::Block* block, Stream stream) noexcept override;
  void do_relabel(memory::Block* block, Category category) noexcept override;

  struct Handle : memory::Block {
    std::size_t offset = 0;  // in the region
  };
  /// A plan's event, ready to be compared. After the last of a plan comes one that equals no request.
  struct Event {
    std::size_t bytes;        // 0 for a free
    Handle* handle;           // null if not placed
    std::uint32_t alignment;  // of an allocation
    std::uint32_t live;       // placed blocks before it: a replay counts nothing
  };
  static constexpr Event no_event{0, nullptr, 0, 0};
  /// Plans ready for replay. Handles do not move while a block lives, because others hold their addresses.
  struct Plans {
    std::vector<Handle> handles;  // of all plans
    std::vector<std::vector<Event>> events;
    std::vector<std::vector<PlanDeviation::Side>> sides;  // the same events, for messages
    std::size_t region_bytes = 0;
    std::size_t region_alignment = 1;
  };

  static Plans make_plans(const std::vector<StepPlacement>& plans);
  static void add_plan(const StepPlacement& plan, Handle* handles, Plans& plans);
  void begin(std::size_t plan);
  void finish() noexcept;
  void deviate(const PlanDeviation::Side& done) noexcept;
  void refuse_in_strict() const;
  void stop_replay() noexcept;
  std::size_t live() const noexcept { return is_in_replay_ ? next_->live : live_; }
  memory::Block* take_planned(const Request& request) noexcept;
  memory::Block* allocate_unplaced(const Request& request);
  memory::Block* allocate_dynamically(const Request& request);
  void take_region();
  std::size_t give_region_back() noexcept;
  bool is_placed(const memory::Block* block) const noexcept {
    const auto first = reinterpret_cast<std::uintptr_t>(plans_.handles.data());
    return reinterpret_cast<std::uintptr_t>(block) - first < plans_.handles.size() * sizeof(Handle);
  }

  Plans plans_;
  Arena* arena_;                         // below it; null for another resource
  memory::Block* region_ = nullptr;      // null unless held
  std::byte* region_address_ = nullptr;  // base of the handles' addresses

  bool is_in_step_ = false, is_in_replay_ = false;
  const Event* next_ = &no_event;  // of the replayed plan
  const Event* first_ = nullptr;
  const Event* end_ = nullptr;
  std::size_t live_ = 0;  // blocks in the region, outside a replay
  int holds_ = 0;         // alive
  bool is_strict_ = false;
  std::size_t current_ = 0;                      // plan of the step
  bool has_left_ = false;                        // whether the step has left its plan
  std::int64_t outside_bytes_ = 0;               // requested since then, less the bytes given back
  std::optional<PlanDeviation> last_deviation_;  // for require_kept()
  Statistics counts_;
};

}  // namespace thimble
