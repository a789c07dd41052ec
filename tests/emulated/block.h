#pragma once
// Runs a block of a GPU's threads on one host thread: each has a separate stack and runs up to its next barrier, or to
// an instruction of its whole warp, before the next one does.
//
// Glossary
// - interval: the time between two barriers; within it the threads' order is free.
// - word: the granularity at which accesses are remembered, 4 bytes of shared memory; 1 byte where a kernel's elements
//   are smaller.
//
// Policy
// - Threads, blocks and items run in ascending, descending or random order, Settings::order. Where the order makes a
//   difference, a GPU guarantees none.
// - Two threads that access one word in one interval, one of them writing, are a race, whatever values they see. So are
//   accesses to the target of an asynchronous load before a wait for it.
// - Shared memory begins as NaN; 64 bytes after it, and after the slots of Team::sum, must not change.
// - Findings are thrown (std::logic_error) at the end of the launch, or collected in Settings::findings.

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include "emulated/fiber.h"

namespace thimble::emulated {

enum class Order { ascending, descending, random };

/// A call of sync() or AsyncLoads::wait() in a kernel's source.
struct CallSite {
  std::string file;  ///< below cuda/
  unsigned line = 0, column = 0;
  auto operator<=>(const CallSite&) const = default;
};
CallSite call_site(const std::source_location& where);

/// Conflicts in shared memory's banks: an access of a warp takes one pass for each of the different words in the same
/// of 32 banks, and at least one per 128 bytes.
struct BankCount {
  std::uint64_t accesses = 0, passes = 0, fewest = 0;
};

struct Settings {
  Order order = Order::descending;
  std::uint64_t seed = 1;
  const CallSite* disabled = nullptr;                  ///< this call does nothing
  std::map<CallSite, std::uint64_t>* sites = nullptr;  ///< counts calls
  std::map<std::string, BankCount>* banks = nullptr;   ///< by kernel
  std::vector<std::string>* findings = nullptr;        ///< collects instead of throwing
};
/// For all launches. The environment variable THIMBLE_EMULATED_ORDER is ascending, descending or a seed.
Settings& settings();

/// Restores the settings at its end.
struct SettingsScope {
  SettingsScope() : before(settings()) {}
  ~SettingsScope() { settings() = before; }
  SettingsScope(const SettingsScope&) = delete;
  SettingsScope& operator=(const SettingsScope&) = delete;
  Settings before;
};

/// visit(i) for each i below n, in the order of the settings.
template <class Visit>
void in_order(std::int64_t n, const Visit& visit) {
  const Settings& s = settings();
  if (s.order == Order::ascending) {
    for (std::int64_t i = 0; i < n; ++i) visit(i);
  } else if (s.order == Order::descending) {
    for (std::int64_t i = n; i-- > 0;) visit(i);
  } else {
    // A step without a common factor with n visits every i once.
    auto step = static_cast<std::int64_t>((s.seed * 0x9e3779b97f4a7c15u >> 20) % static_cast<std::uint64_t>(n)) | 1;
    const auto common = [](std::int64_t a, std::int64_t b) {
      while (b != 0) a = std::exchange(b, a % b);
      return a;
    };
    while (common(step, n) != 1) ++step;
    std::int64_t i = step / 2 % n;
    for (std::int64_t k = 0; k < n; ++k, i = (i + step) % n) visit(i);
  }
}

/// One launch of teams.
struct Launch {
  const char* kernel;  ///< its type's name, from the compiler
  int threads;
  std::int64_t teams;
  std::size_t shared_bytes;
  /// Runs thread `rank` of the block, beginning with team `first`.
  void (*run)(const void* launch, int rank, std::int64_t first, std::int64_t step);
  const void* argument;
};
void run(const Launch& launch);

class Block {
 public:
  /// The block of this host thread.
  static Block& current();
  void run(const Launch& launch);

  int rank() const { return rank_; }
  void sync(const std::source_location& where);
  /// For elements of less than 4 bytes: from now on words are single bytes.
  void remember_bytes();
  std::uint32_t slots_begin() const { return slots_begin_; }

  /// `bytes` of shared memory from `at` on, for this thread to read or write; a dummy address where it must not.
  [[gnu::always_inline]] const std::byte* read(std::uint32_t at, std::uint32_t bytes) {
    return reach<false>(at, bytes);
  }
  [[gnu::always_inline]] std::byte* write(std::uint32_t at, std::uint32_t bytes) { return reach<true>(at, bytes); }

  /// An asynchronous load; zeros if `from` is null.
  void load(std::uint32_t to, const void* from, std::uint32_t bytes);
  void wait(const std::source_location& where);

  /// An instruction of all lanes of a warp: calls make(inputs, outputs) once, after all have arrived with their input.
  template <class Out, class In, class Make>
  Out together(const In& in, const Make& make) {
    static_assert(sizeof(In) <= input_bytes && sizeof(Out) <= output_bytes);
    static const char kind = 0;
    Gathering& all = gathering(&kind);
    const int lane = rank_ % 32;
    auto* const inputs = reinterpret_cast<In*>(all.inputs);
    auto* const outputs = reinterpret_cast<Out*>(all.outputs);
    inputs[lane] = in;
    if (++all.arrived == 32) {
      make(inputs, outputs);
      release(all);
    } else {
      leave(State::gathers);
    }
    return outputs[lane];
  }

 private:
  static constexpr std::size_t input_bytes = 32, output_bytes = 16, guard_bytes = 64, slots_bytes = 32 * 8;
  static constexpr int rank_bits = 10;  ///< a stamp's lower bits are a thread's rank, the others an interval
  static constexpr std::uint32_t under_way = ~std::uint32_t{0} << rank_bits;
  enum class State : std::uint8_t { fresh, runs, waits, gathers, done };

  /// The last threads that accessed a word, as stamps.
  struct Word {
    std::uint32_t writer, reader, other_reader;
  };
  struct Gathering {
    alignas(16) std::byte inputs[32 * input_bytes];
    alignas(16) std::byte outputs[32 * output_bytes];
    int arrived;
    const void* kind;
  };
  struct AsyncLoad {
    std::uint32_t to;
    const void* from;
    std::uint32_t bytes;
  };
  struct Thread {
    State state;
    unsigned gatherings;
    std::unique_ptr<Fiber> fiber;
    std::vector<AsyncLoad> loads;
    std::source_location barrier;
  };
  struct Access {
    std::uintptr_t code;
    std::uint32_t lane, at, bytes;
  };

  /// Not inlined, so that its return address identifies the access in a kernel.
  template <bool writes>
  [[gnu::noinline]] std::byte* reach(std::uint32_t at, std::uint32_t bytes);

  void set_rank(int rank);
  static void run_thread(void* block);
  void run_block(std::int64_t first, std::int64_t step);
  void begin_interval();
  void end_interval();
  void leave(State state);
  Gathering& gathering(const void* kind);
  void release(Gathering& all);
  bool is_disabled(const std::source_location& where) const;
  std::byte* refuse(std::uint32_t at, std::uint32_t bytes, bool writes);
  void race(std::uint32_t word, bool writes, std::uint32_t other, bool other_wrote);
  void note(std::uintptr_t code, std::uint32_t at, std::uint32_t bytes);
  void count_banks();
  void report(const std::string& what);
  void check_guards();

  // State of accesses.
  std::uint32_t stamp_ = 0, interval_ = 0, word_shift_ = 2, shared_bytes_ = 0, slots_begin_ = 0;
  std::unique_ptr<std::byte[]> memory_;
  std::vector<Word> words_;
  const Settings* settings_ = nullptr;
  // State of threads.
  const Launch* launch_ = nullptr;
  std::int64_t first_ = 0, step_ = 0;
  int rank_ = 0, done_ = 0, waiting_ = 0;
  std::vector<Thread> threads_;
  std::vector<std::array<Gathering, 2>> gatherings_;  ///< per warp; lanes enter one while others still leave the other
  std::vector<int> order_;
  std::vector<std::unique_ptr<Fiber>> idle_;
  std::uint64_t random_ = 0;
  std::source_location interval_begin_;
  bool has_barrier_ = false, is_lost_ = false;
  std::vector<std::string> found_;
  std::vector<std::vector<Access>> accesses_;  ///< per warp, in this interval
};

}  // namespace thimble::emulated
