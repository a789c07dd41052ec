#include <thimble/models/function.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/memory/units.h>

namespace thimble::models {
namespace {

constexpr std::array<std::string_view, 4> kinds{"llama3", "linear", "dynamic", "yarn"};

/// "default", or kind, factor, low, high, original length, attention factor, and 1 if pairs are rounded.
std::string scaling_text(const std::optional<RotaryScaling>& scaling) {
  if (!scaling) return "default";
  const RotaryScaling& s = *scaling;
  std::string text(kinds[static_cast<std::size_t>(s.kind)]);
  for (const double value : {s.factor, s.low, s.high}) text += " " + format_real(value);
  return text + " " + std::to_string(s.original_length) + " " + format_real(s.attention_factor) +
         (s.rounds_pairs ? " 1" : " 0");
}

template <class T>
std::optional<T> number(std::string_view text) {
  T value{};
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || stop != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<RotaryScaling> parse_scaling(std::string_view text) {
  std::vector<std::string_view> words;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    words.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  const auto kind = std::find(kinds.begin(), kinds.end(), words[0]);
  if (words.size() != 7 || kind == kinds.end() || (words[6] != "0" && words[6] != "1")) return std::nullopt;
  RotaryScaling s;
  s.kind = static_cast<RotaryKind>(kind - kinds.begin());
  double* const reals[] = {&s.factor, &s.low, &s.high, &s.attention_factor};
  const std::size_t places[] = {1, 2, 3, 5};
  for (std::size_t i = 0; i < 4; ++i) {
    const auto value = number<double>(words[places[i]]);
    if (!value || !std::isfinite(*value)) return std::nullopt;
    *reals[i] = *value;
  }
  const auto length = number<std::int64_t>(words[4]);
  if (!length) return std::nullopt;
  s.original_length = *length;
  s.rounds_pairs = words[6] == "1";
  return s;
}

}  // namespace

ModelFunction with_function(ModelFunction own, const ModelFunction& other) {
  if (other.epsilon) own.epsilon = other.epsilon;
  if (other.gelu) own.gelu = other.gelu;
  if (other.rotary) own.rotary = other.rotary;
  if (other.is_tied) own.is_tied = other.is_tied;
  if (other.has_bias) own.has_bias = other.has_bias;
  if (other.positions) own.positions = other.positions;
  return own;
}

void require_function(std::string_view name, const ModelFunction& function, const ModelFunction& own) {
  const char* const more = function.epsilon && !own.epsilon       ? "epsilon"
                           : function.gelu && !own.gelu           ? "gelu"
                           : function.rotary && !own.rotary       ? "rotary"
                           : function.is_tied && !own.is_tied     ? "is_tied"
                           : function.has_bias && !own.has_bias   ? "has_bias"
                           : function.positions && !own.positions ? "positions"
                                                                  : nullptr;
  if (more == nullptr) return;
  throw ValueError(std::string(name) + ": its family has no `function." + more + "`; expected it to be unset");
}

nn::Metadata function_texts(const ModelFunction& function, const ModelFunction& own) {
  nn::Metadata texts;
  if (function.epsilon != own.epsilon && function.epsilon) texts["epsilon"] = format_real(*function.epsilon);
  if (function.gelu != own.gelu && function.gelu) {
    texts["activation"] = *function.gelu == GeluForm::erf ? "gelu" : "gelu_new";
  }
  if (function.rotary && own.rotary) {
    if (function.rotary->theta != own.rotary->theta) texts["rope_theta"] = format_real(function.rotary->theta);
    if (function.rotary->scaling != own.rotary->scaling) {
      texts["rope_scaling"] = scaling_text(function.rotary->scaling);
    }
  }
  const auto flag = [&](const char* key, const std::optional<bool>& value, const std::optional<bool>& usual) {
    if (value && value != usual) texts[key] = *value ? "true" : "false";
  };
  flag("tied", function.is_tied, own.is_tied);
  flag("bias", function.has_bias, own.has_bias);
  if (function.positions && function.positions != own.positions) {
    texts["positions"] = std::to_string(*function.positions);
  }
  return texts;
}

ModelFunction read_function(const nn::Metadata& metadata, const ModelFunction& own, const std::string& path) {
  ModelFunction function = own;
  const auto text_of = [&](const char* key) {
    const auto found = metadata.find(key);
    return found == metadata.end() ? nullptr : &found->second;
  };
  const auto refuse = [&](const char* key, const char* expected) {
    throw ValueError(path + ": " + key + ": expected " + expected + ", got " + quote(*text_of(key)));
  };
  const auto positive = [&](const char* key) {
    const auto value = number<double>(*text_of(key));
    if (!value || !std::isfinite(*value) || *value <= 0) refuse(key, "a number above 0");
    return *value;
  };
  const auto flag = [&](const char* key, std::optional<bool>& value) {
    if (text_of(key) == nullptr) return;
    if (*text_of(key) != "true" && *text_of(key) != "false") refuse(key, "true or false");
    value = *text_of(key) == "true";
  };
  if (text_of("epsilon") != nullptr) function.epsilon = positive("epsilon");
  if (const auto* const text = text_of("activation")) {
    if (*text != "gelu" && *text != "gelu_new") refuse("activation", "gelu or gelu_new");
    function.gelu = *text == "gelu" ? GeluForm::erf : GeluForm::tanh;
  }
  if (text_of("rope_theta") != nullptr || text_of("rope_scaling") != nullptr) {
    RotaryPositions rotary = own.rotary.value_or(RotaryPositions{});
    if (text_of("rope_theta") != nullptr) rotary.theta = positive("rope_theta");
    if (const auto* const text = text_of("rope_scaling")) {
      rotary.scaling = parse_scaling(*text);
      if (!rotary.scaling && *text != "default") refuse("rope_scaling", "default, or a kind and its six numbers");
    }
    function.rotary = rotary;
  }
  flag("tied", function.is_tied);
  flag("bias", function.has_bias);
  if (text_of("positions") != nullptr) {
    function.positions = number<std::int64_t>(*text_of("positions"));
    if (!function.positions || *function.positions < 1) refuse("positions", "an integer from 1 on");
  }
  return function;
}

}  // namespace thimble::models
