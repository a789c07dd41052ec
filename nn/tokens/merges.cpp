#include <thimble/nn/tokens/merges.h>

#include <algorithm>

namespace thimble::data {

bool MergeTable::add(std::uint32_t left, std::uint32_t right, std::uint32_t result) {
  const auto rank = static_cast<std::uint32_t>(merges_.size());
  return merges_.try_emplace(std::uint64_t{left} << 32 | right, Merge{rank, result}).second;
}

const MergeTable::Merge* MergeTable::find(std::uint32_t left, std::uint32_t right) const {
  const auto found = merges_.find(std::uint64_t{left} << 32 | right);
  return found == merges_.end() ? nullptr : &found->second;
}

void MergeTable::apply(std::vector<std::uint32_t>& tokens, Room& room) const {
  constexpr std::uint32_t gone = 0xFFFFFFFF;
  const auto size = static_cast<std::uint32_t>(tokens.size());
  if (size < 2) return;
  // A list over `tokens`: a token that merged stands at the place of its first one.
  room.before.resize(size);
  room.after.resize(size);
  room.waiting.clear();
  const auto is_later = [](const Waiting& a, const Waiting& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
  };
  const auto merge_at = [&](std::uint32_t at) -> const Merge* {
    const std::uint32_t right = room.after[at];
    return right == size ? nullptr : find(tokens[at], tokens[right]);
  };
  for (std::uint32_t at = 0; at < size; ++at) {
    room.before[at] = at == 0 ? gone : at - 1;
    room.after[at] = at + 1;
    if (const Merge* merge = merge_at(at)) room.waiting.push_back({merge->rank, at, merge->result});
  }
  std::make_heap(room.waiting.begin(), room.waiting.end(), is_later);
  while (!room.waiting.empty()) {
    std::pop_heap(room.waiting.begin(), room.waiting.end(), is_later);
    const Waiting top = room.waiting.back();
    room.waiting.pop_back();
    if (tokens[top.at] == gone) continue;
    const Merge* const merge = merge_at(top.at);  // neighbours may be others by now
    if (merge == nullptr || merge->result != top.result) continue;
    const std::uint32_t right = room.after[top.at], next = room.after[right];
    tokens[top.at] = top.result;
    tokens[right] = gone;
    room.after[top.at] = next;
    if (next < size) room.before[next] = top.at;
    for (const std::uint32_t at : {room.before[top.at], top.at}) {
      if (at == gone) continue;
      const Merge* const waits = merge_at(at);
      if (waits == nullptr) continue;
      room.waiting.push_back({waits->rank, at, waits->result});
      std::push_heap(room.waiting.begin(), room.waiting.end(), is_later);
    }
  }
  std::erase(tokens, gone);
}

}  // namespace thimble::data
