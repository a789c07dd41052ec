// Messages between threads.
//
//   channel   sends, or receives, between two ranks for which the other half has not begun, in order
//   match     the n-th send and the n-th receive of a channel: the receive becomes `ready`
//   ready     of a rank: receives that it can copy now. Any call for progress copies them all, without the lock
//   news      of a rank: changes when it may have more to do; a waiting rank sleeps until then
//
// One lock guards all but the copies.

#include <thimble/dist/threads.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <new>
#include <tuple>

#include <pthread.h>

#include <thimble/core/kernels/device_runtime.h>
#include <thimble/dist/transport.h>

namespace thimble::dist {
namespace {

constexpr std::chrono::seconds most_time_to_end{10};  // after the first failure

// Stack of a rank's thread, as large as a main thread's: kernels run on it, and so does the user's program. A process
// may have set a smaller one for its other threads (memory/process/outside.h).
constexpr std::size_t stack_bytes = std::size_t{8} << 20;
constexpr std::size_t usual_parts = 16;  // between two ranks at a time; more parts allocate

struct Failure {
  int rank;
  std::string text;
  std::exception_ptr error;
};

struct Mailbox {
  std::condition_variable bell;
  std::uint64_t news = 0;
  std::vector<Part*> ready;
};

struct World {
  World(int ranks, memory::Device of_memory)
      : size(ranks), device(of_memory), mailboxes(static_cast<std::size_t>(ranks)), running(ranks) {
    for (Mailbox& mailbox : mailboxes) mailbox.ready.reserve(usual_parts * mailboxes.size());
  }

  const int size;
  const memory::Device device;
  std::mutex mutex;
  std::map<std::tuple<int, int, int>, std::vector<Part*>> channels;  // of tag, sender, receiver
  std::vector<Mailbox> mailboxes;
  std::optional<Failure> failure;  // the first
  int running;
  std::condition_variable ended;

  Mailbox& mailbox(int rank) { return mailboxes[static_cast<std::size_t>(rank)]; }
  void notify(int rank) {
    ++mailbox(rank).news;
    mailbox(rank).bell.notify_one();
  }

  void fail(int rank, const std::string& text, std::exception_ptr error) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (failure) return;
    failure = Failure{rank, rank_prefix(rank, size) + text, std::move(error)};
    for (int r = 0; r < size; ++r) notify(r);
    ended.notify_all();
  }
  void end(int ranks) {
    const std::lock_guard<std::mutex> lock(mutex);
    running -= ranks;
    ended.notify_all();
  }
};

void copy(memory::Device device, void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  if (!device.is_cuda() || device.is_dry) {
    std::memcpy(to, from, bytes);
    return;
  }
  const kernels::DeviceRuntime& runtime = kernels::device_runtime(device);
  runtime.end_transfer(device, runtime.begin_transfer(device, to, from, bytes));
}

class ThreadTransport final : public Transport {
 public:
  ThreadTransport(World& world, int own_rank) : Transport(own_rank, world.size), world_(world) {}

  void begin(Exchange& exchange) override {
    const std::lock_guard<std::mutex> lock(world_.mutex);
    check_failure();
    for (Part& part : exchange.parts) post(part);
  }

  bool progress(Exchange& exchange) override {
    std::unique_lock<std::mutex> lock(world_.mutex);
    Mailbox& own = world_.mailbox(rank);
    seen_ = own.news;
    while (!own.ready.empty()) {
      Part& receive = *own.ready.back();
      own.ready.pop_back();
      Part& send = *receive.partner;
      send.state = receive.state = Part::State::copying;
      lock.unlock();
      try {
        copy(world_.device, receive.data, send.data, receive.bytes);
      } catch (...) {
        lock.lock();
        send.state = receive.state = Part::State::open;  // and in no channel: they are never done
        world_.notify(receive.peer);
        throw;
      }
      lock.lock();
      for (Part* part : {&send, &receive}) {
        part->state = Part::State::done;
        --part->exchange->open;
      }
      world_.notify(receive.peer);
    }
    if (exchange.error) throw RankError(*exchange.error);
    if (exchange.open == 0) return true;
    check_failure();
    return false;
  }

  void pause(std::chrono::steady_clock::time_point until) override {
    std::unique_lock<std::mutex> lock(world_.mutex);
    Mailbox& own = world_.mailbox(rank);
    own.bell.wait_until(lock, until, [&] { return own.news != seen_; });
  }

  void give_up(Exchange& exchange) noexcept override {
    std::unique_lock<std::mutex> lock(world_.mutex);
    for (Part& part : exchange.parts) {
      if (part.state == Part::State::matched) {
        Part& receive = part.is_send ? *part.partner : part;
        std::erase(world_.mailbox(receive.exchange == &exchange ? rank : part.peer).ready, &receive);
        part.partner->state = Part::State::open;  // and in no channel: it is never done
      } else if (part.state == Part::State::open) {
        const auto channel = world_.channels.find(key(part));
        if (channel != world_.channels.end()) std::erase(channel->second, &part);
      }
      // Only a send can be copying, because the receiving rank copies.
      world_.mailbox(rank).bell.wait(lock, [&] { return part.state != Part::State::copying; });
      part.state = Part::State::done;
    }
  }

  [[noreturn]] void end_all(int status) noexcept override { std::_Exit(status); }

 private:
  std::tuple<int, int, int> key(const Part& part) const {
    return {part.exchange->tag, part.is_send ? rank : part.peer, part.is_send ? part.peer : rank};
  }

  void check_failure() const {
    if (world_.failure) throw RankError(world_.failure->rank, world_.failure->text);
  }

  void post(Part& part) {
    std::vector<Part*>& channel = world_.channels[key(part)];
    if (channel.capacity() == 0) channel.reserve(usual_parts);
    if (channel.empty() || channel.front()->is_send == part.is_send) return channel.push_back(&part);
    Part& first = *channel.front();
    channel.erase(channel.begin());
    Part& send = part.is_send ? part : first;
    Part& receive = part.is_send ? first : part;
    const int sender = receive.peer, receiver = send.peer;
    if (send.bytes != receive.bytes) {
      const RankError error = size_error(receive.exchange->call, sender, send.bytes, receiver, receive.bytes);
      for (Part* half : {&send, &receive}) {
        if (!half->exchange->error) half->exchange->error = error;
      }
      world_.notify(sender);
    } else {
      send.partner = &receive;
      receive.partner = &send;
      send.state = receive.state = Part::State::matched;
      world_.mailbox(receiver).ready.push_back(&receive);
    }
    world_.notify(receiver);
  }

  World& world_;
  std::uint64_t seen_ = 0;  // news at the last call for progress
};

/// An error of type E with another text.
template <class E>
class Named : public E {
 public:
  Named(const E& error, std::string text) : E(error), text_(std::move(text)) {}
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::string text_;
};

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

template <class E>
void throw_if(const std::exception& error, const std::string& text) {
  if (const auto* const e = dynamic_cast<const E*>(&error)) std::throw_with_nested(Named<E>(*e, text));
}

/// Rethrows the failure of a rank with the rank in its text.
template <class... Errors>
[[noreturn]] void throw_named(const Failure& failure) {
  try {
    std::rethrow_exception(failure.error);
  } catch (const std::exception& error) {
    (throw_if<Errors>(error, failure.text), ...);
    std::throw_with_nested(Error(failure.text));
  } catch (...) {
    std::throw_with_nested(Error(failure.text));
  }
}

void run_rank(World& world, int rank, const std::function<void(Communicator&)>& body) noexcept {
  try {
    const auto transport = std::make_shared<ThreadTransport>(world, rank);
    Communicator communicator(transport);
    body(communicator);
    transport->check_usable();  // a destructor's error
  } catch (...) {
    const std::exception_ptr error = std::current_exception();
    world.fail(rank, text_of(error), error);
  }
  world.end(1);
}

class RankThread {
 public:
  /// Throws OutOfMemory if the system cannot start another thread.
  RankThread(World& world, int rank, const std::function<void(Communicator&)>& body)
      : work_(std::make_unique<Work>(Work{world, rank, body})) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, stack_bytes);
    const int error = pthread_create(&thread_, &attributes, run, work_.get());
    pthread_attr_destroy(&attributes);
    if (error != 0)
      throw OutOfMemory(std::string("run_ranks: the system starts no further thread: ") + std::strerror(error), {});
  }
  void join() { pthread_join(thread_, nullptr); }

 private:
  struct Work {
    World& world;
    int rank;
    const std::function<void(Communicator&)>& body;
  };
  static void* run(void* at) {
    const Work& work = *static_cast<const Work*>(at);
    run_rank(work.world, work.rank, work.body);
    return nullptr;
  }

  std::unique_ptr<Work> work_;
  pthread_t thread_{};
};

}  // namespace

void run_ranks(int ranks, const std::function<void(Communicator&)>& body, memory::Device device) {
  if (ranks < 1) throw ValueError("run_ranks: " + std::to_string(ranks) + " ranks, expected at least 1");
  if (device.is_cuda() && !device.is_dry) kernels::device_runtime(device);  // throws if the device does not exist
  World world(ranks, device);
  std::vector<RankThread> threads;
  threads.reserve(static_cast<std::size_t>(ranks));
  try {
    for (int r = 0; r < ranks; ++r) threads.emplace_back(world, r, body);
  } catch (...) {  // the system cannot start another thread
    const int begun = static_cast<int>(threads.size());
    world.fail(begun, text_of(std::current_exception()), std::current_exception());
    world.end(ranks - begun);
  }
  {
    std::unique_lock<std::mutex> lock(world.mutex);
    world.ended.wait(lock, [&] { return world.running == 0 || world.failure; });
    if (!world.ended.wait_for(lock, most_time_to_end, [&] { return world.running == 0; })) {
      std::fflush(stdout);
      std::fprintf(stderr, "%s\n%d of %d ranks did not end within %d s of it\n", world.failure->text.c_str(),
                   world.running, ranks, static_cast<int>(most_time_to_end.count()));
      std::_Exit(EXIT_FAILURE);
    }
  }
  for (RankThread& thread : threads) thread.join();
  if (!world.failure) return;
  throw_named<ShapeError, DTypeError, DeviceError, ValueError, AutogradError, PlanError, FileError, OutOfMemory,
              RankError, Error, std::bad_alloc>(*world.failure);
}

}  // namespace thimble::dist
