// Rows of the operator table: losses; then targets, options, bytes and edges.

#include <cmath>

#include <thimble/autograd/functions.h>
#include <thimble/autograd/tape.h>
#include <thimble/core/error.h>
#include <thimble/core/kernels/cpu/base/isa.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/tensor/view.h>
#include <thimble/core/threads/parallel.h>
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

constexpr std::int64_t rows = 6, classes = 5, elements = rows * classes;

// The plain definition.
Values cross_entropy_of(const Arrays& in, const CrossEntropyOptions& options, bool are_logits) {
  const std::int64_t width = in[0].shape.back();
  Values losses;
  double total = 0, count = 0;
  for (std::size_t r = 0; r < in[1].values.size(); ++r) {
    const double* x = in[0].values.data() + static_cast<std::int64_t>(r) * width;
    const auto target = static_cast<std::int64_t>(in[1].values[r]);
    double norm = 0, all = 0;
    for (std::int64_t c = 0; c < width; ++c) norm += std::exp(x[c]);
    for (std::int64_t c = 0; c < width; ++c) all += x[c];
    const double level = are_logits ? std::log(norm) : 0, s = options.label_smoothing;
    const bool counts = target != options.ignore_index;
    const double loss = level * (are_logits ? 1 : 0) - (1 - s) * x[target] - s / static_cast<double>(width) * all;
    losses.push_back(counts ? loss : 0);
    total += losses.back();
    count += counts;
  }
  if (options.reduction == LossReduction::none) return losses;
  return {options.reduction == LossReduction::mean ? total / count : total};
}

std::vector<CrossEntropyOptions> all_options() {
  std::vector<CrossEntropyOptions> list;
  for (const auto reduction : {LossReduction::mean, LossReduction::sum, LossReduction::none}) {
    for (const double smoothing : {0.0, 0.1}) {
      for (const std::int64_t ignore : {-100, 2}) list.push_back({ignore, smoothing, reduction});
    }
  }
  return list;
}

std::string name_of(const char* function, const CrossEntropyOptions& options) {
  return std::string(function) + " reduction " + std::to_string(static_cast<int>(options.reduction)) + " smoothing " +
         std::to_string(options.label_smoothing) + " ignore " + std::to_string(options.ignore_index);
}

std::vector<float> host(const Tensor& t) { return to_host<float>(t); }
Tensor classes_of(const std::vector<std::int64_t>& numbers) {
  return from_host(numbers, {static_cast<std::int64_t>(numbers.size())});
}

struct Result {
  Tensor loss, gradient;
};

using LossFunction = Tensor (*)(const Tensor&, const Tensor&, const CrossEntropyOptions&);

Result run(LossFunction f, const Tensor& logits, const Tensor& targets, const CrossEntropyOptions& options) {
  Tensor leaf = clone(logits);
  leaf.require_grad();
  Tape tape;
  Result result;
  {
    const Recording on(tape);
    result.loss = f(leaf, targets, options);
  }
  tape.backward(result.loss, full(result.loss.shape(), 0.5, result.loss.dtype()));
  result.gradient = leaf.grad();
  return result;
}

}  // namespace

TEST_CASE("ops: cross entropy, fused and textbook, and nll") {
  for (const CrossEntropyOptions& options : all_options()) {
    const std::vector<Operand> operands{{{2, 3, classes}, -3, 3}, integers({2, 3}, 0, classes - 1)};
    check_operator({name_of("cross_entropy", options), operands,
                    [=](auto in) { return cross_entropy(in[0], in[1], options); },
                    [=](const Arrays& in) { return cross_entropy_of(in, options, true); },
                    [](std::int64_t e, std::int64_t s) { return elements * e + rows * s + rows * 8; }});
    check_operator({name_of("cross_entropy_textbook", options), operands,
                    [=](auto in) { return cross_entropy_textbook(in[0], in[1], options); },
                    [=](const Arrays& in) { return cross_entropy_of(in, options, true); },
                    [](std::int64_t e, std::int64_t) { return elements * e + rows * 8; }, 2});
    check_operator({name_of("nll", options), operands, [=](auto in) { return nll(in[0], in[1], options); },
                    [=](const Arrays& in) { return cross_entropy_of(in, options, false); },
                    [](std::int64_t, std::int64_t) { return rows * 8; }});
  }
}

TEST_CASE("ops: mse_loss") {
  for (const auto reduction : {LossReduction::mean, LossReduction::sum, LossReduction::none}) {
    check_operator({"mse_loss " + std::to_string(static_cast<int>(reduction)),
                    {{{3, 35}}, {{3, 35}}},
                    [=](auto in) { return mse_loss(in[0], in[1], reduction); },
                    [=](const Arrays& in) {
                      Values y;
                      double total = 0;
                      for (std::int64_t i = 0; i < 105; ++i) {
                        y.push_back((in[0][i] - in[1][i]) * (in[0][i] - in[1][i]));
                        total += y.back();
                      }
                      if (reduction == LossReduction::none) return y;
                      return Values{reduction == LossReduction::mean ? total / 105 : total};
                    },
                    [](std::int64_t e, std::int64_t) { return 2 * 105 * e; },
                    4});
  }
  CHECK_THROWS_AS(mse_loss(rand({3, 1}), rand({3, 4})), ShapeError);
  CHECK_THROWS_AS(mse_loss(rand({3, 1}), rand({3, 4}), LossReduction::none), ShapeError);
  CHECK_THROWS_AS(mse_loss(rand({3}), rand({3}, DType::f64)), DTypeError);
  CHECK_THROWS_AS(mse_loss(arange(3), arange(3)), DTypeError);
  CHECK(std::isnan(item(mse_loss(Tensor::empty({0}), Tensor::empty({0})))));
}

TEST_CASE("ops: losses of pairs") {
  using Loss = std::function<Tensor(const Tensor&, const Tensor&, LossReduction)>;
  using Formula = std::function<double(double, double)>;
  struct Row {
    const char* name;
    Operand x, target;
    Loss loss;
    Formula formula;
    bool keeps_x = true;
  };
  const Shape shape{3, 35};
  const auto bce = [](double p) {
    return [=](double z, double t) {
      return -p * t * std::log(1 / (1 + std::exp(-z))) - (1 - t) * std::log(1 / (1 + std::exp(z)));
    };
  };
  const std::vector<Row> table{
      {"l1_loss",
       {shape},
       {shape},
       [](auto x, auto t, auto r) { return l1_loss(x, t, r); },
       [](double x, double t) { return std::abs(x - t); }},
      {"huber_loss",
       {shape},
       {shape},
       [](auto x, auto t, auto r) { return huber_loss(x, t, 0.7, r); },
       [](double x, double t) {
         const double d = std::abs(x - t);
         return d <= 0.7 ? d * d / 2 : 0.7 * (d - 0.35);
       }},
      {"bce_with_logits",
       {shape, -4, 4},
       {shape, 0, 1},
       [](auto x, auto t, auto r) { return bce_with_logits(x, t, 1, r); },
       bce(1)},
      {"bce_with_logits, weighted",
       {shape, -4, 4},
       {shape, 0, 1},
       [](auto x, auto t, auto r) { return bce_with_logits(x, t, 2.5, r); },
       bce(2.5)},
      {"kl_div",
       {shape, -3, 0},
       {shape, 0.05, 1},
       [](auto x, auto t, auto r) { return kl_div(x, t, r); },
       [](double x, double t) { return t * (std::log(t) - x); }},
      {"kl_div of logarithms",
       {shape, -3, 0},
       {shape, -3, 0},
       [](auto x, auto t, auto r) { return kl_div(x, t, r, true); },
       [](double x, double t) { return std::exp(t) * (t - x); }},
  };
  for (const Row& row : table) {
    for (const auto reduction : {LossReduction::mean, LossReduction::sum, LossReduction::none}) {
      check_operator({std::string(row.name) + " " + std::to_string(static_cast<int>(reduction)),
                      {row.x, row.target},
                      [=](auto in) { return row.loss(in[0], in[1], reduction); },
                      [=](const Arrays& in) {
                        Values y;
                        double total = 0;
                        for (std::int64_t i = 0; i < 105; ++i) {
                          y.push_back(row.formula(in[0][i], in[1][i]));
                          total += y.back();
                        }
                        if (reduction == LossReduction::none) return y;
                        return Values{reduction == LossReduction::mean ? total / 105 : total};
                      },
                      [](std::int64_t e, std::int64_t) { return 2 * 105 * e; },
                      6});
    }
    CHECK_THROWS_AS(row.loss(rand({3, 1}), rand({3, 4}), LossReduction::mean), ShapeError);
    CHECK_THROWS_AS(row.loss(rand({3, 1}), rand({3, 4}), LossReduction::none), ShapeError);
    CHECK_THROWS_AS(row.loss(rand({3}), rand({3}, DType::f64), LossReduction::sum), DTypeError);
    CHECK(item(row.loss(Tensor::empty({0}), Tensor::empty({0}), LossReduction::sum)) == 0);
  }
  // If only x takes a gradient, a divergence does not keep x.
  check_operator({"kl_div of fixed targets",
                  {{shape, -3, 0}, constant(shape, 0.05, 1)},
                  [](auto in) { return kl_div(in[0], in[1], LossReduction::sum); },
                  {},
                  [](std::int64_t e, std::int64_t) { return 105 * e; },
                  6});
  CHECK_THROWS_WITH(huber_loss(rand({3}), rand({3}), 0), Catch::Contains("expected above 0"));
  for (const double w : {-1.0, std::nan("")}) {
    CHECK_THROWS_WITH(bce_with_logits(rand({3}), rand({3}), w),
                      Catch::Contains("expected a finite number, at least 0"));
  }
  CHECK(item(bce_with_logits(full({1}, -2), full({1}, 1), 0)) == 0);  // nothing is positive
  // At the edges: far logits, targets of 0, equal operands.
  const Tensor far = from_host(std::vector<float>{100, -100, 100, -100, -20, 20}, {6});
  const Tensor sure = from_host(std::vector<float>{1, 0, 0, 1, 0, 1}, {6});
  const auto edges = host(bce_with_logits(far, sure, 1, LossReduction::none));
  CHECK(edges[0] == Approx(0).margin(1e-30));
  CHECK(edges[1] == Approx(0).margin(1e-30));
  CHECK(edges[2] == 100);
  CHECK(edges[3] == 100);
  CHECK(edges[4] == Approx(2.0611536e-9));
  CHECK(edges[5] == Approx(2.0611536e-9));
  const Tensor impossible = from_host(std::vector<float>{-std::numeric_limits<float>::infinity(), -1}, {2});
  CHECK(item(kl_div(impossible, from_host(std::vector<float>{0, 1}, {2}), LossReduction::sum)) == 1);
  Tensor same = zeros({3});
  same.require_grad();
  Tape tape;
  Tensor loss;
  {
    const Recording on(tape);
    loss = l1_loss(same, zeros({3}), LossReduction::sum);
  }
  tape.backward(loss);
  CHECK(host(same.grad()) == std::vector<float>{0, 0, 0});
}

TEST_CASE("ops: cosine_similarity and its loss") {
  const auto cosine = [](const HostArray& a, const HostArray& b, std::int64_t row) {
    double ab = 0, aa = 0, bb = 0;
    for (std::int64_t i = row * 7; i < row * 7 + 7; ++i) ab += a[i] * b[i], aa += a[i] * a[i], bb += b[i] * b[i];
    return ab / (std::sqrt(aa) * std::sqrt(bb));
  };
  // Besides a and b, keeps in f64 for each row: the squares, the lengths, their product and the quotient.
  check_operator({"cosine_similarity",
                  {{{5, 7}}, {{5, 7}}},
                  [](auto in) { return cosine_similarity(in[0], in[1]); },
                  [=](const Arrays& in) {
                    Values y;
                    for (std::int64_t r = 0; r < 5; ++r) y.push_back(cosine(in[0], in[1], r));
                    return y;
                  },
                  [](std::int64_t e, std::int64_t) { return 2 * 35 * e + 5 * 6 * 8; },
                  6});
  Operand targets = constant({5});
  targets.values = {1, -1, -1, 1, -1};
  check_operator({"cosine_embedding_loss",
                  {{{5, 7}}, {{5, 7}}, targets},
                  [](auto in) { return cosine_embedding_loss(in[0], in[1], in[2], 0.1); },
                  [=](const Arrays& in) {
                    double sum = 0;
                    for (std::int64_t r = 0; r < 5; ++r) {
                      const double c = cosine(in[0], in[1], r);
                      sum += in[2][r] > 0 ? 1 - c : std::max(0.0, c - 0.1);
                    }
                    return Values{sum / 5};
                  },
                  {},
                  6});
  CHECK(item(cosine_similarity(zeros({3}), zeros({3}))) == 0);
  CHECK(item(cosine_similarity(full({1}, 1), from_host(std::vector<float>{3, 4}, {2}))) ==
        Approx(7 / (std::sqrt(2) * 5)));
  // Squares and products far beyond f32 have values and gradients as in f64.
  for (const auto& [of_a, of_b] : {std::pair{1e30, 1e30}, {1e30, 1e-30}, {1e-25, 1e-30}, {1e19, 1.0}}) {
    std::vector<Values> got;
    for (const DType dtype : {DType::f32, DType::f64}) {
      Tensor a = to_dtype(from_host(std::vector<double>{3 * of_a, 4 * of_a}, {1, 2}), dtype);
      Tensor b = to_dtype(from_host(std::vector<double>{-5 * of_b, 12 * of_b}, {1, 2}), dtype);
      a.require_grad(), b.require_grad();
      Tape tape;
      Tensor y;
      {
        const Recording on(tape);
        y = sum(cosine_similarity(a, b, -1, 1e-37));
      }
      tape.backward(y, full({}, 1, dtype));
      const std::vector<double> da = to_host<double>(a.grad()), db = to_host<double>(b.grad());
      got.push_back({item(y), da[0] * of_a, da[1] * of_a, db[0] * of_b, db[1] * of_b});
    }
    CHECK(got[1][0] == Approx(33.0 / 65));
    for (std::size_t i = 0; i < 5; ++i) CHECK(got[0][i] == Approx(got[1][i]).epsilon(1e-5));
  }
  const Tensor ones = full({2, 3}, 1);
  for (const double target : {0.0, 2.0, -1.5, std::nan("")}) {
    CHECK_THROWS_AS(cosine_embedding_loss(ones, ones, from_host(std::vector<double>{1, target}, {2})), ValueError);
  }
  CHECK_THROWS_WITH(cosine_embedding_loss(ones, ones, zeros({2})),
                    "cosine_embedding_loss: target 0 of row 0, expected 1 or -1");
  CHECK(item(cosine_embedding_loss(ones, ones, full({2}, -1, DType::i64), 0.25)) == 0.75);
  CHECK(item(cosine_embedding_loss(ones, ones, full({2}, -1, DType::i64), 0.25, LossReduction::sum)) == 1.5);
  CHECK_THROWS_AS(cosine_embedding_loss(zeros({2, 3}), zeros({2, 3}), zeros({3})), ShapeError);
}

using thimble_test::largest_difference;
using thimble_test::largest_of;

TEST_CASE("ops: cross entropy of long rows in every layout, thread count and instruction set") {
  const kernel_test::Settings settings;
  for (const std::int64_t width : {1, 16, 100, 2048, 2049, 6000}) {
    INFO("classes " << width);
    kernels::set_isa(kernels::best_isa());
    const Tensor logits = normal({7, width}, 0, 3);
    const Tensor targets = to_dtype(uniform({7}, 0, static_cast<double>(width)), DType::i64);
    for (const double smoothing : {0.0, 0.2}) {
      const CrossEntropyOptions options{-100, smoothing, LossReduction::none};
      const Result fused = run(cross_entropy, logits, targets, options);
      const Result textbook = run(cross_entropy_textbook, logits, targets, options);
      const Values expected = cross_entropy_of(
          {{logits.shape(), to_host<double>(logits)}, {targets.shape(), to_host<double>(targets)}}, options, true);
      for (std::size_t i = 0; i < 7; ++i) {
        CHECK(host(fused.loss)[i] == Approx(expected[i]).epsilon(1e-5).margin(1e-6));
        CHECK(host(textbook.loss)[i] == Approx(expected[i]).epsilon(1e-5).margin(1e-6));
      }
      const std::vector<float> a = host(fused.gradient);
      CHECK(largest_difference(a, host(textbook.gradient)) < 2e-6);

      const auto same = [&](const Tensor& x, const Tensor& t) {
        const Result again = run(cross_entropy, x, t, options);
        CHECK(host(again.loss) == host(fused.loss));
        CHECK(host(again.gradient) == a);
      };
      same(logits, to_dtype(targets, DType::i32));
      const Tensor across = contiguous(view::transpose(logits));
      CHECK(host(cross_entropy(view::transpose(across), targets, options)) == host(fused.loss));
      const int before = thread_count();
      for (const int threads : {1, 2, 5}) {
        set_thread_count(threads);
        same(logits, targets);
      }
      set_thread_count(before);
      // With a fused multiply-add, vectors of any width have equal bits; without it, within rounding.
      for (const kernels::Isa set : kernel_test::fused()) {
        kernels::set_isa(set);
        same(logits, targets);
      }
      kernels::set_isa(kernels::Isa::generic);
      const Result plain = run(cross_entropy, logits, targets, options);
      CHECK(largest_difference(host(plain.loss), host(fused.loss)) < 2e-6 * (1 + largest_of(host(fused.loss))));
      CHECK(largest_difference(host(plain.gradient), a) < 2e-6);
      kernels::set_isa(kernels::best_isa());
    }
  }
}

TEST_CASE("ops: cross entropy and its targets") {
  const Tensor logits = randn({3, 4});
  const auto message = [&](const Tensor& targets, const CrossEntropyOptions& options = {}) -> std::string {
    try {
      cross_entropy(logits, targets, options);
    } catch (const ValueError& error) {
      return error.what();
    }
    return "";
  };
  CHECK(message(classes_of({0, 4, 1})) ==
        "cross_entropy: target 4 at row 1 is neither a class in [0, 4) nor the ignored index -100");
  CHECK(message(classes_of({0, 1, -1})) ==
        "cross_entropy: target -1 at row 2 is neither a class in [0, 4) nor the ignored index -100");
  CHECK(message(classes_of({0, 1, -1}), {-1}).empty());
  CHECK(message(classes_of({0, -100, 1})).empty());
  CHECK_THROWS_AS(nll(logits, classes_of({0, 4, 1})), ValueError);
  CHECK_THROWS_AS(cross_entropy(logits, classes_of({0, 1})), ShapeError);
  CHECK_THROWS_AS(cross_entropy(full({}, 1), full({}, 0, DType::i64)), ShapeError);
  CHECK_THROWS_AS(cross_entropy(Tensor::empty({3, 0}), classes_of({0, 0, 0})), ShapeError);
  CHECK_THROWS_AS(cross_entropy(logits, rand({3})), DTypeError);
  CHECK_THROWS_AS(cross_entropy(arange(3), classes_of({0})), DTypeError);
  CHECK_THROWS_AS(cross_entropy(logits, Tensor::empty({3}, DType::i64, dry(cpu))), DeviceError);
  CHECK_THROWS_AS(cross_entropy(logits, classes_of({0, 1, 2}), {-100, 1.5}), ValueError);
  // A dry run has no targets to check.
  const Tensor dry_loss =
      cross_entropy(Tensor::empty({3, 4}, DType::f32, dry(cpu)), Tensor::empty({3}, DType::i64, dry(cpu)));
  CHECK(dry_loss.shape() == Shape{});

  const Result ignored = run(cross_entropy, logits, classes_of({-100, -100, -100}), {});
  CHECK(std::isnan(item(ignored.loss)));
  CHECK(host(ignored.gradient) == std::vector<float>(12, 0));
  CHECK(item(cross_entropy(logits, classes_of({-100, -100, -100}), {-100, 0, LossReduction::sum})) == 0);
  // An ignored row changes nothing, whatever its values.
  Tensor poisoned = clone(logits);
  fill(view::slice(poisoned, 0, 1, 2), std::nan(""));
  const Result some = run(cross_entropy, poisoned, classes_of({3, -100, 0}), {});
  CHECK(item(some.loss) == item(cross_entropy(logits, classes_of({3, -100, 0}))));
  CHECK(host(view::slice(some.gradient, 0, 1, 2)) == std::vector<float>(4, 0));
}

TEST_CASE("ops: a loss is f32 for narrow dtypes") {
  const Tensor targets = classes_of({1, 2, 3});
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32}) {
    const Tensor logits = randn({3, 4}, dtype);
    CHECK(cross_entropy(logits, targets).dtype() == DType::f32);
    CHECK(cross_entropy_textbook(logits, targets).dtype() == DType::f32);
    CHECK(mse_loss(logits, logits).dtype() == DType::f32);
    CHECK(run(cross_entropy, logits, targets, {}).gradient.dtype() == dtype);
  }
  CHECK(cross_entropy(randn({3, 4}, DType::f64), targets).dtype() == DType::f64);
  CHECK(item(mse_loss(full({8}, 300, DType::f16), full({8}, 0, DType::f16))) == 90000);  // beyond f16
}

TEST_CASE("ops: the fused cross entropy needs one set of logits, the textbook form two") {
  const std::int64_t n = 64, c = 1000;
  const auto peak = [&](LossFunction f) {
    const auto stack = memory::make_resource(cpu);
    const ResourceScope scope(stack.top);
    Tensor x = randn({n, c});
    x.require_grad();
    const Tensor targets = full({n}, 3, DType::i64);
    const std::size_t before = stack.ledger->bytes();
    stack.ledger->reset_peak();
    Tape tape;
    Tensor loss;
    {
      const Recording on(tape);
      loss = f(x * 2.0, targets, {});
    }
    tape.backward(loss);
    return static_cast<std::int64_t>(stack.ledger->max_allocated() - before);
  };
  const std::int64_t logits = n * c * 4;
  // Fused: one buffer holds the logits, then their gradient, then x's.
  CHECK(peak(cross_entropy) < logits + 4096);
  CHECK(peak(cross_entropy_textbook) > 2 * logits);
}

TEST_CASE("ops: cross entropy of rows whose largest score comes early, in the middle or late") {
  constexpr std::int64_t width = 5000;
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    for (const std::int64_t peak : {0, 2047, 2048, 4096, 4999}) {
      INFO(to_string(dtype) << ", largest at " << peak);
      Values values(width);
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i % 7) - 800;
      values[static_cast<std::size_t>(peak)] = 64;
      Tensor scores = to_dtype(from_host(values, {1, width}), dtype);
      scores.require_grad();
      const std::vector<std::int64_t> target{7};  // -800 in every dtype; nearly all probability is at the peak
      Tape tape;
      Tensor loss;
      {
        const Recording on(tape);
        loss = cross_entropy(scores, from_host(target, {1}));
      }
      CHECK(std::abs(item(loss) - 864) < 1e-3);
      tape.backward(loss);
      const Values gradient = to_host<double>(scores.grad());
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        const double expected = i == 7 ? -1 : static_cast<std::int64_t>(i) == peak ? 1 : 0;
        wrong += std::abs(gradient[i] - expected) < 1e-6 ? 0 : 1;  // NaN counts as wrong
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("ops: labels that are smoothed to all classes alike") {
  const Tensor x = from_host<float>({1, 2, 3}, {1, 3});
  const double all = std::log(std::exp(1) + std::exp(2) + std::exp(3));
  for (const std::int64_t target : {0, 2}) {
    CHECK(item(cross_entropy(x, classes_of({target}), {.label_smoothing = 1})) == Approx(all - 2));
  }
  CHECK_THROWS_AS(cross_entropy(x, classes_of({0}), {.label_smoothing = 1.5}), ValueError);
}
