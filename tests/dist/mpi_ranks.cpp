// Ranks under an MPI launcher, for mpi.sh: `mpi_ranks cases` runs the threads' table of cases; every other word is a
// way to fail. Each rank first writes its process id to the file `pids` in the folder PIDS.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

#include <unistd.h>
#include <csignal>

#include <thimble/dist/mpi.h>

#include "dist/rank_cases.h"

namespace dist = thimble::dist;
using dist::Communicator;

namespace {

void run_cases(Communicator& c) {
  for (const thimble_test::RankCase& row : thimble_test::rank_cases()) {
    if (row.name == "large" && c.size() != 2) continue;
    try {
      row.run(c);
    } catch (const thimble::Error& error) {
      throw thimble::Error(row.name + ": " + error.what());
    }
  }
  const auto half = c.split(c.rank() % 2, c.rank());
  for (const thimble_test::RankCase& row : thimble_test::rank_cases()) {
    if (row.name != "large") row.run(*half);
  }
}

void run(Communicator& c, const std::string& what) {
  if (what == "cases") return run_cases(c);
  c.barrier();
  if (what.starts_with("fault")) return thimble_test::rank_faults().at(std::stoul(what.substr(5))).run(c);
  c.set_timeout(3);
  if (what == "unwind") {
    std::string out(1 << 20, 'x'), in(out.size(), 'y');
    const dist::Send send{(c.rank() + 1) % c.size(), out.data(), out.size()};
    const dist::Receive receive{(c.rank() + c.size() - 1) % c.size(), in.data(), in.size()};
    const dist::Transfer transfer = c.exchange({&send, 1}, {&receive, 1});
    if (c.rank() == 1) throw thimble::OutOfMemory("arena: no room", {});
  }
  if (c.rank() == 1) {
    if (what == "throw") throw thimble::ShapeError("matmul: inner sizes differ, lhs (2, 3), rhs (4, 5)");
    if (what == "memory") throw std::bad_alloc();
    if (what == "abort") c.abort("the data is gone");
    if (what == "kill") std::raise(SIGKILL);
    if (what == "thread") {
      std::string text;
      std::thread([&] {
        try {
          c.barrier();
        } catch (const thimble::RankError& error) {
          text = error.what();
        }
      }).join();
      throw thimble::Error(text);
    }
    if (what == "hang") std::this_thread::sleep_for(std::chrono::minutes(5));
  }
  c.barrier();
}

}  // namespace

int main(int argc, char* argv[]) {
  const std::string what = argc > 1 ? argv[1] : "cases";
  if (const char* const pids = std::getenv("PIDS")) {
    std::ofstream(std::string(pids) + "/pids", std::ios::app) << std::to_string(getpid()) + "\n";
  }
  try {
    if (what == "count") {
      std::printf("%zu\n", thimble_test::rank_faults().size());
      return 0;
    }
    if (what == "texts") {
      for (const std::string& text : thimble_test::rank_faults().at(std::stoul(argv[2])).texts) std::puts(text.c_str());
      return 0;
    }
    dist::run_launched([&](Communicator& c) { run(c, what); }, [](const std::exception_ptr&) { return 7; });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  return 0;
}
