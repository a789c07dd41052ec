#include <thimble/models/weights/config_positions.h>

#include <cmath>
#include <optional>
#include <string>
#include <string_view>

#include <thimble/memory/units.h>

namespace thimble::models {
namespace config_positions_detail {

using nn::JsonKeys;

constexpr double least_theta = 1, most_theta = 1e15, least_factor = 1e-6, most_factor = 1e6;
constexpr std::string_view kinds[] = {"default", "linear", "dynamic", "yarn", "llama3"};
constexpr std::string_view without_effect[] = {"finetuned"};

std::optional<double> theta_of(const JsonKeys& keys) {
  if (!keys.has("rope_theta")) return std::nullopt;
  return keys.number("rope_theta", least_theta, most_theta);
}

/// Which of `kinds`; older files name it `type`.
std::size_t kind_of(const JsonKeys& rope) {
  const std::size_t older = rope.choice("type", kinds, 0), kind = rope.choice("rope_type", kinds, older);
  if (rope.has("type") && kind != older)
    rope.refuse("type", "as rope_type has it, \"" + std::string(kinds[kind]) + "\"");
  return kind;
}

void require_whole(const JsonKeys& keys) {
  if (keys.number("partial_rotary_factor", 1, 0, 1) != 1) keys.refuse("partial_rotary_factor", "1");
}

/// sines and cosines of yarn are multiplied by it, where the file does not name the number itself.
double attention_factor(const JsonKeys& rope, double factor) {
  const auto scale = [](double by, double times) { return by <= 1 ? 1 : 0.1 * times * std::log(by) + 1; };
  const double most = 1e6;
  const double above = rope.number("mscale", 0, 0, most), below = rope.number("mscale_all_dim", 0, 0, most);
  const double own = above > 0 && below > 0 ? scale(factor, above) / scale(factor, below) : scale(factor, 1);
  return rope.number("attention_factor", own, least_factor, most);
}

std::optional<RotaryScaling> scaling_of(const JsonKeys& keys, const JsonKeys& rope, std::int64_t positions) {
  require_whole(rope);
  const std::string_view kind = kinds[kind_of(rope)];
  if (kind == "default") return std::nullopt;
  RotaryScaling scaling;
  scaling.original_length = positions;
  if (kind == "llama3" || kind == "yarn") {
    const char* const key = "original_max_position_embeddings";
    const auto beside = keys.size_if_there(key);
    scaling.original_length = rope.size(key, beside.value_or(positions));
    if (beside && *beside != scaling.original_length) {
      keys.refuse(key, "as the scaling has it, " + std::to_string(scaling.original_length));
    }
  }
  if (kind == "yarn" && rope.is_null("factor")) {
    scaling.factor = static_cast<double>(positions) / static_cast<double>(scaling.original_length);
  } else {
    scaling.factor = rope.number("factor", least_factor, most_factor);
  }
  if (kind == "linear") scaling.kind = RotaryKind::linear;
  if (kind == "dynamic") scaling.kind = RotaryKind::dynamic;
  if (kind == "llama3") {
    scaling.low = rope.number("low_freq_factor", least_factor, most_factor);
    scaling.high = rope.number("high_freq_factor", least_factor, most_factor);
    if (scaling.high <= scaling.low) rope.refuse("high_freq_factor", "a number above low_freq_factor");
  }
  if (kind == "yarn") {
    scaling.kind = RotaryKind::yarn;
    const auto turns = [&](const char* key, double otherwise) {
      const double value = rope.number(key, otherwise, 0, most_factor);
      return value == 0 ? otherwise : value;  // as transformers has it
    };
    scaling.low = turns("beta_slow", 1), scaling.high = turns("beta_fast", 32);
    if (scaling.high <= scaling.low) rope.refuse("beta_fast", "a number above beta_slow, " + format_real(scaling.low));
    scaling.attention_factor = attention_factor(rope, scaling.factor);
    scaling.rounds_pairs = rope.flag("truncate", true);
  }
  return scaling;
}

}  // namespace config_positions_detail

RotaryPositions read_positions(const nn::JsonKeys& keys, std::int64_t positions) {
  using namespace config_positions_detail;
  require_whole(keys);
  RotaryPositions rotary;
  std::optional<double> theta = theta_of(keys);
  const char* first = nullptr;
  for (const char* const key : {"rope_scaling", "rope_parameters"}) {
    if (!keys.has(key)) continue;
    const JsonKeys rope = keys.object(key);
    if (const auto own = theta_of(rope)) {
      if (theta && *theta != *own) rope.refuse("rope_theta", "as it is beside, " + format_real(*theta));
      theta = own;
    }
    const auto scaling = scaling_of(keys, rope, positions);
    rope.refuse_unknown(without_effect);
    if (first != nullptr && scaling != rotary.scaling) keys.refuse(key, "the same as " + std::string(first) + " has");
    rotary.scaling = scaling;
    first = key;
  }
  rotary.theta = theta.value_or(rotary.theta);
  if (rotary.scaling && rotary.scaling->kind == RotaryKind::yarn && rotary.theta == 1) {
    keys.refuse("rope_theta", "a number above 1 with yarn");
  }
  return rotary;
}

}  // namespace thimble::models
