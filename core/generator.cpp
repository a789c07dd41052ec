#include <thimble/core/generator.h>

#include <algorithm>
#include <string_view>

#include <thimble/core/context.h>

namespace thimble {
namespace generator_detail {

std::uint32_t hash_site(std::string_view path, std::uint32_t ordinal) {
  std::uint32_t hash = 2166136261u;  // FNV-1a
  for (const char c : path) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  for (int i = 0; i < 4; ++i) hash = (hash ^ ((ordinal >> (8 * i)) & 0xffu)) * 16777619u;
  return hash;
}

}  // namespace generator_detail

void Generator::start_pass(std::int64_t first_sample) {
  first_sample_ = first_sample;
  std::fill(calls_.begin(), calls_.end(), 0u);
}

void Generator::set_step(std::uint64_t step) {
  step_ = step;
  start_pass(0);
}

RandomSite Generator::next_site(PathId path) {
  if (path >= calls_.size()) calls_.resize(path + 1, 0u);
  return {seed_, step_, first_sample_, generator_detail::hash_site(path_name(path), calls_[path]++)};
}

}  // namespace thimble
