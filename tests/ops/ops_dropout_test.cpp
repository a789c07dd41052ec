// Rows of the operator table: dropout; then its statistics, its bits, and equal masks at any position in a batch.

#include <cmath>

#include <thimble/autograd/apply.h>
#include <thimble/autograd/functions.h>
#include <thimble/autograd/tape.h>
#include <thimble/core/error.h>
#include <thimble/core/kernels/cpu/base/isa.h>
#include <thimble/core/kernels/shared/random_bits.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/elementwise/dropout.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/tensor/view.h>

#include "support/catch.h"
#include "support/kernel_data.h"
#include "support/operator_table.h"

using namespace thimble;
using namespace thimble::testing;

namespace {

constexpr RandomSite site{11, 3, 0, 0x5eed5eedu};

Tensor drop(const Tensor& x, double p, const RandomSite& at = site) { return apply(ops::Dropout{p, at}, x); }

std::vector<float> host(const Tensor& t) { return to_host<float>(t); }

// The site of the operator table's only call: its generator's first, outside any module.
RandomSite table_site() {
  RandomGenerator generator(1234);
  generator.start_pass();
  return generator.next_site(0);
}

// 1 where an element of a (rows, columns) tensor is kept, by definition.
std::vector<float> mask_of(std::int64_t rows, std::int64_t columns, double p, const RandomSite& at) {
  std::vector<float> mask;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) {
      const PhiloxBlock b =
          kernels::random_block(at, static_cast<std::uint32_t>(c / 4), static_cast<std::uint32_t>(at.first_sample + r));
      mask.push_back(b.word[c % 4] < p * 0x1p32 ? 0.0f : 1.0f);
    }
  }
  return mask;
}

}  // namespace

TEST_CASE("ops: dropout") {
  const Shape shape{4, 5, 9};
  for (const double p : {0.1, 0.5, 0.9}) {
    const auto reference = [=](const std::vector<HostArray>& in) {
      const std::vector<float> mask = mask_of(4, 45, p, table_site());
      std::vector<double> y;
      for (std::int64_t i = 0; i < 180; ++i) y.push_back(in[0][i] * mask[static_cast<std::size_t>(i)] / (1 - p));
      return y;
    };
    check_operator({"dropout " + std::to_string(p),
                    {{shape}},
                    [=](auto in) { return dropout(in[0], p); },
                    reference,
                    [](std::int64_t, std::int64_t) { return 0; }});
    check_operator({"dropout_textbook " + std::to_string(p),
                    {{shape}},
                    [=](auto in) { return dropout_textbook(in[0], p); },
                    reference,
                    [](std::int64_t, std::int64_t) { return 4 * 5 * 9; }});
  }
}

TEST_CASE("ops: dropout's mask is the site's, in every shape and dtype") {
  for (const auto& [rows, columns] : {std::pair<std::int64_t, std::int64_t>{3, 2500}, {100, 7}, {1, 1}, {50, 1}}) {
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f8e5m2}) {
      std::vector<float> expected = mask_of(rows, columns, 0.5, site);
      for (float& value : expected) value *= 2;
      CHECK(host(drop(full({rows, columns}, 1, dtype), 0.5)) == expected);
    }
  }
  CHECK(host(drop(full({}, 1), 0.5))[0] == 2 * mask_of(1, 1, 0.5, site)[0]);
  CHECK(drop(Tensor::empty({0, 3}), 0.5).shape() == Shape{0, 3});
  CHECK(drop(Tensor::empty({3, 0}), 0.5).shape() == Shape{3, 0});
  // A dropped value is 0, even a NaN.
  const std::vector<float> of_nan = host(drop(full({1, 64}, NAN), 0.5)), mask = mask_of(1, 64, 0.5, site);
  for (std::size_t i = 0; i < 64; ++i) CHECK(std::isnan(of_nan[i]) == (mask[i] == 1));
}

TEST_CASE("ops: dropout gives a micro-batch what the whole batch would have got") {
  const Tensor x = randn({8, 33});
  RandomGenerator generator(9);
  const GeneratorScope scope(generator);
  generator.start_pass(0);
  const std::vector<float> whole = host(dropout(x, 0.4));
  std::vector<float> parts;
  for (const std::int64_t first : {0, 3, 4}) {
    generator.start_pass(first);
    const std::int64_t end = first == 0 ? 3 : first == 3 ? 4 : 8;
    const std::vector<float> part = host(dropout(view::slice(x, 0, first, end), 0.4));
    parts.insert(parts.end(), part.begin(), part.end());
  }
  CHECK(parts == whole);
  // Another step, another call or another path gives another mask.
  CHECK(host(dropout(x, 0.4)) != whole);
  generator.set_step(1);
  generator.start_pass();
  CHECK(host(dropout(x, 0.4)) != whole);
  generator.set_step(0);
  CHECK(host(dropout(x, 0.4)) != whole);  // outside a pass
  generator.start_pass();
  CHECK(host(dropout(x, 0.4)) == whole);
}

TEST_CASE("ops: both forms of dropout are equal, forward and backward") {
  RandomGenerator generator(2);
  const GeneratorScope scope(generator);
  const auto run = [&](Tensor (*f)(const Tensor&, double), std::size_t kept) {
    generator.start_pass();
    Tensor x = full({6, 1000}, 3);
    x.require_grad();
    Tape tape;
    Tensor y;
    {
      const Recording on(tape);
      y = f(x, 0.3);
    }
    CHECK(tape.kept_bytes() == kept);
    tape.backward(y, full({6, 1000}, 1));
    return std::pair(host(y), host(x.grad()));
  };
  CHECK(run(dropout, 0) == run(dropout_textbook, 6000));
}

TEST_CASE("ops: dropout's statistics") {
  const std::int64_t rows = 64, columns = 4096;
  const auto n = static_cast<double>(rows * columns);
  for (const double p : {0.05, 0.1, 0.5, 0.8}) {
    INFO("p " << p);
    const std::vector<float> y = host(drop(full({rows, columns}, 1), p));
    const double sigma = std::sqrt(p * (1 - p) / n);
    double kept = 0, sum = 0;
    for (const float value : y) kept += value != 0, sum += value;
    CHECK(std::abs(kept / n - (1 - p)) < 5 * sigma);
    CHECK(std::abs(sum / n - 1) < 5 * sigma / (1 - p));
    // Each row and each column, within 6 of its standard deviations.
    for (std::int64_t r = 0; r < rows; ++r) {
      double row = 0;
      for (std::int64_t c = 0; c < columns; ++c) row += y[static_cast<std::size_t>(r * columns + c)] != 0;
      CHECK(std::abs(row / columns - (1 - p)) < 6 * std::sqrt(p * (1 - p) / columns));
    }
    // Neighbours along both axes drop independently.
    for (const std::int64_t lag : {std::int64_t{1}, std::int64_t{2}, std::int64_t{4}, columns}) {
      double both = 0;
      for (std::size_t i = 0; i + static_cast<std::size_t>(lag) < y.size(); ++i) {
        both += y[i] == 0 && y[i + static_cast<std::size_t>(lag)] == 0;
      }
      const double pairs = n - static_cast<double>(lag);
      CHECK(std::abs(both / pairs - p * p) < 6 * std::sqrt(p * p * (1 - p * p) * 3 / pairs));
    }
  }
}

TEST_CASE("ops: dropout's bits are frozen") {
  // The kept elements among the first 32 of sample 5 at p = 1/2, as a bit pattern; site {11, 3, 0, 0x5eed5eed}.
  const std::vector<float> y = host(drop(full({6, 32}, 1), 0.5));
  std::uint32_t pattern = 0;
  for (std::size_t i = 0; i < 32; ++i) pattern |= (y[5 * 32 + i] != 0 ? 1u : 0u) << i;
  CHECK(pattern == 0x2bb1a1d3u);
  const kernel_test::Settings settings;
  for (const kernels::Isa isa : kernel_test::supported()) {
    kernels::set_isa(isa);
    CHECK(host(drop(full({6, 32}, 1), 0.5)) == y);
  }
}

TEST_CASE("ops: dropout's arguments") {
  Tensor x = rand({3, 4});
  x.require_grad();
  Tape tape;
  {
    const Recording on(tape);
    const Tensor same = dropout(x, 0);
    CHECK(same.storage() == x.storage());
    CHECK(dropout_textbook(x, 0).storage() == x.storage());
  }
  CHECK(tape.node_count() == 0);
  for (const double p : {-0.1, 1.0, 1.5, std::nan("")}) {
    CHECK_THROWS_AS(dropout(x, p), ValueError);
    CHECK_THROWS_AS(dropout_textbook(x, p), ValueError);
  }
  CHECK_THROWS_AS(dropout(arange(3), 0.5), DTypeError);
  CHECK_THROWS_AS(drop(x, 0.5, {0, std::uint64_t{1} << 32, 0, 0}), ValueError);
  CHECK_THROWS_AS(drop(x, 0.5, {0, 0, (std::int64_t{1} << 32) - 2, 0}), ValueError);
  CHECK_NOTHROW(drop(x, 0.5, {0, 0, (std::int64_t{1} << 32) - 3, 0}));
  CHECK_NOTHROW(dropout(Tensor::empty({1, std::int64_t{1} << 34}, DType::f32, dry(cpu)), 0.5));
}

TEST_CASE("ops: dropout that drops nothing takes a site, too") {
  const Tensor x = full({40}, 1);
  std::vector<std::vector<float>> second;
  for (const double first : {0.0, 0.3}) {
    RandomGenerator generator(5);
    const GeneratorScope scope(generator);
    generator.start_pass();
    dropout(x, first);
    second.push_back(host(dropout(x, 0.5)));
  }
  CHECK(second[0] == second[1]);
}
