// An error that ends one rank ends all, soon, and with the first one's text.

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <string>
#include <thread>

#include <sys/wait.h>
#include <unistd.h>

#include <thimble/dist/threads.h>

#include "dist/rank_cases.h"
#include "support/catch.h"

namespace dist = thimble::dist;
using dist::Communicator;
using Clock = std::chrono::steady_clock;

namespace {

template <class E, class F>
std::string text_of(const F& f) {
  try {
    f();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    return "of another type: " + std::string(error.what());
  }
  return "nothing was thrown";
}

/// Whether `text` contains `part`; a failure shows both.
bool has(const std::string& text, const std::string& part) {
  UNSCOPED_INFO("looked for \"" << part << "\" in \"" << text << '"');
  return text.find(part) != std::string::npos;
}

/// Call i of a program of several calls; false after its end.
bool call(Communicator& c, int i, Communicator& part) {
  std::vector<char> out(static_cast<std::size_t>(c.size()) * 5000), in(out.size());
  const dist::Send send{(c.rank() + 1) % c.size(), out.data(), 5000};
  const dist::Receive receive{(c.rank() + c.size() - 1) % c.size(), in.data(), 5000};
  switch (i) {
    case 0:
      c.all_gather(out.data(), 5000, in.data());
      return true;
    case 1:
      c.all_to_all(out.data(), in.data(), 5000);
      return true;
    case 2:
      c.broadcast(in.data(), 5000, 1);
      return true;
    case 3:
      c.barrier();
      return true;
    case 4:
      c.exchange({&send, 1}, {&receive, 1}).wait();
      return true;
    case 5:
      part.all_gather(out.data(), 5000, in.data());
      return true;
    case 6:
      c.split(0, 0);
      return true;
    default:
      return false;
  }
}
constexpr int calls = 7;

}  // namespace

TEST_CASE("communicator faults: a rank that throws before each call ends all with its text") {
  for (int ranks = 2; ranks <= 5; ++ranks) {
    for (int at = 0; at <= calls; ++at) {
      for (int rank = 0; rank < ranks; ++rank) {
        std::vector<std::string> seen(static_cast<std::size_t>(ranks));
        const auto begin = Clock::now();
        const std::string text = text_of<thimble::ShapeError>([&] {
          dist::run_ranks(ranks, [&](Communicator& c) {
            try {
              const auto part = c.split(c.rank() % 2, 0);
              for (int i = 0; i <= calls; ++i) {
                if (i == at && c.rank() == rank) throw thimble::ShapeError("matmul: inner sizes differ");
                call(c, i, *part);
              }
              c.barrier();
            } catch (const thimble::RankError& error) {
              seen[static_cast<std::size_t>(c.rank())] = std::to_string(error.rank()) + " " + error.what();
              throw;
            }
          });
        });
        const std::string all =
            "rank " + std::to_string(rank) + " of " + std::to_string(ranks) + ": matmul: inner sizes differ";
        INFO(ranks << " ranks, rank " << rank << " before call " << at);
        CHECK(text == all);
        for (int r = 0; r < ranks; ++r) {
          CHECK(seen[static_cast<std::size_t>(r)] == (r == rank ? "" : std::to_string(rank) + " " + all));
        }
        CHECK(Clock::now() - begin < std::chrono::seconds(10));
      }
    }
  }
}

TEST_CASE("communicator faults: a transfer in flight is given up where its rank throws") {
  for (int i = 0; i < 200; ++i) {
    const std::string text = text_of<thimble::OutOfMemory>([&] {
      dist::run_ranks(3, [&](Communicator& c) {
        std::vector<char> out(300000), in(out.size());  // freed while the others may be reading
        const dist::Send send{(c.rank() + 1) % 3, out.data(), out.size()};
        const dist::Receive receive{(c.rank() + 2) % 3, in.data(), in.size()};
        const dist::Transfer transfer = c.exchange({&send, 1}, {&receive, 1});
        if (c.rank() == i % 3) throw thimble::OutOfMemory("arena: no room", {.requested_bytes = 7});
        if (i % 2 == 0) c.barrier();
      });
    });
    REQUIRE(text == "rank " + std::to_string(i % 3) + " of 3: arena: no room");
  }
}

TEST_CASE("communicator faults: errors keep their type, their facts and what they are nested in") {
  const auto throwing = [](const auto& error) {
    return [&error] {
      dist::run_ranks(2, [&](Communicator& c) {
        if (c.rank() == 1) throw error;
      });
    };
  };
  const thimble::FileError file("a.bin", 12, "no more bytes");
  try {
    throwing(file)();
    FAIL("nothing was thrown");
  } catch (const thimble::FileError& error) {
    CHECK(std::string(error.what()) == "rank 1 of 2: a.bin: at byte 12: no more bytes");
    CHECK(error.path() == "a.bin");
    CHECK(error.offset() == 12);
    CHECK_THROWS_AS(std::rethrow_if_nested(error), thimble::FileError);
  }
  const auto named = [](const char* text) { return std::string("rank 1 of 2: ") + text; };
  CHECK(text_of<thimble::ValueError>(throwing(thimble::ValueError("v"))) == named("v"));
  CHECK(text_of<thimble::PlanError>(throwing(thimble::PlanError("p"))) == named("p"));
  CHECK(text_of<thimble::Error>(throwing(thimble::Error("e"))) == named("e"));
  CHECK(text_of<thimble::Error>(throwing(std::logic_error("l"))) == named("l"));
  CHECK(text_of<std::bad_alloc>(throwing(std::bad_alloc())) == named(std::bad_alloc().what()));
  CHECK(text_of<thimble::Error>(throwing(7)) == named("an exception that is no std::exception"));
}

TEST_CASE("communicator faults: sizes that differ and ranks that are late, on 2 to 4 threads") {
  for (const thimble_test::RankFault& row : thimble_test::rank_faults()) {
    for (int ranks = 2; ranks <= 4; ++ranks) {
      INFO(row.name << " on " << ranks);
      const std::string text = text_of<thimble::RankError>([&] { dist::run_ranks(ranks, row.run); });
      for (const std::string& part : row.texts) CHECK(has(text, part));
    }
  }
}

TEST_CASE("communicator faults: a timeout is a number of seconds, and a short one is one") {
  std::string refused;
  const auto waits = [&](Communicator& c) {
    if (c.rank() == 1) return;
    for (const double seconds : {-1.0, std::nan(""), 1e9 + 1}) {
      refused += text_of<thimble::ValueError>([&] { c.set_timeout(seconds); }) + "\n";
    }
    char data[2] = {};
    for (const double seconds : {0.0, 1e9, 1e-6}) c.set_timeout(seconds);
    const dist::Send to_itself{0, &data[0], 1};
    const dist::Receive receives[] = {{0, &data[0], 1}, {1, &data[1], 1}};
    c.exchange({&to_itself, 1}, receives).wait();
  };
  const std::string late = text_of<thimble::RankError>([&] { dist::run_ranks(2, waits); });
  CHECK(has(refused, "timeout of -1.000000 s; expected 0 to 1e9\ncommunicator: timeout of nan s; expected 0 to 1e9\n"));
  CHECK(has(refused, "timeout of 1000000001.000000 s"));
  CHECK(has(late, "rank 0 has waited for 1 ms for 1 bytes of rank 1; 1 of 3 messages are not done"));
}

TEST_CASE("communicator faults: after an error a rank can send no more, and a destructor's error is not lost") {
  const auto alone = [](Communicator& c) {
    char data = 0;
    c.set_timeout(0.05);
    const dist::Receive receive{1, &data, 1};
    return c.exchange({}, {&receive, 1});
  };
  const std::string again = text_of<thimble::RankError>([&] {
    dist::run_ranks(2, [&](Communicator& c) {
      if (c.rank() == 1) return;
      const std::string first = text_of<thimble::RankError>([&] { alone(c).wait(); });
      const std::string second = text_of<thimble::RankError>([&] { c.barrier(); });
      thimble_test::require(first == second, "the second call says: " + second);
    });
  });
  CHECK(has(again, "rank 0 of 2: exchange: rank 0 has waited for 50 ms for 1 bytes of rank 1"));
  const std::string dropped = text_of<thimble::RankError>([&] {
    dist::run_ranks(2, [&](Communicator& c) {
      if (c.rank() == 0) alone(c);
    });
  });
  CHECK(dropped == again);
}

namespace {

/// The standard error of a copy of this process, and its status.
template <class F>
std::pair<std::string, int> in_child(const F& f) {
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error("pipe");
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    close(ends[1]);
    try {
      f();
    } catch (...) {
    }
    std::_Exit(0);
  }
  close(ends[1]);
  std::string text;
  char piece[512];
  for (ssize_t n; (n = read(ends[0], piece, sizeof(piece))) > 0;) text.append(piece, static_cast<std::size_t>(n));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return {text, WIFEXITED(status) ? WEXITSTATUS(status) : -1};
}

}  // namespace

TEST_CASE("communicator faults: abort ends the process with its text") {
  const auto [text, status] = in_child([] {
    dist::run_ranks(3, [](Communicator& c) {
      if (c.rank() == 2) c.abort("the data is gone");
      c.barrier();
    });
  });
  CHECK(text == "rank 2 of 3: the data is gone\n");
  CHECK(status == EXIT_FAILURE);
  CHECK(in_child([] { dist::make_dry(1, 8)->abort("no"); }) == std::pair<std::string, int>("rank 1 of 8: no\n", 1));
}

TEST_CASE("communicator faults: a rank that hangs ends the process after the others' timeout") {
  const auto begin = Clock::now();
  const auto [text, status] = in_child([] {
    dist::run_ranks(3, [](Communicator& c) {
      c.set_timeout(1);
      const auto part = c.split(0, c.rank());  // with the same timeout
      while (c.rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(1));
      part->barrier();
    });
  });
  CHECK(has(text, "barrier: rank "));
  CHECK(has(text, " has waited for 1000 ms for "));
  CHECK(has(text, "1 of 3 ranks did not end within 10 s of it"));
  CHECK(status == EXIT_FAILURE);
  CHECK(Clock::now() - begin < std::chrono::seconds(15));
}
