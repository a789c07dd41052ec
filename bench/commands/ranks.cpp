#include <thimble/bench/commands/ranks.h>

#include <algorithm>
#include <exception>
#include <new>

#include <CLI/CLI.hpp>

#include <thimble/bench/commands.h>
#include <thimble/bench/commands/flags.h>
#include <thimble/core/error.h>
#include <thimble/dist/mpi.h>
#include <thimble/dist/threads.h>
#include <thimble/models/techniques/technique.h>

namespace thimble::bench {
std::string ranks_in_words(const models::Setup& setup) {
  std::string words;
  if (setup.layout.tp > 1) words += ", blocks in " + std::to_string(setup.layout.tp) + " shards";
  if (setup.layout.sequence_parallel) words += ", the sequence as well";
  if (setup.layout.cp > 1)
    words += ", the sequence in " + std::to_string(setup.layout.cp) + " shards, in attention heads";
  if (setup.layout.ranks == 1) return words;
  if (setup.layout.pp > 1) {
    words += ", stage " + std::to_string(models::stage_number(setup)) + " of " + std::to_string(setup.layout.pp) +
             " (" + setup.layout.pipeline +
             (setup.layout.chunks > 1 ? ", " + std::to_string(setup.layout.chunks) + " chunks" : "") + ")";
  }
  return words + ", rank " + std::to_string(setup.layout.rank) + " of " + std::to_string(setup.layout.ranks) +
         " at stage " + std::to_string(setup.layout.zero) + " of ZeRO";
}

nlohmann::ordered_json layout_json(const models::Setup& setup) {
  return {{"tp", setup.layout.tp},
          {"sequence_parallel", setup.layout.sequence_parallel},
          {"cp", setup.layout.cp},
          {"pp", setup.layout.pp},
          {"pipeline", setup.layout.pipeline},
          {"chunks", setup.layout.chunks},
          {"zero", setup.layout.zero}};
}

std::string ranks_in_words(const std::vector<int>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    text += (text.empty() ? "" : ", ") + std::to_string(ranks[i]) +
            (last > i ? "-" + std::to_string(ranks[last]) : std::string());
    i = last + 1;
  }
  return text;
}

void require_shared_batch(const CLI::App& command, const models::Setup& setup) {
  if (setup.layout.ranks > 1 && models::data_ranks(setup) > 1) return;
  for (const char* const flag : {"--zero", "--bucket"}) {
    if (command.get_option(flag)->count() == 0) continue;
    throw ValueError(std::string(flag) + ": expected two or more ranks that share the batch, got " +
                     (setup.layout.ranks > 1
                          ? "--ranks " + std::to_string(setup.layout.ranks) + " that all compute the same samples"
                          : std::string("one")));
  }
}

int on_ranks(models::Setup& setup, memory::Device device, const RankBody& body) {
  RankFailure failure;
  const auto launch = dist::find_launch();
  int status = 0;
  if (launch && launch->ranks > 1) {
    if (setup.layout.ranks != 1 && setup.layout.ranks != launch->ranks) {
      throw ValueError("--ranks: expected " + std::to_string(launch->ranks) + ", which " + launch->launcher +
                       " started, got " + std::to_string(setup.layout.ranks) + "; leave it out");
    }
    setup.layout.ranks = launch->ranks;
    dist::run_launched([&](dist::Communicator& ranks) { status = body(&ranks, failure); }, status_of);
  } else if (setup.layout.ranks > 1) {
    models::check_techniques(setup, models::is_text(setup));  // before threads start
    const auto count = static_cast<std::size_t>(setup.layout.ranks);
    std::vector<RankFailure> failures(count);
    std::vector<int> statuses(count);
    dist::run_ranks(
        setup.layout.ranks,
        [&](dist::Communicator& ranks) {
          const auto r = static_cast<std::size_t>(ranks.rank());
          statuses[r] = body(&ranks, failures[r]);
        },
        device);
    status = statuses.front();
    for (const RankFailure& f : failures) {
      if (f.status != 0) failure = f;
    }
  } else {
    return body(nullptr, failure);
  }
  return failure.status != 0 ? failure.status : status;
}

bool all_succeed(dist::Communicator* ranks, RankFailure& failure, FunctionRef<void()> f) {
  if (ranks == nullptr) {
    f();
    return true;
  }
  std::string why;
  int own = 0;
  try {
    f();
  } catch (const RankError&) {
    throw;
  } catch (const std::bad_alloc&) {
    why = out_of_memory, own = memory_status;
  } catch (const std::exception& error) {
    why = error.what(), own = status_of(std::current_exception());
  }
  std::vector<int> statuses(static_cast<std::size_t>(ranks->size()));
  ranks->all_gather(&own, sizeof(int), statuses.data());
  const auto first = std::find_if(statuses.begin(), statuses.end(), [](int status) { return status != 0; });
  if (first == statuses.end()) return true;
  failure.status = *first;
  if (first - statuses.begin() == ranks->rank()) print_error(why);
  ranks->barrier();  // a launcher kills all processes when the first one exits
  return false;
}

}  // namespace thimble::bench
