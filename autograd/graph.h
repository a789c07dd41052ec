#pragma once
// A recording as plain data, for planners.

#include <cstddef>
#include <cstdint>
#include <vector>

#include <thimble/autograd/node.h>
#include <thimble/autograd/plan.h>
#include <thimble/core/tensor/tensor.h>

namespace thimble {

class Tape;

/// Nodes, values and storages of an observed tape (Tape::observe), in execution order.
struct TapeGraph {
  static constexpr std::uint32_t none = ~0u;

  struct Storage {
    std::size_t bytes = 0;
    memory::Category category = memory::Category::temporary;
  };
  /// A tensor: an operand, a result, or another tensor that an operator saves.
  struct Value {
    std::uint32_t storage = none;  ///< none without elements; views share a storage
    Shape shape;
    DType dtype = DType::f32;
    std::int32_t producer = -1;  ///< node; -1 for outside values
    bool is_leaf = false;
    /// The node after which only the tape holds the value's bytes, so that a spill can take them; none if the program
    /// or a leaf holds them when the graph is made.
    std::uint32_t program_until = none;
  };
  struct Node {
    const OpType* type = nullptr;
    const void* record = nullptr;  ///< the operator and its attributes; valid while the tape holds the recording
    PathId path = 0;
    std::vector<std::uint32_t> inputs;  ///< values; none for absent operands
    std::vector<std::uint32_t> saved;   ///< values that its backward reads
    std::vector<std::int32_t> places;   ///< their indices in the operator's Saved
    std::uint32_t output = none;
    ops::Needs needs;
    double multiply_adds = 0;        ///< of its forward, or 0 if only its memory traffic counts (core/ops/op.h)
    std::size_t gradient_bytes = 0;  ///< of all gradients before its backward, if a backward was observed

    template <class Op>
    bool is() const {
      return type == &op_type<Op>();
    }
    /// The operator, or null if it is not an Op. Valid as long as `record`.
    template <class Op>
    const Op* as() const {
      return is<Op>() ? &static_cast<const OpRecord<Op>*>(record)->op : nullptr;
    }
  };
  std::vector<Node> nodes;
  std::vector<Value> values;
  std::vector<Storage> storages;
  std::vector<std::uint32_t> ends = {};  ///< end node of each of several consecutive recordings; empty for one

  /// Bytes of a value's storage, or 0.
  std::size_t bytes_of(std::uint32_t value) const;
  /// The sizes that plans of this recording compare with.
  std::vector<TapePlan::Size> sizes() const;

  /// The current content of a tape. Throws AutogradError unless it is observed.
  static TapeGraph of(const Tape& tape);
  /// Appends the operators of a tape's nodes, observed or not.
  static void append_operators(const Tape& tape, std::vector<const OpType*>& all);
  /// The tensor of a value. Throws AutogradError unless the tape is observed.
  static Tensor tensor(const Tape& tape, std::uint32_t value);
};

/// Joins consecutive recordings, which share no values or storages. A single one stays unchanged.
TapeGraph join(std::vector<TapeGraph> graphs);

}  // namespace thimble
