#pragma once
// Identifies a batch before it is made: by the dtypes and shapes of all its tensors, and by other values that may
// change the step.
//
//   Tensor, nn::Parameter                          a shape of the key
//   vector, array, T[n], map, ... of any type      their elements in order, and the count as a value
//   pair, tuple, optional, variant, pointers       their contents
//   aggregates of at most 16 members, without      their members in order of declaration; an array T[n] counts as n
//     base classes                                 members
//   integers, bool, enumerations, strings          values; containers of these give only their size
//   floating numbers                               nothing
//   a type T with a function tensors(const T&)     its result, instead of all of the above; found as a member or in
//                                                  T's namespace
//
// Any other type hides its members; a batch that contains one needs a TrainedProgram::key.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include <thimble/core/tensor/tensor.h>

namespace thimble::nn {

struct BatchOutline {
  std::string shapes;                         ///< of its tensors, or the result of TrainedProgram::key
  std::string values;                         ///< that may change the step
  std::vector<std::int64_t> samples = {};     ///< of each micro-batch; empty for one, or if they cannot be seen
  std::vector<std::int64_t> first_axes = {};  ///< of each tensor; -1 if it has none
  std::string hidden = {};                    ///< type of a member that hides its contents, if any
  std::vector<Tensor>* tensors = nullptr;     ///< receives all tensors; may be null

  void add(const Tensor& tensor);
  void add_value(std::string_view text);
  void hide(const std::type_info& type);
  /// Throws ValueError if a type hides its members, or no tensor was found: batches of two shapes would look alike.
  void require_seen() const;
};

/// The samples of each micro-batch: the first axis of the first tensor that the micro-batches cut without overlap or
/// gap. Throws ValueError if there is no such tensor, or a micro-batch is empty.
std::vector<std::int64_t> samples_of(const BatchOutline& whole, const std::vector<BatchOutline>& micro_batches);

/// Copies the tensors of one batch into another (BatchOutline::tensors of both). Throws PlanError where their shapes,
/// or values that may change the step, differ.
void copy_batch(const BatchOutline& to, const BatchOutline& from);

namespace trainer_detail {

template <class T>
concept IsText = std::is_convertible_v<const T&, std::string_view> || std::is_convertible_v<const T&, std::string>;
template <class T>
concept IsNumber = std::is_arithmetic_v<T> || std::is_enum_v<T>;
template <class T>
concept HasTensors = requires(const T& t) {
  t.tensors();
};
template <class T>
concept HasTensorsBeside = requires(const T& t) {
  tensors(t);
};
template <class T>
concept IsPointer = requires(const T& t) {
  *t, static_cast<bool>(t);
};  // std::optional, too
template <class T>
concept IsVariant = requires(const T& t) {
  t.valueless_by_exception();
};
template <class T>
concept IsTupleLike = requires {
  std::tuple_size<T>::value;
};
template <class T>
concept IsRange = requires(const T& t) {
  t.begin();
  t.end();
};

// Converts to any member's type, or only to a base of Whole: counts members, and finds bases.
template <class Whole, bool wants_base>
struct AnyMember {
  template <class T,
            class = std::enable_if_t<!wants_base || (std::is_base_of_v<T, Whole> && !std::is_same_v<T, Whole>)>>
  operator T() const {  // NOLINT(google-explicit-constructor)
    std::abort();       // never called
  }
};
template <class T, std::size_t... I>
constexpr bool takes_members(std::index_sequence<I...>) {
  return requires { T{(static_cast<void>(I), AnyMember<T, false>{})...}; };
}
inline constexpr int max_members = 16;
/// Counts every element of an array. Returns max_members + 1 for more.
template <class T, int n = max_members + 1>
constexpr int values_of() {
  if constexpr (n == 0 || takes_members<T>(std::make_index_sequence<n>{})) {
    return n;
  } else {
    return values_of<T, n - 1>();
  }
}
// Whether T{a..., {b...}, c...} is valid.
template <class T, std::size_t... A, std::size_t... B, std::size_t... C>
constexpr bool takes_braced(std::index_sequence<A...>, std::index_sequence<B...>, std::index_sequence<C...>) {
  const auto any = [](std::size_t) { return AnyMember<T, false>{}; };
  return requires { T{any(A)..., {any(B)...}, any(C)...}; };
}
/// Elements of the array that begins at value `at`, or 1. Braces around all of them leave no room for another value.
template <class T, int at, int n = values_of<T>() - at>
constexpr int width_at() {
  constexpr std::make_index_sequence<at> before;
  constexpr std::make_index_sequence<values_of<T>() - at - n> after;
  constexpr std::make_index_sequence<after.size() + 1> more;
  constexpr std::make_index_sequence<n> braced;
  if constexpr (n < 2 || (takes_braced<T>(before, braced, after) && !takes_braced<T>(before, braced, more))) {
    return n;
  } else {
    return width_at<T, at, n - 1>();
  }
}
template <class T, int at = 0>
constexpr int members_of() {
  if constexpr (at >= values_of<T>()) {
    return 0;
  } else {
    return 1 + members_of<T, at + width_at<T, at>()>();
  }
}
template <class T>
constexpr bool is_open() {
  if constexpr (!std::is_class_v<T> || !std::is_aggregate_v<T>) {
    return false;
  } else {
    return !requires { T{AnyMember<T, true>{}}; }
    &&values_of<T>() > 0 && values_of<T>() <= max_members;
  }
}

// clang-format off
#define THIMBLE_BATCH_MEMBERS(n, ...)       \
  if constexpr (members_of<T>() == (n)) {   \
    const auto& [__VA_ARGS__] = member;     \
    return std::tie(__VA_ARGS__);           \
  } else
/// References to the members of an aggregate.
template <class T>
constexpr auto tie_batch(const T& member) {
  THIMBLE_BATCH_MEMBERS(1, a)
  THIMBLE_BATCH_MEMBERS(2, a, b)
  THIMBLE_BATCH_MEMBERS(3, a, b, c)
  THIMBLE_BATCH_MEMBERS(4, a, b, c, d)
  THIMBLE_BATCH_MEMBERS(5, a, b, c, d, e)
  THIMBLE_BATCH_MEMBERS(6, a, b, c, d, e, f)
  THIMBLE_BATCH_MEMBERS(7, a, b, c, d, e, f, g)
  THIMBLE_BATCH_MEMBERS(8, a, b, c, d, e, f, g, h)
  THIMBLE_BATCH_MEMBERS(9, a, b, c, d, e, f, g, h, i)
  THIMBLE_BATCH_MEMBERS(10, a, b, c, d, e, f, g, h, i, j)
  THIMBLE_BATCH_MEMBERS(11, a, b, c, d, e, f, g, h, i, j, k)
  THIMBLE_BATCH_MEMBERS(12, a, b, c, d, e, f, g, h, i, j, k, l)
  THIMBLE_BATCH_MEMBERS(13, a, b, c, d, e, f, g, h, i, j, k, l, m)
  THIMBLE_BATCH_MEMBERS(14, a, b, c, d, e, f, g, h, i, j, k, l, m, n)
  THIMBLE_BATCH_MEMBERS(15, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o)
  THIMBLE_BATCH_MEMBERS(16, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p)
  { return std::tuple<>(); }
}
#undef THIMBLE_BATCH_MEMBERS
// clang-format on

template <class T>
void look_at(BatchOutline& outline, const T& member);

template <class T>
void look_at_elements(BatchOutline& outline, const T& range) {
  std::size_t count = 0;
  for (const auto& one : range) {
    using Element = std::remove_cvref_t<decltype(one)>;
    ++count;
    if constexpr (std::is_same_v<Element, T>) {
      return outline.hide(typeid(T));  // a range of itself, such as std::filesystem::path
    } else if constexpr (!IsNumber<Element> && !IsText<Element>) {
      look_at(outline, one);
    }
  }
  outline.add_value("[" + std::to_string(count) + "]");
}

template <class T>
void look_at(BatchOutline& outline, const T& member) {
  if constexpr (std::is_array_v<T>) {  // NOLINT(bugprone-branch-clone): before texts, as it may lack a terminator
    look_at_elements(outline, member);
  } else if constexpr (std::is_base_of_v<Tensor, T>) {
    outline.add(member);
  } else if constexpr (HasTensors<T>) {
    look_at(outline, member.tensors());
  } else if constexpr (HasTensorsBeside<T>) {
    look_at(outline, tensors(member));
  } else if constexpr (std::is_floating_point_v<T>) {
    return;
  } else if constexpr (std::is_enum_v<T>) {
    outline.add_value(std::to_string(static_cast<std::underlying_type_t<T>>(member)));
  } else if constexpr (std::is_integral_v<T>) {
    outline.add_value(std::to_string(member));
  } else if constexpr (std::is_convertible_v<const T&, const void*> && IsText<T>) {
    outline.add_value(member == nullptr ? "" : member);
  } else if constexpr (IsText<T>) {
    outline.add_value(static_cast<std::string>(member));
  } else if constexpr (IsPointer<T>) {
    if (!member) return outline.add_value("none");
    look_at(outline, *member);
  } else if constexpr (IsVariant<T>) {
    outline.add_value(std::to_string(member.index()));
    if (!member.valueless_by_exception()) visit([&](const auto& one) { look_at(outline, one); }, member);
  } else if constexpr (IsRange<T>) {
    look_at_elements(outline, member);
  } else if constexpr (IsTupleLike<T>) {
    std::apply([&](const auto&... members) { (look_at(outline, members), ...); }, member);
  } else if constexpr (is_open<T>()) {
    std::apply([&](const auto&... members) { (look_at(outline, members), ...); }, tie_batch(member));
  } else if constexpr (!std::is_empty_v<T>) {
    outline.hide(typeid(T));
  }
}

}  // namespace trainer_detail

}  // namespace thimble::nn
