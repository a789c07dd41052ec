#pragma once
// Makes a placement of a training step's blocks from a trace.

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

namespace thimble::memory {

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
  std::vector<Buffer> buffers;  ///< the placed blocks, with lifetimes as indices into `events`
  Placement placement;          ///< of `buffers`
};

inline std::size_t event_count(const std::vector<StepPlacement>& plans) {
  std::size_t count = 0;
  for (const StepPlacement& plan : plans) count += plan.events.size();
  return count;
}

/// Places the blocks that are both allocated and freed in `events`, a step's section of a trace. Ignores relabels.
/// Reuses the placement of `like`, without a search, if it allocates and frees the same blocks in the same order.
/// Throws ValueError for inconsistent events (a block allocated or freed twice), and as `place` does.
StepPlacement make_step_placement(std::span<const Trace::Event> events, const PlacementOptions& options = {},
                                  const StepPlacement* like = nullptr);

// ---- The placed arena: replays a training step at planned offsets.
//
// Policy
// - It is directly above the arena and holds one block of it, the region, as high as its plans. Placed blocks are
//   ranges of the region: an allocation compares the request with the plan's next event and takes the planned offset.
// - Frees are events too. As long as every event is as planned, exactly the planned blocks live, so no two of them
//   overlap. From the first deviation to the next step, and outside steps, requests go to the arena: slower and higher,
//   never wrong. Steps that deviate are counted.
// - Blocks that live before or after the step are not placed, and their frees are not events.
// - A step that begins while blocks of the step before still live in the region goes to the arena, and is counted.
// - Handles are stable. The region is pinned while it is held: the arena's compaction slides other blocks around it.
// - Outside a replay, a request that the arena refuses first makes the region go back to the arena. The next step takes
//   it again.
//
// Terms
//   region      the arena's block for all placed blocks, as high as the highest plan
//   replay      from begin_step to end_step or the first deviation
//   deviation   an event other than the planned one, or a step that ends before its plan; at most one per step
//   strict      a step that leaves its plan is an error

/// A step's deviation: the plan's event, and the step's.
struct PlanDeviation {
  enum class Event : std::uint8_t { allocation, free, end };
  struct Side {
    Event event = Event::end;
    std::size_t bytes = 0;
    Category category = Category::temporary;  ///< of the block
    PathId path = 0;                          ///< of the block
    friend bool operator==(const Side&, const Side&) = default;
  };
  std::uint64_t step = 0;  ///< from 0, over all begun steps
  std::size_t event = 0;   ///< index in the plan
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
    std::uint64_t dynamic_steps = 0;  ///< steps not replayed, because blocks lived in the region when they began
    std::uint64_t deviations = 0;     ///< steps replayed up to a deviation
    std::size_t last_deviation = 0;   ///< event of the last deviation, an index in its plan
    std::size_t region_bytes = 0;     ///< height of the plans, held or not
    std::size_t live_blocks = 0;      ///< in the region
    bool is_region_held = false;
    std::optional<PlanDeviation> first_deviation;  ///< nullopt while every replayed step has kept its plan
    /// Peak of the live bytes that steps took from the arena after leaving their plans.
    std::size_t bytes_above_plan = 0;

    friend bool operator==(const Statistics&, const Statistics&) = default;
  };

  /// Step i replays plan i; later steps repeat the last plan. Throws ValueError without plans or for an event that does
  /// not fit its block, and as memory::check_placement does.
  PlacedArena(std::shared_ptr<Resource> upstream, std::vector<StepPlacement> plans);
  ~PlacedArena() override;
  PlacedArena(const PlacedArena&) = delete;
  PlacedArena& operator=(const PlacedArena&) = delete;

  Block* allocate(const Request& request) override;
  void deallocate(Block* block, Stream stream) noexcept override;

  /// Ends an unfinished step and begins one that replays the plan of that index, or the last plan. The index defaults
  /// to the step's number. Takes the region unless it is held; on OutOfMemory no step has begun.
  void begin_step();
  void begin_step(std::size_t plan);

  /// Makes it an error to leave the plan: from the first deviation on, requests of the step throw PlanError, and so
  /// does begin_step while blocks of the step before live in the region. Only require_kept() reports a deviating free
  /// or a step that is too short.
  void set_strict(bool is_strict);
  /// Throws PlanError if strict and the last step left its plan.
  void require_kept() const;

  /// Replays these plans from the next step on, as if constructed with them; the count of steps continues. Throws
  /// PlanError during a replay, while a block lives in the region, or while a Hold exists, and as the constructor does;
  /// nothing has changed then.
  void set_plans(const std::vector<StepPlacement>& plans);

  /// Ends the step; does nothing without one.
  void end_step() noexcept;

  /// Whether a step has begun and not ended, replayed or not.
  bool is_in_step() const;

  /// Gives the region back to the arena unless a block lives in it, a Hold exists, or a plan is being replayed. Returns
  /// its bytes, or 0 if it stays.
  std::size_t release_region() noexcept;

  Statistics statistics() const;

  /// Whether the current step has kept its plan so far.
  bool is_replaying() const;

  /// The placed arena that `resource` is or contains; null without one.
  static const PlacedArena* find(const Resource& resource) noexcept;
  static PlacedArena* find(Resource& resource) noexcept;

  /// Takes the region, or throws OutOfMemory. While a Hold lives the region stays and no block of the arena moves, so a
  /// step's addresses stay valid (nn/step/captured_step.h).
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

  /// A step as a scope.
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
  Block* do_allocate(const Request& request) override;
  void do_deallocate(Block* block, Stream stream) noexcept override;
  void do_relabel(Block* block, Category category) noexcept override;

  struct Handle : Block {
    std::size_t offset = 0;  // in the region
  };
  /// A plan's event in comparable form. A plan ends in an event that equals no request.
  struct Event {
    std::size_t bytes;        // 0 for a free
    Handle* handle;           // null if not placed
    std::uint32_t alignment;  // of an allocation
    std::uint32_t live;       // number of placed blocks before it, so that a replay need not count
  };
  static constexpr Event no_event{0, nullptr, 0, 0};
  /// Plans ready for replay. Handles must not move while a block lives: callers hold their addresses.
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
  Block* take_planned(const Request& request) noexcept;
  Block* allocate_unplaced(const Request& request);
  Block* allocate_dynamically(const Request& request);
  void take_region();
  std::size_t give_region_back() noexcept;
  bool is_placed(const Block* block) const noexcept {
    const auto first = reinterpret_cast<std::uintptr_t>(plans_.handles.data());
    return reinterpret_cast<std::uintptr_t>(block) - first < plans_.handles.size() * sizeof(Handle);
  }

  Plans plans_;
  Arena* arena_;                         // below it; null for another resource
  Block* region_ = nullptr;              // null unless held
  std::byte* region_address_ = nullptr;  // base of the handles' addresses

  bool is_in_step_ = false, is_in_replay_ = false;
  const Event* next_ = &no_event;  // of the replayed plan
  const Event* first_ = nullptr;
  const Event* end_ = nullptr;
  std::size_t live_ = 0;  // blocks in the region, outside a replay
  int holds_ = 0;         // live ones
  bool is_strict_ = false;
  std::size_t current_ = 0;                      // plan of the step
  bool has_left_ = false;                        // whether the step has left its plan
  std::int64_t outside_bytes_ = 0;               // requested from the arena since then, less bytes given back
  std::optional<PlanDeviation> last_deviation_;  // for require_kept()
  Statistics counts_;
};

}  // namespace thimble::memory
