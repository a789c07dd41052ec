// Attention with windows, masks and documents against the plain definition: values, gradients by differences, queries
// that see nothing, bits, and refusals.

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include <thimble/autograd/functions.h>
#include <thimble/autograd/tape.h>
#include <thimble/core/error.h>
#include <thimble/core/kernels/shared/random_bits.h>
#include <thimble/core/ops/attention.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/tensor/view.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/near.h"
#include "support/operator_table.h"
#include "support/refusal.h"

using namespace thimble;
using namespace thimble::testing;
using refusal_test::refusal;

namespace {

using Arrays = std::vector<HostArray>;
using Values = std::vector<double>;

struct Sizes {
  std::int64_t batch, queries, keys, heads, width, group = 1;
};

// The addend to the score of (b, h, t, s): -infinity where the key is hidden.
using Added = std::function<double(std::int64_t b, std::int64_t h, std::int64_t t, std::int64_t s)>;

// softmax(q k^T / sqrt(D) + added) v: q (B, T, H, D), k and v (B, S, H / group, D); 0 where nothing is seen.
Values reference(const Sizes& n, const HostArray& q, const HostArray& k, const HostArray& v, const Added& added) {
  Values out;
  for (std::int64_t b = 0; b < n.batch; ++b) {
    for (std::int64_t t = 0; t < n.queries; ++t) {
      for (std::int64_t h = 0; h < n.heads; ++h) {
        const auto key = [&](std::int64_t s) {
          return ((b * n.keys + s) * (n.heads / n.group) + h / n.group) * n.width;
        };
        const std::int64_t query = ((b * n.queries + t) * n.heads + h) * n.width;
        Values chance;
        double total = 0;
        for (std::int64_t s = 0; s < n.keys; ++s) {
          double score = 0;
          for (std::int64_t d = 0; d < n.width; ++d) score += q[query + d] * k[key(s) + d];
          chance.push_back(std::exp(score / std::sqrt(static_cast<double>(n.width)) + added(b, h, t, s)));
          total += chance.back();
        }
        for (std::int64_t d = 0; d < n.width; ++d) {
          double y = 0;
          for (std::int64_t s = 0; s < n.keys; ++s) y += chance[static_cast<std::size_t>(s)] * v[key(s) + d];
          out.push_back(total == 0 ? 0 : y / total);
        }
      }
    }
  }
  return out;
}

double hidden_unless(bool is_seen) { return is_seen ? 0 : -INFINITY; }

// A row of the operator table: attention of q (B, T, H, D), k and v, and with a mask a fourth operand.
OperatorCase row(
    const std::string& name, const Sizes& n, AttentionOptions options, std::vector<Operand> mask,
    const std::function<double(const Arrays&, std::int64_t, std::int64_t, std::int64_t, std::int64_t)>& added) {
  OperatorCase result;
  result.name = "attention, " + name;
  const Shape queries{n.batch, n.queries, n.heads, n.width}, keys{n.batch, n.keys, n.heads / n.group, n.width};
  result.operands = {{queries}, {keys}, {keys}};
  std::int64_t mask_elements = 0;
  bool is_bool = false;
  for (Operand& operand : mask) {
    mask_elements = operand.shape.elements(), is_bool = operand.is_bool;
    result.operands.push_back(std::move(operand));
  }
  result.run = [=](auto in) {
    AttentionOptions with = options;
    if (in.size() > 3) with.mask = in[3];
    return attention(in[0], in[1], in[2], with);
  };
  result.reference = [=](const Arrays& in) {
    return reference(n, in[0], in[1], in[2], [&](auto b, auto h, auto t, auto s) { return added(in, b, h, t, s); });
  };
  result.kept_bytes = [=](std::int64_t e, std::int64_t s) {
    return 2 * (queries.elements() + keys.elements()) * e + n.batch * n.heads * n.queries * s +
           mask_elements * (is_bool ? 1 : e);
  };
  return result;
}

Operand booleans(const Shape& shape) { return {.shape = shape, .is_bool = true}; }

// Gradients of sum(y dy) with respect to q, k and v.
struct Results {
  Tensor y, dq, dk, dv;
};
Results run(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options, const Tensor& dy) {
  std::vector<Tensor> leaves{clone(q), clone(k), clone(v)};
  for (Tensor& leaf : leaves) leaf.require_grad();
  Tape tape;
  Tensor y;
  {
    const Recording on(tape);
    y = attention(leaves[0], leaves[1], leaves[2], options);
  }
  tape.backward(y, clone(dy));
  return {y.detach(), leaves[0].grad(), leaves[1].grad(), leaves[2].grad()};
}

std::vector<float> host(const Tensor& t) { return to_host<float>(t); }

bool same(const Results& a, const Results& b) {
  return host(a.y) == host(b.y) && host(a.dq) == host(b.dq) && host(a.dk) == host(b.dk) && host(a.dv) == host(b.dv);
}

Tensor documents_of(const std::vector<std::int32_t>& numbers, std::int64_t batch = 1) {
  return from_host(numbers, {batch, static_cast<std::int64_t>(numbers.size()) / batch});
}

using files_test::contains;

}  // namespace

TEST_CASE("ops: attention in a window") {
  for (const std::int64_t window : {1, 3, 50}) {
    const std::string name = "window " + std::to_string(window);
    AttentionOptions causal, both;
    causal.window = both.window = window;
    both.causal = false;
    check_operator(row(name + ", causal", {2, 7, 7, 2, 3}, causal, {},
                       [=](auto&, auto, auto, auto t, auto s) { return hidden_unless(s <= t && s > t - window); }));
    check_operator(row(name, {1, 7, 7, 1, 16}, both, {},
                       [=](auto&, auto, auto, auto t, auto s) { return hidden_unless(std::abs(s - t) < window); }));
    check_operator(row(name + ", last queries", {1, 4, 9, 4, 3, 2}, causal, {}, [=](auto&, auto, auto, auto t, auto s) {
      return hidden_unless(s <= t + 5 && s > t + 5 - window);
    }));
  }
}

TEST_CASE("ops: attention with boolean and added masks") {
  AttentionOptions all;
  all.causal = false;
  const Sizes n{2, 4, 6, 2, 3};
  const auto seen = [](double value) { return hidden_unless(value != 0); };
  check_operator(row("keys that are padding", n, all, {booleans({2, 1, 1, 6})},
                     [=](const Arrays& in, auto b, auto, auto, auto s) { return seen(in[3][b * 6 + s]); }));
  check_operator(row("a mask of (T, S)", n, all, {booleans({4, 6})},
                     [=](const Arrays& in, auto, auto, auto t, auto s) { return seen(in[3][t * 6 + s]); }));
  check_operator(row("a mask of (B, H, T, S), causal", n, {}, {booleans({2, 2, 4, 6})},
                     [=](const Arrays& in, auto b, auto h, auto t, auto s) {
                       return seen(in[3][((b * 2 + h) * 4 + t) * 6 + s]) + hidden_unless(s <= t + 2);
                     }));
  check_operator(row("added to the scores of each head", n, all, {constant({2, 4, 6})},
                     [=](const Arrays& in, auto, auto h, auto t, auto s) { return in[3][(h * 4 + t) * 6 + s]; }));
  check_operator(row("added for each sample, of width 16", {2, 4, 6, 2, 16}, all, {constant({2, 1, 4, 1})},
                     [=](const Arrays& in, auto b, auto, auto t, auto) { return in[3][b * 4 + t]; }));
}

TEST_CASE("ops: attention of documents side by side is that of each alone") {
  const std::int64_t heads = 2, width = 20;
  // Documents that begin at tile borders have the bits of separate calls; others differ by the order of sums.
  for (const auto& [lengths, is_same] : {std::pair(std::vector<std::int64_t>{64, 128, 1}, true),
                                         std::pair(std::vector<std::int64_t>{3, 70, 1, 31}, false)}) {
    std::vector<std::int32_t> numbers;
    for (std::size_t d = 0; d < lengths.size(); ++d) {
      numbers.insert(numbers.end(), static_cast<std::size_t>(lengths[d]), static_cast<std::int32_t>(3 * d + 1));
    }
    const auto length = static_cast<std::int64_t>(numbers.size());
    const Shape shape{1, length, heads, width};
    const Tensor q = randn(shape), k = randn(shape), v = randn(shape), dy = randn(shape);
    for (const bool causal : {true, false}) {
      AttentionOptions options, alone;
      options.causal = alone.causal = causal;
      options.mask = documents_of(numbers);
      const Results packed = run(q, k, v, options, dy);
      std::int64_t begin = 0;
      for (const std::int64_t each : lengths) {
        const auto part = [&](const Tensor& x) { return contiguous(view::slice(x, 1, begin, begin + each)); };
        const Results one = run(part(q), part(k), part(v), alone, part(dy));
        INFO("document of " << each << " from " << begin << (causal ? ", causal" : ""));
        for (const auto& [of_packed, of_one] : {std::pair(packed.y, one.y), std::pair(packed.dq, one.dq),
                                                std::pair(packed.dk, one.dk), std::pair(packed.dv, one.dv)}) {
          if (is_same) CHECK((host(part(of_packed)) == host(of_one)));
          CHECK(thimble_test::largest_error(to_host<double>(part(of_packed)), to_host<double>(of_one)) < 5e-6);
        }
        begin += each;
      }
    }
  }
}

TEST_CASE("ops: attention of a query that sees nothing is 0, and so are its gradients") {
  const Shape shape{1, 70, 2, 16};
  const Tensor q = randn(shape), k = randn(shape), v = randn(shape), dy = randn(shape);
  std::vector<float> added(70 * 70, 0.5f);
  std::fill(added.begin() + 5 * 70, added.begin() + 6 * 70, -INFINITY);
  const Tensor mask = from_host(added, {70, 70});
  AttentionOptions options;
  options.mask = mask;
  const Results got = run(q, k, v, options, dy);
  const auto at = [](const Tensor& x, std::int64_t t) { return host(view::slice(x, 1, t, t + 1)); };
  for (const Tensor& x : {got.y, got.dq}) CHECK(at(x, 5) == std::vector<float>(32, 0));
  for (const Tensor& x : {got.y, got.dq, got.dk, got.dv}) {
    for (const float value : host(x)) REQUIRE(std::isfinite(value));
  }
  // The keys' gradients are as if dy of that query were 0.
  Tensor without = clone(dy);
  fill(view::slice(without, 1, 5, 6), 0);
  options.mask = {};
  const Results rest = run(q, k, v, options, without);
  CHECK(thimble_test::largest_error(to_host<double>(got.dv), to_host<double>(rest.dv)) < 5e-6);
  CHECK(thimble_test::largest_error(to_host<double>(got.dk), to_host<double>(rest.dk)) < 5e-6);
}

// As with masks of the largest negative number for padding rows: the scores are equal, the probabilities 1 / T.
TEST_CASE("ops: attention of scores that are lost beside what is added to them") {
  for (const std::int64_t n : {5, 300}) {
    for (const DType dtype : {DType::f32, DType::f64}) {
      const Shape shape{1, n, 1, 4};
      const auto number = [](std::int64_t i, int of) { return std::sin(0.37 * static_cast<double>(i + 1) * of); };
      std::vector<Values> all(4);  // q, k, v, dout: only query 3 has a dout
      for (std::int64_t i = 0; i < 4 * n; ++i) {
        for (int of = 0; of < 4; ++of) {
          all[static_cast<std::size_t>(of)].push_back(of == 3 && i / 4 != 3 ? 0 : number(i, of + 1));
        }
      }
      std::vector<Tensor> in;
      for (const Values& values : all) in.push_back(to_dtype(from_host(values, shape), dtype));
      for (int of = 0; of < 3; ++of) in[static_cast<std::size_t>(of)].require_grad();
      std::vector<float> added(static_cast<std::size_t>(n * n));
      std::fill_n(added.begin() + 3 * n, n, -3e38f);
      Tape tape;
      Tensor y;
      {
        const Recording on(tape);
        const Tensor mask = to_dtype(from_host(added, {1, 1, n, n}), dtype);
        y = attention(in[0], in[1], in[2], {.causal = false, .mask = mask});
      }
      tape.backward(y, in[3]);
      const auto got = [&](int of) { return to_host<double>(in[static_cast<std::size_t>(of)].grad()); };
      const Values dq = got(0), dk = got(1), dv = got(2);
      const auto at = [&](int of, std::int64_t s, std::int64_t d) {
        return all[static_cast<std::size_t>(of)][static_cast<std::size_t>(4 * s + d)];
      };
      Values dp(static_cast<std::size_t>(n)), right_dq(4);
      double mean = 0;
      for (std::int64_t s = 0; s < n; ++s) {
        for (std::int64_t d = 0; d < 4; ++d) dp[static_cast<std::size_t>(s)] += at(3, 3, d) * at(2, s, d);
        mean += dp[static_cast<std::size_t>(s)] / static_cast<double>(n);
      }
      for (std::int64_t s = 0; s < n; ++s) {
        const double ds = (dp[static_cast<std::size_t>(s)] - mean) / static_cast<double>(n) / 2;  // times the scale
        for (std::int64_t d = 0; d < 4; ++d) {
          const auto i = static_cast<std::size_t>(4 * s + d);
          right_dq[static_cast<std::size_t>(d)] += ds * at(1, s, d);
          CHECK(dk[i] == Approx(ds * at(0, 3, d)).epsilon(1e-4).margin(1e-7));
          CHECK(dv[i] == Approx(at(3, 3, d) / static_cast<double>(n)).epsilon(1e-5));
        }
      }
      for (std::size_t d = 0; d < 4; ++d) CHECK(dq[12 + d] == Approx(right_dq[d]).epsilon(1e-4).margin(1e-6));
    }
  }
}

TEST_CASE("ops: attention's masks that hide nothing change no bit, and what is hidden has no influence") {
  const Shape shape{2, 150, 2, 20};
  const Tensor q = randn(shape), k = randn(shape), v = randn(shape), dy = randn(shape);
  AttentionOptions options;
  options.causal = GENERATE(true, false);
  const Results plain = run(q, k, v, options, dy);
  AttentionOptions wide = options, open = options, one = options;
  wide.window = 150;
  open.mask = full({2, 1, 1, 150}, 1, DType::boolean);
  one.mask = documents_of(std::vector<std::int32_t>(300, 7), 2);
  CHECK(same(run(q, k, v, wide, dy), plain));
  CHECK(same(run(q, k, v, open, dy), plain));
  CHECK(same(run(q, k, v, one, dy), plain));
  // Keys from 100 on are padding: their values change nothing, and they get no gradient.
  AttentionOptions padded = options;
  padded.mask = full({2, 1, 1, 150}, 1, DType::boolean);
  fill(view::slice(padded.mask, 3, 100, 150), 0);
  const Results before = run(q, k, v, padded, dy);
  const Tensor other_k = clone(k), other_v = clone(v);
  fill(view::slice(other_k, 1, 100, 150), 1e3);
  fill(view::slice(other_v, 1, 100, 150), -1e3);
  const Results after = run(q, other_k, other_v, padded, dy);
  CHECK(host(after.y) == host(before.y));
  for (const Tensor& x : {after.dk, after.dv}) {
    CHECK(host(view::slice(x, 1, 100, 150)) == std::vector<float>(2 * 50 * 40, 0));
  }
  // A window equals the boolean mask with the same keys, up to the order of sums.
  AttentionOptions window = options, spelled = options;
  window.window = 33;
  std::vector<std::uint8_t> sees;
  for (std::int64_t t = 0; t < 150; ++t) {
    for (std::int64_t s = 0; s < 150; ++s) sees.push_back(std::abs(t - s) < 33 ? 1 : 0);
  }
  spelled.mask = to_dtype(from_host(sees, {150, 150}), DType::boolean);
  const Results by_window = run(q, k, v, window, dy), by_mask = run(q, k, v, spelled, dy);
  CHECK(host(by_window.y) == host(by_mask.y));
  CHECK(thimble_test::largest_error(to_host<double>(by_window.dk), to_host<double>(by_mask.dk)) < 5e-6);
}

TEST_CASE("ops: attention's packed operand takes the same masks") {
  const std::int64_t heads = 2, width = 16, channels = heads * width;
  const Tensor qkv = randn({2, 90, 3 * channels});
  const auto third = [&](std::int64_t i) {
    return view::reshape(contiguous(view::slice(qkv, 2, i * channels, (i + 1) * channels)), {2, 90, heads, width});
  };
  AttentionOptions options;
  options.window = 40;
  options.mask = randn({2, 90, 90});
  CHECK(host(attention(qkv, heads, options)) == host(attention(third(0), third(1), third(2), options)));
}

TEST_CASE("ops: attention's bad masks are named") {
  const Tensor q = randn({2, 4, 2, 3}), k = randn({2, 6, 2, 3});
  const auto with = [&](const Tensor& mask, std::int64_t window = 0) {
    AttentionOptions options;
    options.mask = mask, options.window = window;
    return [=] { attention(q, k, k, options); };
  };
  CHECK(contains(refusal<ShapeError>(with(randn({4, 5}))), "does not broadcast to scores (2, 2, 4, 6)"));
  CHECK(contains(refusal<ShapeError>(with(randn({1, 2, 2, 4, 6}))), "does not broadcast"));
  CHECK(contains(refusal<DTypeError>(with(full({4, 6}, 1, DType::i64))),
                 "boolean, f64, f32, f16, bf16 or, for documents, i32"));
  CHECK(contains(refusal<DTypeError>(with(to_dtype(randn({4, 6}), DType::f8e4m3))), "boolean"));
  CHECK(contains(refusal<ShapeError>(with(full({2, 4}, 1, DType::i32))), "are (2, 6)"));
  CHECK(contains(refusal<ValueError>(with(documents_of({0, 0, 1, 1, 2, 2, 3, 3, 3, 2, 4, 4}, 2))),
                 "descend from 3 to 2 at key 3 of sample 1"));
  CHECK(contains(refusal<ValueError>(with({}, -1)), "a window of -1 keys"));
  AttentionOptions open;
  open.causal = false, open.window = 2;
  CHECK(contains(refusal<ShapeError>([&] { attention(k, q, q, open); }), "at least as many keys as queries"));
  Tensor trained = randn({4, 6});
  trained.require_grad();
  Tape tape;
  const Recording on(tape);
  CHECK(contains(refusal<ValueError>(with(trained)), "a mask has none"));
  AttentionOptions windowed;
  windowed.window = 2;
  CHECK(contains(refusal<ValueError>([&] { attention_textbook(q, k, k, windowed); }), "use attention()"));
}
