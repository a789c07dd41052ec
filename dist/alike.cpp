#include <thimble/dist/alike.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include <thimble/core/error.h>
#include <thimble/core/files/crc32c.h>
#include <thimble/core/kernels/cpu/base/units.h>
#include <thimble/version.h>

namespace thimble::dist {
namespace {

constexpr std::size_t most_named = 4, longest_value = 120;

/// Ranks compare this first.
struct Digest {
  std::uint64_t bytes;
  std::uint32_t crc, traits;
  bool operator==(const Digest&) const = default;
};

/// Each text and a zero byte.
std::string pack(std::span<const Trait> traits) {
  std::string packed;
  for (const Trait& t : traits) {
    for (const std::string* const text : {&t.name, &t.value, &t.fix}) (packed += text->c_str()) += '\0';
  }
  return packed;
}

std::vector<Trait> unpack(std::string_view packed) {
  std::vector<Trait> traits;
  const auto next = [&packed] {
    const std::size_t end = std::min(packed.find('\0'), packed.size());
    std::string text(packed.substr(0, end));
    packed.remove_prefix(std::min(end + 1, packed.size()));
    return text;
  };
  while (!packed.empty()) {
    Trait& t = traits.emplace_back();
    t.name = next(), t.value = next(), t.fix = next();
  }
  return traits;
}

std::string shown(const std::string& value) {
  if (value.empty()) return "none";
  return value.size() <= longest_value ? value : value.substr(0, longest_value) + "...";
}

const Trait* find(const std::vector<Trait>& traits, const std::string& name) {
  const auto found = std::find_if(traits.begin(), traits.end(), [&](const Trait& t) { return t.name == name; });
  return found == traits.end() ? nullptr : &*found;
}

/// The traits in which ranks differ, in words, and the fix for the first.
std::string differences(const std::vector<Trait>& ours, const std::vector<Trait>& theirs, int our_rank,
                        int their_rank) {
  std::vector<Trait> names = ours;  // the traits of both ranks
  for (const Trait& t : theirs) {
    if (find(ours, t.name) == nullptr) names.push_back(t);
  }
  std::string text, fix;
  std::size_t count = 0;
  for (const Trait& t : names) {
    const Trait *const a = find(ours, t.name), *const b = find(theirs, t.name);
    const std::string value_a = a != nullptr ? a->value : "", value_b = b != nullptr ? b->value : "";
    if (value_a == value_b || ++count > most_named) continue;
    text += (text.empty() ? "" : ", ") + t.name + " " + shown(value_a) + " and " + shown(value_b);
    if (fix.empty()) fix = t.fix.empty() ? "give all ranks the same" : t.fix;
  }
  if (count > most_named) text += ", and " + std::to_string(count - most_named) + " more";
  return "expected the same on all ranks, got on ranks " + std::to_string(our_rank) + " and " +
         std::to_string(their_rank) + " " + text + "; " + fix;
}

}  // namespace

std::vector<Trait> process_traits() {
#if defined(__clang__)
  const std::string compiler = "clang " __clang_version__;
#else
  const std::string compiler = "gcc " __VERSION__;
#endif
  return {{"version", THIMBLE_VERSION ", " + compiler, "start the same build on all ranks"},
          {"`isa`", std::string(to_string(kernels::isa())), "give all ranks the same, as with `isa` generic"},
          {"`cpu_dot`", kernels::describe_bf16(), "give all ranks the same, as with `cpu_dot` none"}};
}

void require_alike(Communicator& ranks, std::string_view operation, std::span<const Trait> traits) {
  if (ranks.is_dry() || ranks.size() == 1) return;
  const Communicator::Volume before = ranks.volume_;
  const std::string own = pack(traits);
  const Digest digest{own.size(), crc32c(own), static_cast<std::uint32_t>(traits.size())};
  std::vector<Digest> digests(static_cast<std::size_t>(ranks.size()));
  ranks.all_gather(&digest, sizeof(digest), digests.data());
  const auto other = std::find_if(digests.begin(), digests.end(), [&](const Digest& d) { return d != digests[0]; });
  if (other == digests.end()) {
    ranks.volume_ = before;
    return;
  }
  std::size_t most = 0;
  for (const Digest& d : digests) most = std::max<std::size_t>(most, d.bytes);
  std::string mine = own, all(most * digests.size(), '\0');
  mine.resize(most);
  ranks.all_gather(mine.data(), most, all.data());
  ranks.volume_ = before;
  const auto traits_of = [&](std::size_t rank) {
    return unpack(std::string_view(all).substr(rank * most, static_cast<std::size_t>(digests[rank].bytes)));
  };
  const auto r = static_cast<std::size_t>(other - digests.begin());
  throw ValueError(std::string(operation) + ": " +
                   differences(traits_of(0), traits_of(r), ranks.members_[0], ranks.members_[r]));
}

}  // namespace thimble::dist
