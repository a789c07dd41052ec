#include <thimble/nn/precision/precision.h>

#include <array>
#include <string>

#include <thimble/core/error.h>

namespace thimble::nn {
namespace {

using optim::NarrowUpdate;

constexpr DType f32 = DType::f32, f16 = DType::f16, bf16 = DType::bf16;

constexpr std::array<Precision, 10> list{{
    {"O0", f32, f32, {}, NarrowUpdate::rounded, false},
    {"O1", f32, f32, f16, NarrowUpdate::rounded, true},
    {"O2", f16, f32, {}, NarrowUpdate::master, true},
    {"O3", f16, f16, {}, NarrowUpdate::rounded, false},
    {"bf16", bf16, f32, {}, NarrowUpdate::master, false},
    {"bf16-stochastic", bf16, bf16, {}, NarrowUpdate::stochastic, false},
    {"bf16-kahan", bf16, bf16, {}, NarrowUpdate::kahan, false},
    {"fp8", bf16, f32, {}, NarrowUpdate::master, false, Fp8Recipe{}},
    {"fp8-current", bf16, f32, {}, NarrowUpdate::master, false, Fp8Recipe{.kind = Fp8Scaling::current}},
    {"fp8-block", bf16, f32, {}, NarrowUpdate::master, false, Fp8Recipe{.kind = Fp8Scaling::block, .hybrid = false}},
}};

}  // namespace

std::span<const Precision> precisions() { return list; }

const Precision& precision(std::string_view name) {
  std::string names;
  for (const Precision& p : list) {
    if (p.name == name) return p;
    names += (names.empty() ? "" : ", ") + std::string(p.name);
  }
  throw ValueError("precision: '" + std::string(name) + "' is not one of " + names);
}

}  // namespace thimble::nn
