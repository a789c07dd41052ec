#pragma once
// The clock of TapeTimes.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <thimble/autograd/node.h>
#include <thimble/autograd/tape.h>

namespace thimble::tape_detail {

/// Seconds since a fixed moment.
inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// ---- A tape's recording: nodes in order of execution, the values between them, and the tensors held for backward.
//
// Invariants
// - A value is a tensor that some node reads, makes or saves. Two nodes that save one tensor save one value.
// - Node n reads `inputs` values from inputs[first_input] on, and saves `saved_tensors` from saved[first_saved] on.
// - A value is held while its count of holds is positive, one for each node or segment that will read it in backward.
//   Then it has a slot, which is empty only while the bytes are spilled.
// - All tables are flat and keep their capacity from recording to recording.
//
// Example: a and b are leaves; y = mul(a, b); z = exp(y)
//
//   values   0: a   1: b   2: y   3: z
//   nodes    0: mul   inputs 0 1   saved lhs: 0, rhs: 1   output 2
//            1: exp   inputs 2     saved out: 3           output 3
//
// Values 0, 1 and 3 are held once each. y is not: no backward reads it, so the program's last handle frees its bytes.

class Observer;
class Spills;

inline constexpr std::uint32_t none = ~0u;  // no value
inline constexpr std::int32_t none_segment = -1;

struct Value {
  std::int32_t slot = -1;       // held tensor
  std::int32_t spill = -1;      // index of its spill; the slot is empty then
  std::int32_t grad_slot = -1;  // gradient so far
  std::int32_t leaf = -1;       // index in `leaves`
  std::int32_t producer = -1;   // node; -1 for outside values
  std::uint32_t holds = 0;      // nodes and segments that will read it in backward
  std::uint32_t mark = 0;       // last search that met it
  std::uint32_t rereads = 0;    // nodes that will reread it; they share one hold
  std::uint32_t version = 0;    // of its storage when the value was made, first seen or recomputed
  std::uint32_t form = 0;       // form_of()
  std::int64_t elements = 0;
  bool is_held_for_rereads = false;
};

struct SavedEdge {
  std::uint32_t value = none;
  bool is_held = false;  // false if a closed segment dropped it
};

struct Node {
  const OpType* type;
  void* record;
  std::uint32_t first_input, first_saved;
  std::uint32_t output;
  PathId path;
  std::uint16_t inputs;
  ops::Needs needs;
  std::int32_t segment = none_segment;  // innermost
  Fate fate = Fate::keep;
  bool is_dropped = false;  // ran without filling its Saved
};

struct LeafUse {
  std::uint32_t value = none;
  std::uint32_t first_node = none;
  std::uint32_t count = 0;
  bool had_gradient = false;  ///< when backward began
};

/// A hash of shape and dtype.
std::uint32_t form_of(const Tensor& t) noexcept;

class Recorded {
 public:
  Recorded();
  ~Recorded();
  Recorded(const Recorded&) = delete;
  Recorded& operator=(const Recorded&) = delete;

  /// Drops all nodes, values and held tensors. Tensors of this recording are on no tape from then on.
  void clear() noexcept;

  /// Room for an operator's record, until clear().
  void* allocate_record(std::size_t size, std::size_t alignment);

  std::uint32_t add_value(const Tensor& t, std::int32_t producer);
  /// Adds a node or segment that will read the value in backward.
  void hold(std::uint32_t value, const Tensor& t);
  /// Removes a reader; the last one releases the tensor.
  void release(std::uint32_t value) noexcept;
  bool is_held(std::uint32_t value) const { return values[value].slot >= 0; }
  /// A held value's tensor; empty while it is spilled.
  const Tensor& held(std::uint32_t value) const { return slots_[static_cast<std::size_t>(values[value].slot)]; }
  Tensor& held(std::uint32_t value) { return slots_[static_cast<std::size_t>(values[value].slot)]; }
  /// A held value's tensor, brought back if it is spilled.
  const Tensor& read(std::uint32_t value);
  /// A held value for reports; its storage is null while it is in a tier.
  KeptTensor kept_tensor(std::uint32_t value) const;
  /// Throws AutogradError if the bytes that `reader` is about to read have changed since the tape noted their version.
  void require_unwritten(const Node& reader, std::uint32_t value) const;

  /// The values that a node reads; `none` for an absent operand, or a constant that will not be read again.
  std::span<const std::uint32_t> inputs_of(const Node& node) const {
    return std::span(inputs).subspan(node.first_input, node.inputs);
  }
  /// The values that a node saves, in its operator's order.
  std::span<SavedEdge> saved_of(const Node& node) {
    return std::span(saved).subspan(node.first_saved, static_cast<std::size_t>(node.type->saved_tensors));
  }
  std::span<const SavedEdge> saved_of(const Node& node) const {
    return std::span(saved).subspan(node.first_saved, static_cast<std::size_t>(node.type->saved_tensors));
  }

  void set_gradient(std::uint32_t value, Tensor gradient);
  Tensor take_gradient(std::uint32_t value) noexcept;
  const Tensor& gradient(const Value& value) const { return slots_[static_cast<std::size_t>(value.grad_slot)]; }

  // A search marks the values that it meets. unmark_all() begins a search.
  void unmark_all() noexcept { ++mark_; }
  void mark(std::uint32_t value) { values[value].mark = mark_; }
  bool is_marked(std::uint32_t value) const { return values[value].mark == mark_; }

  /// Whether a tensor belongs to this recording.
  bool has(const Tensor& t) const noexcept { return t.tape_ref().tape == id; }
  /// Whether it belongs to an earlier recording of this tape.
  bool had(const Tensor& t) const noexcept;

  std::vector<Node> nodes;
  std::vector<Value> values;
  std::vector<std::uint32_t> inputs;  // of all nodes
  std::vector<SavedEdge> saved;       // of all nodes
  std::vector<std::shared_ptr<tape::Leaf>> leaves;
  std::vector<LeafUse> leaf_uses;                  // per leaf, during a backward that needs them
  std::vector<std::uint32_t> leaves_by_first_use;  // ascending, during such a backward
  std::uint32_t id = 0;                            // of the recording, in the TapeRef of its tensors
  const LeafSet* trained = nullptr;                // null trains all leaves
  TapeTimes* times = nullptr;                      // may be null
  std::unique_ptr<Spills> spills;                  // null unless the plan has some
  std::unique_ptr<Observer> observer;              // null unless observed

 private:
  void renew_id() noexcept;
  std::int32_t take_slot(Tensor t);
  Tensor free_slot(std::int32_t& slot) noexcept;

  std::vector<Tensor> slots_;
  std::vector<std::int32_t> free_slots_;
  std::uint32_t mark_ = 0;
  std::uint32_t oldest_id_ = 0, earlier_id_ = 0;     // earlier recordings: [oldest_id_, id), and earlier_id_
  std::vector<std::unique_ptr<std::byte[]>> pages_;  // of records
  std::size_t page_ = 0, page_used_ = 0;
};

}  // namespace thimble::tape_detail
