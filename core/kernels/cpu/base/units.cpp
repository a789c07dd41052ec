#include <thimble/core/kernels/cpu/base/units.h>

#include <atomic>
#include <cstdlib>

#include <thimble/core/error.h>
#include <thimble/core/settings.h>
#include <thimble/core/threads/parallel.h>

namespace thimble::kernels {
namespace units_detail {

std::atomic<int>& chosen(DType dtype) noexcept {
  return dtype == DType::bf16 ? settings().bf16_unit : settings().int8_unit;
}

std::string units_of(DType dtype) {
  std::string list;
  for (const DotUnit unit : dot_units) {
    if (is_supported(unit, dtype)) list += (list.empty() ? "" : ", ") + std::string(to_string(unit));
  }
  return list;
}

/// The best unit within isa(), excluding plain code and units that are part of the instruction set.
std::optional<DotUnit> real_unit(DType dtype) noexcept {
  const std::optional<DotUnit> unit = best_dot_unit(dtype);
  return unit && *unit >= DotUnit::avx512 ? unit : std::nullopt;
}

DotUnit plain_int8() noexcept { return isa() >= Isa::avx2 ? DotUnit::avx2 : DotUnit::generic; }

std::string quoted(std::string_view where, std::string_view text) {
  return std::string(where) + ": '" + std::string(text) + "'";
}

}  // namespace units_detail

UnitChoice unit_choice(DType dtype) noexcept {
  const int code = units_detail::chosen(dtype).load(std::memory_order_relaxed);
  if (code == Settings::automatic_unit) return {};
  return code == Settings::no_unit ? UnitChoice::none() : UnitChoice::on(static_cast<DotUnit>(code));
}

void set_unit_choice(DType dtype, UnitChoice choice) {
  if (dtype != DType::bf16 && dtype != DType::i8) {
    throw ValueError("set_unit_choice: " + std::string(to_string(dtype)) + " has no units; expected bf16 or i8");
  }
  if (!choice.is_automatic && choice.unit && !is_supported(*choice.unit, dtype)) {
    throw ValueError("set_unit_choice: this machine has no " + std::string(to_string(dtype)) + " products on unit " +
                     std::string(to_string(*choice.unit)) + "; it has " + units_detail::units_of(dtype));
  }
  const int code = choice.is_automatic ? Settings::automatic_unit
                   : choice.unit       ? static_cast<int>(*choice.unit)
                                       : Settings::no_unit;
  units_detail::chosen(dtype).store(code, std::memory_order_relaxed);
}

std::optional<DotUnit> bf16_unit(Product product) noexcept {
  const UnitChoice choice = unit_choice(DType::bf16);
  if (!choice.is_automatic) return choice.unit;
  const std::optional<DotUnit> unit = best_dot_unit(DType::bf16);
  if (!unit || !unit_rate(this_processor(), *unit, product).is_on_unit) return std::nullopt;
  return unit;
}

DotUnit int8_unit() noexcept {
  const UnitChoice choice = unit_choice(DType::i8);
  if (choice.is_automatic) return best_dot_unit(DType::i8).value_or(DotUnit::generic);
  return choice.unit.value_or(units_detail::plain_int8());
}

void set_isa(std::string_view where, std::string_view text) {
  std::string there;
  for (const Isa set : isas) {
    if (!is_supported(set)) continue;
    if (text == to_string(set)) return set_isa(set);
    there += (there.empty() ? "" : ", ") + std::string(to_string(set));
  }
  for (const Isa set : isas) {
    if (text != to_string(set)) continue;
    throw ValueError(units_detail::quoted(where, text) + " is not on this machine, which has " + there);
  }
  throw ValueError(units_detail::quoted(where, text) + " is no instruction set; this machine has " + there);
}

std::string available_units() {
  const bool has_bf16 = units_detail::real_unit(DType::bf16).has_value();
  const bool has_int8 = units_detail::real_unit(DType::i8).has_value();
  return std::string("auto, none") + (has_bf16 ? ", bf16" : "") + (has_int8 ? ", int8" : "") +
         (has_bf16 && has_int8 ? ", bf16,int8" : "");
}

void set_units(std::string_view where, std::string_view text) {
  UnitChoice bf16 = UnitChoice::none(), int8 = UnitChoice::none();
  if (text == "auto") bf16 = int8 = UnitChoice{};
  for (std::size_t begin = 0; text != "auto" && text != "none" && begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view name = text.substr(begin, end - begin);
    begin = end + 1;
    const bool is_bf16 = name == "bf16";
    if (!is_bf16 && name != "int8") {
      throw ValueError(units_detail::quoted(where, name) + " is no unit; within " + std::string(to_string(isa())) +
                       " this machine takes " + available_units());
    }
    const std::optional<DotUnit> unit = units_detail::real_unit(is_bf16 ? DType::bf16 : DType::i8);
    if (!unit) {
      throw ValueError(units_detail::quoted(where, name) + " is not on this machine within " +
                       std::string(to_string(isa())) + ", which takes " + available_units());
    }
    (is_bf16 ? bf16 : int8) = UnitChoice::on(*unit);
  }
  set_unit_choice(DType::bf16, bf16);
  set_unit_choice(DType::i8, int8);
}

void set_from_environment() {
  const auto apply = [](const char* name, auto&& set) {
    const char* const text = std::getenv(name);
    if (text != nullptr && *text != '\0') set(std::string_view(name), std::string_view(text));
  };
  apply("THIMBLE_ISA", [](std::string_view name, std::string_view text) { set_isa(name, text); });
  apply("THIMBLE_UNITS", [](std::string_view name, std::string_view text) { set_units(name, text); });
}

std::string describe_bf16() {
  std::optional<DotUnit> unit;
  std::string on_unit;
  bool is_all = true;
  for (const Product product : products) {
    if (const std::optional<DotUnit> used = bf16_unit(product)) {
      unit = used;
      on_unit += (on_unit.empty() ? "" : ", ") + std::string(to_string(product));
    } else {
      is_all = false;
    }
  }
  if (!unit) return "bf16 converted";
  return "bf16 on " + std::string(to_string(*unit)) + (is_all ? "" : " (" + on_unit + "), else converted");
}

std::string describe_compute() {
  const int threads = thread_count();
  return std::string(to_string(isa())) + ", " + describe_bf16() + ", int8 on " + std::string(to_string(int8_unit())) +
         ", " + std::to_string(threads) + (threads == 1 ? " thread" : " threads");
}

}  // namespace thimble::kernels
