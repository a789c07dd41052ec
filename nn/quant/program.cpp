#include <thimble/nn/quant/program.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/memory/units.h>

namespace thimble::nn::quant {
namespace {

constexpr std::array<std::string_view, 8> kinds = {"conv",   "linear", "max_pool", "average",
                                                   "concat", "add",    "relu",     "flatten"};
constexpr std::int64_t most = 1 << 15;  // largest kernel, stride, padding or dilation

[[noreturn]] void refuse_program(std::string_view line, const std::string& why) {
  throw ValueError("quantized program: line " + quote(line) + ": " + why);
}

std::string pair_text(char key, const std::array<std::int64_t, 2>& pair, std::int64_t usual) {
  if (pair[0] == usual && pair[1] == usual) return {};
  return std::string(" ") + key + std::to_string(pair[0]) + "x" + std::to_string(pair[1]);
}

std::string line_of(const Step& step) {
  std::string line = std::string(kinds[static_cast<std::size_t>(step.kind)]) + " " + step.name + " ";
  for (std::size_t i = 0; i < step.inputs.size(); ++i) line += (i > 0 ? "," : "") + std::to_string(step.inputs[i]);
  const StepWindow& w = step.window;
  line += pair_text('k', w.kernel, 1) + pair_text('s', w.stride, 1) + pair_text('p', w.padding, 0) +
          pair_text('d', w.dilation, 1);
  if (w.rounds_up) line += " up";
  if (step.residual >= 0) line += " +" + std::to_string(step.residual);
  if (step.has_relu) line += " relu";
  return line;
}

std::int64_t number(std::string_view text, std::string_view line, std::int64_t low, std::int64_t high) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < low || value > high) {
    refuse_program(line,
                   quote(text) + " is not a whole number from " + std::to_string(low) + " to " + std::to_string(high));
  }
  return value;
}

std::array<std::int64_t, 2> parse_pair(std::string_view text, std::string_view line, std::int64_t low) {
  const auto parts = split(text, 'x');
  if (parts.size() != 2) refuse_program(line, quote(text) + " is not HxW");
  return {number(parts[0], line, low, most), number(parts[1], line, low, most)};
}

void parse_field(std::string_view field, std::string_view line, int value, Step& step) {
  if (field == "relu") {
    step.has_relu = true;
  } else if (field == "up") {
    step.window.rounds_up = true;
  } else if (field.starts_with('k')) {
    step.window.kernel = parse_pair(field.substr(1), line, 1);
  } else if (field.starts_with('s')) {
    step.window.stride = parse_pair(field.substr(1), line, 1);
  } else if (field.starts_with('p')) {
    step.window.padding = parse_pair(field.substr(1), line, 0);
  } else if (field.starts_with('d')) {
    step.window.dilation = parse_pair(field.substr(1), line, 1);
  } else if (field.starts_with('+')) {
    step.residual = static_cast<int>(number(field.substr(1), line, 0, value));
  } else {
    refuse_program(line, quote(field) + " is not one of kHxW, sHxW, pHxW, dHxW, up, +VALUE, relu");
  }
}

void check(const Step& step, std::string_view line) {
  const std::size_t count = step.inputs.size();
  const bool is_good = step.kind == StepKind::add      ? count == 2
                       : step.kind == StepKind::concat ? count >= 1
                                                       : count == 1;
  if (!is_good) refuse_program(line, std::to_string(count) + " inputs do not fit the step");
  if (step.residual >= 0 && step.kind != StepKind::conv) refuse_program(line, "only a convolution adds a value");
  if (step.has_relu && !step.has_weight() && step.kind != StepKind::add) refuse_program(line, "this step has no relu");
  const bool has_window = step.kind == StepKind::conv || step.kind == StepKind::max_pool;
  if (!has_window && !(step.window == StepWindow{})) refuse_program(line, "this step has no window");
  if (step.window.rounds_up && step.kind != StepKind::max_pool) refuse_program(line, "only a pool rounds up");
}

/// The result of step `index` is value index + 1.
Step parse_line(std::string_view line, int index) {
  const auto fields = split(line, ' ');
  if (fields.size() < 3) refuse_program(line, "KIND NAME INPUTS are needed");
  Step step;
  std::size_t kind = 0;
  while (kind < kinds.size() && kinds[kind] != fields[0]) ++kind;
  if (kind == kinds.size()) refuse_program(line, quote(fields[0]) + " is not a kind of step");
  step.kind = static_cast<StepKind>(kind);
  step.name = std::string(fields[1]);
  if (step.name.empty()) refuse_program(line, "the name is empty");
  for (const std::string_view input : split(fields[2], ',')) {
    step.inputs.push_back(static_cast<int>(number(input, line, 0, index)));
  }
  for (std::size_t i = 3; i < fields.size(); ++i) parse_field(fields[i], line, index, step);
  check(step, line);
  return step;
}

}  // namespace

std::vector<int> Program::last_uses() const {
  std::vector<int> last(static_cast<std::size_t>(values()), -1);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    for (const int v : steps[i].inputs) last[static_cast<std::size_t>(v)] = static_cast<int>(i);
    if (steps[i].residual >= 0) last[static_cast<std::size_t>(steps[i].residual)] = static_cast<int>(i);
  }
  last.back() = static_cast<int>(steps.size());
  return last;
}

std::vector<int> Program::scale_groups() const {
  std::vector<int> group(static_cast<std::size_t>(values()));
  std::iota(group.begin(), group.end(), 0);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const StepKind kind = steps[i].kind;
    if (kind != StepKind::max_pool && kind != StepKind::concat && kind != StepKind::relu && kind != StepKind::flatten) {
      continue;
    }
    for (const int input : steps[i].inputs) {
      const int a = group[i + 1], b = group[static_cast<std::size_t>(input)];
      for (int& g : group) {
        if (g == a || g == b) g = std::min(a, b);
      }
    }
  }
  return group;
}

std::string to_text(const Program& program) {
  std::string text;
  for (const Step& step : program.steps) text += line_of(step) + "\n";
  return text;
}

Program parse_program(std::string_view text) {
  Program program;
  if (text.ends_with('\n')) text.remove_suffix(1);
  if (text.empty()) throw ValueError("quantized program: it has no steps");
  for (const std::string_view line : split(text, '\n')) {
    program.steps.push_back(parse_line(line, static_cast<int>(program.steps.size())));
  }
  return program;
}

namespace {

/// The scale of a finite range with low <= high.
float scale_of(double low, double high, Activations activations) noexcept {
  low = std::min(low, 0.0);
  high = std::max(high, 0.0);
  return static_cast<float>(activations == Activations::symmetric ? std::max(-low, high) / 127 : (high - low) / 255);
}
bool is_wide_enough(float scale) noexcept { return scale >= std::numeric_limits<float>::min(); }

}  // namespace

bool has_code_scale(double low, double high, Activations activations) noexcept {
  if (!std::isfinite(low) || !std::isfinite(high) || low > high) return false;
  const float scale = scale_of(low, high, activations);
  return is_wide_enough(scale) && std::isfinite(scale);
}

CodeScale code_scale(double low, double high, Activations activations, std::string_view what) {
  const auto refuse = [&](const char* why) {
    throw ValueError("quantize: the range of " + std::string(what) + " is " + format_short(low) + " to " +
                     format_short(high) + ": " + why);
  };
  if (!std::isfinite(low) || !std::isfinite(high)) refuse("it must be finite");
  if (low > high) refuse("its ends are the wrong way round");
  CodeScale s;
  s.scale = scale_of(low, high, activations);
  if (low == 0 && high == 0) refuse("it is empty, so there is no scale; all numbers are 0");
  if (!is_wide_enough(s.scale)) refuse("it is too narrow: its scale would be less than 2^-126");
  if (!std::isfinite(s.scale)) refuse("it is too wide");
  if (activations == Activations::symmetric) return {s.scale, 128, 1, 255};
  const double zero = std::nearbyint(-std::min(low, 0.0) / static_cast<double>(s.scale));
  s.zero = static_cast<int>(std::clamp(zero, 0.0, 255.0));
  return s;
}

std::string_view to_string(Activations activations) noexcept {
  return activations == Activations::asymmetric ? "asymmetric" : "symmetric";
}
std::string_view to_string(WeightScales weights) noexcept {
  return weights == WeightScales::per_channel ? "per_channel" : "per_tensor";
}

}  // namespace thimble::nn::quant
