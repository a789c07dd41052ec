#include <thimble/nn/files/checkpoint_info.h>

#include <bit>
#include <charconv>
#include <cmath>
#include <limits>
#include <string_view>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>

namespace thimble::nn {
namespace {

constexpr std::string_view own = "thimble.";
constexpr const char* kind_key = "thimble.kind";
constexpr const char* kind = "checkpoint 1";  // the number grows when the contents change
constexpr const char* optimizer_key = "thimble.optimizer";
constexpr const char* step_count_key = "thimble.step_count";
constexpr const char* rate_key = "thimble.rate";
constexpr const char* seed_key = "thimble.generator.seed";
constexpr const char* generator_step_key = "thimble.generator.step";
constexpr const char* fp8_key = "thimble.fp8";             // absent in older files
constexpr const char* scale_key = "thimble.scaler.scale";  // all three of the scaler's keys, or none
constexpr const char* good_steps_key = "thimble.scaler.good_steps";
constexpr const char* skipped_steps_key = "thimble.scaler.skipped_steps";

// Reads the texts under our keys. Errors are the file's.
class Texts {
 public:
  Texts(const std::map<std::string, std::string>& texts, const std::string& path) : texts_(texts), path_(path) {}

  const std::string& at(const char* key) const {
    const auto found = texts_.find(key);
    if (found == texts_.end()) throw FileError(path_, 8, std::string("no checkpoint: its metadata lack ") + key);
    return found->second;
  }
  bool has(const char* key) const { return texts_.count(key) != 0; }
  // The number whose to_text() is this text: rejects other spellings.
  std::uint64_t number(const char* key, int base, std::size_t digits, std::uint64_t most) const {
    const std::string& text = at(key);
    std::uint64_t value = 0;
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value, base);
    if (error != std::errc() || stop != end || value > most || to_text(value, base, digits) != text) {
      fail(key, "is " + quote(text) + ", no " + (base == 16 ? "16 hexadecimal digits" : "decimal number") + " up to " +
                    std::to_string(most));
    }
    return value;
  }
  [[noreturn]] void fail(const char* key, const std::string& why) const {
    throw FileError(path_, 8, std::string("the metadata's ") + key + " " + why);
  }
  // At least `digits` digits.
  static std::string to_text(std::uint64_t value, int base, std::size_t digits) {
    char buffer[32];
    const auto result = std::to_chars(buffer, buffer + sizeof buffer, value, base);
    const std::string text(buffer, result.ptr);
    return text.size() < digits ? std::string(digits - text.size(), '0') + text : text;
  }

 private:
  const std::map<std::string, std::string>& texts_;
  const std::string& path_;
};

}  // namespace

bool is_checkpoint(const std::map<std::string, std::string>& metadata) { return metadata.contains(step_count_key); }

CheckpointInfo parse_checkpoint_info(const SafetensorsHeader& header, const std::string& path) {
  constexpr std::uint64_t all = std::numeric_limits<std::uint64_t>::max();
  const Texts texts(header.metadata, path);
  if (texts.at(kind_key) != kind) {
    texts.fail(kind_key, "is " + quote(texts.at(kind_key)) + "; readable: '" + kind + "'");
  }
  CheckpointInfo info;
  const auto updates = [&](const std::string& number) {
    const std::string optimizer = optimizer_key + number, count = step_count_key + number, rate = rate_key + number;
    CheckpointInfo::Updates of{texts.at(optimizer.c_str()),
                               static_cast<std::int64_t>(texts.number(count.c_str(), 10, 1, INT64_MAX)),
                               std::bit_cast<double>(texts.number(rate.c_str(), 16, 16, all))};
    if (!std::isfinite(of.rate) || of.rate < 0) texts.fail(rate.c_str(), "is no finite number >= 0");
    return of;
  };
  const CheckpointInfo::Updates first = updates("");
  info.optimizer = first.optimizer, info.step_count = first.step_count, info.rate = first.rate;
  for (int i = 1; texts.has((optimizer_key + ("." + std::to_string(i))).c_str()); ++i) {
    info.others.push_back(updates("." + std::to_string(i)));
  }
  info.seed = texts.number(seed_key, 10, 1, all);
  info.generator_step = texts.number(generator_step_key, 10, 1, all);
  if (texts.has(fp8_key)) {
    info.fp8 = texts.at(fp8_key);
    if (info.fp8.empty()) texts.fail(fp8_key, "is empty");
  }
  if (texts.has(scale_key) || texts.has(good_steps_key) || texts.has(skipped_steps_key)) {
    optim::GradScalerState scaler;
    scaler.scale = std::bit_cast<double>(texts.number(scale_key, 16, 16, all));
    if (!std::isfinite(scaler.scale) || scaler.scale <= 0) texts.fail(scale_key, "is no finite number > 0");
    scaler.good_steps = static_cast<std::int64_t>(texts.number(good_steps_key, 10, 1, INT64_MAX));
    scaler.skipped_steps = static_cast<std::int64_t>(texts.number(skipped_steps_key, 10, 1, INT64_MAX));
    info.scaler = scaler;
  }
  for (const auto& [key, value] : header.metadata) {
    if (!key.starts_with(own)) info.metadata.emplace(key, value);
  }
  for (const SafetensorsEntry& entry : header.tensors) {
    if (!entry.name.starts_with("model.") && !entry.name.starts_with("optimizer.")) {
      throw FileError(path, 8, "no checkpoint: tensor " + quote(entry.name) + " is neither model.* nor optimizer.*");
    }
  }
  return info;
}

std::map<std::string, std::string> format_checkpoint_info(const CheckpointInfo& info) {
  std::map<std::string, std::string> texts;
  for (const auto& [key, value] : info.metadata) {
    if (key.starts_with(own)) {
      throw ValueError("save_checkpoint: metadata key " + quote(key) + "; keys that begin with 'thimble.' are taken");
    }
    texts.emplace(key, value);
  }
  const auto number = [](std::uint64_t value) { return std::to_string(value); };
  texts[kind_key] = kind;
  const auto put = [&](const std::string& of, const CheckpointInfo::Updates& updates) {
    texts[optimizer_key + of] = updates.optimizer;
    texts[step_count_key + of] = number(static_cast<std::uint64_t>(updates.step_count));
    texts[rate_key + of] = Texts::to_text(std::bit_cast<std::uint64_t>(updates.rate), 16, 16);
  };
  put("", {info.optimizer, info.step_count, info.rate});
  for (std::size_t i = 0; i < info.others.size(); ++i) put("." + std::to_string(i + 1), info.others[i]);
  texts[seed_key] = number(info.seed);
  texts[generator_step_key] = number(info.generator_step);
  if (!info.fp8.empty()) texts[fp8_key] = info.fp8;
  if (info.scaler) {
    texts[scale_key] = Texts::to_text(std::bit_cast<std::uint64_t>(info.scaler->scale), 16, 16);
    texts[good_steps_key] = number(static_cast<std::uint64_t>(info.scaler->good_steps));
    texts[skipped_steps_key] = number(static_cast<std::uint64_t>(info.scaler->skipped_steps));
  }
  return texts;
}

}  // namespace thimble::nn
