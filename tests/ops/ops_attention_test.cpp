// Rows of the operator table: attention in tiles and its textbook composition; then sizes around the tiles, equality of
// the two, masks, storage of the gradients, and memory.

#include <cmath>
#include <functional>

#include <thimble/autograd/apply.h>
#include <thimble/autograd/functions.h>
#include <thimble/autograd/tape.h>
#include <thimble/core/error.h>
#include <thimble/core/kernels/cpu/base/isa.h>
#include <thimble/core/kernels/shared/random_bits.h>
#include <thimble/core/ops/attention.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/tensor/view.h>
#include <thimble/core/threads/parallel.h>
#include <thimble/memory/policies/trace.h>
#include <thimble/memory/stack.h>

#include "support/catch.h"
#include "support/kernel_data.h"
#include "support/near.h"
#include "support/operator_table.h"

using namespace thimble;
using namespace thimble::testing;

namespace {

using Values = std::vector<double>;
using Arrays = std::vector<HostArray>;

struct Sizes {
  std::int64_t batch, queries, keys, heads, width;
};

// Element (b, t, h, d) of an operand.
using At = std::function<double(std::int64_t b, std::int64_t t, std::int64_t h, std::int64_t d)>;

constexpr RandomSite site{11, 3, 5, 0x5eed5eedu};

// 0 or 1 / (1 - p), by the definition of dropout on (B, H, T, S).
double factor_of(const Sizes& n, double p, const RandomSite& at, std::int64_t b, std::int64_t h, std::int64_t t,
                 std::int64_t s) {
  if (p == 0) return 1;
  const std::int64_t i = (h * n.queries + t) * n.keys + s;
  const PhiloxBlock block =
      kernels::random_block(at, static_cast<std::uint32_t>(i / 4), static_cast<std::uint32_t>(at.first_sample + b));
  return block.word[i % 4] < p * 0x1p32 ? 0 : 1 / (1 - p);
}

// The plain definition: (B, T, H, D).
Values reference(const Sizes& n, const At& q, const At& k, const At& v, bool causal, double scale, double p,
                 const RandomSite& at = site) {
  Values out;
  std::vector<double> row(static_cast<std::size_t>(n.keys));
  for (std::int64_t b = 0; b < n.batch; ++b) {
    for (std::int64_t t = 0; t < n.queries; ++t) {
      for (std::int64_t h = 0; h < n.heads; ++h) {
        const std::int64_t visible = causal ? t + 1 + n.keys - n.queries : n.keys;
        double largest = -1e300, total = 0;
        for (std::int64_t s = 0; s < visible; ++s) {
          double z = 0;
          for (std::int64_t d = 0; d < n.width; ++d) z += q(b, t, h, d) * k(b, s, h, d);
          row[static_cast<std::size_t>(s)] = scale * z;
          largest = std::max(largest, scale * z);
        }
        for (std::int64_t s = 0; s < visible; ++s) {
          double& e = row[static_cast<std::size_t>(s)];
          e = std::exp(e - largest);
          total += e;
          e *= factor_of(n, p, at, b, h, t, s);
        }
        for (std::int64_t d = 0; d < n.width; ++d) {
          double y = 0;
          for (std::int64_t s = 0; s < visible; ++s) {
            y += row[static_cast<std::size_t>(s)] / total * v(b, s, h, d);
          }
          out.push_back(y);
        }
      }
    }
  }
  return out;
}

// Third i of a packed operand.
At third(const HostArray& qkv, const Sizes& n, std::int64_t i) {
  return [&qkv, n, i](std::int64_t b, std::int64_t t, std::int64_t h, std::int64_t d) {
    return qkv[(((b * n.queries + t) * 3 + i) * n.heads + h) * n.width + d];
  };
}
At dense_heads(const HostArray& x, const Sizes& n) {
  const std::int64_t length = x.shape[1];
  return [&x, n, length](std::int64_t b, std::int64_t t, std::int64_t h, std::int64_t d) {
    return x[((b * length + t) * n.heads + h) * n.width + d];
  };
}

double default_scale(const Sizes& n) { return 1 / std::sqrt(static_cast<double>(n.width)); }

std::vector<float> host(const Tensor& t) { return to_host<float>(t); }

OperatorCase row(bool is_tiled, const Sizes& n, bool causal, double p) {
  const std::int64_t channels = n.heads * n.width, length = n.queries;
  AttentionOptions options;
  options.causal = causal;
  options.dropout = p;
  OperatorCase result;
  result.name = std::string(is_tiled ? "attention" : "attention_textbook") + " T " + std::to_string(length) +
                (causal ? " causal" : "") + " p " + std::to_string(p);
  result.operands = {{{n.batch, length, 3 * channels}}};
  result.run = [=](auto in) {
    return is_tiled ? attention(in[0], n.heads, options) : attention_textbook(in[0], n.heads, options);
  };
  result.reference = [=](const Arrays& in) {
    // The table's only call draws at its generator's first site, outside any module.
    RandomGenerator generator(1234);
    generator.start_pass();
    return reference(n, third(in[0], n, 0), third(in[0], n, 1), third(in[0], n, 2), causal, default_scale(n), p,
                     generator.next_site(0));
  };
  const std::int64_t rows = n.batch * length, matrix = n.batch * n.heads * length * length;
  result.kept_bytes = [=](std::int64_t e, std::int64_t s) {
    if (is_tiled) return 4 * rows * channels * e + rows * n.heads * s;
    return 3 * rows * channels * e + matrix * e + (p > 0 ? matrix * (1 + e) : 0);
  };
  return result;
}

// Result and gradient of qkv.
std::pair<Tensor, Tensor> run(const std::function<Tensor(const Tensor&)>& f, const Tensor& qkv, const Tensor& dy,
                              std::int64_t first_sample = 0) {
  Tensor leaf = clone(qkv);
  leaf.require_grad();
  current_generator().start_pass(first_sample);
  Tape tape;
  Tensor y;
  {
    const Recording on(tape);
    y = f(leaf);
  }
  tape.backward(y, clone(dy));
  return {y.detach(), leaf.grad()};
}

}  // namespace

TEST_CASE("ops: attention") {
  for (const bool causal : {false, true}) {
    for (const double p : {0.0, 0.3}) {
      check_operator(row(true, {2, 5, 5, 2, 3}, causal, p));
      check_operator(row(true, {1, 65, 65, 1, 2}, causal, p));
      check_operator(row(true, {1, 6, 6, 1, 16}, causal, p));  // on CUDA f16 and bf16 go to tensor cores
      check_operator(row(false, {2, 5, 5, 2, 3}, causal, p));
    }
  }
  check_operator(row(true, {3, 1, 1, 2, 2}, true, 0));
}

TEST_CASE("ops: attention of separate operands") {
  const Sizes n{2, 5, 7, 2, 3};
  for (const bool causal : {false, true}) {
    AttentionOptions options;
    options.causal = causal;
    options.scale = 0.7;
    check_operator({std::string("attention q, k, v") + (causal ? " causal" : ""),
                    {{{2, 5, 2, 3}}, {{2, 7, 2, 3}}, {{2, 7, 2, 3}}},
                    [=](auto in) { return attention(in[0], in[1], in[2], options); },
                    [=](const Arrays& in) {
                      return reference(n, dense_heads(in[0], n), dense_heads(in[1], n), dense_heads(in[2], n), causal,
                                       0.7, 0);
                    },
                    [](std::int64_t e, std::int64_t s) { return (2 * 60 + 2 * 84) * e + 20 * s; }});
  }
}

TEST_CASE("ops: attention of heads that share keys and values") {
  for (const std::int64_t width : {3, 16}) {  // on CUDA f16 and bf16 of width 16 go to tensor cores
    for (const std::int64_t group : {2, 4}) {
      for (const bool is_tiled : {true, false}) {
        const Sizes n{2, 5, 7, 4, width};
        const std::int64_t key_heads = n.heads / group, q_elements = 2 * 5 * 4 * width;
        const std::int64_t kv_elements = 2 * 7 * key_heads * width;
        const auto shared = [=](const HostArray& x) -> At {
          return [&x, key_heads, group, width](std::int64_t b, std::int64_t s, std::int64_t h, std::int64_t d) {
            return x[((b * 7 + s) * key_heads + h / group) * width + d];
          };
        };
        check_operator({"attention of groups of " + std::to_string(group) + (is_tiled ? "" : ", textbook"),
                        {{{2, 5, 4, width}}, {{2, 7, key_heads, width}}, {{2, 7, key_heads, width}}},
                        [=](auto in) {
                          return is_tiled ? attention(in[0], in[1], in[2]) : attention_textbook(in[0], in[1], in[2]);
                        },
                        [=](const Arrays& in) {
                          return reference(n, dense_heads(in[0], n), shared(in[1]), shared(in[2]), true,
                                           default_scale(n), 0);
                        },
                        [=](std::int64_t e, std::int64_t s) {
                          if (is_tiled) return (2 * q_elements + 2 * kv_elements) * e + 2 * 4 * 5 * s;
                          return (q_elements + 2 * group * kv_elements + 2 * 4 * 5 * 7) * e;
                        }});
      }
    }
  }
}

TEST_CASE("ops: attention of every size around the tiles is the definition's and the textbook's") {
  RandomGenerator generator(77);
  const GeneratorScope scope(generator);
  for (const std::int64_t length : {1, 5, 48, 64, 65, 130}) {
    for (const Sizes& n : {Sizes{2, length, length, 1, 64}, Sizes{2, length, length, 2, 20}}) {
      const std::int64_t heads = n.heads, width = n.width;
      const Tensor qkv = randn({2, length, 3 * heads * width}), dy = randn({2, length, heads * width});
      const HostArray array{qkv.shape(), to_host<double>(qkv)};
      for (const bool causal : {false, true}) {
        for (const double p : {0.0, 0.4}) {
          INFO("T " << length << " H " << heads << " D " << width << " causal " << causal << " p " << p);
          AttentionOptions options;
          options.causal = causal;
          options.dropout = p;
          const auto [y, dx] = run([&](const Tensor& x) { return attention(x, heads, options); }, qkv, dy, 5);
          const auto [text, text_dx] =
              run([&](const Tensor& x) { return attention_textbook(x, heads, options); }, qkv, dy, 5);
          generator.start_pass(5);
          const Values expected = reference(n, third(array, n, 0), third(array, n, 1), third(array, n, 2), causal,
                                            default_scale(n), p, next_random_site());
          CHECK(thimble_test::largest_error(to_host<double>(y), expected) < 4e-6);
          CHECK(thimble_test::largest_error(to_host<double>(y), to_host<double>(text)) < 4e-6);
          CHECK(thimble_test::largest_error(to_host<double>(dx), to_host<double>(text_dx)) < 2e-5);
        }
      }
    }
  }
}

TEST_CASE("ops: attention's dropout mask is dropout's") {
  // Equal scores and v = identity: the result is the mask itself, over T.
  const std::int64_t length = 70;
  const Tensor q = zeros({2, length, 1, length}), v = zeros({2, length, 1, length});
  fill(v.window({2, length}, {length * length, length + 1}, 0), 1);
  const ops::ScaledDotProductAttention op{false, 1.0, 0.4, site};
  const std::vector<float> y = host(apply(op, q, q, v));
  const Sizes n{2, length, length, 1, length};
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t t = 0; t < length; ++t) {
      for (std::int64_t s = 0; s < length; ++s) {
        const float kept = y[static_cast<std::size_t>((b * length + t) * length + s)];
        REQUIRE(kept == Approx(factor_of(n, 0.4, site, b, 0, t, s) / length));
      }
    }
  }
}

TEST_CASE("ops: attention's bits depend on a query's own keys alone") {
  const std::int64_t length = 150, heads = 2, channels = 24;
  const Tensor qkv = randn({3, length, 3 * channels}), dy = randn({3, length, channels});
  AttentionOptions options;
  options.dropout = 0.25;
  const auto f = [&](const Tensor& x) { return attention(x, heads, options); };
  const auto [y, dx] = run(f, qkv, dy);
  const int before = thread_count();
  for (const int threads : {1, 2, 5}) {
    set_thread_count(threads);
    const auto [again, again_dx] = run(f, qkv, dy);
    CHECK(host(again) == host(y));
    CHECK(host(again_dx) == host(dx));
  }
  set_thread_count(before);
  // One sample of the batch, with its number in the batch.
  const auto [alone, alone_dx] = run(f, view::slice(qkv, 0, 1, 2), view::slice(dy, 0, 1, 2), 1);
  CHECK(host(alone) == host(view::slice(y, 0, 1, 2)));
  CHECK(host(alone_dx) == host(view::slice(dx, 0, 1, 2)));
  // A causal result does not change when the sequence grows.
  options.dropout = 0;
  const Tensor whole = f(qkv);
  for (const std::int64_t end : {1, 63, 64, 100}) {
    CHECK(host(f(view::slice(qkv, 1, 0, end))) == host(view::slice(whole, 1, 0, end)));
  }
  // Fewer queries than keys are the last queries.
  const auto heads_of = [&](std::int64_t i) {
    return view::reshape(view::slice(qkv, 2, i * channels, (i + 1) * channels), {3, length, heads, channels / heads});
  };
  const Tensor last = attention(view::slice(heads_of(0), 1, 90, length), heads_of(1), heads_of(2));
  CHECK(host(last) == host(view::slice(whole, 1, 90, length)));
  const kernel_test::Settings settings;
  for (const kernels::Isa isa : kernel_test::supported()) {
    kernels::set_isa(isa);
    CHECK(thimble_test::largest_error(to_host<double>(f(qkv)), to_host<double>(whole)) < 2e-6);
    options.dropout = 0.25;
    CHECK(thimble_test::largest_error(to_host<double>(run(f, qkv, dy).second), to_host<double>(dx)) < 1e-5);
    options.dropout = 0;
  }
}

TEST_CASE("ops: attention takes views, and writes its gradient where qkv lay") {
  const Tensor qkv = randn({2, 9, 24});
  const Tensor strided = view::slice(randn({2, 18, 24}), 1, 0, 18, 2);
  CHECK(host(attention(strided, 2)) == host(attention(contiguous(strided), 2)));
  ops::Attention op;
  op.heads = 2, op.is_causal = true;
  ops::Attention::Saved saved;
  const Tensor y = op.forward(qkv, {}, ops::Needs(1), saved), dy = randn(y.shape());
  const Tensor expected = op.backward(saved, clone(dy), ops::Needs(1))[0];
  CHECK(expected.storage() != qkv.storage());
  saved.qkv = clone(qkv);
  const auto* const storage = saved.qkv.storage().get();
  const Tensor in_place = op.backward(std::move(saved), dy, ops::Needs(1))[0];
  CHECK(in_place.storage().get() == storage);
  CHECK(host(in_place) == host(expected));
}

TEST_CASE("ops: attention at the edges") {
  // Scores 1e4 apart, and blocks of keys that only later ones outweigh.
  Tensor q = full({1, 2, 1, 1}, 100), k = zeros({1, 200, 1, 1}), v = zeros({1, 200, 1, 1});
  fill(view::slice(k, 1, 199, 200), 100);
  fill(view::slice(v, 1, 199, 200), 3);
  AttentionOptions options;
  options.causal = false;
  CHECK(host(attention(q, k, v, options)) == std::vector<float>{3, 3});
  fill(view::slice(k, 1, 0, 199), -INFINITY);
  CHECK(host(attention(q, k, v, options)) == std::vector<float>{3, 3});
  fill(k, -INFINITY);
  for (const float y : host(attention(q, k, v, options))) CHECK(std::isnan(y));

  CHECK(attention(Tensor::empty({0, 4, 6}), 1).shape() == Shape{0, 4, 2});
  CHECK(attention(Tensor::empty({2, 0, 6}), 1).shape() == Shape{2, 0, 2});
  CHECK_THROWS_AS(attention(randn({2, 4, 6}), 0), ValueError);
  CHECK_THROWS_AS(attention(randn({2, 4, 6}), 4), ShapeError);
  CHECK_THROWS_AS(attention(randn({4, 6}), 1), ShapeError);
  CHECK_THROWS_AS(attention(Tensor::empty({2, 4, 0}), 1), ShapeError);
  CHECK_THROWS_AS(attention(Tensor::empty({2, 4, 6}, DType::i64), 1), DTypeError);
  CHECK_THROWS_AS(attention_textbook(randn({2, 4, 6}), 4), ShapeError);
  CHECK_THROWS_AS(attention_textbook(randn({2, 4, 6}), 0), ValueError);
  CHECK_THROWS_AS(attention(randn({1, 4, 1, 2}), randn({1, 3, 1, 2}), randn({1, 3, 1, 2})), ShapeError);
  CHECK_THROWS_AS(attention(randn({1, 4, 1, 2}), randn({1, 4, 1, 3}), randn({1, 4, 1, 3})), ShapeError);
  for (const std::int64_t heads : {0, 2, 6}) {
    const Tensor keys = zeros({1, 4, heads, 2});
    CHECK_THROWS_AS(attention(randn({1, 4, 3, 2}), keys, keys), ShapeError);
    CHECK_THROWS_AS(attention_textbook(randn({1, 4, 3, 2}), keys, keys), ShapeError);
  }
  // k and v that each fit q but not each other: batch, keys, heads, width.
  const Tensor four = zeros({2, 4, 4, 6}), two = zeros({2, 3, 2, 6});
  for (const Shape& shape : {Shape{1, 3, 2, 6}, Shape{2, 1, 2, 6}, Shape{2, 3, 1, 6}, Shape{2, 3, 2, 3}}) {
    INFO(to_string(shape));
    CHECK_THROWS_AS(attention(four, two, zeros(shape)), ShapeError);
    CHECK_THROWS_AS(attention(four, zeros(shape), two), ShapeError);
    if (shape[2] == 1) {
      CHECK_THROWS_WITH(attention_textbook(four, two, zeros(shape)), Catch::StartsWith("attention_textbook: q f32"));
    }
    CHECK_THROWS_AS(attention_textbook(four, two, zeros(shape)), ShapeError);
    CHECK_THROWS_AS(attention_textbook(four, zeros(shape), two), ShapeError);
  }
  CHECK_THROWS_AS(attention(randn({1, 4, 1, 2}), randn({1, 4, 1, 2}, DType::f16), randn({1, 4, 1, 2})), DTypeError);
  for (const double p : {-0.1, 1.0, std::nan("")}) {
    options.dropout = p;
    CHECK_THROWS_AS(attention(randn({2, 4, 6}), 1, options), ValueError);
    CHECK_THROWS_AS(attention_textbook(randn({2, 4, 6}), 1, options), ValueError);
  }
  options.dropout = 0;
  options.scale = INFINITY;
  CHECK_THROWS_AS(attention(randn({2, 4, 6}), 1, options), ValueError);
}

TEST_CASE("ops: attention's memory is linear in the sequence") {
  const std::int64_t batch = 1, heads = 12, channels = 768;
  const auto measure = [&](std::int64_t length, double p) {
    const auto stack = memory::make_resource(dry(cpu), {.trace = true});
    const ResourceScope scope(stack.top);
    Tensor qkv = Tensor::empty({batch, length, 3 * channels}, DType::f32, dry(cpu));
    qkv.require_grad();
    AttentionOptions options;
    options.dropout = p;
    Tape tape;
    Tensor y;
    {
      const Recording on(tape);
      y = attention(qkv, heads, options);
    }
    CHECK(static_cast<std::int64_t>(tape.kept_bytes()) ==
          4 * batch * length * channels * 4 + batch * heads * length * 4);
    tape.backward(y, Tensor::empty_like(y));
    std::size_t allocated = 0;
    for (const auto& event : stack.trace->events()) {
      if (event.action == memory::Trace::Action::allocate) allocated += event.bytes;
    }
    return allocated;
  };
  for (const double p : {0.0, 0.1}) {
    // Every doubling adds twice the previous addition, exactly: all allocations together take a + b T bytes.
    std::vector<std::size_t> bytes;
    for (std::int64_t length = 1024; length <= 32768; length *= 2) bytes.push_back(measure(length, p));
    for (std::size_t i = 2; i < bytes.size(); ++i) CHECK(bytes[i] - bytes[i - 1] == 2 * (bytes[i - 1] - bytes[i - 2]));
    CHECK(bytes.back() < 4 * std::size_t{32768} * 32768);  // one matrix of one head
  }
}
