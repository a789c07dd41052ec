#pragma once
// A recording as plain data: a planner's input.

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
    Category category = Category::temporary;
  };
  /// A tensor: an operand, a result, or anything else that an operator saves.
  struct Value {
    std::uint32_t storage = none;  ///< none without elements; views share one
    Shape shape;
    DType dtype = DType::f32;
    std::int32_t producer = -1;  ///< node; -1 for outside values
    bool is_leaf = false;
    /// The node after which only the tape holds the value's bytes: at the latest the last one, when the recording is
    /// taken after it. none while the program (or a leaf) holds them to the end. A spill can take them after that node.
    std::uint32_t program_until = none;
  };
  struct Node {
    const OpType* type = nullptr;
    const void* record = nullptr;  ///< the operator and its attributes; valid while the tape holds the recording
    PathId path = 0;
    std::vector<std::uint32_t> inputs;  ///< values; none for absent operands
    std::vector<std::uint32_t> saved;   ///< values that its backward reads
    std::vector<std::int32_t> places;   ///< of each of them in the operator's Saved
    std::uint32_t output = none;
    Needs needs;
    double multiply_adds = 0;  ///< of its forward, if the operator defines it (core/ops/op.h); 0 counts only memory
                               ///< traffic

    template <class Op>
    bool is() const {
      return type == &op_type<Op>();
    }
    /// The operator; null when it is not an Op. Valid as long as `record`.
    template <class Op>
    const Op* as() const {
      return is<Op>() ? &static_cast<const OpRecord<Op>*>(record)->op : nullptr;
    }
  };
  std::vector<Node> nodes;
  std::vector<Value> values;
  std::vector<Storage> storages;
  std::vector<std::uint32_t> ends = {};  ///< for consecutive recordings the node that ends each; empty for a single one

  /// Bytes of the storage of a value; 0 for none.
  std::size_t bytes_of(std::uint32_t value) const;
  /// The sizes that plans of this recording compare with.
  std::vector<TapePlan::Size> sizes() const;

  /// The present content of a tape. Throws AutogradError when it was not observed.
  static TapeGraph of(const Tape& tape);
  /// The operators of a tape's nodes, observed or not.
  static void append_operators(const Tape& tape, std::vector<const OpType*>& all);
  /// The tensor that is a value of an observed tape. Throws AutogradError when it was not observed.
  static Tensor tensor(const Tape& tape, std::uint32_t value);
};

/// Consecutive recordings as one, sharing nothing; a single one unchanged.
TapeGraph join(std::vector<TapeGraph> graphs);

}  // namespace thimble
