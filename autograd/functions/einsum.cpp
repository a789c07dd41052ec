// Sums of products by axis names, composed of permutations, sums, and a matmul for each operand after the first.

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include <thimble/autograd/apply.h>
#include <thimble/autograd/functions/elementwise.h>
#include <thimble/autograd/functions/matmul.h>
#include <thimble/autograd/functions/reduction.h>
#include <thimble/autograd/functions/view.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/layout/view.h>

namespace thimble {
namespace {

/// A tensor whose axes have distinct names.
struct Term {
  Tensor t;
  std::string axes;
};

bool has_axis(const std::string& axes, char name) { return axes.find(name) != std::string::npos; }

std::string axes_where(const std::string& axes, auto&& is_wanted) {
  std::string found;
  std::copy_if(axes.begin(), axes.end(), std::back_inserter(found), is_wanted);
  return found;
}

Tensor with_order(const Term& term, const std::string& axes) {
  if (term.axes == axes) return term.t;
  ops::Permute op;
  for (std::size_t i = 0; i < axes.size(); ++i) op.order[i] = static_cast<int>(term.axes.find(axes[i]));
  return apply(op, term.t);
}

/// Sums over the axes that are not in `kept`.
Term summed(const Term& term, const std::string& kept) {
  std::vector<int> axes;
  for (std::size_t i = 0; i < term.axes.size(); ++i) {
    if (!has_axis(kept, term.axes[i])) axes.push_back(static_cast<int>(i));
  }
  if (axes.empty()) return term;
  return {sum(term.t, Axes(std::span<const int>(axes))),
          axes_where(term.axes, [&](char c) { return has_axis(kept, c); })};
}

/// The product of the sizes of `axes`.
std::int64_t size_of_axes(const Term& term, const std::string& axes) {
  std::int64_t size = 1;
  for (const char c : axes) size *= term.t.shape()[static_cast<int>(term.axes.find(c))];
  return size;
}

/// Multiplies two terms and sums over the shared axes not in `kept`: (batch, rows, inner) x (batch, inner, columns).
Term product(const Term& left, const Term& right, const std::string& kept) {
  const Term a = summed(left, right.axes + kept), b = summed(right, left.axes + kept);
  const std::string batch = axes_where(a.axes, [&](char c) { return has_axis(b.axes, c) && has_axis(kept, c); });
  const std::string inner = axes_where(a.axes, [&](char c) { return has_axis(b.axes, c) && !has_axis(kept, c); });
  const std::string rows = axes_where(a.axes, [&](char c) { return !has_axis(b.axes, c); });
  const std::string columns = axes_where(b.axes, [&](char c) { return !has_axis(a.axes, c); });
  Shape sizes;
  for (const char c : batch) sizes.push_back(size_of_axes(a, {c}));
  for (const char c : rows) sizes.push_back(size_of_axes(a, {c}));
  for (const char c : columns) sizes.push_back(size_of_axes(b, {c}));
  const std::int64_t outer = size_of_axes(a, batch), depth = size_of_axes(a, inner);
  const Tensor lhs = reshape(with_order(a, batch + rows + inner), {outer, size_of_axes(a, rows), depth});
  const Tensor rhs = reshape(with_order(b, batch + inner + columns), {outer, depth, size_of_axes(b, columns)});
  return {reshape(matmul(lhs, rhs), sizes), batch + rows + columns};
}

[[noreturn]] void refuse_equation(std::string_view equation, const std::string& why) {
  throw ValueError("einsum: \"" + std::string(equation) + "\": " + why);
}

}  // namespace

Tensor einsum(std::string_view equation, std::span<const Tensor> operands) {
  std::string text;
  for (const char c : equation) {
    if (c != ' ') text += c;
  }
  const std::size_t arrow = text.find("->");
  std::string names = text.substr(0, arrow), all;
  std::vector<Term> terms;
  for (std::size_t begin = 0; begin <= names.size();) {
    const std::size_t end = std::min(names.find(',', begin), names.size());
    terms.push_back({Tensor(), names.substr(begin, end - begin)});
    begin = end + 1;
  }
  if (terms.size() != operands.size()) {
    refuse_equation(equation, "it names " + std::to_string(terms.size()) + " operands, given are " +
                                  std::to_string(operands.size()));
  }
  const auto check_names = [&](const std::string& axes) {
    for (const char c : axes) {
      const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
      if (!is_letter) refuse_equation(equation, std::string("expected letters, \",\" and \"->\", got \"") + c + "\"");
      if (std::count(axes.begin(), axes.end(), c) > 1)
        refuse_equation(equation, std::string(1, c) + " is twice in " + axes);
    }
  };
  std::string known;  // names with sizes in size_list
  std::vector<std::int64_t> size_list;
  for (std::size_t i = 0; i < terms.size(); ++i) {
    Term& term = terms[i];
    term.t = operands[i];
    check_names(term.axes);
    if (!term.t.defined() || term.t.rank() != static_cast<int>(term.axes.size())) {
      throw ShapeError("einsum: \"" + std::string(equation) + "\": operand " + std::to_string(i) + " is " +
                       describe(term.t) + ", expected " + std::to_string(term.axes.size()) + " axes");
    }
    for (std::size_t k = 0; k < term.axes.size(); ++k) {
      const std::int64_t size = term.t.shape()[static_cast<int>(k)];
      const std::size_t found = known.find(term.axes[k]);
      if (found == std::string::npos) {
        known += term.axes[k];
        size_list.push_back(size);
      } else if (size_list[found] != size) {
        throw ShapeError("einsum: \"" + std::string(equation) + "\": " + term.axes[k] + " is " +
                         std::to_string(size_list[found]) + " and, in operand " + std::to_string(i) + ", " +
                         std::to_string(size));
      }
      all += term.axes[k];
    }
  }
  std::string result = arrow == std::string::npos ? std::string() : text.substr(arrow + 2);
  if (arrow == std::string::npos) {
    result = axes_where(known, [&](char c) { return std::count(all.begin(), all.end(), c) == 1; });
    std::sort(result.begin(), result.end());
  }
  check_names(result);
  for (const char c : result) {
    if (!has_axis(known, c)) refuse_equation(equation, std::string("no operand has ") + c);
  }
  Term term = terms[0];
  for (std::size_t i = 1; i < terms.size(); ++i) {
    std::string kept = result;
    for (std::size_t later = i + 1; later < terms.size(); ++later) kept += terms[later].axes;
    term = product(term, terms[i], kept);
  }
  return with_order(summed(term, result), result);
}

Tensor einsum(std::string_view equation, std::initializer_list<Tensor> operands) {
  return einsum(equation, std::span<const Tensor>(operands.begin(), operands.size()));
}

}  // namespace thimble
