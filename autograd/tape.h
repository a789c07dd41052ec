#pragma once
// The tape: records operators in order and computes their gradients.
//
//   Tape tape;
//   Tensor loss;
//   {
//     Recording on(tape);
//     loss = model.forward(x);
//   }
//   tape.backward(loss);
//
// It has four parts. Each header in autograd/engine/ begins with invariants and an example:
//
//   Recorded   recorded.h   the nodes, the values between them, and the tensors held for backward
//   Backward   backward.h   walks the nodes from the end; gradients flow, and consumed tensors are freed
//   Recompute  recompute.h  runs dropped nodes again for backward (Segments, segments.h, decides which are dropped)
//   Spills     spills.h     moves held tensors to a tier, or packs them, until backward reads them
//
// Policy
// - For each value the tape notes the version of its storage (core/tensor/storage.h) when the value is made or first
//   seen. After a write to a value that needs a gradient, through any view or alias, its next recorded use throws, and
//   so does a backward that kept it.
// - A value that needs no gradient may be written: from then on it is a new value. A segment whose recomputation needs
//   the old value throws; it never reads the new one.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <thimble/autograd/plan.h>
#include <thimble/core/tensor/context.h>
#include <thimble/core/tensor/tensor.h>
#include <thimble/core/threads/parallel.h>

namespace thimble {

class LeafSet;
namespace ops {
class Needs;
}  // namespace ops
namespace memory {
class Tier;
}  // namespace memory

namespace tape_detail {
class Recompute;
class Recorded;
class Segments;
}  // namespace tape_detail

/// A saved tensor of a node, for reports and tests.
struct KeptTensor {
  std::uint32_t value;  ///< id on the tape; the same tensor has the same id
  Shape shape;
  DType dtype;
  std::size_t bytes;  ///< of its storage
  memory::Category category;
  const memory::Storage* storage;
};

/// Seconds per node of a recording, by ordinal.
struct TapeTimes {
  std::vector<double> forward, recompute, backward;  ///< recompute sums all runs after the first

  /// Takes the minimum with `now` for each time; a copy of `now` if empty.
  void keep_least(const TapeTimes& now);
};

/// Called with a leaf whose gradient is complete.
using LeafHook = FunctionRef<void(const std::shared_ptr<tape::Leaf>&)>;

class Tape {
 public:
  Tape();
  ~Tape();
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  /// Adds the gradients of `loss` to grad() of every leaf that it depends on. `seed` is the gradient of the loss itself
  /// and defaults to 1 for a loss of one element. Frees saved tensors and gradients as it goes; afterwards the tape is
  /// empty. Throws AutogradError (the loss depends on no trained leaf, was computed outside a recording, on another
  /// tape or in an ended recording, or depends on a gradient; it or a saved tensor was overwritten), ShapeError,
  /// DTypeError (seed).
  ///
  /// `on_gradient` is called once for every leaf on the tape, when the first node that has it as an operand has run
  /// backward or was skipped, and no segment will run such a node again. From then on nothing on the tape reads the
  /// leaf or adds to its gradient, which is undefined if no node gave one. (Another tensor that shares its bytes may
  /// still be kept: Storage::is_held_for_backward.) The hook may move the gradient away and write the leaf; an
  /// exception from it ends the backward.
  void backward(const Tensor& loss, Tensor seed = {}, const LeafHook* on_gradient = nullptr);

  /// Drops the recording, and keeps the tables' capacity for the next one.
  void clear() noexcept;
  /// clear(), and from then on follows no plan, trains all leaves and records no times.
  void reset() noexcept;

  std::size_t node_count() const noexcept;
  /// The tensors that a node keeps now, without the ones that a segment dropped. Spilled tensors (TapePlan) count with
  /// their bytes here, 0 when offloaded.
  std::vector<KeptTensor> kept(std::size_t node) const;
  /// Bytes of the distinct storages of a category that the tape holds for backward. Spilled tensors count as
  /// activations: packed ones with their packed bytes, offloaded ones while they are read.
  std::size_t kept_bytes(memory::Category category = memory::Category::activation) const;

  /// Makes later recordings follow `plan` instead of the program's segments, which null restores. A recording that
  /// leaves the plan throws PlanError. `tier` takes the plan's offloaded tensors; follow throws PlanError if it is
  /// missing. Recording and backward then also throw as memory::offload() and memory::Offloaded do. The tape must be
  /// empty (AutogradError).
  void follow(std::shared_ptr<const TapePlan> plan, std::shared_ptr<memory::Tier> tier = nullptr);

  /// Trains only these leaves in later recordings; all others are constants, for which nothing is computed or kept.
  /// Null trains all leaves. A frozen leaf is never trained. The set must outlive its use; the tape must be empty
  /// (AutogradError).
  void train(const LeafSet* leaves);

  /// Makes later recordings hold every tensor and close no segment, for TapeGraph on a dry device. `gradient_bytes`, if
  /// not null, gets the bytes of the gradients before each node's backward. The tape must be empty (AutogradError).
  void observe(std::vector<std::size_t>* gradient_bytes = nullptr);
  bool is_observing() const noexcept;

  /// Writes the times of later nodes to `times`, until called with null.
  void time(TapeTimes* times) noexcept;

  // For apply() and checkpoint().

  /// The operands that need a gradient on this tape. Throws AutogradError when one of them was overwritten since the
  /// tape saw it or was recorded elsewhere, or when another operand is a gradient: there are no second derivatives.
  ops::Needs needs(const OpType& type, std::span<const Tensor> inputs);

  /// Begins the next node. Whether it fills its `struct Saved`: not if a closed segment drops it. Throws PlanError when
  /// the plan has another operator there.
  bool next_keeps_saved(const OpType& type);
  /// Whether nodes without gradients are recorded too: for recomputing, or for time() and observe().
  bool records_all() const noexcept;

  /// Adds a node and sets `output`'s TapeRef. Consumes `saved`. Defined in autograd/apply.h.
  template <class Op>
  void record(const Op& op, typename Op::Saved& saved, std::span<const Tensor> inputs, Tensor& output, ops::Needs needs,
              tape::Origin origin);

  /// Begin and end a segment of the nodes in between. No effect while a plan is followed or the tape is observed.
  void begin_segment(FatePolicy policy);
  void end_segment() noexcept;

 private:
  friend struct TapeGraph;
  void* allocate_record(std::size_t size, std::size_t alignment);
  void push_node(const OpType& type, void* record, std::span<const Tensor> inputs, std::span<Tensor> kept,
                 Tensor& output, ops::Needs needs, tape::Origin origin);
  void require_empty(const char* operation) const;

  std::unique_ptr<tape_detail::Recorded> recorded_;
  std::unique_ptr<tape_detail::Segments> segments_;
  std::unique_ptr<tape_detail::Recompute> recompute_;
  double started_ = 0;  // when the next node began
};

/// Records on a tape for a scope.
class Recording {
 public:
  explicit Recording(Tape& tape) : before_(context().tape) { context().tape = &tape; }
  ~Recording() { context().tape = before_; }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

 private:
  Tape* before_;
};

}  // namespace thimble
