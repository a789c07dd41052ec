#pragma once
// The placed arena: a training step replayed at offsets that were planned before.
//
// Policy
// - It stands directly above the arena and holds one block of it, the region, as high as its plans. A block that the
//   plan places is a stretch of the region: an allocation compares the request with the event that is next in the plan,
//   and takes the planned offset.
// - Frees are events too. As long as every event is the planned one, what lives is what the plan says, so no two live
//   blocks overlap. From the first that is not, and outside of steps, requests go to the arena until the next step
//   begins: slower and higher, never wrong. Every such step is counted.
// - Blocks that live before the step or after it are not placed; their frees are no events.
// - A step that begins while blocks of the step before still live in the region goes to the arena, and is counted.
// - Handles are stable. The region is pinned while it is held: the arena's compaction slides other blocks around it.
// - Outside of a replay the region is given back to the arena before a request is refused for want of memory; the next
//   step takes it again.
//
// Terms
//   region      the arena's block that holds all placed blocks; as high as the highest plan
//   replay      from begin_step to end_step or the first deviation
//   deviation   an event that is not the planned one, or a step that ends before its plan; at most one per step

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <thimble/memory/arena.h>
#include <thimble/memory/placement.h>
#include <thimble/memory/trace.h>

namespace thimble {

/// The events of one step in order, and where its blocks go.
struct StepPlan {
  static constexpr std::uint32_t not_placed = ~std::uint32_t{0};

  struct Event {
    std::size_t bytes = 0;             ///< of an allocation, as requested; 0: a free
    std::uint32_t alignment = 0;       ///< of an allocation
    std::uint32_t block = not_placed;  ///< index into `buffers`
    friend bool operator==(const Event&, const Event&) = default;
  };
  std::vector<Event> events;
  std::vector<memory::Buffer> buffers;  ///< what is placed; lifetimes are indices into `events`
  memory::Placement placement;          ///< of `buffers`
};

/// The plan of a step with these events, which are a stretch of a trace: what is allocated and freed in it is placed,
/// what lives at its begin or at its end is not. Relabels are left out. Throws ValueError for events that are no
/// stretch of a trace (a block allocated or freed twice), and what `place` throws. Where `like` is given and places the
/// same blocks in the same order of allocations and frees, its placement is taken over and nothing is searched.
StepPlan make_step_plan(std::span<const Trace::Event> events, const memory::PlacementOptions& options = {},
                        const StepPlan* like = nullptr);

class Placed final : public Decorator {
 public:
  struct Statistics {
    std::uint64_t steps = 0;          ///< begun
    std::uint64_t dynamic_steps = 0;  ///< of these, begun while blocks in the region lived: not replayed
    std::uint64_t deviations = 0;     ///< of these, replayed until an event was not the planned one
    std::size_t last_deviation = 0;   ///< index in its plan of the event at which the last of them left it
    std::size_t region_bytes = 0;     ///< height of the plans; the arena's block is as large while it is held
    std::size_t live_blocks = 0;      ///< in the region
    bool is_region_held = false;

    friend bool operator==(const Statistics&, const Statistics&) = default;
  };

  /// Replays `plans`: the first step the first, and so on; from the last on, the last. Throws ValueError without plans,
  /// or when one does not hold together (an event without its block, offsets that overlap).
  Placed(std::shared_ptr<Resource> upstream, std::vector<StepPlan> plans);
  ~Placed() override;
  Placed(const Placed&) = delete;
  Placed& operator=(const Placed&) = delete;

  Block* allocate(const Request& request) override;
  void deallocate(Block* block, Stream stream) noexcept override;

  /// A step begins; one that has not ended, ends. Replays the plan of that index (the last, where there are fewer), or
  /// without one that of the step's number. Takes the region where it is not held: throws OutOfMemory then, and nothing
  /// has changed.
  void begin_step();
  void begin_step(std::size_t plan);

  /// The step ends; nothing without one.
  void end_step() noexcept;

  /// Whether a step has begun and not ended, replayed or not.
  bool is_in_step() const;

  /// Gives the region back to the arena unless a block lives in it or a plan is being replayed. Returns its bytes, 0
  /// where it stays.
  std::size_t release_region() noexcept;

  Statistics statistics() const;

  /// Whether the step that is under way has been the planned one up to now: what the plan places then takes nothing
  /// from the arena.
  bool is_replaying() const;

  /// The placed arena that `resource` is or stands on; null: there is none.
  static const Placed* find(const Resource& resource) noexcept;
  static Placed* find(Resource& resource) noexcept;

  /// While one lives the region stays where it is, and no block of the arena below moves: what a step used lies at the
  /// same addresses (nn/recorded_step.h). Takes the region: throws OutOfMemory.
  class Hold {
   public:
    explicit Hold(Placed& placed);
    ~Hold();
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

   private:
    Placed& placed_;
    std::unique_ptr<Arena::Still> still_;  // null: it stands on no arena
  };

  /// A step as a scope: ended when it is left, by an exception too.
  class Step {
   public:
    explicit Step(Placed& placed) : placed_(placed) { placed_.begin_step(); }
    Step(Placed& placed, std::size_t plan) : placed_(placed) { placed_.begin_step(plan); }
    ~Step() { placed_.end_step(); }
    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;

   private:
    Placed& placed_;
  };

 private:
  Block* do_allocate(const Request& request) override;
  void do_deallocate(Block* block, Stream stream) noexcept override;
  void do_relabel(Block* block, Category category) noexcept override;

  struct Handle : Block {
    std::size_t offset = 0;  // in the region
  };
  /// A plan's event, ready to be compared. After the last of a plan there is one that no request is equal to.
  struct Event {
    std::size_t bytes;        // 0: a free
    Handle* handle;           // null: not placed
    std::uint32_t alignment;  // of an allocation
    std::uint32_t live;       // placed blocks before it: in a replay nothing is counted
  };
  static constexpr Event no_event{0, nullptr, 0, 0};

  void add_plan(const StepPlan& plan, Handle* handles);
  void begin(std::size_t plan);
  void finish() noexcept;
  void deviate() noexcept;
  void stop_replay() noexcept;
  std::size_t live() const noexcept { return is_in_replay_ ? next_->live : live_; }
  Block* take_planned(const Request& request) noexcept;
  Block* allocate_unplaced(const Request& request);
  Block* allocate_dynamically(const Request& request);
  void take_region();
  std::size_t give_region_back() noexcept;
  bool is_placed(const Block* block) const noexcept {
    const auto first = reinterpret_cast<std::uintptr_t>(handles_.get());
    return reinterpret_cast<std::uintptr_t>(block) - first < handle_count_ * sizeof(Handle);
  }

  std::unique_ptr<Handle[]> handles_;  // of all plans; they stay where they are, because others hold their addresses
  std::size_t handle_count_ = 0;
  std::vector<std::vector<Event>> plans_;
  Arena* arena_;  // that it stands on; null: on something else
  std::size_t region_bytes_ = 0;
  std::size_t region_alignment_ = 1;
  Block* region_ = nullptr;              // null: not held
  std::byte* region_address_ = nullptr;  // that the handles point into

  bool is_in_step_ = false, is_in_replay_ = false;
  const Event* next_ = &no_event;  // of the plan that is replayed
  const Event* first_ = nullptr;
  const Event* end_ = nullptr;
  std::size_t live_ = 0;  // blocks in the region, outside of a replay
  int holds_ = 0;         // alive
  Statistics counts_;
};

}  // namespace thimble
