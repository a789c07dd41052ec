// Rows of the operator table: running sums, products, sorting; then dtypes, ties, NaN, and classes drawn from weights.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include <thimble/autograd/functions.h>
#include <thimble/autograd/tape.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/tensor/view.h>
#include <thimble/memory/stack.h>

#include "support/catch.h"
#include "support/operator_table.h"

using namespace thimble;
using namespace thimble::testing;

namespace {

using Values = std::vector<double>;
using Arrays = std::vector<HostArray>;
constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();

// Calls f(first, step) for the lines of a shape along an axis, in row-major order.
template <class F>
void for_each_line(const Shape& shape, int axis, F&& f) {
  std::int64_t outer = 1, inner = 1;
  for (int i = 0; i < axis; ++i) outer *= shape[i];
  for (int i = axis + 1; i < shape.rank(); ++i) inner *= shape[i];
  for (std::int64_t line = 0; line < outer * inner; ++line) {
    f(line / inner * shape[axis] * inner + line % inner, inner);
  }
}

auto cumsum_reference(int axis) {
  return [=](const Arrays& in) {
    Values y = in[0].values;
    for_each_line(in[0].shape, axis, [&](std::int64_t first, std::int64_t step) {
      double sum = 0;
      for (std::int64_t j = 0; j < in[0].shape[axis]; ++j) {
        sum += in[0][first + j * step];
        y[static_cast<std::size_t>(first + j * step)] = sum;
      }
    });
    return y;
  };
}

auto prod_reference(int axis) {
  return [=](const Arrays& in) {
    Values y;
    for_each_line(in[0].shape, axis, [&](std::int64_t first, std::int64_t step) {
      y.push_back(1);
      for (std::int64_t j = 0; j < in[0].shape[axis]; ++j) y.back() *= in[0][first + j * step];
    });
    return y;
  };
}

// Sorts by selection: repeatedly takes the first of the smallest (or largest) elements left; NaN is the largest.
std::vector<std::size_t> sorted_places(const Values& line, bool is_descending) {
  std::vector<std::size_t> left(line.size()), order;
  std::iota(left.begin(), left.end(), std::size_t{0});
  const auto key = [&](std::size_t i) {
    const double x = std::isnan(line[i]) ? std::numeric_limits<double>::infinity() : line[i];
    return std::pair(is_descending ? -x : x, std::isnan(line[i]) != is_descending);
  };
  while (!left.empty()) {
    std::size_t best = 0;
    for (std::size_t k = 1; k < left.size(); ++k) best = key(left[k]) < key(left[best]) ? k : best;
    order.push_back(left[best]);
    left.erase(left.begin() + static_cast<std::ptrdiff_t>(best));
  }
  return order;
}

auto topk_reference(int axis, std::int64_t count, bool is_descending) {
  return [=](const Arrays& in) {
    Shape shape = in[0].shape;
    shape[axis] = count;
    Values y(static_cast<std::size_t>(shape.elements()));
    std::vector<std::int64_t> firsts;
    for_each_line(shape, axis, [&](std::int64_t first, std::int64_t) { firsts.push_back(first); });
    std::size_t line = 0;
    for_each_line(in[0].shape, axis, [&](std::int64_t first, std::int64_t step) {
      Values values;
      for (std::int64_t j = 0; j < in[0].shape[axis]; ++j) values.push_back(in[0][first + j * step]);
      const std::vector<std::size_t> order = sorted_places(values, is_descending);
      for (std::int64_t j = 0; j < count; ++j) {
        y[static_cast<std::size_t>(firsts[line] + j * step)] = values[order[static_cast<std::size_t>(j)]];
      }
      ++line;
    });
    return y;
  };
}

}  // namespace

TEST_CASE("ops_lines: cumsum") {
  const auto row = [](const Shape& x, int axis) {
    return OperatorCase{"cumsum",
                        {{x}},
                        [=](auto in) { return cumsum(in[0], axis); },
                        cumsum_reference(axis),
                        [](auto, auto) { return std::int64_t{0}; },
                        4};
  };
  for (const OperatorCase& r : {row({7}, 0), row({19, 5}, 1), row({3, 5}, 0), row({2, 3, 4}, 1), row({1, 1}, 0),
                                row({0, 3}, 0), row({3, 0}, 0), row({3, 0}, 1), row({2, 3, 300}, 1)}) {
    check_operator(r);
  }
  OperatorCase longer = row({11, 1700}, 1);  // chunks, and a range per thread
  longer.operands[0].low = 0.5, longer.operands[0].high = 1;
  longer.is_gradcheck_exact = false;
  longer.why_no_gradcheck = "37400 differences";
  check_operator(longer);
  check_operator({"cumsum of a transposed tensor", {{{3, 4}}}, [](auto in) { return cumsum(transpose(in[0]), 1); }});
  CHECK(cumsum(from_host(std::vector<std::int32_t>{3, -1, 4}, {3})).dtype() == DType::i64);
  CHECK(to_host<double>(cumsum(from_host(std::vector<std::int32_t>{3, -1, 4}, {3}))) == Values{3, 2, 6});
  // A sum of 4096 numbers of 1/256 in f16 would stop at 8.
  CHECK(to_host<double>(cumsum(full({4096}, 1.0 / 256, DType::f16)))[4095] == 16);
  CHECK_THROWS_AS(cumsum(zeros({3}), 1), ShapeError);
}

TEST_CASE("ops_lines: prod") {
  const auto row = [](const Shape& x, int axis, bool keep) {
    return OperatorCase{"prod",
                        {{x, 0.5, 1.5}},
                        [=](auto in) { return prod(in[0], axis, keep); },
                        prod_reference(axis),
                        [=](std::int64_t e, auto) { return x.elements() * e; },
                        4};
  };
  for (const OperatorCase& r :
       {row({7}, 0, false), row({19, 5}, 1, true), row({3, 5}, 0, false), row({2, 3, 4}, 1, false),
        row({2, 3, 300}, 1, true), row({3, 0}, 1, false), row({0, 3}, 1, false), row({9, 270}, 1, false)}) {
    check_operator(r);
  }
  OperatorCase zero = row({2, 4}, 1, false);  // one zero in a line, two in the other
  zero.operands[0].values = {0, 2, 3, 4, 0, 5, 0, 7};
  check_operator(zero);
  // Infinities: y, then dy / dx, in a line of the eight that are computed together and in one of the rest.
  const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  struct Row {
    Values x, y, dx;
  };
  const Row beyond[] = {
      {{inf, 1, -2, 3}, {-inf}, {-6, -inf, inf, -inf}},    {{-inf, 1, 2, 3}, {-inf}, {6, -inf, -inf, -inf}},
      {{-inf, inf, 2, -1}, {inf}, {-inf, inf, inf, -inf}}, {{inf, 0, 2, 3}, {nan}, {0, inf, nan, nan}},
      {{0, 0, inf, 3}, {nan}, {nan, nan, 0, nan}},         {{nan, 0, 2, 3}, {nan}, {nan, nan, nan, nan}}};
  for (const Row& r : beyond) {
    Values all;
    const auto is_special = [](std::size_t line) { return line == 3 || line == 8; };
    for (std::size_t line = 0; line < 9; ++line) {
      const Values values = is_special(line) ? r.x : Values{1, 2, 1, 3};
      all.insert(all.end(), values.begin(), values.end());
    }
    Tensor x = from_host(all, {9, 4});
    x.require_grad();
    Tape tape;
    Tensor y;
    {
      const Recording on(tape);
      y = prod(x, 1);
    }
    tape.backward(y, full({9}, 1, x.dtype()));
    const Values dx = to_host<double>(x.grad()), products = to_host<double>(y);
    for (std::size_t i = 0; i < 36; ++i) {
      const double right = is_special(i / 4) ? r.dx[i % 4] : Values{6, 3, 6, 2}[i % 4];
      const double product = is_special(i / 4) ? r.y[0] : 6;
      INFO("of " << r.x[0] << ", " << r.x[1] << ", ..., number " << i << " is " << dx[i] << ", right " << right);
      CHECK((dx[i] == right || (std::isnan(dx[i]) && std::isnan(right))));
      CHECK((products[i / 4] == product || (std::isnan(products[i / 4]) && std::isnan(product))));
    }
  }
  check_operator({"prod over all axes",
                  {{{2, 3, 2}, 0.5, 1.5}},
                  [](auto in) { return prod(in[0]); },
                  [](const Arrays& in) {
                    double y = 1;
                    for (const double v : in[0].values) y *= v;
                    return Values{y};
                  },
                  [](std::int64_t e, auto) { return 12 * e; },
                  4});
  check_operator({"prod over two axes",
                  {{{2, 3, 2}, 0.5, 1.5}},
                  [](auto in) {
                    return prod(in[0], {0, 2});
                  },
                  [](const Arrays& in) {
                    Values y(3, 1);
                    for (std::int64_t i = 0; i < 12; ++i) y[static_cast<std::size_t>(i / 2 % 3)] *= in[0][i];
                    return y;
                  },
                  [](std::int64_t e, auto) { return (12 + 6) * e; },
                  4});
  CHECK(prod(zeros({2, 3}), {}, true).shape() == Shape{1, 1});
  CHECK(item(prod(full({}, 3))) == 3);
  CHECK(to_host<double>(prod(from_host(std::vector<std::int64_t>{3, -2, 4}, {3}))) == Values{-24});
}

TEST_CASE("ops_lines: sort and topk") {
  const auto row = [](const Shape& x, int axis, std::int64_t count, bool is_descending) {
    Shape kept = x;
    kept[axis] = count;
    return OperatorCase{"topk",
                        {{x}},
                        [=](auto in) {
                          return count == in[0].size(axis) ? sort(in[0], axis, is_descending).values
                                                           : topk(in[0], count, axis, is_descending).values;
                        },
                        topk_reference(axis, count, is_descending),
                        [=](auto, auto) { return kept.elements() * 4; }};
  };
  for (const OperatorCase& r :
       {row({7}, 0, 7, false), row({3, 5}, 1, 5, true), row({3, 5}, 0, 3, false), row({2, 6, 3}, 1, 2, true),
        row({2, 6, 3}, 1, 6, false), row({4, 33}, 1, 5, false), row({2, 129}, 1, 129, true), row({3, 4}, 1, 0, true),
        row({0, 3}, 1, 3, false), row({1, 1}, 1, 1, true), row({2, 300}, 1, 299, false)}) {
    check_operator(r);
  }
  // Ties keep their order in both directions; NaN is the largest.
  const Values values{2, nan_value, -1, 2, INFINITY, -1, nan_value, 2, -INFINITY, 0};
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    const Tensor x = to_dtype(from_host(values, {10}), dtype);
    for (const bool is_descending : {false, true}) {
      const std::vector<std::size_t> order = sorted_places(values, is_descending);
      for (const std::int64_t count : {10, 9, 4, 1}) {
        const Sorted first = topk(x, count, 0, is_descending);
        CHECK(first.indices.dtype() == DType::i32);
        const auto places = to_host<std::int64_t>(first.indices);
        CHECK(std::equal(places.begin(), places.end(), order.begin(),
                         [](std::int64_t a, std::size_t b) { return static_cast<std::size_t>(a) == b; }));
        if (has_cuda())
          CHECK(to_host<std::int64_t>(topk(to_device(x, cuda()), count, 0, is_descending).indices) == places);
      }
    }
  }
  const Tensor integers =
      from_host(std::vector<std::int64_t>{3, 1, (std::int64_t{1} << 60) + 1, std::int64_t{1} << 60}, {4});
  CHECK(to_host<std::int64_t>(argsort(integers)) == std::vector<std::int64_t>{1, 0, 3, 2});
  CHECK(to_host<std::int64_t>(argsort(from_host(std::vector<std::int32_t>{3, 1, 1}, {3}), 0, true)) ==
        std::vector<std::int64_t>{0, 1, 2});
  CHECK_THROWS_AS(topk(zeros({3}), 4), ShapeError);
  CHECK_THROWS_WITH(topk(zeros({3}), 4), Catch::StartsWith("topk: 4 of axis 0"));
  CHECK_THROWS_AS(topk(zeros({3}), -1), ShapeError);
  CHECK_THROWS_AS(sort(zeros({3}), 1), ShapeError);
}

TEST_CASE("ops_lines: multinomial draws classes with the weights' probabilities") {
  RandomGenerator generator(7);
  const GeneratorScope scope(generator);
  const Values weights{1, 0, 3, 4, 0};
  const Tensor w = from_host(weights, {1, 5});
  constexpr std::int64_t n = 20000;
  const Tensor drawn = multinomial(w, n, true);
  CHECK(drawn.shape() == Shape{1, n});
  Values found(5, 0);
  for (const std::int64_t c : to_host<std::int64_t>(drawn)) found[static_cast<std::size_t>(c)] += 1.0 / n;
  for (std::size_t c = 0; c < 5; ++c) CHECK(std::abs(found[c] - weights[c] / 8) < 4 * std::sqrt(0.25 / n));
  CHECK(found[1] == 0);
  CHECK(found[4] == 0);

  // Without replacement: the first of a row is drawn as above, and no class twice.
  const Tensor rows = multinomial(view::expand(w, {n, 5}), 2);
  const auto classes = to_host<std::int64_t>(rows);
  Values first(5, 0), pairs(25, 0);
  for (std::size_t i = 0; i < n; ++i) {
    CHECK((classes[2 * i] != classes[2 * i + 1]));
    first[static_cast<std::size_t>(classes[2 * i])] += 1.0 / n;
    pairs[static_cast<std::size_t>(5 * classes[2 * i] + classes[2 * i + 1])] += 1.0 / n;
  }
  for (std::size_t c = 0; c < 5; ++c) CHECK(std::abs(first[c] - weights[c] / 8) < 4 * std::sqrt(0.25 / n));
  CHECK(std::abs(pairs[5 * 3 + 2] - 4.0 / 8 * 3.0 / 4) < 4 * std::sqrt(0.25 / n));

  // A function of the site; equal in any dtype that holds the weights, and on a CUDA device.
  const RandomSite site{5, 3, 0, 11};
  for (const bool replaces : {false, true}) {
    const auto once = to_host<std::int64_t>(multinomial(w, 3, replaces, site));
    CHECK(to_host<std::int64_t>(multinomial(to_dtype(w, DType::bf16), 3, replaces, site)) == once);
    CHECK(to_host<std::int64_t>(multinomial(w * 2.0, 3, replaces, site)) == once);
    if (has_cuda()) CHECK(to_host<std::int64_t>(multinomial(to_device(w, cuda()), 3, replaces, site)) == once);
    CHECK(multinomial(Tensor::empty({4, 5}, DType::f32, dry(cpu)), 3, replaces).shape() == Shape{4, 3});
  }
  CHECK(multinomial(w, 0).shape() == Shape{1, 0});
  CHECK(multinomial(full({4}, 1), 4).shape() == Shape{4});
  CHECK(multinomial(from_host(weights, {5}), 2).shape() == Shape{2});
  CHECK_THROWS_WITH(multinomial(from_host(Values{1, 1, 0, 0}, {2, 2}), 1),
                    "multinomial: the weights of row 1: expected finite ones, at least 0, with a sum above 0");
  CHECK_THROWS_AS(multinomial(from_host(Values{1, -1}, {2}), 1, true), ValueError);
  CHECK_THROWS_AS(multinomial(from_host(Values{1, INFINITY}, {2}), 1, true), ValueError);
  CHECK_THROWS_AS(multinomial(from_host(Values{1, nan_value}, {2}), 1), ValueError);
  // Both kinds request as many bytes on a dry device as on a real one.
  const auto bytes = [](memory::Device device, bool replaces) {
    const memory::Stack stack = memory::make_resource(device, {.trace = true});
    {
      const ResourceScope scope(stack.top);
      multinomial(full({4, 5}, 1, DType::f32, device), 3, replaces);
    }
    return stack.trace->events();
  };
  for (const bool replaces : {false, true}) CHECK(bytes(cpu, replaces) == bytes(dry(cpu), replaces));
  CHECK_THROWS_AS(multinomial(w, 4), ValueError);  // three classes have a weight
  CHECK_THROWS_AS(multinomial(w, 6), ValueError);
  CHECK_THROWS_AS(multinomial(zeros({2, 0}), 1, true), ShapeError);
  CHECK_THROWS_AS(multinomial(arange(3), 1), DTypeError);
}
