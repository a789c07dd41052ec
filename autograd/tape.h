#pragma once
// The tape: a flat vector of nodes in execution order. Backward walks it once, from the end, and frees what it
// consumes.
//
// Policy
// - The tape notes the version of a storage (core/tensor/storage.h) for each value, when it is made or first seen. Who
//   writes a value that needs a gradient, through whatever view or alias, gets an error at its next recorded use, and
//   one in backward where it was kept.
// - A value that needs no gradient may be written: to the tape it is another one from then on. A segment that would
//   have to run again from what it was is an error; never does it read what came later.
//
//   Tape tape;
//   Tensor loss;
//   {
//     Recording on(tape);
//     loss = model.forward(x);
//   }
//   tape.backward(loss);

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <thimble/autograd/node.h>
#include <thimble/autograd/plan.h>
#include <thimble/core/tensor/context.h>
#include <thimble/core/tensor/tensor.h>
#include <thimble/core/threads/parallel.h>

namespace thimble {

class LeafSet;
class Tier;

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
  std::vector<double> forward, rerun, backward;  ///< rerun: all of its runs after the first
};

/// Told of a leaf whose gradient is complete.
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
  /// adds to the leaf's gradient, which is undefined where none came, or reads the leaf. (Another tensor that shares
  /// its bytes may still be kept: Storage::is_held_for_backward.) The hook may take the gradient away and write the
  /// leaf; what it throws ends the backward.
  void backward(const Tensor& loss, Tensor seed = {}, const LeafHook* on_gradient = nullptr);

  /// Drops everything recorded; capacity is kept for the next step.
  void clear() noexcept;
  /// The same, and follows no plan, trains all leaves and notes no times from then on.
  void reset() noexcept;

  std::size_t node_count() const noexcept { return nodes_.size(); }
  /// What a node keeps at this moment; a tensor dropped by a segment is not listed. One that is stored (TapePlan) is,
  /// with the bytes that it has here: 0 when it is offloaded.
  std::vector<KeptTensor> kept(std::size_t node) const;
  /// Bytes of all distinct storages that the tape holds for backward, by their category; packed tensors with what they
  /// take, offloaded ones with what they take while they are read.
  std::size_t kept_bytes(Category category = Category::activation) const;

  /// Gives every node of the recordings from now on the fate that `plan` has for it, in place of the segments that the
  /// program names; null: back to those. A recording that departs from the plan throws PlanError. The tape must be
  /// empty (AutogradError). What the plan offloads goes to `tier`; without one such a plan throws PlanError. Recording
  /// and backward then throw what memory::offload() and its fellows throw, FileError among it.
  void follow(std::shared_ptr<const TapePlan> plan, std::shared_ptr<Tier> tier = nullptr);

  /// From now on these leaves are trained and all others are constants, for which nothing is computed or kept; null:
  /// all of them are. A leaf that is frozen is never. The set must live as long; the tape must be empty
  /// (AutogradError).
  void train(const LeafSet* leaves);

  /// From now on every tensor that the tape sees is held until it is cleared, and no segment is closed: for graph(), on
  /// a dry device. The tape must be empty (AutogradError).
  void observe();
  bool is_observing() const noexcept { return is_observing_; }

  /// Notes the times of the nodes recorded from now on in `times`; null: no longer.
  void time(TapeTimes* times) noexcept { times_ = times; }

  // The rest is for apply() and checkpoint().

  /// Which operands need a gradient on this tape. Throws AutogradError when one of them was written since the tape has
  /// seen it, or was recorded elsewhere, or when another one is a gradient: second derivatives are not computed.
  Needs needs(const OpType& type, std::span<const Tensor> inputs);

  /// Whether the next node is to fill its `struct Saved`: not where a closed segment drops it. Throws PlanError when
  /// the plan has another operator at its place.
  bool next_keeps_saved(const OpType& type);
  /// Whether nodes that lead to no parameter are recorded as well, for others to be run again from.
  bool records_all() const noexcept { return plan_ || is_observing_ || innermost_ != none_segment; }

  /// Adds a node; gives `output` its place on the tape. `saved` is consumed.
  template <class Op>
  void record(const Op& op, typename Op::Saved& saved, std::span<const Tensor> inputs, Tensor& output, Needs needs,
              Origin origin);

  /// Nodes recorded from here on belong to one segment, closed when it ends. Without effect while a plan is followed.
  void begin_segment(Policy policy);
  void end_segment() noexcept;

 private:
  friend struct TapeGraph;
  static constexpr std::uint32_t none = ~0u;
  static constexpr std::int32_t none_segment = -1;

  struct Stores;
  struct Value {
    std::int32_t slot = -1;       // held tensor, in slots_
    std::int32_t store = -1;      // of the plan, that has its bytes; the slot is empty then
    std::int32_t grad_slot = -1;  // gradient so far, in slots_
    std::int32_t leaf = -1;       // in leaves_
    std::int32_t producer = -1;   // node; -1: came from outside
    std::uint32_t holds = 0;      // nodes and segments that will read it in backward
    std::uint32_t mark = 0;       // of the last search that met it
    std::uint32_t rereads = 0;    // nodes to be run again that will read it; together they are one of the holds
    std::uint32_t version = 0;    // of its storage when it was made, first seen or made again
    std::int64_t elements = 0;
    bool is_held_for_rereads = false;
  };
  struct SavedEdge {
    std::uint32_t value = none;
    bool is_held = false;  // false: dropped by a closed segment
  };
  struct Node {
    const OpType* type;
    void* record;
    std::uint32_t first_input, first_saved;
    std::uint32_t output;
    PathId path;
    std::uint16_t inputs;
    Needs needs;
    std::int32_t segment = none_segment;  // innermost
    Fate fate = Fate::keep;
    bool is_dropped = false;  // ran without filling its Saved
  };
  struct Source {
    std::uint32_t reader;  // a node, for messages
    std::uint32_t value;
  };
  struct Segment {
    std::uint32_t first_node, end_node;
    std::int32_t parent;
    Policy policy;
    bool is_open = false;
    bool is_settled = false;
    std::vector<Source> sources = {};  // held
    std::vector<std::pair<std::uint32_t, std::uint32_t>> needed =
        {};  // (reader, value) of all that running it again reads
  };
  // What is yet to be run again of an open segment, per node of it.
  enum class Mode : std::uint8_t { skip, output, full };
  struct Rerun {
    std::uint32_t first = 0;
    std::vector<Mode> modes;
    std::vector<std::uint8_t> is_needed;  // the output of the node
    std::vector<std::pair<std::uint32_t, std::uint32_t>> sources;
    struct Wait {
      std::uint32_t value, reader;
      std::uint32_t edge;    // in saved_; none: for a segment
      std::int32_t segment;  // that the value is a source of
    };
    std::vector<Wait> waits;         // in order of the value's producer
    std::vector<std::uint32_t> due;  // nodes to be run at once
    std::vector<bool> is_asked;      // whether the node was ever due
  };

  void* allocate_record(std::size_t size, std::size_t alignment);
  void push_node(const OpType& type, void* record, std::span<const Tensor> inputs, std::span<Tensor> kept,
                 Tensor& output, Needs needs, Origin origin);
  void require_planned_size(const OpType& type, std::span<const Tensor> inputs, const Tensor& output) const;
  void keep(Node& node, std::int32_t closed, std::span<const Tensor> inputs, std::span<Tensor> kept,
            const Tensor& output);
  bool is_on_tape(const Tensor& t) const noexcept { return t.tape_ref().tape == id_; }
  void renew_id() noexcept;
  bool was_here(TapeRef ref) const noexcept;
  bool trains(Leaf& leaf) const noexcept;
  bool is_written(const Tensor& t) const noexcept;
  std::string written_text(const Tensor& t) const;
  void check_operands(const OpType& type, std::span<const Tensor> inputs, Needs needs) const;
  void check_loss(const Tensor& loss) const;
  std::uint32_t input_value(const Tensor& t);
  std::uint32_t new_value(const Tensor& t, std::int32_t producer);
  void hold(std::uint32_t value, const Tensor& t);
  void release(std::uint32_t value) noexcept;
  std::int32_t take_slot(Tensor t);
  Tensor free_slot(std::int32_t& slot) noexcept;
  void note_stored(std::uint32_t node, std::span<const Tensor> saved, const Tensor& output);
  void store_before(std::uint32_t next);
  std::vector<std::uint32_t> holders(const Storage* storage) const;
  void put_away(std::uint32_t store);
  void complete_write(std::uint32_t store);
  void leave(std::uint32_t store, std::span<const std::uint32_t> values);
  void prefetch_before(std::uint32_t node);
  const Tensor& bring_back(std::uint32_t value);
  void forget_stored(std::uint32_t value) noexcept;
  std::uint32_t version_of(std::uint32_t value) const;
  KeptTensor kept_tensor(std::uint32_t value) const;
  std::size_t stored_bytes_here() const;
  const Tensor& held(std::uint32_t value) const { return slots_[static_cast<std::size_t>(values_[value].slot)]; }
  void require_empty(const char* operation) const;
  std::vector<std::uint32_t> left_by_program() const;
  void observe_program();

  Segment& segment(std::int32_t index) { return segments_[static_cast<std::size_t>(index)]; }
  const Segment& segment(std::int32_t index) const { return segments_[static_cast<std::size_t>(index)]; }
  std::int32_t segment_of_next() const;
  std::int32_t outermost(std::int32_t index) const;
  std::int32_t child_towards(std::int32_t around, std::int32_t inner) const;
  Fate fate_of_next(const OpType& type) const;
  bool is_next_kept(const OpType& type) const;
  bool is_kept_for(std::uint32_t value, std::int32_t closed) const;
  void hold_sources(std::uint32_t node, std::int32_t closed, std::span<const Tensor> inputs);
  void settle(std::int32_t top);
  void search(std::int32_t index, bool is_ahead, Rerun& rerun);
  std::uint32_t depth(std::int32_t index) const;
  void open(std::int32_t index);
  void begin_rerun(std::int32_t index, Rerun& rerun);
  void hold_for_rereads(std::uint32_t value, const Tensor& t);
  void find_waits(std::int32_t index, Rerun& rerun);
  void ask(std::uint32_t value, std::uint32_t reader, Rerun& rerun);
  void ask_node(std::uint32_t node, Rerun& rerun);
  void run_due(std::int32_t index, Rerun& rerun);
  void make_operands_of(std::uint32_t node);
  void give(const Rerun::Wait& wait, const Tensor& t);
  void rerun_node(std::uint32_t index, std::int32_t around, Rerun& rerun);
  void drop_rereads(std::uint32_t node) noexcept;
  void pass(std::uint32_t node) noexcept;
  void drop_sources(Segment& segment) noexcept;

  void run_node(std::uint32_t index);
  std::vector<std::pair<std::uint32_t, std::uint32_t>> first_readers() const;
  void forget(std::uint32_t leaf, std::int32_t inside_of) noexcept;
  void accumulate(const Node& node, int operand, std::uint32_t value, Tensor gradient);
  void accumulate_leaf(const std::shared_ptr<Leaf>& leaf, Tensor gradient);
  void check_version(const Node& node, std::uint32_t value) const;
  void release_kept(Node& node) noexcept;

  std::uint32_t id_ = 0;
  std::uint32_t oldest_id_ = 0, earlier_id_ = 0;  // recordings of before had those from oldest_id_ on, and this one
  const LeafSet* trained_ = nullptr;              // null: all leaves
  std::vector<Node> nodes_;
  std::vector<Value> values_;
  std::vector<std::uint32_t> inputs_;
  std::vector<SavedEdge> saved_;
  std::vector<Tensor> slots_;
  std::vector<std::int32_t> free_slots_;
  std::vector<std::shared_ptr<Leaf>> leaves_;
  std::vector<Segment> segments_;
  std::int32_t innermost_ = none_segment;  // that is being recorded
  std::uint32_t mark_ = 0;
  std::uint32_t position_ = 0;  // of backward: the node that it is at
  std::vector<Rerun> reruns_;   // of the open segments around it, by depth
  Rerun ahead_;                 // of a search ahead
  std::shared_ptr<const TapePlan> plan_;
  std::vector<std::int32_t> planned_segments_;  // per node of the plan
  std::unique_ptr<Stores> stores_;              // of the plan; null where it has none
  bool is_observing_ = false;
  TapeTimes* times_ = nullptr;
  double started_ = 0;
  std::vector<Tensor> observed_;                     // per value
  std::vector<std::uint32_t> observed_until_;        // per value: see TapeGraph::Value::program_until
  std::vector<std::uint32_t> in_program_;            // values that the program may still hold
  std::vector<double> observed_work_;                // multiply-adds per node
  std::vector<std::unique_ptr<std::byte[]>> pages_;  // of records
  std::size_t page_ = 0, page_used_ = 0;
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

template <class Op>
void Tape::record(const Op& op, typename Op::Saved& saved, std::span<const Tensor> inputs, Tensor& output, Needs needs,
                  Origin origin) {
  std::array<Tensor, static_cast<std::size_t>(node_detail::saved_tensors<Op>)> kept;
  const OpType& type = op_type<Op>();
  void* const at = allocate_record(type.size, type.alignment);
  auto* const record = new (at) Record<Op>{op, {}};
  node_detail::take_apart(saved, kept, record->attributes);
  push_node(type, at, inputs, kept, output, needs, origin);
}

}  // namespace thimble
