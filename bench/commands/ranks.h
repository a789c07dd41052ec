#pragma once
// Commands on several ranks: threads of this process, or the processes that a launcher of MPI started.

#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <thimble/core/threads/parallel.h>
#include <thimble/dist/communicator.h>
#include <thimble/models/techniques/setup.h>

namespace CLI {
class App;
}

namespace thimble::bench {

/// Whether something went wrong before ranks began to work together. The lowest rank that failed has printed it.
struct RankFailure {
  int status = 0;  ///< of that one, on all
};

/// What a rank does, and the exit status that it comes to. `ranks` is null where there is one alone.
using RankBody = std::function<int(dist::Communicator* ranks, RankFailure& failure)>;

/// What a plan of the setup says of them: ", stage 1 of 4 (1f1b), rank 1 of 4 at stage 0 of ZeRO".
std::string ranks_in_words(const models::Setup& setup);

/// "tp", "sequence_parallel", "pp", "pipeline" and "zero" of it.
nlohmann::ordered_json layout_json(const models::Setup& setup);

/// "0-2, 5".
std::string ranks_in_words(const std::vector<int>& ranks);

/// Throws ValueError where --zero or --bucket is given and fewer than two ranks share the batch: it would do nothing.
void require_shared_batch(const CLI::App& command, const models::Setup& setup);

/// Runs `body` on the ranks of `setup`: as threads, or where a launcher started this process as its rank. Sets
/// setup.ranks to the launcher's. Returns the status of rank 0, in a process of several of the process's rank. Throws
/// ValueError where --ranks is not what the launcher started, what dist::run_ranks and run_launched throw.
int on_ranks(models::Setup& setup, memory::Device device, const RankBody& body);

/// Runs `f` on every rank. Where it throws on one, no rank goes on: false on all of them, with `failure`. Without ranks
/// it throws what `f` throws.
bool all_succeed(dist::Communicator* ranks, RankFailure& failure, FunctionRef<void()> f);

}  // namespace thimble::bench
