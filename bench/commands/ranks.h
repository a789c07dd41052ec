#pragma once
// Commands on several ranks: threads of this process, or processes started by an MPI launcher.

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

/// A failure on some rank, printed by the lowest rank that failed.
struct RankFailure {
  int status = 0;  ///< the lowest failed rank's, equal on all ranks; 0 if all succeeded
};

/// Runs one rank and returns its exit status. `ranks` is null for a single rank.
using RankBody = std::function<int(dist::Communicator* ranks, RankFailure& failure)>;

/// The setup's ranks for a plan's headline: ", stage 1 of 4 (1f1b), rank 1 of 4 at stage 0 of ZeRO".
std::string ranks_in_words(const models::Setup& setup);

/// {"tp", "sequence_parallel", "cp", "pp", "pipeline", "chunks", "zero"}.
nlohmann::ordered_json layout_json(const models::Setup& setup);

/// "0-2, 5".
std::string ranks_in_words(const std::vector<int>& ranks);

/// Throws ValueError if --zero or --bucket is given but fewer than two ranks share the batch.
void require_shared_batch(const CLI::App& command, const models::Setup& setup);

/// Runs `body` on the ranks of `setup`: in threads, or as this process's rank under a launcher, whose number of ranks
/// replaces setup.layout.ranks. Returns the status of a RankFailure, else rank 0's, or under a launcher this rank's.
/// Throws ValueError if --ranks differs from the launcher's, and as dist::run_ranks and dist::run_launched do.
int on_ranks(models::Setup& setup, memory::Device device, const RankBody& body);

/// Runs `f` on every rank. If it throws on any rank, prints the error, sets `failure` and returns false on all ranks.
/// RankError, and all exceptions of a single rank, pass through.
bool all_succeed(dist::Communicator* ranks, RankFailure& failure, FunctionRef<void()> f);

}  // namespace thimble::bench
