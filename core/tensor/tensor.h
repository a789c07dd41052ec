#pragma once
// A tensor is a value handle: a storage, a shape, strides (in elements), an offset and a dtype. Copies alias; `clone()`
// (core/ops/copy.h) copies bytes. Operators are functions (autograd/functions.h).

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <thimble/core/device.h>
#include <thimble/core/dtype.h>
#include <thimble/core/shape.h>
#include <thimble/core/tensor/storage.h>

namespace thimble {

namespace tape {

struct Leaf;
class Transaction;

/// The dependence of a non-leaf tensor on leaves that need a gradient. detach() makes it a constant.
enum class Origin : std::uint8_t {
  constant,    ///< depends on none
  recorded,    ///< depends on them through recorded operators
  unrecorded,  ///< depends on them through an unrecorded operator; a tape treats it as a constant
  gradient     ///< is a gradient or computed from one; detach it to use it as a constant
};

}  // namespace tape

/// A tensor's value on its tape. Opaque outside autograd/; tape 0 means no tape.
struct TapeRef {
  std::uint32_t tape = 0;
  std::uint32_t value = 0;
};

class Tensor {
 public:
  /// An undefined tensor. Operators use it for "not kept" and "no gradient".
  Tensor() = default;

  /// A dense row-major tensor with unset elements, in the context's resource for `device`. Throws ShapeError (negative
  /// or overflowing sizes), OutOfMemory, DeviceError.
  static Tensor empty(const Shape& shape, DType dtype = DType::f32, memory::Device device = cpu,
                      memory::Category category = memory::Category::temporary);
  /// Like empty, with the dtype and device of `like`.
  static Tensor empty_like(const Tensor& like, memory::Category category = memory::Category::temporary);
  static Tensor empty_like(const Tensor& like, const Shape& shape,
                           memory::Category category = memory::Category::temporary);

  bool defined() const noexcept { return defined_; }
  const Shape& shape() const noexcept { return shape_; }
  const Shape& strides() const noexcept { return strides_; }
  /// Size along an axis; negative axes count from the end. Throws ShapeError.
  std::int64_t size(int axis) const { return shape_[normalize_axis("size", axis, shape_.rank())]; }
  int rank() const noexcept { return shape_.rank(); }
  std::int64_t elements() const noexcept { return elements_; }
  /// Bytes of a dense copy, not rounded.
  std::size_t bytes() const noexcept { return static_cast<std::size_t>(elements_) * size_of(dtype_); }
  std::int64_t offset() const noexcept { return offset_; }
  DType dtype() const noexcept { return dtype_; }
  memory::Device device() const noexcept { return device_; }
  /// Dense row-major without gaps.
  bool is_contiguous() const noexcept;
  /// Whether no other handle (tensor, tape, module) shares the storage, so that its bytes may be reused in place.
  bool is_unshared() const noexcept { return storage_ && storage_.use_count() == 1; }
  /// Null without elements.
  const std::shared_ptr<memory::Storage>& storage() const noexcept { return storage_; }

  /// Another window on the same storage, on no tape and no leaf; the caller checks bounds (core/tensor/view.h has
  /// checked windows). Throws AutogradError where that would cut a gradient (core/tensor/unrecorded.h).
  Tensor window(const Shape& shape, const Shape& strides, std::int64_t offset) const;

  /// Scales of quantized dtypes: real value = stored value x scale, broadcast over the trailing axes. Null means 1.
  const std::shared_ptr<const Tensor>& scale() const noexcept { return scale_; }
  void set_scale(Tensor scale);

  /// Makes this tensor (and its later copies) a leaf: backward accumulates its gradient. Throws DTypeError unless it is
  /// floating.
  Tensor& require_grad();
  /// Freezes a leaf (false) or thaws it, for all of its handles. A frozen leaf is a constant: nothing is kept, computed
  /// or accumulated for it, and its gradient is dropped, so that no optimizer updates it. Throws AutogradError unless
  /// this is a leaf.
  void set_requires_grad(bool requires_grad) const;
  /// Whether this is a leaf that is not frozen.
  bool requires_grad() const noexcept;
  /// A leaf's accumulated gradient, undefined before the first backward. Throws AutogradError unless this is a leaf.
  Tensor& grad() const;

  /// The tensor's value on its tape without the bytes, for Tape::backward of a result that has no other reader.
  Tensor without_bytes() const;

  /// A constant with the same storage, on no tape and no leaf.
  Tensor detach() const;

  const std::shared_ptr<tape::Leaf>& leaf() const noexcept { return leaf_; }
  TapeRef tape_ref() const noexcept { return tape_ref_; }
  tape::Origin origin() const noexcept { return origin_; }
  /// The origin of an unrecorded result of this tensor.
  tape::Origin origin_unrecorded() const noexcept;
  void set_tape_ref(TapeRef ref, tape::Origin origin) noexcept {
    tape_ref_ = ref;
    origin_ = origin;
  }

 private:
  std::shared_ptr<memory::Storage> storage_;
  std::shared_ptr<tape::Leaf> leaf_;
  std::shared_ptr<const Tensor> scale_;
  Shape shape_;
  Shape strides_;
  std::int64_t offset_ = 0;
  std::int64_t elements_ = 0;
  TapeRef tape_ref_;
  DType dtype_ = DType::f32;
  memory::Device device_;
  bool defined_ = false;
  tape::Origin origin_ = tape::Origin::constant;
};

namespace tape {

/// The state shared by every handle of a leaf.
struct Leaf {
  Tensor grad;
  TapeRef tape_ref;                    ///< its value on the tape that saw it last
  bool is_trained = false;             ///< whether that tape trains it
  bool is_frozen = false;              ///< needs no gradient now (Tensor::set_requires_grad)
  bool is_input = false;               ///< every tape trains it: a step's input from another stage (optim/pipeline.h)
  Transaction* transaction = nullptr;  ///< the step that restores grad if it fails (core/tensor/transaction.h)
  /// The members of modules that hold this leaf as a parameter (nn/layers/module.h); null once the handle is gone.
  std::vector<std::shared_ptr<Tensor* const>> members = {};
};

}  // namespace tape

inline bool Tensor::requires_grad() const noexcept { return leaf_ && !leaf_->is_frozen; }

inline tape::Origin Tensor::origin_unrecorded() const noexcept {
  if (leaf_) return leaf_->is_frozen ? tape::Origin::constant : tape::Origin::unrecorded;
  return origin_ == tape::Origin::recorded ? tape::Origin::unrecorded : origin_;
}

/// "f32 (2, 3) on cpu".
std::string describe(const Tensor& tensor);

/// Throws DeviceError, with a fix, if the operands of `operation` are defined and on different devices.
void check_one_device(std::string_view operation, const Tensor& a, const Tensor& b);

}  // namespace thimble
