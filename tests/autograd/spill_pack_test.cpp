// Packed tensors: there and back, and the gradients that they give.

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/ops/quant/quantize.h>

#include "support/catch.h"
#include "support/near.h"
#include "support/spill_chain.h"

using namespace thimble;

namespace {

using spill_test::Chain;
using Spill = TapePlan::Spill;

// Over the largest expected value.
double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  const double size = thimble_test::largest_of(b);
  return thimble_test::largest_difference(a, b) / (size > 0 ? size : 1);
}

}  // namespace

TEST_CASE("spill: packed tensors give gradients within the dtype's error", "[spill]") {
  struct Row {
    DType dtype;
    double bound;  // of a gradient, over the largest one
  };
  const Chain chain;
  const auto gradients = [&](const std::shared_ptr<const TapePlan>& plan) {
    Tape tape;
    tape.follow(plan);
    Tensor loss;
    {
      const Recording on(tape);
      loss = chain.loss();
    }
    tape.backward(loss);
    const auto list = chain.gradients();
    for (const Tensor& w : chain.w) w.grad() = Tensor();
    return std::pair(item(loss), list);
  };
  const auto [loss, plain] = gradients(nullptr);
  // Every gradient is a product of at most four saved tensors, each with the relative error of its dtype.
  for (const Row& row : {Row{DType::bf16, 4 * 0x1p-8}, Row{DType::f16, 4 * 0x1p-11}, Row{DType::f8e4m3, 4 * 0x1p-4},
                         Row{DType::f8e5m2, 4 * 0x1p-3}, Row{DType::i8, 4.0 / 254}}) {
    INFO(to_string(row.dtype));
    auto plan = std::make_shared<TapePlan>(chain.plan());
    for (const std::uint32_t node : {1u, 3u, 5u}) {
      plan->spills.push_back({node, Spill::result, Spill::Form::pack, row.dtype, node + 1, node + 1, node + 1});
    }
    const auto [packed_loss, packed] = gradients(plan);
    CHECK(packed_loss == loss);
    for (std::size_t i = 0; i < plain.size(); ++i) {
      const double difference = largest_difference(packed[i], plain[i]);
      CHECK(difference < row.bound);
      CHECK(difference > row.bound * 1e-3);
    }
  }
}

TEST_CASE("spill: pack and unpack", "[spill]") {
  RandomGenerator generator(5);
  const GeneratorScope random(generator);
  for (const DType from : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    for (const DType to : {DType::bf16, DType::f16, DType::f8e4m3, DType::f8e5m2, DType::i8}) {
      if (!can_pack(from, to)) continue;
      INFO(to_string(from) << " to " << to_string(to));
      const bool is_scaled = size_of(to) == 1;
      const double relative = to == DType::bf16     ? 0x1p-8
                              : to == DType::f16    ? 0x1p-11
                              : to == DType::f8e4m3 ? 0x1p-4
                              : to == DType::f8e5m2 ? 0x1p-3
                                                    : 0;
      for (const double size : {1e-3, 1.0, 300.0}) {
        const Tensor t = to_dtype(mul(randn({3, 1501}), size), from);
        const Tensor packed = pack(t, to), back = unpack(packed, from);
        CHECK(packed.dtype() == to);
        CHECK(packed.shape() == t.shape());
        CHECK((packed.scale() != nullptr) == is_scaled);
        CHECK(back.dtype() == from);
        const auto before = to_host<double>(t), after = to_host<double>(back);
        CHECK(packed.bytes() + (is_scaled ? packed.scale()->bytes() : 0) == packed_bytes(t.elements(), to));
        if (is_scaled) CHECK(packed.scale()->elements() == (t.elements() + 63) / 64);
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < before.size(); ++i) {
          double amax = 0;  // of the 64
          for (std::size_t k = i / 64 * 64; k < std::min(before.size(), i / 64 * 64 + 64); ++k) {
            amax = std::max(amax, std::fabs(before[k]));
          }
          // Below the smallest normal value of the dtype the error is that of the smallest one; i8 has one error alone.
          const double floor = to == DType::i8       ? amax / 253 + std::fabs(before[i]) * 0x1p-8  // bf16 rounds again
                               : to == DType::f8e4m3 ? amax * 0x1p-18
                               : to == DType::f8e5m2 ? amax * 0x1p-32
                                                     : 0x1p-25;
          wrong += std::fabs(after[i] - before[i]) > 1.01 * relative * std::fabs(before[i]) + floor;
        }
        CHECK(wrong == 0);
      }
    }
  }
  const float infinity = std::numeric_limits<float>::infinity();
  for (const DType to : {DType::f8e4m3, DType::f8e5m2, DType::i8}) {
    std::vector<float> special(130, 2.0f);
    special[70] = -infinity;
    const auto back = to_host<float>(unpack(pack(from_host(special, {130}), to), DType::f32));
    for (std::size_t i = 0; i < 130; ++i) CHECK((i / 64 == 1 ? std::isnan(back[i]) : back[i] == 2));
  }
  CHECK(packed_bytes(6400, DType::i8) * 10000 == 6400 * 10625);
  CHECK(to_host<float>(unpack(pack(full({3}, 0), DType::f8e5m2), DType::f32)) == std::vector<float>(3, 0.0f));
  CHECK_THROWS_AS(pack(full({3}, 0), DType::f32), DTypeError);
  CHECK_THROWS_AS(pack(full({3}, 0), DType::u8), DTypeError);
  CHECK_THROWS_AS(pack(full({3}, 0, DType::f8e4m3), DType::i8), DTypeError);
  CHECK_THROWS_AS(pack(full({3}, 0, DType::i32), DType::bf16), DTypeError);
}
