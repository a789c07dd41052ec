#pragma once
// Elementwise operators of two and three operands, with broadcasting. The signatures of bwd_lhs and bwd_rhs name the
// tensors that each gradient keeps; an operand that needs no gradient costs nothing.

#include <thimble/core/kernels/functors/functor.h>
#include <thimble/core/numbers/math.h>

namespace thimble::ops {

using functor::Lhs, functor::Out, functor::Rhs, functor::Third;

/// y = a + b. Keeps nothing.
struct Add {
  static constexpr const char* name = "add";
  static constexpr bool integral = true, passes_lhs = true, passes_rhs = true;
  template <class T>
  THIMBLE_HD T fwd(T a, T b) const {
    return a + b;
  }
  template <class T>
  THIMBLE_HD T bwd_lhs(T dy) const {
    return dy;
  }
  template <class T>
  THIMBLE_HD T bwd_rhs(T dy) const {
    return dy;
  }
};

/// y = a - b. Keeps nothing.
struct Sub {
  static constexpr const char* name = "sub";
  static constexpr bool integral = true, passes_lhs = true;
  template <class T>
  THIMBLE_HD T fwd(T a, T b) const {
    return a - b;
  }
  template <class T>
  THIMBLE_HD T bwd_lhs(T dy) const {
    return dy;
  }
  template <class T>
  THIMBLE_HD T bwd_rhs(T dy) const {
    return -dy;
  }
};

/// y = a b. Each gradient keeps the other operand.
struct Mul {
  static constexpr const char* name = "mul";
  static constexpr bool integral = true;
  template <class T>
  THIMBLE_HD T fwd(T a, T b) const {
    return a * b;
  }
  template <class T>
  THIMBLE_HD T bwd_lhs(Rhs<T> b, T dy) const {
    return dy * b;
  }
  template <class T>
  THIMBLE_HD T bwd_rhs(Lhs<T> a, T dy) const {
    return dy * a;
  }
};

/// y = a / b. The gradient of a keeps b, the gradient of b keeps b and y.
struct Div {
  static constexpr const char* name = "div";
  template <class T>
  THIMBLE_HD T fwd(T a, T b) const {
    return a / b;
  }
  template <class T>
  THIMBLE_HD T bwd_lhs(Rhs<T> b, T dy) const {
    return dy / b;
  }
  template <class T>
  THIMBLE_HD T bwd_rhs(Rhs<T> b, Out<T> y, T dy) const {
    return -dy * y / b;
  }
};

/// y = silu(a) b = a sigmoid(a) b: a gates b in a gated feed-forward layer. Keeps both, and neither the sigmoid nor
/// silu(a). (Shazeer 2020, arXiv:2002.05202, equation 5, without its products.)
struct SwiGlu {
  static constexpr const char* name = "swiglu";
  template <class T>
  THIMBLE_HD T fwd(T a, T b) const {
    return a * math::sigmoid(a) * b;
  }
  template <class T>
  THIMBLE_HD T bwd_lhs(Lhs<T> in, Rhs<T> b, T dy) const {
    const T a = in;
    const T s = math::sigmoid(a);
    return dy * b * s * (T(1) + a * (T(1) - s));
  }
  template <class T>
  THIMBLE_HD T bwd_rhs(Lhs<T> in, T dy) const {
    const T a = in;
    return dy * (a * math::sigmoid(a));
  }
};

/// y = min(a, b); equal operands get half of the gradient each. Keeps both.
struct Minimum {
  static constexpr const char* name = "minimum";
  static constexpr bool integral = true;
  template <class T>
  THIMBLE_HD T fwd(T a, T b) const {
    return b < a || b != b ? b : a;
  }
  template <class T>
  THIMBLE_HD T bwd_lhs(Lhs<T> a, Rhs<T> b, T dy) const {
    return a < b ? dy : a == b ? dy * T(0.5) : T(0);
  }
  template <class T>
  THIMBLE_HD T bwd_rhs(Lhs<T> a, Rhs<T> b, T dy) const {
    return b < a ? dy : a == b ? dy * T(0.5) : T(0);
  }
};

/// y = max(a, b); equal operands get half of the gradient each. Keeps both.
struct Maximum {
  static constexpr const char* name = "maximum";
  static constexpr bool integral = true;
  template <class T>
  THIMBLE_HD T fwd(T a, T b) const {
    return b > a || b != b ? b : a;
  }
  template <class T>
  THIMBLE_HD T bwd_lhs(Lhs<T> a, Rhs<T> b, T dy) const {
    return a > b ? dy : a == b ? dy * T(0.5) : T(0);
  }
  template <class T>
  THIMBLE_HD T bwd_rhs(Lhs<T> a, Rhs<T> b, T dy) const {
    return b > a ? dy : a == b ? dy * T(0.5) : T(0);
  }
};

/// Comparisons give bool and have no gradient.
struct Equal {
  static constexpr const char* name = "equal";
  static constexpr bool integral = true, predicate = true;
  template <class T>
  THIMBLE_HD T fwd(T a, T b) const {
    return static_cast<T>(a == b);
  }
};

struct NotEqual {
  static constexpr const char* name = "not_equal";
  static constexpr bool integral = true, predicate = true;
  template <class T>
  THIMBLE_HD T fwd(T a, T b) const {
    return static_cast<T>(a != b);
  }
};

struct Less {
  static constexpr const char* name = "less";
  static constexpr bool integral = true, predicate = true;
  template <class T>
  THIMBLE_HD T fwd(T a, T b) const {
    return static_cast<T>(a < b);
  }
};

struct LessEqual {
  static constexpr const char* name = "less_equal";
  static constexpr bool integral = true, predicate = true;
  template <class T>
  THIMBLE_HD T fwd(T a, T b) const {
    return static_cast<T>(a <= b);
  }
};

struct Greater {
  static constexpr const char* name = "greater";
  static constexpr bool integral = true, predicate = true;
  template <class T>
  THIMBLE_HD T fwd(T a, T b) const {
    return static_cast<T>(a > b);
  }
};

struct GreaterEqual {
  static constexpr const char* name = "greater_equal";
  static constexpr bool integral = true, predicate = true;
  template <class T>
  THIMBLE_HD T fwd(T a, T b) const {
    return static_cast<T>(a >= b);
  }
};

/// y = condition ? a : b, with operands (a, b, condition); the condition is bool. Keeps the condition.
struct Where {
  static constexpr const char* name = "where";
  static constexpr bool integral = true;
  template <class T>
  THIMBLE_HD T fwd(T a, T b, T condition) const {
    return condition != T(0) ? a : b;
  }
  template <class T>
  THIMBLE_HD T bwd_lhs(Third<T> condition, T dy) const {
    return condition != T(0) ? dy : T(0);
  }
  template <class T>
  THIMBLE_HD T bwd_rhs(Third<T> condition, T dy) const {
    return condition != T(0) ? T(0) : dy;
  }
};

}  // namespace thimble::ops
