// The kernels of a step's small operators: bits depend on neither instruction set nor threads.

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <thimble/core/kernels/cpu/base/isa.h>
#include <thimble/core/kernels/cpu/random/random_cpu.h>
#include <thimble/core/kernels/optimizer.h>
#include <thimble/core/threads/parallel.h>

#include "support/catch.h"
#include "support/kernel_data.h"

using namespace thimble;

namespace step_kernels_test {

using kernel_test::Settings;
using kernel_test::supported;

std::vector<float> normal(std::int64_t n, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> draw;
  std::vector<float> values(static_cast<std::size_t>(n));
  for (float& value : values) value = draw(engine);
  return values;
}

bool have_equal_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace step_kernels_test

using namespace step_kernels_test;

TEST_CASE("step_kernels: masks of one bit", "[step_kernels]") {
  const Settings before;
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  for (const kernels::Isa isa : supported()) {
    kernels::set_isa(isa);
    for (std::int64_t n = 0; n <= 70; ++n) {
      INFO(kernels::to_string(isa) << ", " << n << " elements");
      std::vector<float> x = normal(n, 3);
      if (n > 5) x[1] = nan, x[2] = 0.0f, x[3] = -0.0f, x[4] = 0.25f, x[5] = std::numeric_limits<float>::infinity();
      const std::vector<double> wide(x.begin(), x.end());
      const std::size_t bytes = static_cast<std::size_t>((n + 7) / 8);
      for (const float zero : {0.0f, 0.25f}) {
        std::vector<std::uint8_t> mask(bytes + 1, 0xA5), of_wide(mask), expected(bytes + 1, 0);
        for (std::size_t i = 0; i < x.size(); ++i) {
          if (x[i] > zero) expected[i / 8] = static_cast<std::uint8_t>(expected[i / 8] | (1u << (i % 8)));
        }
        expected[bytes] = 0xA5;  // nothing is written past the end
        kernels::pack_greater(x.data(), n, zero, mask.data());
        kernels::pack_greater(wide.data(), n, zero, of_wide.data());
        CHECK(mask == expected);
        CHECK(of_wide == expected);
        for (const std::int64_t first : {std::int64_t{0}, std::int64_t{8}, std::int64_t{11}}) {
          if (first > n) continue;
          const std::int64_t count = n - first;
          std::vector<float> kept(static_cast<std::size_t>(count) + 1, 7.0f), wanted(kept), in_place(x);
          for (std::int64_t i = 0; i < count; ++i) {
            const auto at = static_cast<std::size_t>(first + i);
            wanted[static_cast<std::size_t>(i)] = (expected[at / 8] >> (at % 8)) & 1 ? x[at] : 0.0f;
          }
          kernels::keep_masked(mask.data(), first, x.data() + first, kept.data(), count);
          CHECK(have_equal_bits(kept, wanted));
          in_place.push_back(7.0f);
          kernels::keep_masked(mask.data(), first, in_place.data() + first, in_place.data() + first, count);
          CHECK(std::memcmp(in_place.data() + first, wanted.data(), wanted.size() * sizeof(float)) == 0);
        }
      }
    }
  }
}

TEST_CASE("step_kernels: optimizer updates have the same bits everywhere", "[step_kernels]") {
  const Settings before;
  for (const std::int64_t n : {std::int64_t{1}, std::int64_t{37}, std::int64_t{512}, std::int64_t{20'000}}) {
    const std::vector<float> p0 = normal(n, 1), g = normal(n, 2), m0 = normal(n, 3);
    std::vector<float> v0 = normal(n, 4);
    for (float& v : v0) v = v * v;
    for (int kind = 0; kind < 5; ++kind) {
      std::vector<std::vector<float>> first;
      for (const kernels::Isa isa : supported()) {
        for (const int threads : {1, 3}) {
          INFO("kind " << kind << ", " << n << " elements, " << kernels::to_string(isa) << ", threads " << threads);
          kernels::set_isa(isa);
          set_thread_count(threads);
          std::vector<float> p = p0, m = m0, v = v0;
          if (kind < 2) {
            kernels::AdamArgs args;
            args.n = n;
            args.parameter = p.data(), args.gradient = g.data();
            args.first.values = m.data(), args.second.values = v.data();
            args.rate = 0.01, args.weight_decay = 0.1, args.step = 3;
            args.is_decoupled = kind == 0;
            kernels::optimizer_cpu.update_elements({.adam = {&args, 1}});
          } else {
            kernels::SgdArgs args;
            args.n = n;
            args.parameter = p.data(), args.gradient = g.data();
            args.first.values = kind == 2 ? nullptr : m.data();
            args.rate = 0.01, args.momentum = 0.9, args.weight_decay = 0.1;
            args.nesterov = kind == 4;
            kernels::optimizer_cpu.update_elements({.sgd = {&args, 1}});
          }
          if (first.empty()) first = {p, m, v};
          CHECK(have_equal_bits(p, first[0]));
          CHECK(have_equal_bits(m, first[1]));
          CHECK(have_equal_bits(v, first[2]));
          CHECK_FALSE(have_equal_bits(p, p0));
        }
      }
    }
  }
}

TEST_CASE("step_kernels: sums of squares", "[step_kernels]") {
  const Settings before;
  // Up to one chunk, several chunks, and more chunks than are summed at a time.
  for (const std::int64_t n : {0, 1, 9, 513, 140'000, 64 * 65'536 + 777}) {
    const std::vector<float> g = normal(n, 5);
    double exact = 0;
    for (const float value : g) exact += static_cast<double>(value) * static_cast<double>(value);
    double first = -1;
    for (const kernels::Isa isa : supported()) {
      for (const int threads : {1, 2, 5}) {
        INFO(n << " elements, " << kernels::to_string(isa) << ", threads " << threads);
        kernels::set_isa(isa);
        set_thread_count(threads);
        double sum = -1;
        const kernels::SquareSumArgs args{n, g.data(), DType::f32, &sum};
        kernels::optimizer_cpu.square_sums({&args, 1});
        if (first < 0) first = sum;
        CHECK(sum == first);
        CHECK(std::fabs(sum - exact) <= 1e-12 * exact);
      }
      // Narrow gradients have the sums of their values in f32.
      for (const DType dtype : {DType::f16, DType::bf16, DType::f8e5m2}) {
        INFO(n << " elements, " << kernels::to_string(isa) << ", " << to_string(dtype));
        std::vector<std::byte> narrow(g.size() * size_of(dtype));
        std::vector<float> wide(g.size());
        store_f32(g.data(), narrow.data(), dtype, 1, n);
        load_f32(narrow.data(), dtype, 1, wide.data(), n);
        double of_narrow = -1, of_wide = -2;
        const kernels::SquareSumArgs both[] = {{n, narrow.data(), dtype, &of_narrow},
                                               {n, wide.data(), DType::f32, &of_wide}};
        kernels::optimizer_cpu.square_sums({both, 2});
        CHECK(of_narrow == of_wide);
      }
    }
  }
}
