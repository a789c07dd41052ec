// The workers: made when a call first needs them, kept for the life of the process. A call publishes its body, computes
// part 0 itself, and then every part that no worker has begun, so that it never waits for a worker that is not running.
//
//   ticket   a call's number and its number of parts in one word, which is all that a worker reads
//   claim    per part, the last call in which it was taken; the thread that raises it to the call's number computes it
//   bell     changes with every call; workers sleep on it. Workers without a part in the last call sleep on the reserve
//            bell, which changes when a call has more parts than the one before
//   pending  number of the call's unfinished parts; the caller sleeps on it
//
// A waiting thread spins for a moment, then sleeps (a futex): the calls of a training step follow within microseconds,
// and sleeping threads leave a shared machine free.

#include <thimble/core/threads/parallel.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <string>

#include <pthread.h>

#include <thimble/core/error.h>
#include <thimble/core/settings.h>
#include <thimble/core/threads/cpu_quota.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace thimble {
namespace {

constexpr int most_threads = Settings::max_threads;  // in a call; the caller computes further parts
constexpr std::chrono::microseconds spin_time{100};  // see docs/lab/performance.md, "Threads that wait"

using Body = FunctionRef<void(int)>;

constexpr int most_runs = 32, pieces_of_run = 8;  // in parallel_for

struct alignas(64) Claim {
  std::atomic<std::uint64_t> call{0};
};

/// The process's workers and their call; never destroyed, because workers outlive main().
struct Team {
  std::atomic<bool> is_taken{false};              // by a calling thread
  int workers = 0;                                // written only by that thread
  const int processors = available_processors();  // read before there are workers, because it allocates
  const Body* body = nullptr;
  alignas(64) std::atomic<std::uint64_t> ticket{0};
  alignas(64) std::atomic<int> bell{0};
  alignas(64) std::atomic<int> reserve_bell{0};
  alignas(64) std::atomic<int> pending{0};
  Claim claims[most_threads];
};

Team& team() {
  static Team* const the_team = new Team;
  return *the_team;
}

thread_local bool is_inside = false;  // inside a body

constexpr std::uint64_t parts_mask = 0xFFFF;
std::uint64_t call_of(std::uint64_t ticket) noexcept { return ticket >> 16; }
int parts_of(std::uint64_t ticket) noexcept { return static_cast<int>(ticket & parts_mask); }

void pause() noexcept {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

/// Waits until `word` is not `value`: first spinning (if `spins`: not with more threads than processors), then asleep.
void wait_while(const std::atomic<int>& word, int value, bool spins) noexcept {
  const auto start = std::chrono::steady_clock::now();
  while (spins && std::chrono::steady_clock::now() - start < spin_time) {
    for (int i = 0; i < 32; ++i, pause()) {
      if (word.load(std::memory_order_acquire) != value) return;
    }
  }
  word.wait(value, std::memory_order_acquire);
}

/// Takes a part of a call; false when another thread has it.
bool claim(Team& t, int part, std::uint64_t call) noexcept {
  std::uint64_t last = t.claims[part].call.load(std::memory_order_relaxed);
  return last < call && t.claims[part].call.compare_exchange_strong(last, call, std::memory_order_acq_rel);
}

/// Computes a claimed part. The call waits for it, so the body is valid.
void compute(Team& t, int part) noexcept {
  (*t.body)(part);
  if (t.pending.fetch_sub(1, std::memory_order_acq_rel) == 1) t.pending.notify_one();
}

void* work(void* argument) noexcept {
  const int part = static_cast<int>(reinterpret_cast<std::intptr_t>(argument));
  Team& t = team();
  is_inside = true;
  for (std::uint64_t seen = 0;;) {
    const std::atomic<int>& word = part < parts_of(seen) ? t.bell : t.reserve_bell;
    const int value = word.load(std::memory_order_acquire);
    const std::uint64_t ticket = t.ticket.load(std::memory_order_acquire);
    if (ticket == seen) {
      wait_while(word, value, part < t.processors);
    } else {
      seen = ticket;
      if (part < parts_of(ticket) && claim(t, part, call_of(ticket))) compute(t, part);
    }
  }
}

/// For the child of a fork, which has no workers.
void forget_workers() noexcept {
  Team& t = team();
  t.workers = 0;
  t.pending.store(0);
  t.is_taken.store(false);
}

/// Makes workers up to `count`, unless the system refuses. They block signals, which the program's threads handle.
void hire(Team& t, int count) noexcept {
  static const bool is_registered = pthread_atfork(nullptr, nullptr, forget_workers) == 0;
  static_cast<void>(is_registered);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, worker_stack_bytes);
  for (; t.workers < count; ++t.workers) {
    pthread_t thread;
    const auto part = static_cast<std::intptr_t>(t.workers) + 1;
    if (pthread_create(&thread, &attributes, work, reinterpret_cast<void*>(part)) != 0) break;
  }
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void run_team(Team& t, int parts, const Body& body) noexcept {
  if (t.workers < parts - 1) hire(t, parts - 1);
  const std::uint64_t last = t.ticket.load(std::memory_order_relaxed), call = call_of(last) + 1;
  t.body = &body;
  t.pending.store(parts - 1, std::memory_order_relaxed);
  t.ticket.store(call << 16 | static_cast<std::uint64_t>(parts), std::memory_order_release);
  t.bell.fetch_add(1, std::memory_order_release);
  t.bell.notify_all();
  if (parts > parts_of(last)) {
    t.reserve_bell.fetch_add(1, std::memory_order_release);
    t.reserve_bell.notify_all();
  }
  is_inside = true;
  body(0);
  for (int part = 1; part < parts; ++part) {
    if (claim(t, part, call)) compute(t, part);
  }
  is_inside = false;
  for (int left = 0; (left = t.pending.load(std::memory_order_acquire)) > 0;) {
    wait_while(t.pending, left, parts <= t.processors);
  }
}

}  // namespace

int thread_count() noexcept { return std::max(1, settings().threads.load(std::memory_order_relaxed)); }

void set_thread_count(int threads) {
  if (threads < 1) throw ValueError("set_thread_count: " + std::to_string(threads) + " threads, expected at least 1");
  settings().threads.store(threads, std::memory_order_relaxed);
}

void parallel_for(std::int64_t count, std::int64_t grain, FunctionRef<void(std::int64_t, std::int64_t)> body) {
  if (count <= 0) return;
  grain = std::max<std::int64_t>(grain, 1);
  const int threads = static_cast<int>(std::min<std::int64_t>(thread_count(), count / grain));
  if (threads <= 1 || is_inside) {
    body(0, count);
    return;
  }
  // Each thread begins with a contiguous run of grains, so that neighbouring grains stay in one cache, and takes it in
  // pieces. A thread that is done takes pieces of other runs, whose processors may have other work.
  const std::int64_t grains = (count - 1) / grain + 1;
  const int runs = std::min(threads, most_runs);
  Claim taken[most_runs];  // pieces of each run
  parallel_threads(threads, [&](int thread) {
    for (int i = 0; i < runs; ++i) {
      const int run = (thread + i) % runs;
      const std::int64_t first = grains * run / runs, length = grains * (run + 1) / runs - first;
      const std::int64_t pieces = std::min<std::int64_t>(length, pieces_of_run);
      std::int64_t piece;
      while ((piece = static_cast<std::int64_t>(taken[run].call.fetch_add(1, std::memory_order_relaxed))) < pieces) {
        body((first + length * piece / pieces) * grain,
             std::min((first + length * (piece + 1) / pieces) * grain, count));
      }
    }
  });
}

void parallel_threads(int threads, FunctionRef<void(int)> body) {
  int done = 0;
  Team& t = team();
  // While another thread's call has the workers, the processors are in use, and this thread computes all parts.
  if (threads > 1 && !is_inside && !t.is_taken.exchange(true, std::memory_order_acquire)) {
    done = std::min(threads, most_threads);
    run_team(t, done, body);
    t.is_taken.store(false, std::memory_order_release);
  }
  for (int thread = done; thread < threads; ++thread) body(thread);
}

}  // namespace thimble
