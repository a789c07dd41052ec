#include "emulated/block.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <set>
#include <stdexcept>

namespace thimble::emulated {
namespace {

Settings from_environment() {
  Settings all;
  const char* const text = std::getenv("THIMBLE_EMULATED_ORDER");
  const std::string order = text == nullptr ? "descending" : text;
  if (order == "ascending") {
    all.order = Order::ascending;
  } else if (order != "descending") {
    all.order = Order::random;
    all.seed = std::strtoull(order.c_str(), nullptr, 10);
  }
  return all;
}

std::string name_of(const char* type) {
  int status = 0;
  char* const text = abi::__cxa_demangle(type, nullptr, nullptr, &status);
  std::string name = text != nullptr ? text : type;
  std::free(text);
  for (const char* const prefix : {"thimble::cuda_kernels::", "thimble::kernels::", "thimble::"}) {
    for (std::size_t at; (at = name.find(prefix)) != std::string::npos;) name.erase(at, std::strlen(prefix));
  }
  return name;
}

std::string text_of(const std::source_location& where) {
  const CallSite site = call_site(where);
  return site.file + ":" + std::to_string(site.line);
}

constexpr std::byte guard{0xA5}, nothing{0xFF};

}  // namespace

Settings& settings() {
  static Settings all = from_environment();
  return all;
}

CallSite call_site(const std::source_location& where) {
  const std::string path = where.file_name();
  const std::size_t at = path.rfind("/cuda/");
  return {at == std::string::npos ? path : path.substr(at + 1), where.line(), where.column()};
}

void run(const Launch& launch) { Block::current().run(launch); }

Block& Block::current() {
  static thread_local Block block;
  return block;
}

void Block::run(const Launch& launch) {
  launch_ = &launch;
  settings_ = &settings();
  random_ = settings_->seed;
  shared_bytes_ = static_cast<std::uint32_t>(launch.shared_bytes);
  slots_begin_ = (shared_bytes_ + static_cast<std::uint32_t>(guard_bytes) + 15) / 16 * 16;
  const std::size_t all_bytes = slots_begin_ + slots_bytes + guard_bytes;
  memory_.reset(new std::byte[all_bytes]);
  if (words_.size() < all_bytes) words_.resize(all_bytes);
  const auto n = static_cast<std::size_t>(launch.threads);
  if (threads_.size() < n) threads_.resize(n);
  gatherings_.resize(n / 32);
  accesses_.resize(n / 32);
  found_.clear();
  // A grid of a few blocks, each of which runs several teams.
  const std::int64_t blocks = std::min<std::int64_t>(launch.teams, 4);
  in_order(blocks, [&](std::int64_t block) { run_block(block, blocks); });
  memory_.reset();
  launch_ = nullptr;
  if (found_.empty()) return;
  if (settings_->findings == nullptr) throw std::logic_error(found_.front());
  settings_->findings->insert(settings_->findings->end(), found_.begin(), found_.end());
}

void Block::run_block(std::int64_t first, std::int64_t step) {
  const int n = launch_->threads;
  first_ = first, step_ = step;
  word_shift_ = 2;
  std::memset(memory_.get(), static_cast<int>(nothing), slots_begin_ + slots_bytes);
  for (const std::uint32_t at : {shared_bytes_, slots_begin_ + static_cast<std::uint32_t>(slots_bytes)}) {
    std::memset(memory_.get() + at, static_cast<int>(guard), guard_bytes);
  }
  for (int rank = 0; rank < n; ++rank) {
    Thread& thread = threads_[static_cast<std::size_t>(rank)];
    thread.state = State::fresh;
    thread.gatherings = 0;
  }
  for (auto& both : gatherings_) both[0].arrived = both[1].arrived = 0, both[0].kind = both[1].kind = nullptr;
  order_.resize(static_cast<std::size_t>(n));
  std::iota(order_.begin(), order_.end(), 0);
  if (settings_->order == Order::descending) std::reverse(order_.begin(), order_.end());
  done_ = waiting_ = 0;
  has_barrier_ = is_lost_ = false;
  begin_interval();
  while (done_ < n) {
    bool has_run = false;
    for (const int rank : order_) {
      Thread& thread = threads_[static_cast<std::size_t>(rank)];
      if (thread.state != State::fresh && thread.state != State::runs) continue;
      has_run = true;
      set_rank(rank);
      if (thread.state == State::fresh) {
        if (idle_.empty()) idle_.push_back(std::make_unique<Fiber>());
        thread.fiber = std::move(idle_.back());
        idle_.pop_back();
        thread.fiber->start(run_thread, this);
        thread.state = State::runs;
      }
      thread.fiber->resume();
      if (is_lost_) break;
      if (thread.state != State::done) continue;
      idle_.push_back(std::move(thread.fiber));
      ++done_;
    }
    if (is_lost_) break;
    if (waiting_ > 0 && waiting_ + done_ == n) {
      end_interval();
    } else if (!has_run) {
      report("lanes of a warp wait in an instruction that the others do not come to");
      is_lost_ = true;
      break;
    }
  }
  if (is_lost_) {  // frees the stacks' contents
    for (Thread& thread : threads_) thread.fiber.reset(), thread.loads.clear();
    std::fill(words_.begin(), words_.end(), Word{});
  }
  if (settings_->banks != nullptr) count_banks();
  check_guards();
}

void Block::run_thread(void* block) {
  Block& own = *static_cast<Block*>(block);
  own.launch_->run(own.launch_->argument, own.rank_, own.first_, own.step_);
  Thread& thread = own.threads_[static_cast<std::size_t>(own.rank_)];
  if (!thread.loads.empty()) {
    own.report("thread " + std::to_string(own.rank_) + " ends before its asynchronous loads");
    own.wait({});
  }
  own.leave(State::done);
}

void Block::set_rank(int rank) {
  rank_ = rank;
  stamp_ = interval_ | static_cast<std::uint32_t>(rank);
}

void Block::begin_interval() {
  interval_ += 1u << rank_bits;
  if (interval_ >= under_way - (1u << rank_bits)) {
    for (Word& word : words_) word = {word.writer >= under_way ? word.writer : 0, 0, 0};
    interval_ = 1u << rank_bits;
  }
  if (settings_->order != Order::random) return;
  for (std::size_t i = order_.size(); i > 1; --i) {
    random_ = random_ * 6364136223846793005u + 1442695040888963407u;
    std::swap(order_[i - 1], order_[(random_ >> 33) % i]);
  }
}

void Block::end_interval() {
  const int n = launch_->threads;
  int one = -1;  // the first waiting thread
  for (int rank = 0; rank < n; ++rank) {
    Thread& thread = threads_[static_cast<std::size_t>(rank)];
    if (thread.state != State::waits) continue;
    if (one < 0) one = rank;
    const std::source_location &here = thread.barrier, &there = threads_[static_cast<std::size_t>(one)].barrier;
    if (here.line() != there.line() || here.column() != there.column() ||
        (here.file_name() != there.file_name() && std::strcmp(here.file_name(), there.file_name()) != 0)) {
      report("thread " + std::to_string(one) + " waits at " + text_of(there) + ", thread " + std::to_string(rank) +
             " at " + text_of(here));
    }
    thread.state = State::runs;
  }
  interval_begin_ = threads_[static_cast<std::size_t>(one)].barrier;
  has_barrier_ = true;
  if (done_ > 0) report("a thread has ended, and others wait at " + text_of(interval_begin_));
  waiting_ = 0;
  if (settings_->banks != nullptr) count_banks();
  begin_interval();
}

void Block::leave(State state) {
  Thread& thread = threads_[static_cast<std::size_t>(rank_)];
  thread.state = state;
  thread.fiber->leave();
}

bool Block::is_disabled(const std::source_location& where) const {
  if (settings_->sites != nullptr) ++(*settings_->sites)[call_site(where)];
  const CallSite* const disabled = settings_->disabled;
  return disabled != nullptr && disabled->line == where.line() && *disabled == call_site(where);
}

void Block::sync(const std::source_location& where) {
  if (is_disabled(where)) return;
  threads_[static_cast<std::size_t>(rank_)].barrier = where;
  ++waiting_;
  leave(State::waits);
}

void Block::remember_bytes() {
  if (word_shift_ == 0) return;
  word_shift_ = 0;
  std::fill(words_.begin(), words_.end(), Word{});
}

template <bool writes>
std::byte* Block::reach(std::uint32_t at, std::uint32_t bytes) {
  // Most reads are of one word that no other thread has written.
  if (!writes && bytes == 4 && word_shift_ == 2 && at % 4 == 0 && at < shared_bytes_ && shared_bytes_ - at >= 4) {
    Word& word = words_[at / 4];
    if ((word.writer < interval_ || word.writer == stamp_) && settings_->banks == nullptr) [[likely]] {
      (word.reader < interval_ || word.reader == stamp_ ? word.reader : word.other_reader) = stamp_;
      return memory_.get() + at;
    }
  }
  const auto is_in = [&](std::uint32_t begin, std::uint32_t size) {
    return at >= begin && at - begin < size && size - (at - begin) >= bytes;
  };
  const std::uint32_t aligned = std::min(bytes & (0 - bytes), 16u);
  if ((!is_in(0, shared_bytes_) && !is_in(slots_begin_, slots_bytes)) || at % aligned != 0) [[unlikely]] {
    return refuse(at, bytes, writes);
  }
  const std::uint32_t end = (at + bytes - 1) >> word_shift_;
  for (std::uint32_t w = at >> word_shift_; w <= end; ++w) {
    Word& word = words_[w];
    if (word.writer >= interval_ && word.writer != stamp_) [[unlikely]]
      race(w, writes, word.writer, true);
    if constexpr (writes) {
      if (word.reader >= interval_ && word.reader != stamp_) [[unlikely]]
        race(w, true, word.reader, false);
      if (word.reader == stamp_ && word.other_reader >= interval_) [[unlikely]]
        race(w, true, word.other_reader, false);
      word.writer = stamp_;
    } else if (word.reader < interval_) {
      word.reader = stamp_;
    } else if (word.reader != stamp_) {
      word.other_reader = stamp_;
    }
  }
  if (settings_->banks != nullptr) [[unlikely]]
    note(reinterpret_cast<std::uintptr_t>(__builtin_return_address(0)), at, bytes);
  return memory_.get() + at;
}
template std::byte* Block::reach<false>(std::uint32_t at, std::uint32_t bytes);
template std::byte* Block::reach<true>(std::uint32_t at, std::uint32_t bytes);

std::byte* Block::refuse(std::uint32_t at, std::uint32_t bytes, bool writes) {
  static thread_local std::byte none[64];
  report("thread " + std::to_string(rank_) + (writes ? " writes " : " reads ") + std::to_string(bytes) + " bytes at " +
         std::to_string(at) + " of " + std::to_string(shared_bytes_) + " of shared memory: behind it, or not aligned");
  std::memset(none, static_cast<int>(nothing), sizeof none);
  return none;
}

void Block::race(std::uint32_t word, bool writes, std::uint32_t other, bool other_wrote) {
  const std::uint32_t at = word << word_shift_;
  const std::string thread = std::to_string(other & ((1u << rank_bits) - 1));
  std::string text = "thread " + std::to_string(rank_) + (writes ? " writes byte " : " reads byte ");
  text += at < slots_begin_ ? std::to_string(at) + " of shared memory"
                            : std::to_string(at - slots_begin_) + " of the slots";
  if (other_wrote && other >= under_way) {
    text += ", which an asynchronous load of thread " + thread + " is to fill";
  } else {
    text += ", which thread " + thread + (other_wrote ? " wrote since " : " read since ");
    text += has_barrier_ ? "the barrier at " + text_of(interval_begin_) : "the block began";
  }
  report("race: " + text);
}

void Block::report(const std::string& what) {
  if (found_.size() < 4) found_.push_back(name_of(launch_->kernel) + ": " + what);
}

void Block::load(std::uint32_t to, const void* from, std::uint32_t bytes) {
  std::byte* const place = reach<true>(to, bytes);
  std::memset(place, static_cast<int>(nothing), bytes);
  for (std::uint32_t at = to; at < to + bytes; at += 1u << word_shift_) {
    words_[at >> word_shift_].writer = under_way | static_cast<std::uint32_t>(rank_);
  }
  threads_[static_cast<std::size_t>(rank_)].loads.push_back({to, from, bytes});
}

void Block::wait(const std::source_location& where) {
  if (is_disabled(where)) return;
  std::vector<AsyncLoad>& loads = threads_[static_cast<std::size_t>(rank_)].loads;
  for (const AsyncLoad& load : loads) {
    if (load.from != nullptr) {
      std::memcpy(memory_.get() + load.to, load.from, load.bytes);
    } else {
      std::memset(memory_.get() + load.to, 0, load.bytes);
    }
    for (std::uint32_t at = load.to; at < load.to + load.bytes; at += 1u << word_shift_) {
      words_[at >> word_shift_].writer = stamp_;
    }
  }
  loads.clear();
}

Block::Gathering& Block::gathering(const void* kind) {
  Thread& thread = threads_[static_cast<std::size_t>(rank_)];
  Gathering& all = gatherings_[static_cast<std::size_t>(rank_ / 32)][thread.gatherings++ % 2];
  if (all.kind != nullptr && all.kind != kind) {
    report("lanes of a warp come to different instructions, thread " + std::to_string(rank_) + " not to the others'");
    is_lost_ = true;
    leave(State::gathers);
  }
  all.kind = kind;
  return all;
}

void Block::release(Gathering& all) {
  all.arrived = 0;
  all.kind = nullptr;
  const int first = rank_ / 32 * 32;
  for (int rank = first; rank < first + 32; ++rank) {
    if (rank != rank_) threads_[static_cast<std::size_t>(rank)].state = State::runs;
  }
}

void Block::check_guards() {
  for (const std::uint32_t at : {shared_bytes_, slots_begin_ + static_cast<std::uint32_t>(slots_bytes)}) {
    for (std::uint32_t i = 0; i < guard_bytes; ++i) {
      if (memory_[at + i] == guard) continue;
      report("the " + std::to_string(i) + "th byte behind " + (at == shared_bytes_ ? "shared memory" : "the slots") +
             " was written");
      break;
    }
  }
}

void Block::note(std::uintptr_t code, std::uint32_t at, std::uint32_t bytes) {
  std::vector<Access>& own = accesses_[static_cast<std::size_t>(rank_ / 32)];
  const std::uint32_t part = bytes > 16 ? 8 : bytes;  // members of a structure
  for (std::uint32_t i = 0; i < bytes; i += part) {
    own.push_back({code + i, static_cast<std::uint32_t>(rank_ % 32), at + i, part});
  }
}

// The nth visits of all lanes to one place in the code are one access of the warp.
void Block::count_banks() {
  BankCount& count = (*settings_->banks)[name_of(launch_->kernel)];
  for (std::vector<Access>& own : accesses_) {
    std::vector<std::size_t> times(own.size());
    std::map<std::pair<std::uintptr_t, std::uint32_t>, std::size_t> seen;
    std::map<std::pair<std::uintptr_t, std::size_t>, std::vector<Access>> groups;
    for (const Access& access : own) {
      const std::size_t time = seen[{access.code, access.lane}]++;
      groups[{access.code, time}].push_back(access);
    }
    for (const auto& [key, group] : groups) {
      // 16 lanes access 8 bytes at once, 8 lanes 16 bytes.
      const std::uint32_t lanes = 128 / std::max(group.front().bytes, 4u);
      ++count.accesses;
      for (std::uint32_t begin = 0; begin < 32; begin += lanes) {
        std::array<std::set<std::uint32_t>, 32> words;
        std::size_t passes = 0;
        for (const Access& access : group) {
          if (access.lane < begin || access.lane >= begin + lanes) continue;
          for (std::uint32_t byte = 0; byte < access.bytes; byte += 4) {
            const std::uint32_t word = (access.at + byte) / 4;
            words[word % 32].insert(word);
            passes = std::max(passes, words[word % 32].size());
          }
        }
        count.passes += passes;
        count.fewest += passes > 0 ? 1 : 0;
      }
    }
    own.clear();
  }
}

}  // namespace thimble::emulated
