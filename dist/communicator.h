#pragma once
// Communicators move bytes between ranks. They never add numbers: sums are made here, in a fixed order.
//
//   - A communicator is used by one thread, its rank's. All its ranks make the same collective calls in the same order.
//   - Between two ranks the n-th send meets the n-th receive, separately in each communicator.
//   - Never wait inside a launch (core/launch/launch.h): an arena that wants to move blocks would wait, too. Hold a Pin
//     or a WritePin on sent and received tensors until the wait is over.
//   - A dry communicator counts bytes and messages, and moves nothing: its addresses may be null.
//   - After an error a rank can send and receive no more: its next call throws the error again.
//   - A steady step allocates nothing: transfers are reused.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <thimble/core/device.h>
#include <thimble/core/error.h>

namespace thimble::dist {

struct Exchange;
class Communicator;
class Transport;
struct Trait;

/// `bytes` bytes from `data` to a rank of the communicator, possibly itself.
struct Send {
  int to;
  const void* data;
  std::size_t bytes;
};

/// `bytes` bytes from a rank of the communicator into `data`.
struct Receive {
  int from;
  void* data;
  std::size_t bytes;
};

/// Running sends and receives. Until wait() returns, or is_done() is true, their memory must not move, sent bytes must
/// not be written and received bytes not be read. The communicator outlives it.
///
/// The destructor waits; the communicator's next call, or the code that runs the ranks, throws its error. If an
/// exception unwinds it, it is given up instead, and the rank can send and receive no more.
class Transfer {
 public:
  Transfer() = default;  ///< done
  Transfer(Transfer&& other) noexcept { swap(other); }
  Transfer& operator=(Transfer&& other) noexcept {
    Transfer taken(std::move(other));
    swap(taken);
    return *this;
  }
  ~Transfer();

  /// Makes progress without waiting for another rank. Throws as wait() does.
  bool is_done();
  /// Waits until all is sent and received. Throws RankError: sizes differ, another rank failed, timeout.
  void wait();
  /// Ends it without waiting. Its memory is no longer used, and this rank can send and receive no more.
  void give_up() noexcept;

 private:
  friend class Communicator;
  Transfer(Communicator& communicator, Exchange& exchange) noexcept;
  void swap(Transfer& other) noexcept;

  Communicator* communicator_ = nullptr;
  Exchange* exchange_ = nullptr;
  int exceptions_ = 0;  // in flight when this was made
};

/// The timeline of a transfer, in seconds of the steady clock.
struct TransferTimes {
  char call[16];               ///< "exchange", "all_gather"
  std::uint64_t bytes;         ///< to other ranks
  double begun, waited, done;  ///< wait() begins at `waited`; without waiting it is `done`
};

class Communicator {
 public:
  /// All ranks that `transport` reaches.
  explicit Communicator(std::shared_ptr<Transport> transport);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return static_cast<int>(members_.size()); }
  bool is_dry() const noexcept { return transport_ == nullptr; }

  /// Begins all sends and receives at once. If the sizes of a send and its receive differ, RankError names both.
  /// Throws ValueError for a rank outside the communicator.
  Transfer exchange(std::span<const Send> sends, std::span<const Receive> receives);

  /// Fills `all` (size() * bytes) with the `bytes` bytes of each rank, by rank. In place if `mine` is inside `all` at
  /// this rank's offset. Each rank sends (size() - 1) * bytes.
  void all_gather(const void* mine, std::size_t bytes, void* all);

  /// `out` and `in` are disjoint, size() * bytes_each bytes each: range r of `out` goes to rank r, range r of `in`
  /// comes from it. Each rank sends (size() - 1) * bytes_each.
  void all_to_all(const void* out, void* in, std::size_t bytes_each);

  /// Sends `bytes` bytes from `root` to all ranks over a binomial tree. All ranks together send (size() - 1) * bytes,
  /// the root ceil(log2(size())) * bytes.
  void broadcast(void* data, std::size_t bytes, int root);

  /// Returns when all ranks have called it. Sends ceil(log2(size())) empty messages.
  void barrier();

  /// A rank's place in a split: ranks of one color (>= 0) become a communicator, in order of key, then of rank.
  struct Place {
    int color;
    int key;
  };

  /// Returns the communicator of this rank's color, with this one's timeout. `place_of` gives equal places on all
  /// ranks, which lets a dry communicator split, too. Throws ValueError for a negative color.
  std::unique_ptr<Communicator> split(const std::function<Place(int rank)>& place_of);

  /// Gathers the places first, because a rank knows only its place. Throws ValueError on a dry communicator of several
  /// ranks, which cannot gather.
  std::unique_ptr<Communicator> split(int color, int key);

  /// Writes `rank 2 of 4: text` to standard error and ends all ranks, with `status` if the launcher passes it on, else
  /// with another nonzero status.
  [[noreturn]] void abort(const std::string& text, int status = 1) noexcept;

  /// Messages that this rank has begun to send to other ranks through this communicator.
  struct Volume {
    std::uint64_t bytes_sent;
    std::uint64_t messages;
  };
  Volume volume() const noexcept { return volume_; }

  /// Appends the times of this communicator's transfers to `times` as they begin; null stops recording. Call it with no
  /// transfer in flight. `done` is the time at which this rank noticed completion.
  void record(std::vector<TransferTimes>* times) noexcept { times_ = times; }

  /// Limit of a wait in seconds (defaults to 600); 0 is unlimited. Throws ValueError unless 0 <= seconds <= 1e9.
  void set_timeout(double seconds);

 private:
  friend class Transfer;
  friend std::unique_ptr<Communicator> make_dry(int rank, int size);
  friend void require_alike(Communicator& ranks, std::string_view operation, std::span<const Trait> traits);
  friend std::unique_ptr<Communicator> make_nccl(Communicator& over, memory::Device device);
  Communicator(std::shared_ptr<Transport> transport, int tag, int rank, std::vector<int> members, int all_ranks);

  Transfer begin(const char* call, std::span<const Send> sends, std::span<const Receive> receives);
  void run(const char* call);  // exchanges sends_ and receives_ and waits
  bool advance(Exchange& exchange, bool waits);
  void give_up(Exchange& exchange) noexcept;
  void check_rank(const char* call, int rank) const;

  std::shared_ptr<Transport> transport_;  // null when dry
  int tag_;                               // distinguishes this communicator's messages from others'
  int rank_;
  std::vector<int> members_;  // by rank: its number among all ranks
  int all_ranks_;
  double timeout_s_ = 600;
  Volume volume_{0, 0};
  std::vector<TransferTimes>* times_ = nullptr;
  std::vector<std::unique_ptr<Exchange>> exchanges_;
  std::vector<Exchange*> free_;  // of exchanges_
  std::vector<Send> sends_;      // of the collective in progress
  std::vector<Receive> receives_;
};

/// A dry communicator of rank `rank` of `size`: counts bytes and messages, moves nothing. Throws ValueError.
std::unique_ptr<Communicator> make_dry(int rank, int size);

}  // namespace thimble::dist
