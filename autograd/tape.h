#pragma once
// The tape: records what runs, in order, and computes gradients of it.
//
//   Tape tape;
//   Tensor loss;
//   {
//     Recording on(tape);
//     loss = model.forward(x);
//   }
//   tape.backward(loss);
//
// Behind it are four parts, each with its invariants and an example at the top of its header in autograd/engine/:
//
//   Recorded   recorded.h   the nodes, the values between them, and the tensors that are held for backward
//   Backward   backward.h   walks the nodes from the end; gradients flow, and what is consumed is freed
//   Recompute  recompute.h  runs dropped nodes again for backward (Segments, segments.h, says which are dropped)
//   Spills     spills.h     moves held tensors to a tier, or packs them, until backward reads them
//
// Policy
// - The tape notes the version of a storage (core/tensor/storage.h) for each value, when it is made or first seen. A
//   write to a value that needs a gradient, through whatever view or alias, makes its next recorded use throw, and
//   backward where the value was kept.
// - A value that needs no gradient may be written: to the tape it is another one from then on. A segment
//   that would have to be recomputed from the old value throws; it never reads the new one.

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
  const Storage* storage;
};

/// Seconds that the nodes of a recording took, by ordinal.
struct TapeTimes {
  std::vector<double> forward, recompute, backward;  ///< recompute: all of its runs after the first
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
  /// of the loss itself, 1 when undefined, and then the loss must have one element. Frees saved tensors and gradients
  /// as it goes; afterwards the tape is empty. Throws AutogradError (the loss depends on no leaf that is trained, was
  /// computed outside of a recording, on another tape or in a recording that is over, or is made of a gradient; it or a
  /// saved tensor was overwritten), ShapeError (seed).
  ///
  /// `on_gradient` is called once for every leaf on the tape: when the first of the nodes that have it as an operand
  /// has run backward, or was passed over, and no segment will run one of them again. From then on nothing on the tape
  /// reads the leaf or adds to its gradient (undefined where no node gave one). (Another tensor that shares
  /// its bytes may still be kept: Storage::is_held_for_backward.) The hook may take the gradient away and write the
  /// leaf; what it throws ends the backward.
  void backward(const Tensor& loss, Tensor seed = {}, const LeafHook* on_gradient = nullptr);

  /// Drops everything recorded; capacity is kept for the next step.
  void clear() noexcept;
  /// The same, and from then on follows no plan, trains all leaves and notes no times.
  void reset() noexcept;

  std::size_t node_count() const noexcept;
  /// What a node keeps at this moment; a tensor dropped by a segment is not listed. One that is spilled (TapePlan) is,
  /// with the bytes that it has here: 0 when it is offloaded.
  std::vector<KeptTensor> kept(std::size_t node) const;
  /// Bytes of all distinct storages that the tape holds for backward, by their category; packed tensors with what they
  /// take, offloaded ones with what they take while they are read.
  std::size_t kept_bytes(Category category = Category::activation) const;

  /// Gives every node of the recordings from now on the fate that `plan` has for it, in place of the segments that the
  /// program names; null: the program's segments again. A recording that departs from the plan throws PlanError. The
  /// tape must be empty (AutogradError). `tier` takes what the plan offloads; without one such a plan throws PlanError.
  /// Recording and backward then throw what memory::offload() and its fellows throw, FileError among it.
  void follow(std::shared_ptr<const TapePlan> plan, std::shared_ptr<Tier> tier = nullptr);

  /// From now on these leaves are trained and all others are constants, for which nothing is computed or kept; null:
  /// all leaves are trained. A frozen leaf never is. The set must live as long; the tape must be empty
  /// (AutogradError).
  void train(const LeafSet* leaves);

  /// From now on every tensor that the tape sees is held until it is cleared, and no segment is closed: for graph(), on
  /// a dry device. The tape must be empty (AutogradError).
  void observe();
  bool is_observing() const noexcept;

  /// Notes the times of the nodes recorded from now on in `times`; null: no longer.
  void time(TapeTimes* times) noexcept;

  // The rest is for apply() and checkpoint().

  /// Which operands need a gradient on this tape. Throws AutogradError when one of them was written since the tape has
  /// seen it, or was recorded elsewhere, or when another one is a gradient: second derivatives are not computed.
  Needs needs(const OpType& type, std::span<const Tensor> inputs);

  /// Whether the next node is to fill its `struct Saved`: not where a closed segment drops it. Throws PlanError when
  /// the plan has another operator at its place.
  bool next_keeps_saved(const OpType& type);
  /// Whether nodes that lead to no parameter are recorded too: to recompute from, or where time() or observe() is on.
  bool records_all() const noexcept;

  /// Adds a node; gives `output` its place on the tape. `saved` is consumed. Defined in autograd/apply.h.
  template <class Op>
  void record(const Op& op, typename Op::Saved& saved, std::span<const Tensor> inputs, Tensor& output, Needs needs,
              Origin origin);

  /// Nodes recorded from here on belong to one segment, closed when it ends. Without effect while a plan is followed.
  void begin_segment(Policy policy);
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
