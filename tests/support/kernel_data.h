#pragma once
// Helpers of CPU kernel tests: settings that restore themselves, data of any dtype, guarded workspaces.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <thimble/core/dtype.h>
#include <thimble/core/kernels/cpu/base/isa.h>
#include <thimble/core/kernels/cpu/base/units.h>
#include <thimble/core/numbers/convert.h>
#include <thimble/core/threads/parallel.h>

#include "skip.h"

namespace kernel_test {

using namespace thimble;
using namespace thimble::kernels;

/// Restores instruction set, units and thread count.
struct Settings {
  Isa saved_isa = isa();
  UnitChoice saved_bf16 = unit_choice(DType::bf16), saved_int8 = unit_choice(DType::i8);
  int saved_threads = thread_count();
  ~Settings() {
    set_isa(saved_isa);
    set_unit_choice(DType::bf16, saved_bf16);
    set_unit_choice(DType::i8, saved_int8);
    set_thread_count(saved_threads);
  }
};

/// This machine's instruction sets; prints the missing ones.
inline std::vector<Isa> supported() {
  std::vector<Isa> list;
  for (const Isa set : isas) {
    if (is_supported(set)) {
      list.push_back(set);
    } else {
      thimble_test::skip_part(std::string(to_string(set)) + " is not on this machine");
    }
  }
  return list;
}

/// The instruction sets with a fused multiply-add, whose kernels agree bitwise.
inline std::vector<Isa> fused() {
  std::vector<Isa> list = supported();
  std::erase(list, Isa::generic);
  return list;
}

/// This machine's units for i8 or bf16, including plain code (for bf16 a model of vdpbf16ps); prints the missing ones.
inline std::vector<DotUnit> supported_units(DType dtype) {
  std::vector<DotUnit> list;
  const DotUnit none = dtype == DType::bf16 ? DotUnit::avx2 : DotUnit::amx;  // has no such products
  for (const DotUnit unit : dot_units) {
    if (is_supported(unit, dtype)) {
      list.push_back(unit);
    } else if (unit != none) {
      thimble_test::skip_part(std::string(to_string(dtype)) + " products on " + std::string(to_string(unit)) +
                              " are not on this machine");
    }
  }
  return list;
}

/// Sets the unit for bf16 products in a scope; nullopt converts to f32.
class Bf16On {
 public:
  explicit Bf16On(std::optional<DotUnit> unit) {
    set_unit_choice(DType::bf16, unit ? UnitChoice::on(*unit) : UnitChoice::none());
  }
  ~Bf16On() { set_unit_choice(DType::bf16, before_); }
  Bf16On(const Bf16On&) = delete;
  Bf16On& operator=(const Bf16On&) = delete;

 private:
  UnitChoice before_ = unit_choice(DType::bf16);
};

/// `count` elements from a fixed sequence: floats in (-1, 1), integers small.
struct Data {
  Data(DType dtype, std::int64_t count, unsigned seed)
      : dtype(dtype), bytes(static_cast<std::size_t>(count) * size_of(dtype)) {
    const bool is_unsigned = dtype == DType::boolean || dtype == DType::u8;
    std::vector<double> list(static_cast<std::size_t>(count));
    std::uint64_t state = seed;
    for (double& value : list) {
      state = (state + 0x9E3779B97F4A7C15u) * 0xBF58476D1CE4E5B9u;
      value = static_cast<double>((state ^ (state >> 31)) >> 11) / 4503599627370496.0 - 1.0;
      if (!is_floating(dtype)) value = std::floor(is_unsigned ? value * 3 + 3 : value * 11);
    }
    store_f64(list.data(), bytes.data(), dtype, 1, count);
  }
  std::int64_t count() const { return static_cast<std::int64_t>(bytes.size() / size_of(dtype)); }
  std::vector<double> values() const {
    std::vector<double> list(static_cast<std::size_t>(count()));
    load_f64(bytes.data(), dtype, 1, list.data(), count());
    return list;
  }
  /// The same values in another dtype, rounded where it is narrower.
  Data converted(DType to) const {
    Data other(to, 0, 0);
    other.bytes.resize(static_cast<std::size_t>(count()) * size_of(to));
    store_f64(values().data(), other.bytes.data(), to, 1, count());
    return other;
  }

  DType dtype;
  std::vector<std::byte> bytes;
};

struct Workspace {
  explicit Workspace(std::size_t size) : bytes(size + 256, std::byte{0xFF}), size(size) {}  // 0xFF...: NaN
  void* get() {
    const auto address = reinterpret_cast<std::uintptr_t>(bytes.data());
    return bytes.data() + (64 - address % 64) % 64;
  }
  /// Whether the bytes after the workspace are unchanged.
  bool is_intact() {
    const auto* end = static_cast<std::byte*>(get()) + size;
    for (const auto* p = end; p != bytes.data() + bytes.size(); ++p) {
      if (*p != std::byte{0xFF}) return false;
    }
    return true;
  }
  std::vector<std::byte> bytes;
  std::size_t size;
};

/// Half a unit in the last place of the dtype, relative.
inline double epsilon(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 1.2e-16;
    case DType::f32:
      return 6e-8;
    case DType::f16:
      return 5e-4;
    case DType::bf16:
      return 4e-3;
    case DType::f8e4m3:
      return 0.0626;
    case DType::f8e5m2:
      return 0.126;
    default:
      return 0;
  }
}

}  // namespace kernel_test
