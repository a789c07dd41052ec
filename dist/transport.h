#pragma once
// The interface of a back end: one Transport per rank, shared by all communicators of that rank. Ranks here are
// numbered among all ranks, and tags distinguish communicators.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <thimble/core/error.h>

namespace thimble::dist {

struct Exchange;

/// A message of an exchange. Members below the line belong to the back end.
struct Part {
  Exchange* exchange;
  int peer;
  bool is_send;
  std::byte* data;
  std::size_t bytes;
  // ----
  enum class State { open, matched, copying, done };
  State state = State::open;
  Part* partner = nullptr;    // threads: the other half, while matched or copying
  std::intptr_t request = 0;  // mpi: the request
};

/// The messages of one transfer. Parts must not move from begin() on.
struct Exchange {
  const char* call = "";  ///< for errors: "all_gather"
  int tag = 0;
  std::vector<Part> parts;
  std::size_t open = 0;            ///< unfinished parts
  std::optional<RankError> error;  ///< threads: the reason it cannot finish
  std::size_t record = 0;          ///< its index in the communicator's record; none when not recorded
};

class Transport {
 public:
  Transport(int own_rank, int all_ranks) : rank(own_rank), size(all_ranks) {}
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  const int rank;
  const int size;
  int next_tag = 1;                 ///< above the tags of all communicators of this rank
  std::optional<RankError> broken;  ///< the reason this rank can send and receive no more

  void check_usable() const {
    if (broken) throw RankError(*broken);
  }

  /// Messages from this size on are cut into parts of this size and a smaller, possibly empty last one, so that a send
  /// and a receive of unequal sizes have a part of unequal sizes.
  virtual std::size_t most_bytes() const noexcept { return std::numeric_limits<std::size_t>::max(); }
  /// Begins all parts. Throws RankError.
  virtual void begin(Exchange& exchange) = 0;
  /// Makes progress; true when all parts are done. Throws RankError.
  virtual bool progress(Exchange& exchange) = 0;
  /// Returns when progress() may have more to do, or at `until`, or sooner.
  virtual void pause(std::chrono::steady_clock::time_point until) = 0;
  /// Stops using the memory of unfinished parts before it returns, unless the process is about to end.
  virtual void give_up(Exchange& exchange) noexcept = 0;
  /// Ends all ranks, with `status` if possible.
  [[noreturn]] virtual void end_all(int status) noexcept = 0;
};

/// `rank 2 of 4: `
inline std::string rank_prefix(int rank, int size) {
  return "rank " + std::to_string(rank) + " of " + std::to_string(size) + ": ";
}

/// A send of `sent` bytes met a receive of `received`.
inline RankError size_error(const char* call, int from, std::size_t sent, int to, std::size_t received) {
  return RankError(from, std::string(call) + ": rank " + std::to_string(from) + " sends " + std::to_string(sent) +
                             " bytes to rank " + std::to_string(to) + ", which receives " + std::to_string(received));
}

}  // namespace thimble::dist
