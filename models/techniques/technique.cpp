#include <thimble/models/techniques/technique.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>

namespace thimble::models {
namespace {

bool excludes(const Setup& setup, const Technique& one, const Exclusion& exclusion) {
  if (exclusion.when != nullptr) return exclusion.when(setup);
  return one.is_on(setup) && technique(exclusion.other).is_on(setup);
}

void check_exclusions(const Setup& setup, const Technique& one) {
  for (const Exclusion& exclusion : one.excludes) {
    if (!excludes(setup, one, exclusion)) continue;
    const std::string value = one.flag.type().empty() ? "" : one.flag.field.value(setup) + " ";
    throw ValueError(one.name() + ": " + value + "not with " + technique(exclusion.other).said(setup) + ": " +
                     exclusion.why + "; expected one of the two");
  }
}

}  // namespace

std::span<const Technique> techniques() {
  static const std::vector<Technique> list = [] {
    std::vector<Technique> all;
    const auto add = [&](std::span<const Technique> family, std::string_view group, FlagSet commands) {
      for (Technique one : family) {
        if (one.flag.group.empty()) one.flag.group = group;
        if (!one.flag.commands) one.flag.commands = commands;
        all.push_back(std::move(one));
      }
    };
    const std::span<const Technique> gradients = of_gradients();
    add(gradients.first(1), "memory", FlagSet::step);  // levers begin with the fused optimizer
    add(of_layers(), "memory", FlagSet::step);
    add(gradients.subspan(1), "memory", FlagSet::step);
    add(of_precision(), "precision", FlagSet::step);
    add(of_adapters(), "lora", FlagSet::step);
    add(of_optimizers(), "training", FlagSet::step);
    add(of_tiers(), "memory", FlagSet::plans);
    add(of_ranks(), "ranks", FlagSet::ranks);
    return all;
  }();
  return list;
}

const Technique& technique(std::string_view option) {
  for (const Technique& one : techniques()) {
    if (one.flag.option == option) return one;
  }
  throw ValueError("technique: there is none with the option '" + std::string(option) + "'");
}

bool Technique::is_on(const Setup& setup) const {
  static const Setup plain;
  return flag.field.value(setup) != flag.field.value(plain);
}

std::string Technique::said(const std::string& text) const {
  if (!flag.type().empty()) return name() + " " + text;
  const std::size_t brace = flag.spelling.find('{');
  const bool is_usual = brace == std::string_view::npos || flag.spelling.substr(brace) == "{" + text + "}";
  return is_usual ? name() : name() + "=" + text;
}

std::optional<Saved> Technique::saved(const Setup& setup, const Model& model) const {
  if (identity.saved != nullptr) return identity.saved(setup, model);
  return Saved{flag.field.value(setup), flag.field.value(Setup())};
}

void require_needs(const Setup& setup, const Technique& one) {
  for (const Need& need : one.needs) {
    const bool is_met = need.is_met != nullptr ? need.is_met(setup) : technique(need.other).is_on(setup);
    if (!is_met) throw ValueError(one.name() + ": needs " + need.words);
  }
}

void check_techniques(const Setup& setup, bool is_text) {
  for (const Technique& one : techniques()) {
    if (one.check != nullptr) one.check(setup, is_text);
    if (one.is_on(setup)) require_needs(setup, one);
    check_exclusions(setup, one);
  }
}

void refuse_training(const Setup& setup, const std::string& option) {
  for (const Technique& one : techniques()) {
    if (!one.is_about_training || !one.is_on(setup)) continue;
    throw ValueError(option + ": not with " + one.said(setup) + ", which is about training steps");
  }
}

void refuse_uncaptured(const Setup& setup, const std::string& option) {
  for (const Technique& one : techniques()) {
    if (one.why_not_captured == nullptr || !one.is_on(setup)) continue;
    throw ValueError(option + ": not with " + one.said(setup) + ", " + one.why_not_captured);
  }
}

void refuse_value(std::string_view name, std::string_view expected, const std::string& text) {
  throw ValueError(std::string(name) + ": expected " + std::string(expected) + ", got " + quote(text));
}

std::int64_t parse_integer(std::string_view name, const std::string& text, std::int64_t low, std::int64_t high,
                           std::string_view or_else) {
  std::int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || stop != end || value < low || value > high) {
    refuse_value(name,
                 "a whole number from " + std::to_string(low) + " to " + std::to_string(high) + std::string(or_else),
                 text);
  }
  return value;
}

double parse_number(std::string_view name, const std::string& text, double low, double high, std::string_view or_else) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || stop != end || !std::isfinite(value) || value < low || value > high) {
    const bool is_bounded = high < std::numeric_limits<double>::max();
    const std::string bounds =
        is_bounded ? "from " + format_real(low) + " to " + format_real(high) : ">= " + format_real(low);
    refuse_value(name, "a finite number " + bounds + std::string(or_else), text);
  }
  return value;
}

std::size_t parse_bytes(std::string_view name, const std::string& text) {
  try {
    return static_cast<std::size_t>(parse_size(text));
  } catch (const ValueError& error) {
    throw ValueError(std::string(name) + ": " + error.what());
  }
}

bool parse_choice(std::string_view name, const std::string& text, std::string_view yes, std::string_view no) {
  if (text != yes && text != no) refuse_value(name, std::string(yes) + " or " + std::string(no), text);
  return text == yes;
}

DType parse_dtype_of(std::string_view name, const std::string& text, const std::string& names) {
  const std::string list = ", " + names + ",";
  if (!text.empty() && list.find(", " + text + ",") != std::string::npos) return parse_dtype(text);
  refuse_value(name, "one of " + names, text);
}

namespace fields {

std::string in_words(const std::vector<std::string>& texts) {
  std::string joined;
  for (const std::string& text : texts) joined += (joined.empty() ? "" : ",") + text;
  return joined;
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> texts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    texts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return texts;
}

}  // namespace fields
}  // namespace thimble::models
