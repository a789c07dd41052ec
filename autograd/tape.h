#pragma once
// The tape: records operations in order, and computes their gradients.
//
//   Tape tape;
//   Tensor loss;
//   {
//     Recording on(tape);
//     loss = model.forward(x);
//   }
//   tape.backward(loss);
//
// It has four parts, each with its invariants and an example at the top of its header in autograd/engine/:
//
//   Recorded   recorded.h   the nodes, the values between them, and the tensors held for backward
//   Backward   backward.h   walks the nodes from the end; gradients flow, and consumed tensors are freed
//   Recompute  recompute.h  runs dropped nodes again for backward (Segments, segments.h, decides which are dropped)
//   Spills     spills.h     moves held tensors to a tier, or packs them, until backward reads them
//
// Policy
// - The tape notes the version of a storage (core/tensor/storage.h) for each value, when it is made or first seen. A
//   write to a value that needs a gradient, through any view or alias, makes its next recorded use throw, and backward
//   where the value was kept.
// - A value that needs no gradient may be written: the tape treats it as a new value from then on. A segment that would
//   have to be recomputed from the old value throws; it never reads the new one.

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
class Needs;
class Tier;

namespace tape_detail {
class Recompute;
class Recorded;
class Segments;
}  // namespace tape_detail

/// One saved tensor of a node, for reports and tests.
struct KeptTensor {
  std::uint32_t value;  ///< id on the tape: equal ids are the same tensor
  Shape shape;
  DType dtype;
  std::size_t bytes;  ///< of its storage
  Category category;
  const memory::Storage* storage;
};

/// Seconds that the nodes of a recording took, by ordinal.
struct TapeTimes {
  std::vector<double> forward, recompute, backward;  ///< recompute: all runs after the first

  /// Takes over each time of `now` that is less; all, where there are none.
  void keep_least(const TapeTimes& now);
};

/// Called with a leaf whose gradient is complete.
using LeafHook = FunctionRef<void(const std::shared_ptr<Leaf>&)>;

class Tape {
 public:
  Tape();
  ~Tape();
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  /// Gradients of `loss` with respect to every leaf it depends on, added to the leaves' grad(). `seed` is the gradient
  /// of the loss itself and defaults to 1 for a loss of one element. Frees saved tensors and gradients as it goes;
  /// afterwards the tape is empty. Throws AutogradError (the loss depends on no trained leaf, was computed outside a
  /// recording, on another tape or in an ended recording, or depends on a gradient; it or a saved tensor was
  /// overwritten), ShapeError, DTypeError (seed).
  ///
  /// `on_gradient` is called once for every leaf on the tape: when the first of the nodes that have it as an operand
  /// has run backward, or was skipped, and no segment will run one of them again. From then on nothing on the tape
  /// reads the leaf or adds to its gradient (undefined if no node gave one). (Another tensor that shares its bytes may
  /// still be kept: Storage::is_held_for_backward.) The hook may move the gradient away and write the leaf; an
  /// exception from it ends the backward.
  void backward(const Tensor& loss, Tensor seed = {}, const LeafHook* on_gradient = nullptr);

  /// Drops everything recorded; capacity is kept for the next step.
  void clear() noexcept;
  /// The same, and from then on follows no plan, trains all leaves and notes no times.
  void reset() noexcept;

  std::size_t node_count() const noexcept;
  /// The tensors that a node keeps at this moment, without the ones dropped by a segment. Spilled tensors (TapePlan)
  /// are included, with their bytes here: 0 when offloaded.
  std::vector<KeptTensor> kept(std::size_t node) const;
  /// Bytes of all distinct storages that the tape holds for backward, by their category; packed tensors with their
  /// packed bytes, offloaded ones with their bytes during a read.
  std::size_t kept_bytes(Category category = Category::activation) const;

  /// Makes recordings from now on use the fates of `plan` in place of the program's segments; null restores the
  /// program's segments. A recording that departs from the plan throws PlanError. The tape must be empty
  /// (AutogradError). `tier` takes the plan's offloaded tensors; without one such a plan throws PlanError. Recording
  /// and backward then throw as memory::offload() and its fellows, FileError among it.
  void follow(std::shared_ptr<const TapePlan> plan, std::shared_ptr<Tier> tier = nullptr);

  /// Trains only these leaves from now on; all others are constants, for which nothing is computed or kept. Null trains
  /// all leaves. A frozen leaf is never trained. The set must live as long; the tape must be empty (AutogradError).
  void train(const LeafSet* leaves);

  /// From now on holds every tensor that the tape sees until it is cleared, and closes no segment: for graph(), on a
  /// dry device. The tape must be empty (AutogradError).
  void observe();
  bool is_observing() const noexcept;

  /// Records the times of later nodes in `times`; null stops it.
  void time(TapeTimes* times) noexcept;

  // The rest is for apply() and checkpoint().

  /// The operands that need a gradient on this tape. Throws AutogradError when one of them was written since the tape
  /// has seen it, or was recorded elsewhere, or when another one is a gradient: second derivatives are not computed.
  Needs needs(const OpType& type, std::span<const Tensor> inputs);

  /// Whether the next node fills its `struct Saved`: not where a closed segment drops it. Throws PlanError when the
  /// plan has another operator there.
  bool next_keeps_saved(const OpType& type);
  /// Whether nodes that lead to no parameter are recorded too: to recompute from, or where time() or observe() is on.
  bool records_all() const noexcept;

  /// Adds a node and sets `output`'s TapeRef. Consumes `saved`. Defined in autograd/apply.h.
  template <class Op>
  void record(const Op& op, typename Op::Saved& saved, std::span<const Tensor> inputs, Tensor& output, Needs needs,
              Origin origin);

  /// Starts a segment for the next nodes, closed when it ends. No effect while a plan is followed.
  void begin_segment(FatePolicy policy);
  void end_segment() noexcept;

 private:
  friend struct TapeGraph;
  void* allocate_record(std::size_t size, std::size_t alignment);
  void push_node(const OpType& type, void* record, std::span<const Tensor> inputs, std::span<Tensor> kept,
                 Tensor& output, Needs needs, Origin origin);
  void require_empty(const char* operation) const;

  std::unique_ptr<tape_detail::Recorded> recorded_;
  std::unique_ptr<tape_detail::Segments> segments_;
  std::unique_ptr<tape_detail::Recompute> recompute_;
  double started_ = 0;  // the clock when the next node began
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
