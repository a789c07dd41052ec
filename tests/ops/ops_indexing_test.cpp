// Embedding, gather, concat, pad: rows of the operator table, indices out of range, and errors.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <thimble/autograd/apply.h>
#include <thimble/autograd/checkpoint.h>
#include <thimble/autograd/functions.h>
#include <thimble/autograd/tape.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/layout/gather.h>
#include <thimble/core/threads/parallel.h>

#include "support/catch.h"
#include "support/operator_table.h"

using namespace thimble;
using namespace thimble::testing;

namespace {

using IndexValues = std::vector<double>;
using IndexArrays = std::vector<HostArray>;

std::int64_t integer(double value) { return static_cast<std::int64_t>(value); }

// Calls f(index) for all indices of a shape, in row-major order.
template <class F>
void for_each_index(const Shape& shape, F&& f) {
  Shape index = shape;
  for (std::int64_t i = 0; i < shape.elements(); ++i) {
    std::int64_t rest = i;
    for (int axis = shape.rank() - 1; axis >= 0; --axis) {
      index[axis] = rest % shape[axis];
      rest /= shape[axis];
    }
    f(index);
  }
}

double at(const HostArray& x, const Shape& index) {
  std::int64_t offset = 0;
  for (int axis = 0; axis < index.rank(); ++axis) offset = offset * x.shape[axis] + index[axis];
  return x[offset];
}

IndexValues embedding_reference(const IndexArrays& in) {
  const std::int64_t columns = in[0].shape[1];
  IndexValues y;
  for (const double id : in[1].values) {
    for (std::int64_t c = 0; c < columns; ++c) y.push_back(in[0][integer(id) * columns + c]);
  }
  return y;
}

auto gather_reference(int axis) {
  return [=](const IndexArrays& in) {
    IndexValues y;
    for_each_index(in[1].shape, [&](Shape index) {
      index[axis] = integer(at(in[1], index));
      y.push_back(at(in[0], index));
    });
    return y;
  };
}

auto concat_reference(int axis) {
  return [=](const IndexArrays& in) {
    Shape shape = in[0].shape;
    for (std::size_t i = 1; i < in.size(); ++i) shape[axis] += in[i].shape[axis];
    IndexValues y;
    for_each_index(shape, [&](Shape index) {
      std::size_t part = 0;
      while (index[axis] >= in[part].shape[axis]) index[axis] -= in[part++].shape[axis];
      y.push_back(at(in[part], index));
    });
    return y;
  };
}

auto pad_reference(const Shape& low, const Shape& high, double value) {
  return [=](const IndexArrays& in) {
    Shape shape = in[0].shape;
    for (int axis = 0; axis < shape.rank(); ++axis) shape[axis] += low[axis] + high[axis];
    IndexValues y;
    for_each_index(shape, [&](Shape index) {
      bool is_inside = true;
      for (int axis = 0; axis < shape.rank(); ++axis) {
        index[axis] -= low[axis];
        is_inside = is_inside && index[axis] >= 0 && index[axis] < in[0].shape[axis];
      }
      y.push_back(is_inside ? at(in[0], index) : value);
    });
    return y;
  };
}

Tensor concat_all(std::span<const Tensor> in, int axis) { return concat(in, axis); }

}  // namespace

TEST_CASE("ops_indexing: embedding") {
  const auto call = [](auto in) { return embedding(in[0], in[1]); };
  const std::vector<OperatorCase> rows{
      {"embedding", {{{11, 6}}, integers({3, 4}, 0, 10)}, call, embedding_reference, [](auto, auto) { return 12 * 8; }},
      {"of one id", {{{4, 3}}, integers({}, 0, 3)}, call, embedding_reference, [](auto, auto) { return 8; }},
      {"ids more often than a block, unused rows", {{{5, 3}}, integers({400}, 1, 2)}, call, embedding_reference},
      {"more columns than a tile", {{{3, 300}}, integers({7}, 0, 2)}, call, embedding_reference},
      {"of a transposed table and transposed ids",
       {{{4, 5}}, integers({2, 3}, 0, 4)},
       [](auto in) { return embedding(transpose(in[0]), transpose(in[1])); },
       {},
       [](auto, auto) { return 6 * 8; }},
  };
  for (const OperatorCase& row : rows) check_operator(row);
}

TEST_CASE("ops_indexing: parts of a table give the whole's rows, or zeros, and its gradient") {
  const Tensor table = reshape(arange(11 * 3, DType::f32), {11, 3});
  const std::vector<std::int64_t> ids{0, 10, 4, 4, 7, 3};
  const Tensor dy = reshape(arange(6 * 3, DType::f32), {6, 3});
  const auto run = [&](const Tensor& rows, std::int64_t first, std::int64_t all) {
    Tensor leaf = clone(rows);
    leaf.require_grad();
    Tape tape;
    Tensor y;
    {
      const Recording on(tape);
      y = apply(ops::Embedding{first, all}, leaf, from_host(ids, {6}));
    }
    tape.backward(y, dy);
    return std::pair(to_host<float>(y), to_host<float>(leaf.grad()));
  };
  const auto [y, gradient] = run(table, 0, 0);
  std::vector<float> sum(y.size(), 0), gradients;
  for (const auto& [begin, end] : {std::pair(0, 3), std::pair(3, 7), std::pair(7, 11)}) {
    const auto [own, own_gradient] = run(slice(table, 0, begin, end), begin, 11);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += own[i];
    gradients.insert(gradients.end(), own_gradient.begin(), own_gradient.end());
  }
  CHECK(sum == y);
  CHECK(gradients == gradient);
  const Tensor part = slice(table, 0, 3, 7);
  CHECK_THROWS_WITH(apply(ops::Embedding{3, 11}, part, from_host<std::int64_t>({3, 11}, {2})),
                    "embedding: index 11 at position 1, expected 0 to 10");
  CHECK_THROWS_WITH(apply(ops::Embedding{8, 11}, part, from_host(ids, {6})), Catch::Contains("from row 8 of 11"));
}

TEST_CASE("ops_indexing: an embedding's gradient is summed in f32 and rounded once") {
  // 1000 times 1/64 in bf16: a sum in bf16 would stop at 4.
  Tensor table = zeros({3, 2}, DType::bf16);
  table.require_grad();
  for (const DType ids_dtype : {DType::i32, DType::i64}) {
    table.grad() = Tensor();
    const Tensor ids = full({1000}, 1, ids_dtype);
    Tape tape;
    Tensor y;
    {
      const Recording on(tape);
      y = embedding(table, ids);
    }
    tape.backward(y, full({1000, 2}, 1.0 / 64, DType::bf16));
    const double sum = item(to_dtype(full({1}, 15.625), DType::bf16));
    CHECK(to_host<double>(table.grad()) == std::vector<double>{0, 0, sum, sum, 0, 0});
  }
}

TEST_CASE("ops_indexing: gather") {
  const auto call = [](int axis) { return [=](auto in) { return gather(in[0], axis, in[1]); }; };
  const auto row = [&](const char* name, int axis, const Shape& x, const Shape& index) {
    const double last = static_cast<double>(x[axis]) - 1;
    return OperatorCase{name, {{x}, integers(index, 0, last)}, call(axis), gather_reference(axis), [=](auto, auto) {
                          return index.elements() * 8;
                        }};
  };
  std::vector<OperatorCase> rows{
      row("along the last axis", 2, {3, 4, 5}, {3, 4, 7}),
      row("along the middle axis", 1, {3, 4, 5}, {3, 6, 5}),
      row("along the first axis", 0, {3, 4, 5}, {9, 4, 5}),
      row("with a smaller index", 1, {3, 4, 5}, {2, 3, 4}),
      row("of one axis", 0, {6}, {20}),
      row("one element per line", 1, {5, 8}, {5, 1}),
      row("longer lines than a tile", 1, {2, 5}, {2, 300}),
      row("more lines than a tile", 0, {2, 300}, {3, 300}),
  };
  rows.push_back({"along a negative axis of a transposed tensor", {{{4, 3}}, integers({3, 2}, 0, 3)}, [](auto in) {
                    return gather(transpose(in[0]), -1, in[1]);
                  }});
  for (const OperatorCase& r : rows) check_operator(r);
}

TEST_CASE("ops_indexing: index_select") {
  const auto row = [](const char* name, int axis, const Shape& x, std::int64_t count) {
    const double last = static_cast<double>(x[axis]) - 1;
    return OperatorCase{name,
                        {{x}, integers({count}, 0, last)},
                        [=](auto in) { return index_select(in[0], axis, in[1]); },
                        [=](const IndexArrays& in) {
                          Shape shape = in[0].shape;
                          shape[axis] = count;
                          IndexValues y;
                          for_each_index(shape, [&](Shape index) {
                            index[axis] = integer(in[1][index[axis]]);
                            y.push_back(at(in[0], index));
                          });
                          return y;
                        },
                        [=](auto, auto) { return count * 8; }};
  };
  const std::vector<OperatorCase> rows{
      row("rows", 0, {5, 7}, 9),
      row("of the middle axis", 1, {3, 4, 5}, 6),
      row("of the last axis", 2, {3, 4, 5}, 3),
      row("of one axis", 0, {6}, 4),
      row("none", 1, {3, 4}, 0),
      row("rows longer than a tile", 0, {3, 300}, 4),
      row("of an axis of size 1", 1, {3, 1, 2}, 5),
      {"of a transposed tensor",
       {{{4, 3}}, integers({5}, 0, 2)},
       [](auto in) { return index_select(transpose(in[0]), 0, in[1]); }},
  };
  for (const OperatorCase& r : rows) check_operator(r);
}

// x plus source, at the indices that `place` makes of source's.
template <class F>
IndexValues added(const IndexArrays& in, F&& place) {
  IndexValues y = in[0].values;
  for_each_index(in[2].shape, [&](const Shape& index) {
    Shape to = index;
    place(to);
    std::int64_t offset = 0;
    for (int axis = 0; axis < to.rank(); ++axis) offset = offset * in[0].shape[axis] + to[axis];
    y[static_cast<std::size_t>(offset)] += at(in[2], index);
  });
  return y;
}

TEST_CASE("ops_indexing: scatter_add and index_add") {
  const auto scatter = [](const char* name, int axis, const Shape& x, const Shape& index) {
    const double last = static_cast<double>(x[axis]) - 1;
    return OperatorCase{
        name,
        {{x}, integers(index, 0, last), {index}},
        [=](auto in) { return scatter_add(in[0], axis, in[1], in[2]); },
        [=](const IndexArrays& in) { return added(in, [&](Shape& to) { to[axis] = integer(at(in[1], to)); }); },
        [=](auto, auto) { return index.elements() * 8; }};
  };
  const auto rows = [](const char* name, int axis, const Shape& x, std::int64_t count) {
    const double last = static_cast<double>(x[axis]) - 1;
    Shape source = x;
    source[axis] = count;
    return OperatorCase{
        name,
        {{x}, integers({count}, 0, last), {source}},
        [=](auto in) { return index_add(in[0], axis, in[1], in[2]); },
        [=](const IndexArrays& in) { return added(in, [&](Shape& to) { to[axis] = integer(in[1][to[axis]]); }); },
        [=](auto, auto) { return count * 8; }};
  };
  for (const OperatorCase& r :
       {scatter("scatter_add", 1, {3, 4, 5}, {3, 6, 5}), scatter("along the first axis", 0, {3, 4}, {7, 4}),
        scatter("along the last axis, fewer lines", -1 + 3, {3, 4, 5}, {2, 3, 9}), scatter("of one axis", 0, {5}, {30}),
        scatter("of nothing", 0, {5}, {0}), scatter("longer lines than a tile", 1, {2, 5}, {2, 300}),
        rows("index_add of rows", 0, {4, 6}, 11), rows("of the middle axis", 1, {3, 4, 5}, 6),
        rows("of rows longer than a tile", 0, {3, 300}, 5), rows("of no rows", 0, {3, 2}, 0)}) {
    check_operator(r);
  }
  // Counts: integers add up in i64.
  const Tensor counts =
      index_add(zeros({3}, DType::i32), 0, from_host<std::int64_t>({2, 0, 2, 2}, {4}), full({4}, 1, DType::i32));
  CHECK(counts.dtype() == DType::i32);
  CHECK(to_host<double>(counts) == std::vector<double>{1, 0, 3});
  // 1000 times 1/64 in bf16 is rounded once.
  const Tensor sums =
      index_add(zeros({1}, DType::bf16), 0, zeros({1000}, DType::i32), full({1000}, 1.0 / 64, DType::bf16));
  CHECK(item(sums) == item(to_dtype(full({1}, 15.625), DType::bf16)));
}

TEST_CASE("ops_indexing: columns of many rows") {
  constexpr std::int64_t rows = 5000, columns = 40, count = 700;
  const Tensor x = randn({rows, columns}), source = randn({count, columns});
  std::vector<std::int64_t> places;
  const std::vector<float> before = to_host<float>(x), added = to_host<float>(source);
  std::vector<float> sums = before, elements;
  for (std::int64_t i = 0; i < count * columns; ++i) {
    places.push_back(i * 7919 % rows);
    const auto at = static_cast<std::size_t>(places.back() * columns + i % columns);
    elements.push_back(before[at]);
    sums[at] += added[static_cast<std::size_t>(i)];
  }
  const Tensor index = from_host(places, {count, columns});
  CHECK((to_host<float>(gather(x, 0, index)) == elements));  // without printing them
  CHECK((to_host<float>(scatter_add(x, 0, index, source)) == sums));
}

TEST_CASE("ops_indexing: an index of rows and its errors") {
  const Tensor x = zeros({3, 4});
  CHECK_THROWS_WITH(index_select(x, 1, from_host<std::int64_t>({0, 3, 4}, {3})),
                    "index_select: index 4 at position 2, expected 0 to 3");
  CHECK_THROWS_WITH(index_add(x, 0, from_host<std::int64_t>({0, -1}, {2}), zeros({2, 4})),
                    "index_add: index -1 at position 1, expected 0 to 2");
  CHECK_THROWS_WITH(scatter_add(x, 1, from_host<std::int64_t>({0, 7}, {1, 2}), zeros({1, 2})),
                    "scatter_add: index 7 at position 1, expected 0 to 3");
  CHECK_THROWS_WITH(scatter_add(x, 1, from_host<std::int64_t>({0, 0, 0, -2}, {2, 2}), zeros({2, 2})),
                    "scatter_add: index -2 at position 3, expected 0 to 3");
  CHECK_THROWS_AS(index_select(x, 0, from_host<std::int64_t>({0}, {1, 1})), ShapeError);
  CHECK_THROWS_AS(index_select(x, 2, zeros({1}, DType::i64)), ShapeError);
  CHECK_THROWS_AS(index_select(x, 0, zeros({1})), DTypeError);
  CHECK_THROWS_AS(index_add(x, 0, zeros({2}, DType::i64), zeros({2, 3})), ShapeError);
  CHECK_THROWS_AS(index_add(x, 0, zeros({2}, DType::i64), zeros({2, 4}, DType::f64)), DTypeError);
  CHECK_THROWS_AS(scatter_add(x, 0, zeros({2, 5}, DType::i64), zeros({2, 5})), ShapeError);
}

TEST_CASE("ops_indexing: roll and flip") {
  const auto moved = [](std::function<void(Shape&, const Shape&)> from) {
    return [=](const IndexArrays& in) {
      IndexValues y;
      for_each_index(in[0].shape, [&](Shape index) {
        from(index, in[0].shape);
        y.push_back(at(in[0], index));
      });
      return y;
    };
  };
  const auto none = [](auto, auto) { return std::int64_t{0}; };
  const auto roll_row = [&](const Shape& x, std::int64_t shift, int axis) {
    return OperatorCase{"roll",
                        {{x}},
                        [=](auto in) { return roll(in[0], shift, axis); },
                        moved([=](Shape& index, const Shape& shape) {
                          const std::int64_t size = shape[axis];
                          index[axis] = ((index[axis] - shift) % size + size) % size;
                        }),
                        none};
  };
  const auto flip_row = [&](const Shape& x, std::initializer_list<int> axes) {
    const std::vector<int> list(axes);
    return OperatorCase{"flip",
                        {{x}},
                        [=](auto in) { return flip(in[0], Axes(std::span<const int>(list))); },
                        moved([=](Shape& index, const Shape& shape) {
                          for (int axis = 0; axis < shape.rank(); ++axis) {
                            const bool is_flipped =
                                list.empty() || std::find(list.begin(), list.end(), axis) != list.end();
                            if (is_flipped) index[axis] = shape[axis] - 1 - index[axis];
                          }
                        }),
                        none};
  };
  for (const OperatorCase& r :
       {roll_row({3, 5}, 2, 1), roll_row({3, 5}, -7, 1), roll_row({4, 1, 3}, 1, 0), roll_row({4}, 4, 0),
        roll_row({2, 0}, 3, 1), flip_row({3, 5}, {1}), flip_row({3, 4, 5}, {0, 2}), flip_row({3, 4, 5}, {}),
        flip_row({1, 4}, {0}), flip_row({0, 4}, {1}), flip_row({600}, {0})}) {
    check_operator(r);
  }
  check_operator({"flip of a transposed tensor", {{{3, 4}}}, [](auto in) { return flip(transpose(in[0]), 1); }});
  CHECK(to_host<double>(flip(arange(3))) == std::vector<double>{2, 1, 0});
  CHECK_THROWS_AS(roll(zeros({3}), 1, 1), ShapeError);
  CHECK_THROWS_AS(flip(zeros({3}), {0, 0}), ShapeError);
}

TEST_CASE("ops_indexing: gather moves bytes of any dtype") {
  const std::vector<std::int64_t> order{2, 0, 1, 2};
  for (const DType dtype : {DType::i8, DType::u8, DType::i32, DType::i64, DType::f8e4m3, DType::boolean}) {
    const Tensor x = to_dtype(from_host(std::vector<double>{1, 0, 3}, {3}), dtype);
    const Tensor y = gather(x, 0, to_dtype(from_host(order, {4}), DType::i32));
    const double three = dtype == DType::boolean ? 1 : 3;
    CHECK(y.dtype() == dtype);
    CHECK(to_host<double>(y) == std::vector<double>{three, 1, 0, three});
  }
}

TEST_CASE("ops_indexing: an index out of range is named after the launch") {
  const Tensor table = zeros({10, 3}), x = zeros({4, 5});
  const int before = thread_count();
  for (const int threads : {1, 2, 5}) {
    set_thread_count(threads);
    std::vector<std::int64_t> ids(100000, 3);
    ids[70001] = 10;
    ids[90000] = -4;
    CHECK_THROWS_AS(embedding(table, from_host(ids, {1000, 100})), ValueError);
    CHECK_THROWS_WITH(embedding(table, from_host(ids, {1000, 100})),
                      "embedding: index 10 at position 70001, expected 0 to 9");
    ids[40] = -1;
    CHECK_THROWS_WITH(embedding(table, to_dtype(from_host(ids, {100000}), DType::i32)),
                      "embedding: index -1 at position 40, expected 0 to 9");
    const std::vector<std::int64_t> index{0, 1, 2, 3, 4, 0, 1, 4, 3, 9};
    CHECK_THROWS_WITH(gather(x, 1, from_host(index, {2, 5})), "gather: index 9 at position 9, expected 0 to 4");
    CHECK_THROWS_WITH(gather(x, 0, from_host(index, {2, 5})), "gather: index 4 at position 4, expected 0 to 3");
  }
  set_thread_count(before);
  std::vector<std::int64_t> line(600, 4);
  line[513] = 5, line[514] = -1;
  CHECK_THROWS_WITH(gather(x, 1, from_host(line, {1, 600})), "gather: index 5 at position 513, expected 0 to 4");
  CHECK_THROWS_WITH(scatter_add(x, 1, from_host(line, {1, 600}), zeros({1, 600})),
                    "scatter_add: index 5 at position 513, expected 0 to 4");
  // A dry device has no values to check.
  CHECK(embedding(Tensor::empty({10, 3}, DType::f32, dry(cpu)), Tensor::empty({6}, DType::i64, dry(cpu))).shape() ==
        Shape{6, 3});
}

TEST_CASE("ops_indexing: concat") {
  const auto nothing = [](auto, auto) { return 0; };
  const auto row = [&](const char* name, int axis, std::vector<Operand> operands) {
    return OperatorCase{name, operands, [=](auto in) { return concat_all(in, axis); }, concat_reference(axis), nothing};
  };
  std::vector<OperatorCase> rows{
      row("along the first axis", 0, {{{2, 3, 4}}, {{1, 3, 4}}, {{3, 3, 4}}}),
      row("along the middle axis", 1, {{{2, 3, 4}}, {{2, 1, 4}}}),
      row("along the last axis", 2, {{{2, 3, 4}}, {{2, 3, 2}}, {{2, 3, 1}}, {{2, 3, 3}}, {{2, 3, 5}}}),
      row("of one", 0, {{{5}}}),
      row("with an empty part", 0, {{{2, 3}}, {{0, 3}}, {{1, 3}}}),
  };
  rows.push_back({"of one tensor twice, along a negative axis",
                  {{{3, 2}}},
                  [](auto in) {
                    return concat({in[0], in[0]}, -1);
                  },
                  {},
                  nothing});
  rows.push_back({"of parts that write their gradients in place", {{{3, 2}}, {{2, 2}}}, [](auto in) {
                    return concat({neg(in[0]), batch_norm_relu(in[1], {}, {}, {}, {})}, 0);
                  }});
  for (const OperatorCase& r : rows) check_operator(r);
}

TEST_CASE("ops_indexing: stack") {
  // Along each axis: the parts of (3, 2) side by side, copied by index.
  const auto reference = [](int axis) {
    return [=](const IndexArrays& in) {
      Shape shape = in[0].shape;
      shape.insert(axis, static_cast<std::int64_t>(in.size()));
      IndexValues y;
      for_each_index(shape, [&](Shape index) {
        const auto part = static_cast<std::size_t>(index[axis]);
        index.erase(axis);
        y.push_back(at(in[part], index));
      });
      return y;
    };
  };
  for (const int axis : {0, 1, 2}) {
    for (const int named : {axis, axis - 3}) {
      check_operator({"along axis " + std::to_string(named),
                      {{{3, 2}}, {{3, 2}}, {{3, 2}}, {{3, 2}}},
                      [=](auto in) { return stack(in, named); },
                      reference(axis),
                      [](auto, auto) { return 0; }});
    }
  }
  CHECK(stack({full({}, 1), full({}, 2)}).shape() == Shape{2});
}

TEST_CASE("ops_indexing: concat and stack take more than a node does") {
  for (const std::int64_t count : {31, 32, 33, 64, 65, 1025}) {
    INFO(count << " parts");
    std::vector<Tensor> parts;
    std::vector<double> values;
    for (std::int64_t i = 0; i < count; ++i) {
      parts.push_back(full({2}, static_cast<double>(i), DType::f64));
      if (i % 5 != 4) parts.back().require_grad();
      values.insert(values.end(), 2, static_cast<double>(i));
    }
    Tape tape;
    const auto check = [&](const std::function<Tensor()>& together) {
      Tensor y, loss;
      {
        const Recording on(tape);
        y = together();
        loss = sum(square(y) * 0.5);  // its gradient is y
      }
      CHECK(to_host<double>(y) == values);
      CHECK(to_host<double>(together()) == values);  // without a tape, too
      tape.backward(loss);
      for (std::int64_t i = 0; i < count; ++i) {
        const Tensor& part = parts[static_cast<std::size_t>(i)];
        if (!part.requires_grad()) continue;
        CHECK(to_host<double>(part.grad()) == std::vector<double>(2, static_cast<double>(i)));
        part.grad() = Tensor();
      }
    };
    check([&] { return concat(parts, 0); });
    check([&] { return stack(parts); });
    check([&] { return checkpoint([&] { return stack(parts); }); });
  }
  CHECK_THROWS_AS(
      [] {
        Tape tape;
        const Recording on(tape);
        std::vector<Tensor> parts(40, full({2}, 1));
        parts[37] = full({3, 1}, 1);
        concat(parts, 0);
      }(),
      ShapeError);
}

TEST_CASE("ops_indexing: operators take gradients that are windows") {
  // concat, pad and global_avg_pool pass on slices and repeats of dy instead of copies.
  const std::vector<OperatorCase> rows{
      {"concat of rows",
       {{{4, 3}}, {{4, 2}}, {{2, 5}}, {{4, 6}}, {{9, 4}}, integers({4}, 0, 8)},
       [](auto in) {
         return concat(
             {softmax(in[0]), matmul(in[1], in[2]), layer_norm(in[3]), rms_norm(in[3]), gelu(in[0]),
              embedding(in[4], in[5]), dropout(in[3], 0.25), square(in[3]), batch_norm_relu(in[3], {}, {}, {}, {})},
             1);
       }},
      {"concat of images",
       {{{2, 4, 4, 3}}, {{2, 3, 3, 3}}},
       [](auto in) {
         return concat({conv2d(in[0], in[1], {}, {.padding = 1}), max_pool2d(in[0], {{3, 3}, {1, 1}, {1, 1}}),
                        avg_pool2d(in[0], {{3, 3}, {1, 1}, {1, 1}}), group_norm(in[0], 3),
                        pad(slice(in[0], 1, 1, 3), {0, 1}, {0, 1})},
                       -1);
       }},
      {"global_avg_pool",
       {{{2, 4, 4, 3}}, {{5, 3, 3, 3}}},
       [](auto in) {
         const Tensor y = conv2d(in[0], in[1], {}, {.stride = 2, .padding = 1});
         return global_avg_pool(concat({y, max_pool2d(in[0], {})}, -1));
       }},
  };
  for (const OperatorCase& r : rows) check_operator(r);
}

TEST_CASE("ops_indexing: pad") {
  const auto row = [](const char* name, const Shape& x, const Shape& low, const Shape& high, double value) {
    return OperatorCase{name,
                        {{x}},
                        [=](auto in) {
                          return pad(in[0], std::span(low.begin(), low.end()), std::span(high.begin(), high.end()),
                                     value);
                        },
                        pad_reference(low, high, value),
                        [](auto, auto) { return 0; }};
  };
  const std::vector<OperatorCase> rows{
      row("of an image", {2, 3, 4, 2}, {0, 1, 2, 0}, {0, 2, 1, 0}, 0),
      row("of all axes, with a value", {2, 3}, {1, 2}, {3, 0}, -1.5),
      row("of nothing", {2, 3}, {0, 0}, {0, 0}, 9),
      row("around an empty tensor", {0, 2}, {1, 1}, {1, 0}, 4),
  };
  for (const OperatorCase& r : rows) check_operator(r);
  const Tensor ids = pad(full({2}, 5, DType::i64), {1}, {2}, -100);
  CHECK(to_host<std::int64_t>(ids) == std::vector<std::int64_t>{-100, 5, 5, -100, -100});
}

TEST_CASE("ops_indexing: errors") {
  const Tensor table = zeros({4, 3}), ids = zeros({2}, DType::i64), none;
  CHECK_THROWS_AS(embedding(table, zeros({2})), DTypeError);
  CHECK_THROWS_AS(embedding(zeros({4}), ids), ShapeError);
  CHECK_THROWS_AS(embedding(none, ids), ValueError);
  CHECK_THROWS_AS(embedding(table, zeros({2}, DType::i64, dry(cpu))), DeviceError);
  CHECK_THROWS_AS(gather(table, 2, zeros({4, 3}, DType::i64)), ShapeError);
  CHECK_THROWS_AS(gather(table, 0, ids), ShapeError);
  CHECK_THROWS_AS(gather(table, 0, zeros({9, 4}, DType::i64)), ShapeError);
  CHECK_THROWS_AS(gather(table, 0, zeros({4, 3}, DType::u8)), DTypeError);
  CHECK_THROWS_AS(concat(std::span<const Tensor>(), 0), ValueError);
  CHECK_THROWS_AS(concat({table, none}, 0), ValueError);
  CHECK_THROWS_AS(concat({table, zeros({4, 2})}, 0), ShapeError);
  CHECK_THROWS_AS(concat({table, zeros({4})}, 0), ShapeError);
  CHECK_THROWS_AS(concat({table, table}, 2), ShapeError);
  CHECK_THROWS_AS(concat({table, zeros({4, 3}, DType::f16)}, 0), DTypeError);
  CHECK_THROWS_AS(concat({table, zeros({4, 3}, DType::f32, dry(cpu))}, 0), DeviceError);
  CHECK_THROWS_AS(pad(table, {-1}, {0}), ValueError);
  CHECK_THROWS_AS(pad(table, {0, 0, 1}, {0}), ValueError);
  CHECK_THROWS_AS(pad(table, {0}, {0, 0, 0, 0, 0, 0, 0, 0, 0}), ShapeError);
  CHECK_THROWS_AS(pad(none, {0}, {0}), ValueError);
  using Catch::StartsWith;
  CHECK_THROWS_WITH(pad(table, {0, 0, 1}, {}), StartsWith("pad: 1 before and 0 after axis 2 of f32 (4, 3) on cpu"));
  CHECK_THROWS_WITH(pad(table, {INT64_MAX}, {1}), StartsWith("pad: 9223372036854775807 before and 1 after axis 0"));
  CHECK_THROWS_WITH(pad(ids, {1}, {1}, 0.5), StartsWith("pad: 0.5"));
  CHECK_THROWS_WITH(norm(table, 1, 5), StartsWith("norm: axis 5 is outside of [-2, 2)"));
  CHECK_THROWS_WITH(select(table, 0, 9), StartsWith("select: element 9 of axis 0 of f32 (4, 3) on cpu is outside of"));
  CHECK_THROWS_WITH(gather(zeros({0}), 0, ids), StartsWith("gather: index 0 at position 0, expected none"));
  CHECK_THROWS_WITH(sum(zeros({}), 0), StartsWith("sum: axis 0 of a scalar"));

  CHECK_THROWS_AS(stack({table, zeros({3, 4})}), ShapeError);
  CHECK_THROWS_AS(stack({table, none}), ValueError);
  CHECK_THROWS_WITH(stack({table, table}, 3), StartsWith("stack: axis 3 is outside of [-3, 3)"));
  CHECK_THROWS_AS(stack(std::span<const Tensor>()), ValueError);
}
