// The units that products run on: measured rates, names and environment variables, and units that a machine lacks.

#include <thimble/core/kernels/cpu/base/units.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include <thimble/core/error.h>
#include <thimble/core/kernels/conv.h>
#include <thimble/core/kernels/cpu/matmul/gemm.h>

#include "support/catch.h"
#include "support/kernel_data.h"

using namespace kernel_test;

namespace {

Processor processor(const char* vendor, unsigned family) {
  Processor p;
  std::memcpy(p.vendor, vendor, std::min(std::strlen(vendor), sizeof p.vendor - 1));
  p.family = family;
  return p;
}

std::string error_of(void (*set)(std::string_view, std::string_view), const char* text) {
  try {
    set("--flag", text);
  } catch (const ValueError& error) {
    return error.what();
  }
  return {};
}

/// Sets an environment variable for a scope.
struct Variable {
  Variable(const char* name, const char* value) : name(name) {
    if (const char* const text = std::getenv(name)) before = text;
    setenv(name, value, 1);
  }
  ~Variable() { before.empty() ? unsetenv(name) : setenv(name, before.c_str(), 1); }
  const char* name;
  std::string before;
};

}  // namespace

TEST_CASE("units: the table says what was measured, and is careful with what was not", "[units]") {
  const Processor zen4 = processor("AuthenticAMD", 0x19), zen5 = processor("AuthenticAMD", 0x1A);
  const Processor xeon = processor("GenuineIntel", 6), other = processor("CentaurHauls", 7),
                  next = processor("AuthenticAMD", 0x1B);
  struct Row {
    const Processor& p;
    DotUnit unit;
    bool gemm, forward, backward;  // on the unit
  };
  const Row rows[] = {
      {xeon, DotUnit::amx, true, true, true},       {xeon, DotUnit::avx512, false, false, false},
      {zen5, DotUnit::avx512, true, true, false},   {zen4, DotUnit::avx512, true, true, true},
      {next, DotUnit::avx512, false, false, false}, {other, DotUnit::avx512, false, false, false},
      {other, DotUnit::amx, false, false, false},
  };
  for (const Row& row : rows) {
    INFO(row.p.vendor << " " << row.p.family << " " << to_string(row.unit));
    CHECK(unit_rate(row.p, row.unit, Product::gemm).is_on_unit == row.gemm);
    CHECK(unit_rate(row.p, row.unit, Product::conv_forward).is_on_unit == row.forward);
    CHECK(unit_rate(row.p, row.unit, Product::conv_backward).is_on_unit == row.backward);
  }
  for (const Processor& p : {xeon, zen4, zen5, next, other}) {
    for (const DotUnit unit : dot_units) {
      for (const Product product : products) {
        const UnitRate rate = unit_rate(p, unit, product);
        CHECK_FALSE(rate.origin.empty());
        if (product == Product::conv_backward && !rate.is_measured) CHECK_FALSE(rate.is_on_unit);
        // Plain code and its model are never faster.
        if (unit < DotUnit::avx512) CHECK_FALSE(rate.is_on_unit);
      }
    }
  }
}

TEST_CASE("units: by itself a product runs on what the table says of this processor", "[units]") {
  const Settings settings;
  set_unit_choice(DType::bf16, {});
  set_unit_choice(DType::i8, {});
  for (const Isa set : supported()) {
    set_isa(set);
    const std::optional<DotUnit> best = best_dot_unit(DType::bf16);
    for (const Product product : products) {
      const bool is_on_unit = best && unit_rate(this_processor(), *best, product).is_on_unit;
      CHECK(bf16_unit(product) == (is_on_unit ? best : std::nullopt));
    }
    CHECK(int8_unit() == best_dot_unit(DType::i8));
    const auto count =
        std::count_if(std::begin(products), std::end(products), [](Product p) { return bf16_unit(p).has_value(); });
    CHECK(describe_bf16().ends_with("), else converted") == (count > 0 && count < std::ssize(products)));
    if (set != Isa::avx512) CHECK(describe_bf16() == "bf16 converted");
  }
}

TEST_CASE("units: the best unit follows the instruction set", "[units]") {
  const Settings settings;
  for (const Isa set : supported()) {
    set_isa(set);
    const std::optional<DotUnit> unit = best_dot_unit(DType::i8);
    REQUIRE(unit);
    CHECK(is_supported(*unit, DType::i8));
    if (set == Isa::generic) CHECK(*unit == DotUnit::generic);
    if (set == Isa::avx2) CHECK(*unit == DotUnit::avx2);
    if (set != Isa::avx512) CHECK_FALSE(best_dot_unit(DType::bf16));
    CHECK(best_dot_unit(DType::bf16) != DotUnit::generic);  // the model must be asked for
  }
  CHECK_FALSE(is_supported(DotUnit::avx2, DType::bf16));
  CHECK_FALSE(is_supported(DotUnit::amx, DType::i8));
}

TEST_CASE("units: a choice holds for all products, and none is the plain way", "[units]") {
  const Settings settings;
  for (const DotUnit unit : supported_units(DType::bf16)) {
    set_unit_choice(DType::bf16, UnitChoice::on(unit));
    for (const Product product : products) CHECK(bf16_unit(product) == unit);
    CHECK(unit_choice(DType::bf16) == UnitChoice::on(unit));
    CHECK(describe_bf16() == "bf16 on " + std::string(to_string(unit)));
  }
  set_unit_choice(DType::bf16, UnitChoice::none());
  for (const Product product : products) CHECK_FALSE(bf16_unit(product));
  for (const Isa set : supported()) {
    set_isa(set);
    set_unit_choice(DType::i8, UnitChoice::none());
    CHECK(int8_unit() == (set == Isa::generic ? DotUnit::generic : DotUnit::avx2));
  }
  for (const DotUnit unit : supported_units(DType::i8)) {
    set_unit_choice(DType::i8, UnitChoice::on(unit));
    CHECK(int8_unit() == unit);
  }
  for (const DType dtype : {DType::bf16, DType::i8}) {
    for (const DotUnit unit : dot_units) {
      const UnitChoice before = unit_choice(dtype);
      if (is_supported(unit, dtype)) continue;
      CHECK_THROWS_AS(set_unit_choice(dtype, UnitChoice::on(unit)), ValueError);
      CHECK(unit_choice(dtype) == before);
    }
  }
  CHECK_THROWS_AS(set_unit_choice(DType::f32, {}), ValueError);
}

TEST_CASE("units: each operation asks for its own way", "[units]") {
  // If one unit is chosen for all three, their workspaces differ from the conversion's; automatic ones equal the one or
  // the other, by the table.
  const Settings settings;
  set_isa(best_isa());
  ConvForwardArgs f;
  f.shape.images = 2, f.shape.height = f.shape.width = 14, f.shape.channels = f.shape.filters = 64;
  f.shape.kernel_h = f.shape.kernel_w = 3, f.shape.pad_top = f.shape.pad_bottom = 1;
  f.shape.pad_left = f.shape.pad_right = 1;
  f.dtype = f.out_dtype = DType::bf16;
  ConvInputGradArgs d;
  d.shape = f.shape, d.dtype = d.out_dtype = DType::bf16;
  ConvWeightGradArgs w;
  w.shape = f.shape, w.dtype = w.out_dtype = DType::bf16;
  GemmArgs g;
  g.m = g.n = g.k = 40;
  g.a_row_stride = g.b_row_stride = g.c_row_stride = 40;
  g.dtype = g.c_dtype = DType::bf16;
  const auto bytes = [&] {
    return std::vector<std::size_t>{gemm_workspace_bytes(g, 2), conv_workspace_bytes(f, 2), conv_workspace_bytes(d, 2),
                                    conv_workspace_bytes(w, 2)};
  };
  set_unit_choice(DType::bf16, UnitChoice::none());
  const std::vector<std::size_t> converted = bytes();
  set_unit_choice(DType::bf16, UnitChoice::on(DotUnit::generic));  // all units need as much
  const std::vector<std::size_t> on_unit = bytes();
  set_unit_choice(DType::bf16, {});
  const std::vector<std::size_t> automatic = bytes();
  const Product of[] = {Product::gemm, Product::conv_forward, Product::conv_backward, Product::conv_backward};
  for (std::size_t i = 0; i < 4; ++i) {
    INFO(to_string(of[i]));
    CHECK(converted[i] != on_unit[i]);
    CHECK(automatic[i] == (bf16_unit(of[i]) ? on_unit[i] : converted[i]));
  }
}

TEST_CASE("units: names, and what this machine lacks", "[units]") {
  const Settings settings;
  for (const Isa set : isas) {
    const std::string name(to_string(set));
    if (is_supported(set)) {
      set_isa("--isa", name);
      CHECK(isa() == set);
    } else {
      CHECK(error_of(set_isa, name.c_str())
                .starts_with("--flag: '" + name + "' is not on this machine, which has generic"));
    }
  }
  CHECK(error_of(set_isa, "sse").starts_with("--flag: 'sse' is no instruction set; this machine has generic"));
  set_isa(best_isa());
  set_units("--cpu-dot", "none");
  CHECK(unit_choice(DType::bf16) == UnitChoice::none());
  CHECK(unit_choice(DType::i8) == UnitChoice::none());
  set_units("--cpu-dot", "auto");
  CHECK(unit_choice(DType::bf16).is_automatic);
  CHECK(unit_choice(DType::i8).is_automatic);
  const auto is_unit = [](DType dtype) { return best_dot_unit(dtype).value_or(DotUnit::generic) >= DotUnit::avx512; };
  for (const auto& [name, dtype] : {std::pair{"bf16", DType::bf16}, {"int8", DType::i8}}) {
    set_units("--cpu-dot", "auto");
    if (is_unit(dtype)) {
      set_units("--cpu-dot", name);
      CHECK(unit_choice(dtype).unit == best_dot_unit(dtype));
      CHECK(unit_choice(dtype == DType::bf16 ? DType::i8 : DType::bf16) == UnitChoice::none());
      CHECK(available_units().find(name) != std::string::npos);
    } else {
      CHECK(error_of(set_units, name) == std::string("--flag: '") + name + "' is not on this machine within " +
                                             std::string(to_string(isa())) + ", which takes " + available_units());
      CHECK(unit_choice(dtype).is_automatic);  // as before
    }
  }
  for (const char* wrong : {"", "fp8", "bf16;int8", "none,bf16", ",", "auto,int8"}) {
    INFO(wrong);
    CHECK(error_of(set_units, wrong).find("this machine") != std::string::npos);
  }
  // Within the instruction set in force: no unit of another set.
  set_isa(Isa::generic);
  CHECK(available_units() == "auto, none");
  CHECK_FALSE(error_of(set_units, "bf16").empty());
}

TEST_CASE("units: the environment, and the line that says it all", "[units]") {
  const Settings settings;
  {
    const Variable isa_text("THIMBLE_ISA", "generic"), units_text("THIMBLE_UNITS", "none");
    set_from_environment();
    set_thread_count(3);
    CHECK(describe_compute() == "generic, bf16 converted, int8 on generic, 3 threads");
    set_thread_count(1);
    CHECK(describe_compute() == "generic, bf16 converted, int8 on generic, 1 thread");
  }
  {
    const Variable isa_text("THIMBLE_ISA", "mmx");
    CHECK_THROWS_AS(set_from_environment(), ValueError);
  }
  {
    const Variable isa_text("THIMBLE_ISA", ""), units_text("THIMBLE_UNITS", "");
    set_from_environment();
    CHECK(isa() == Isa::generic);  // empty: unchanged
  }
}
