#pragma once
// Plans and policies: which tensors of a recording are kept, recomputed or spilled.
//
// Policy
// - A segment is *closed* from its recording until backward reaches it; then it is recomputed from the kept tensors,
//   and is *open*. Segments nest: recomputing one closes its inner ones again, so a node at depth d runs up to d + 1
//   times.
// - A node's fate counts while its innermost segment is closed and all around it are open. A closed outer segment keeps
//   nothing inside except the inputs of its recomputation.
// - A spill takes tensors that the tape holds while it records, inside or outside segments, and backward gets them back
//   before it reads them. Tensors that a recomputed segment keeps are not spilled again.
// - Spills act at ordinals that the plan names, so that allocations do not depend on a disk's speed.
//
// Terms
//   fate       whether a node's result, and its saved tensors, are kept
//   source     a value that recomputing a closed segment reads: made before it, or kept inside
//   spill      a tensor that waits for backward in a tier, or in fewer digits
//   ordinal    a node's index on the tape, from 0; the same in every recording of the same program

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <thimble/core/dtype.h>
#include <thimble/core/shape.h>

namespace thimble {

struct OpType;

/// The tensors of a node that a closed segment keeps; the two can be combined.
enum class Fate : std::uint8_t {
  drop = 0,         ///< nothing; the node is recomputed when its result or a saved tensor is needed
  keep_output = 1,  ///< its result, for backward in the segment and for recomputing other nodes
  keep_saved = 2,   ///< the operator's saved tensors; dropped operands among them are recomputed
  keep = 3
};
constexpr bool keeps_output(Fate fate) noexcept { return (static_cast<unsigned>(fate) & 1u) != 0; }
constexpr bool keeps_saved(Fate fate) noexcept { return (static_cast<unsigned>(fate) & 2u) != 0; }

/// Chooses a fate by the operator's type.
using FatePolicy = Fate (*)(const OpType& type);

/// Keeps nothing.
Fate drop_all(const OpType& type);
/// Keeps the results of matmuls, convolutions and attention; drops everything that is cheap to recompute.
Fate keep_costly(const OpType& type);

/// A digest of operands' shapes and dtypes, in order.
class SizeDigest {
 public:
  void add(const Shape& shape, DType dtype) noexcept {
    add(static_cast<std::uint64_t>(shape.rank()) * 256 + static_cast<std::uint64_t>(dtype));
    for (const std::int64_t size : shape) add(static_cast<std::uint64_t>(size));
  }
  void add_absent() noexcept { add(~std::uint64_t{0}); }
  std::uint64_t value() const noexcept { return value_; }

 private:
  void add(std::uint64_t word) noexcept {
    value_ = (value_ ^ word) * 0x9E3779B97F4A7C15ull;
    value_ ^= value_ >> 29;
  }
  std::uint64_t value_ = 0x243F6A8885A308D3ull;
};

/// Segments, fates and spills of all nodes of a tape, by ordinal. It replaces the program's segments.
struct TapePlan {
  static constexpr std::int32_t none = -1;
  struct Segment {
    std::uint32_t first = 0, end = 0;  ///< ordinals of its nodes, half open, not empty
    std::int32_t parent = none;        ///< index of the segment around it, which comes before it in the list
    friend bool operator==(const Segment&, const Segment&) = default;
  };
  /// Moves a tensor to a tier, or packs it, until backward reads it: the whole storage, with all windows on it. Bytes
  /// that the program, a leaf or a scaled tensor also holds, and bytes that the tape does not keep, stay.
  struct Spill {
    static constexpr std::int32_t result = -1;
    enum class Form : std::uint8_t {
      offload,  ///< exact
      pack      ///< rounded to `dtype`: only results that are floating and wider
    };
    std::uint32_t node = 0;       ///< the node that makes it
    std::int32_t which = result;  ///< or the index of a tensor in the operator's Saved
    Form form = Form::offload;
    DType dtype = DType::bf16;      ///< for packing: f16, bf16, f8e4m3, f8e5m2 or i8 (core/ops/quant/quantize.h)
    std::uint32_t away_after = 0;   ///< node after which it is packed, or its write begins
    std::uint32_t gone_after = 0;   ///< node after which its write must end, freeing the bytes; away_after for packing
    std::uint32_t back_before = 0;  ///< node before whose backward its read begins; no effect on packing
    friend bool operator==(const Spill&, const Spill&) = default;
  };
  /// Sizes of a node's operands and result.
  struct Size {
    std::uint64_t operands = 0;  ///< a SizeDigest
    Shape result;
    DType dtype = DType::f32;
    friend bool operator==(const Size&, const Size&) = default;
  };
  std::vector<Segment> segments;     ///< in order of `first`, outer ones before inner ones
  std::vector<Fate> fates;           ///< one per node; no effect for nodes outside segments
  std::vector<const OpType*> types;  ///< the recording's operators
  std::vector<Spill> spills = {};    ///< in any order
  std::vector<Size> sizes = {};      ///< of all nodes, to compare with recordings; empty skips the check
  /// In a plan for consecutive recordings, such as a pipeline stage's chunks, the end of each; empty for a single
  /// recording. Segments and spills may cross an end; split() cuts them there.
  std::vector<std::uint32_t> ends = {};

  /// Innermost segment of each node. Throws PlanError if a segment is empty, leaves its parent or overlaps its
  /// neighbour, or if fates and types differ in number.
  std::vector<std::int32_t> innermost() const;
  /// Throws PlanError as innermost() does, for a wrong number of sizes, and for a spill of a tensor that the operator
  /// does not save, a tensor that is spilled twice, nodes out of order, or a tensor that cannot be packed so.
  void validate() const;
  /// Whether it needs a tier.
  bool offloads() const noexcept;
};

/// Splits a plan for `count` consecutive recordings into one plan each. Throws PlanError if it is for another number.
std::vector<std::shared_ptr<const TapePlan>> split(const TapePlan& plan, std::size_t count);

}  // namespace thimble
