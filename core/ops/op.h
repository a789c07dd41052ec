#pragma once
// The form of an operator: one struct, forward and backward side by side.
//
// A *structured* operator:
//
//   struct MyOp {
//     static constexpr const char* name = "my_op";
//     static constexpr Cost cost = Cost::matmul;      // of recomputing it
//     double epsilon = 1e-5;                           // attributes
//     struct Saved { Tensor x, mean; };                // all that backward can read; undefined if not kept
//     // forward: (N, C) x (C) -> (N, C)
//     Tensor forward(const Tensor& x, const Tensor& weight, Needs needs, Saved& saved) const;
//     Gradients backward(Saved saved, Tensor dy, Needs needs) const;   // one gradient per operand
//   };
//
// An *elementwise* operator is a functor (core/ops/elementwise/elementwise.h). Both are called through `apply`
// (autograd/apply.h), which records them on the tape when one is active.
//
// Rules for forward: allocate everything, then launch. Fill only the tensors of `saved` that backward needs for the
// operands in `needs` (outside a tape needs.any() is false: keep and allocate nothing for backward). An operand or the
// result is kept by reference; any other tensor is an extra, counted as kept bytes. Other members (shapes, attributes)
// are free. The result's bits must not depend on `needs`.
//
// Two members are optional, for planning:
//
//   // Recomputes the result's bits from the saved tensors and the operands, if that is less work than forward.
//   Tensor output_from_saved(Saved saved, std::span<const Tensor> inputs) const;
//   // Multiply-adds of forward; without it only memory traffic counts.
//   double multiply_adds(std::span<const Tensor> inputs, const Tensor& output) const;

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <thimble/core/tensor/tensor.h>

namespace thimble {
namespace ops {

/// The growth of an operator's time, which recomputation policies compare.
enum class Cost : std::uint8_t {
  view,         ///< no bytes move
  elementwise,  ///< one pass over memory
  reduction,    ///< a few passes over memory
  matmul        ///< more arithmetic than memory traffic
};

/// The operands that need a gradient.
class Needs {
 public:
  static constexpr int max_operands = 32;
  constexpr Needs() = default;
  constexpr explicit Needs(std::uint32_t bits) : bits_(bits) {}
  constexpr bool operator[](int operand) const noexcept { return (bits_ >> operand) & 1u; }
  constexpr bool any() const noexcept { return bits_ != 0; }
  constexpr std::uint32_t bits() const noexcept { return bits_; }

 private:
  std::uint32_t bits_ = 0;
};

/// One gradient per operand, in order; undefined if not needed. Holds up to four without allocating.
class Gradients {
 public:
  Gradients() = default;
  Gradients(std::initializer_list<Tensor> list) {
    for (const Tensor& t : list) push_back(t);
  }
  void push_back(Tensor gradient) {
    if (count_ < inline_count) {
      few_[static_cast<std::size_t>(count_)] = std::move(gradient);
    } else {
      more_.push_back(std::move(gradient));
    }
    ++count_;
  }
  int size() const noexcept { return count_; }
  Tensor& operator[](int i) {
    return i < inline_count ? few_[static_cast<std::size_t>(i)] : more_[static_cast<std::size_t>(i - inline_count)];
  }

 private:
  static constexpr int inline_count = 4;
  std::array<Tensor, inline_count> few_;
  std::vector<Tensor> more_;
  int count_ = 0;
};

}  // namespace ops

/// A `struct Saved` without members, for operators that keep nothing.
struct SavesNothing {};

namespace op_detail {
// Converts to any type, to count the members of an aggregate.
struct Anything {
  template <class T>
  operator T() const;  // NOLINT(google-explicit-constructor)
};

template <class T, std::size_t... I>
constexpr bool takes(std::index_sequence<I...>) {
  return requires { T{(static_cast<void>(I), Anything{})...}; };
}

template <class T, int N = 8>
constexpr int member_count() {
  if constexpr (N == 0 || takes<T>(std::make_index_sequence<N>{})) {
    return N;
  } else {
    return member_count<T, N - 1>();
  }
}
}  // namespace op_detail

/// References to the members of a `struct Saved` (an aggregate of at most 8), in declaration order.
template <class Saved>
constexpr auto tie_members(Saved& saved) {
  constexpr int n = op_detail::member_count<std::remove_const_t<Saved>>();
  if constexpr (n == 0) {
    return std::tuple<>();
  } else if constexpr (n == 1) {
    auto& [a] = saved;
    return std::tie(a);
  } else if constexpr (n == 2) {
    auto& [a, b] = saved;
    return std::tie(a, b);
  } else if constexpr (n == 3) {
    auto& [a, b, c] = saved;
    return std::tie(a, b, c);
  } else if constexpr (n == 4) {
    auto& [a, b, c, d] = saved;
    return std::tie(a, b, c, d);
  } else if constexpr (n == 5) {
    auto& [a, b, c, d, e] = saved;
    return std::tie(a, b, c, d, e);
  } else if constexpr (n == 6) {
    auto& [a, b, c, d, e, g] = saved;
    return std::tie(a, b, c, d, e, g);
  } else if constexpr (n == 7) {
    auto& [a, b, c, d, e, g, h] = saved;
    return std::tie(a, b, c, d, e, g, h);
  } else {
    auto& [a, b, c, d, e, g, h, i] = saved;
    return std::tie(a, b, c, d, e, g, h, i);
  }
}

inline constexpr int max_saved_tensors = 8;

/// Calls f(tensor) for every member that is a tensor, and g(member) for the others.
template <class Saved, class F, class G>
constexpr void for_each_member(Saved& saved, F&& f, G&& g) {
  const auto one = [&](auto& member) {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(member)>, Tensor>) {
      f(member);
    } else {
      g(member);
    }
  };
  std::apply([&](auto&... members) { (one(members), ...); }, tie_members(saved));
}

}  // namespace thimble
