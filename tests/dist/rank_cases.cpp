#include "dist/rank_cases.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>

#include <thimble/dist/alike.h>

namespace thimble_test {

using thimble::dist::Communicator;
using thimble::dist::Receive;
using thimble::dist::Send;
using thimble::dist::Trait;
using thimble::dist::Transfer;
using Bytes = std::vector<unsigned char>;

void require(bool is_right, const std::string& text) {
  if (!is_right) throw thimble::Error(text);
}

namespace {

constexpr std::size_t sizes[] = {0, 1, 1021, 3 << 20};

/// Byte i of the message from `from` to `to`.
unsigned char byte(int from, int to, std::size_t i) {
  return static_cast<unsigned char>((i * 2654435761U >> 8) + static_cast<std::size_t>(from * 31 + to * 7));
}

Bytes message(int from, int to, std::size_t bytes) {
  Bytes data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) data[i] = byte(from, to, i);
  return data;
}

void require_message(const unsigned char* data, int from, int to, std::size_t bytes, const std::string& where) {
  const Bytes right = message(from, to, bytes);
  require(bytes == 0 || std::memcmp(data, right.data(), bytes) == 0,
          where + ": wrong bytes of rank " + std::to_string(from));
}

std::size_t places(const Communicator& c) { return static_cast<std::size_t>(c.size()); }

/// Runs f and requires that this rank sends `bytes` and `messages` in it.
template <class F>
void with_volume(Communicator& c, std::uint64_t bytes, std::uint64_t messages, const F& f) {
  const Communicator::Volume before = c.volume();
  f();
  const std::uint64_t sent = c.volume().bytes_sent - before.bytes_sent;
  require(sent == bytes, std::to_string(sent) + " bytes sent, not " + std::to_string(bytes));
  require(c.volume().messages - before.messages == messages, "wrong number of messages");
}

void all_gather(Communicator& c) {
  for (const std::size_t bytes : sizes) {
    const Bytes mine = message(c.rank(), 0, bytes);
    Bytes all(places(c) * bytes + 1, 0xEE);
    with_volume(c, (places(c) - 1) * bytes, places(c) - 1, [&] { c.all_gather(mine.data(), bytes, all.data()); });
    for (int r = 0; r < c.size(); ++r) {
      require_message(all.data() + static_cast<std::size_t>(r) * bytes, r, 0, bytes, "all_gather");
    }
    require(all.back() == 0xEE, "all_gather wrote behind its end");
    // In place.
    unsigned char* const own = all.data() + static_cast<std::size_t>(c.rank()) * bytes;
    std::fill(all.begin(), all.end(), static_cast<unsigned char>(0));
    std::copy(mine.begin(), mine.end(), own);
    c.all_gather(own, bytes, all.data());
    for (int r = 0; r < c.size(); ++r) {
      require_message(all.data() + static_cast<std::size_t>(r) * bytes, r, 0, bytes, "all_gather in place");
    }
  }
}

void all_to_all(Communicator& c) {
  for (const std::size_t bytes : sizes) {
    Bytes out, in(places(c) * bytes + 1, 0xEE);
    for (int r = 0; r < c.size(); ++r) {
      const Bytes part = message(c.rank(), r, bytes);
      out.insert(out.end(), part.begin(), part.end());
    }
    with_volume(c, (places(c) - 1) * bytes, places(c) - 1, [&] { c.all_to_all(out.data(), in.data(), bytes); });
    for (int r = 0; r < c.size(); ++r) {
      require_message(in.data() + static_cast<std::size_t>(r) * bytes, r, c.rank(), bytes, "all_to_all");
    }
    require(in.back() == 0xEE, "all_to_all wrote behind its end");
  }
}

void broadcast(Communicator& c) {
  for (const std::size_t bytes : sizes) {
    for (int root = 0; root < c.size(); ++root) {
      Bytes data = c.rank() == root ? message(root, root, bytes) : Bytes(bytes);
      // By the tree's rounds: in round k, each rank less than 2^k from the root sends to the rank 2^k further.
      const int v = (c.rank() - root + c.size()) % c.size();
      std::size_t sends = 0;
      for (int far = 1; far < c.size(); far *= 2) sends += v < far && v + far < c.size() ? 1 : 0;
      with_volume(c, sends * bytes, sends, [&] { c.broadcast(data.data(), bytes, root); });
      require_message(data.data(), root, root, bytes, "broadcast");
    }
  }
}

/// No rank leaves before the last one, which is late, has come.
void barrier(Communicator& c) {
  c.barrier();
  const auto begin = std::chrono::steady_clock::now();
  if (c.rank() == c.size() - 1) std::this_thread::sleep_for(std::chrono::milliseconds(60));
  c.barrier();
  const auto waited = std::chrono::steady_clock::now() - begin;
  require(waited >= std::chrono::milliseconds(30), "a rank left the barrier before the last came");
}

/// Many transfers between all pairs, of several sizes, completed from the last to the first and in other orders.
void in_flight(Communicator& c) {
  constexpr int rounds = 24;
  std::vector<Bytes> out, in;
  std::vector<Transfer> transfers;
  const auto bytes_of = [](int round) { return sizes[static_cast<std::size_t>(round) % 3] + round % 5; };
  for (int round = 0; round < rounds; ++round) {
    std::vector<Send> sends;
    std::vector<Receive> receives;
    for (int r = 0; r < c.size(); ++r) {
      out.push_back(message(c.rank() + round, r, bytes_of(round)));
      in.emplace_back(bytes_of(round));
      sends.push_back({r, out.back().data(), out.back().size()});
      receives.push_back({r, in.back().data(), in.back().size()});
    }
    transfers.push_back(c.exchange(sends, receives));
  }
  for (int i = 0; i < rounds; ++i) {
    Transfer& transfer = transfers[static_cast<std::size_t>(c.rank() % 2 == 0 ? rounds - 1 - i : i * 7 % rounds)];
    if (i % 3 == 0) {
      while (!transfer.is_done()) std::this_thread::yield();
    } else {
      transfer.wait();
    }
    require(transfer.is_done(), "a transfer is done after its wait");
  }
  for (int round = 0; round < rounds; ++round) {
    for (int r = 0; r < c.size(); ++r) {
      const Bytes& data = in[static_cast<std::size_t>(round * c.size() + r)];
      require_message(data.data(), r + round, c.rank(), data.size(), "round " + std::to_string(round));
    }
  }
}

/// The destructor waits, and a transfer can be moved.
void scopes(Communicator& c) {
  const int next = (c.rank() + 1) % c.size(), last = (c.rank() - 1 + c.size()) % c.size();
  const Bytes out = message(c.rank(), next, 5000);
  Bytes in(5000);
  {
    const Send send{next, out.data(), out.size()};
    const Receive receive{last, in.data(), in.size()};
    Transfer first = c.exchange({&send, 1}, {&receive, 1});
    const Transfer second = std::move(first);
    require(first.is_done(), "a transfer that was moved from is done");
  }
  require_message(in.data(), last, c.rank(), in.size(), "after the destructor");
}

/// Grids, with the ranks' order reversed by the key; a split of a split; messages of two communicators between the same
/// ranks do not mix.
void splits(Communicator& c) {
  const auto column = c.split(c.rank() / 2, -c.rank());
  const auto row = c.split([](int rank) { return Communicator::Place{rank % 2, rank}; });
  require(column->size() == std::min(2, c.size() - c.rank() / 2 * 2), "the column's size");
  require(row->size() == (c.size() + 1 - c.rank() % 2) / 2, "the row's size");
  require(row->rank() == c.rank() / 2, "the row's rank");
  require(column->rank() == (column->size() == 1 ? 0 : 1 - c.rank() % 2), "the column's rank");
  for (Communicator* part : {column.get(), row.get()}) {
    std::vector<int> all(places(*part));
    const int own = c.rank();
    part->all_gather(&own, sizeof(own), all.data());
    for (int r = 0; r < part->size(); ++r) {
      const int right = part == row.get() ? r * 2 + c.rank() % 2 : c.rank() / 2 * 2 + part->size() - 1 - r;
      require(all[static_cast<std::size_t>(r)] == right, "a member of a split");
    }
  }
  // Even ranks begin on the one communicator, odd ranks on the other.
  const auto twin = row->split(0, row->rank());
  const int next = (row->rank() + 1) % row->size(), last = (row->rank() - 1 + row->size()) % row->size();
  int out[] = {c.rank(), c.rank() + 100}, in[] = {-1, -1};
  const auto begin = [&](Communicator& on, int i) {
    const Send send{next, &out[i], sizeof(int)};
    const Receive receive{last, &in[i], sizeof(int)};
    return on.exchange({&send, 1}, {&receive, 1});
  };
  const bool is_even = row->rank() % 2 == 0;
  Transfer first = begin(is_even ? *row : *twin, is_even ? 0 : 1),
           second = begin(is_even ? *twin : *row, is_even ? 1 : 0);
  first.wait();
  second.wait();
  const int from = last * 2 + c.rank() % 2;
  require(in[0] == from && in[1] == from + 100, "messages of two communicators met");
}

void bad_ranks(Communicator& c) {
  const auto is_refused = [](const auto& f) {
    try {
      f();
    } catch (const thimble::ValueError&) {
      return true;
    }
    return false;
  };
  char data = 0;
  const Send send{c.size(), &data, 1};
  const Receive receive{-1, &data, 1};
  require(is_refused([&] { c.exchange({&send, 1}, {}); }), "a send to no rank");
  require(is_refused([&] { c.exchange({}, {&receive, 1}); }), "a receive from no rank");
  require(is_refused([&] { c.broadcast(&data, 1, c.size()); }), "a root that is no rank");
  require(is_refused([&] { c.split([](int) { return Communicator::Place{-1, 0}; }); }), "a negative color");
}

/// A message larger than any back end sends at once.
void large(Communicator& c) {
  if (c.size() < 2 || c.rank() > 1) return;
  constexpr std::size_t bytes = (std::size_t{256} << 20) + 4097;
  Bytes data(bytes, static_cast<unsigned char>(c.rank()));
  const Send send{1, data.data(), bytes};
  const Receive receive{0, data.data(), bytes};
  if (c.rank() == 0) {
    for (std::size_t i = 0; i < bytes; i += 4093) data[i] = byte(0, 1, i);
    c.exchange({&send, 1}, {}).wait();
  } else {
    c.exchange({}, {&receive, 1}).wait();
    for (std::size_t i = 0; i < bytes; i += 4093) require(data[i] == byte(0, 1, i), "a byte of a large message");
    require(data[4094] == 0 && data[bytes - 1] == 0, "a byte of a large message");
  }
}

/// Rank 0 sends `sent` bytes and rank 1 receives `received`.
RankFault unequal(std::size_t sent, std::size_t received) {
  const std::string name = std::to_string(sent) + " bytes sent, " + std::to_string(received) + " received";
  return {name, {"exchange: rank 0", std::to_string(sent), std::to_string(received)}, [=](Communicator& c) {
            c.set_timeout(20);
            Bytes data(std::max<std::size_t>({sent, received, 1}));
            const Send send{1, data.data(), sent};
            const Receive receive{0, data.data(), received};
            if (c.rank() == 0) c.exchange({&send, 1}, {}).wait();
            if (c.rank() == 1) c.exchange({}, {&receive, 1}).wait();
            c.barrier();
          }};
}

/// The text of require_alike's ValueError; empty if it throws none.
std::string difference(Communicator& c, const std::vector<Trait>& traits) {
  try {
    require_alike(c, "test", traits);
  } catch (const thimble::ValueError& error) {
    return error.what();
  }
  return "";
}

void alike(Communicator& c) {
  const int last = c.size() - 1;
  struct Row {
    std::vector<Trait> first, of_last;
    std::string text;  // of the difference, without the ranks; empty if there is none
  };
  const std::vector<Row> rows{
      {{}, {}, ""},
      {{{"a", "1"}, {"b", "x"}}, {{"a", "1"}, {"b", "x"}}, ""},
      {{{"a", "1"}, {"b", "x"}}, {{"a", "2"}, {"b", "x"}}, "a 1 and 2; give all ranks the same"},
      {{{"a", "1"}, {"b", "x", "do so"}},
       {{"a", "1"}, {"b", "longer than x", "do so"}},
       "b x and longer than x; do so"},
      {{{"a", "1"}, {"b", ""}}, {{"a", "2"}, {"b", "y"}}, "a 1 and 2, b none and y; give all ranks the same"},
      {{{"a", "1"}}, {}, "a 1 and none; give all ranks the same"},  // as from another version
      {{}, {{"a", "1"}}, "a none and 1; give all ranks the same"},
      {{{"a", "12"}, {"b", "3"}}, {{"a", "1"}, {"b", "23"}}, "a 12 and 1, b 3 and 23; give all ranks the same"},
      // Names at most four; the fix is the first one's.
      {{{"a", "1"}, {"b", "1"}, {"c", "1"}, {"d", "1"}},
       {{"a", "2"}, {"b", "2", "do so"}, {"c", "2"}, {"d", "2"}},
       "a 1 and 2, b 1 and 2, c 1 and 2, d 1 and 2; give all ranks the same"},
      {{{"a", "1", "do so"}, {"b", "1"}, {"same", "1"}, {"c", "1"}, {"d", "1"}, {"e", "1"}},
       {{"a", "2"}, {"b", "2"}, {"same", "1"}, {"c", "2"}, {"d", "2"}, {"e", "2"}},
       "a 1 and 2, b 1 and 2, c 1 and 2, d 1 and 2, and 1 more; do so"},
      {{{"a", "1"}, {"b", "1"}, {"c", "1"}, {"d", "1"}},
       {{"a", "2"}, {"b", "2"}, {"c", "2"}, {"d", "2"}, {"e", "2"}, {"f", "2"}, {"g", "2"}},
       "a 1 and 2, b 1 and 2, c 1 and 2, d 1 and 2, and 3 more; give all ranks the same"},
      {{{"a", std::string(120, 'x')}, {"b", std::string(121, 'x')}},
       {{"a", "1"}, {"b", "1"}},
       "a " + std::string(120, 'x') + " and 1, b " + std::string(120, 'x') + "... and 1; give all ranks the same"},
  };
  for (const Row& row : rows) {
    const std::vector<Trait>& own = c.rank() == last && last > 0 ? row.of_last : row.first;
    std::string text;
    with_volume(c, 0, 0, [&] { text = difference(c, own); });
    if (row.text.empty() || last == 0) {
      require(text.empty(), "'" + text + "', not ''");
      continue;
    }
    // Then two ranks, by their numbers in the process's world; this communicator may be a part of it.
    const std::string begin = "test: expected the same on all ranks, got on ranks ";
    require(text.starts_with(begin) && text.ends_with(" " + row.text),
            "'" + text + "', not '" + begin + row.text + "'");
  }
  c.barrier();  // differing ranks can go on
}

}  // namespace

const std::vector<RankCase>& rank_cases() {
  static const std::vector<RankCase> cases = {{"all_gather", all_gather}, {"all_to_all", all_to_all},
                                              {"broadcast", broadcast},   {"barrier", barrier},
                                              {"in flight", in_flight},   {"scopes", scopes},
                                              {"splits", splits},         {"bad ranks", bad_ranks},
                                              {"large", large},           {"alike", alike}};
  return cases;
}

const std::vector<RankFault>& rank_faults() {
  static const std::vector<RankFault> faults = {
      unequal(8, 12),
      unequal(12, 8),
      unequal(0, 1),
      unequal(3 << 20, 8),
      unequal(8, 3 << 20),
      {"a rank that never comes",
       {"all_gather: rank ", " has waited for 300 ms for 4096 bytes of rank 1"},
       [](Communicator& c) {
         c.barrier();
         c.set_timeout(0.3);
         Bytes mine(4096), all(4096 * places(c));
         if (c.rank() != 1) return c.all_gather(mine.data(), mine.size(), all.data());
         std::this_thread::sleep_for(std::chrono::milliseconds(1500));
       }},
      {"a message that nobody takes",
       {"exchange: rank 0 has waited for 300 ms for rank 1 to take 3145728 bytes; 1 of 1"},
       [](Communicator& c) {
         c.set_timeout(0.3);
         Bytes data(3 << 20);
         const Send send{1, data.data(), data.size()};
         if (c.rank() == 0) c.exchange({&send, 1}, {}).wait();
         std::this_thread::sleep_for(std::chrono::milliseconds(1500));
       }},
  };
  return faults;
}

}  // namespace thimble_test
