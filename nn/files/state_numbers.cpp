#include <thimble/nn/files/state_numbers.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string_view>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/core/kernels/shared/fp8_code.h>
#include <thimble/core/numbers/convert.h>
#include <thimble/memory/units.h>

namespace thimble::nn {
namespace {

bool is_magnitude(double x) { return std::isfinite(x) && x >= 0; }
bool is_scale(double x) { return x == 0 || (x >= kernels::fp8_scale_min && x <= kernels::fp8_scale_max); }

// Parameters and buffers of others may have the same names: an optimizer's state stands under its own, FP8's has
// shapes.
bool is_optimizer(const NamedTensor& t) { return t.name.starts_with("optimizer."); }
bool is_scales(const NamedTensor& t) { return t.tensor.shape() == Shape{3}; }
bool is_matrix_of_3(const NamedTensor& t) { return t.tensor.rank() == 2 && t.tensor.size(0) == 3; }

struct Rule {
  std::string_view name;
  std::optional<DType> dtype;  // none: any that is floating
  bool (*fits)(const NamedTensor&);
  bool (*allows)(double);
  const char* allowed;
};
constexpr const char* magnitudes = "finite numbers >= 0";
constexpr Rule rules[] = {{"fp8_amax", DType::f32, is_matrix_of_3, is_magnitude, magnitudes},
                          {"fp8_scale", DType::f32, is_scales, is_scale, "0 and 2^-60 to 2^100"},
                          {"fp8_steps", DType::i64, is_matrix_of_3, is_magnitude, "counts >= 0"},
                          {"first_moment_scale", DType::f32, is_optimizer, is_magnitude, magnitudes},
                          {"second_moment_scale", DType::f32, is_optimizer, is_magnitude, magnitudes},
                          {"momentum_scale", DType::f32, is_optimizer, is_magnitude, magnitudes},
                          {"second_moment", std::nullopt, is_optimizer, is_magnitude, magnitudes},
                          {"row_moment", std::nullopt, is_optimizer, is_magnitude, magnitudes},
                          {"column_moment", std::nullopt, is_optimizer, is_magnitude, magnitudes}};

const Rule* rule_of(const NamedTensor& target) {
  const std::string_view name = std::string_view(target.name).substr(target.name.rfind('.') + 1);
  const DType dtype = target.tensor.dtype();
  for (const Rule& rule : rules) {
    const bool is_meant = rule.dtype ? *rule.dtype == dtype : is_floating(dtype);
    if (rule.name == name && is_meant && rule.fits(target)) return &rule;
  }
  return nullptr;
}

// "(1, 0)".
std::string place(const Shape& shape, std::int64_t i) {
  std::string list;
  for (int axis = shape.rank() - 1; axis >= 0; i /= shape[axis--]) {
    list = std::to_string(i % shape[axis]) + (list.empty() ? "" : ", ") + list;
  }
  return "(" + list + ")";
}

}  // namespace

void check_state_numbers(const std::string& operation, const SafetensorsReader& file, const SafetensorsEntry& entry,
                         const NamedTensor& target, FileStaging& room) {
  const Rule* const rule = rule_of(target);
  if (rule == nullptr || target.tensor.device().is_dry || target.tensor.elements() == 0) return;
  const DType from = loadable_dtype(entry), dtype = target.tensor.dtype();
  std::array<std::int64_t, 512> there;  // room for elements of any dtype
  std::array<double, 512> values;
  const std::size_t size = size_of(from);
  const std::span<std::byte> staging = room.of_file();
  for (std::uint64_t begin = 0; begin < entry.bytes(); begin += staging.size()) {
    const auto piece =
        staging.first(static_cast<std::size_t>(std::min<std::uint64_t>(staging.size(), entry.bytes() - begin)));
    file.read_part(entry, begin, piece);
    for (std::size_t at = 0; at < piece.size(); at += size * values.size()) {
      const std::size_t some = std::min(values.size(), (piece.size() - at) / size);
      convert(piece.data() + at, from, there.data(), dtype, static_cast<std::int64_t>(some));
      convert(there.data(), dtype, values.data(), DType::f64, static_cast<std::int64_t>(some));
      const auto read = std::span(values).first(some);
      const auto wrong = std::find_if_not(read.begin(), read.end(), rule->allows);
      if (wrong == read.end()) continue;
      const auto index = static_cast<std::int64_t>((begin + at) / size) + (wrong - read.begin());
      throw ValueError(operation + ": tensor " + quote(target.name) + " has " + format_short(*wrong) + " at " +
                       place(target.tensor.shape(), index) + "; expected " + rule->allowed);
    }
  }
}

}  // namespace thimble::nn
