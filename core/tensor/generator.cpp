#include <thimble/core/tensor/generator.h>

#include <algorithm>
#include <string_view>

#include <thimble/core/tensor/context.h>

namespace thimble {
namespace {

std::uint32_t hash_site(std::string_view path, std::uint32_t ordinal, bool is_outside) {
  std::uint32_t hash = 2166136261u;  // FNV-1a
  for (const char c : path) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  for (int i = 0; i < 4; ++i) hash = (hash ^ ((ordinal >> (8 * i)) & 0xffu)) * 16777619u;
  return is_outside ? (hash ^ 0xffu) * 16777619u : hash;
}

}  // namespace

void RandomGenerator::start_pass(std::int64_t first_sample) {
  first_sample_ = first_sample;
  is_in_pass_ = true;
  std::fill(in_pass_.begin(), in_pass_.end(), 0u);
}

void RandomGenerator::end_pass() noexcept {
  first_sample_ = 0;
  is_in_pass_ = false;
}

void RandomGenerator::set_step(std::uint64_t step) {
  step_ = step;
  end_pass();
  for (Calls* const calls : {&in_pass_, &outside_, &initial_}) std::fill(calls->begin(), calls->end(), 0u);
}

RandomSite RandomGenerator::site(PathId path, Calls& calls, bool is_outside) {
  if (path >= calls.size()) calls.resize(path + 1, 0u);
  return {seed_, step_, first_sample_, hash_site(path_name(path), calls[path]++, is_outside)};
}

RandomSite RandomGenerator::next_site(PathId path) {
  return is_in_pass_ ? site(path, in_pass_, false) : site(path, outside_, true);
}

RandomSite RandomGenerator::next_initial_site(PathId path) {
  return is_in_pass_ || step_ > 0 ? next_site(path) : site(path, initial_, false);
}

PassScope::~PassScope() {
  if (!was_in_pass_) generator_.end_pass();
}

}  // namespace thimble
