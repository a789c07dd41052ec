// Rotor in eighty lines: the least time to train a chain of unequal stages in m units of memory. Read in chapter 6 of
// the book (docs/book). Needs only C++20: g++ -std=c++20 toy_rotor.cpp

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <tuple>
#include <vector>

struct Stage {
  int output, kept, forward, backward;  // units of the output, units kept inside when recorded, two times
};
const int input = 2, impossible = 1 << 20;
const std::vector<Stage> chain = {{4, 8, 2, 4}, {3, 6, 6, 9}, {1, 9, 1, 3}, {2, 2, 4, 6}, {1, 5, 2, 5}};
const int last = static_cast<int>(chain.size()) - 1;

const Stage& stage(int i) { return chain[static_cast<std::size_t>(i)]; }

int activation(int i) { return i == 0 ? input : stage(i - 1).output; }  // a_i; its gradient d_i is as large
int waiting(int b) { return b == last ? 0 : activation(b + 1); }        // d_{b+1}: none yet at the end of the chain

struct Best {
  int time = impossible;
  int drop_before = 0;  // 0 records stage a; j drops a .. j - 1 and runs them again
};
std::map<std::tuple<int, int, int>, Best> table;

// The least time to run stages a .. b forward and backward with m units beyond the held ones: a_a and d_{b+1}.
Best solve(int a, int b, int m) {
  if (const auto known = table.find({a, b, m}); known != table.end()) return known->second;
  Best best;
  // Record stage a: its inside stays until its backward, which needs room for d_a beside everything it reads.
  const Stage& s = stage(a);
  const int d_end = activation(a + 1) - waiting(b);  // d_{a+1} in place of d_{b+1}
  if (m >= std::max(s.kept + activation(a + 1), s.kept + d_end + activation(a))) {
    const int rest = a == b ? 0 : solve(a + 1, b, m - s.kept - activation(a + 1)).time;
    best = {s.forward + s.backward + rest, 0};
  }
  // Drop a .. j - 1: only a_j stays; when backward reaches j, they start again from a_a.
  int forwards = 0, need = 0;
  for (int j = a + 1; j <= b; ++j) {
    forwards += stage(j - 1).forward;
    need = std::max(need, (j - 1 > a ? activation(j - 1) : 0) + activation(j));  // its input and its output
    if (m < need) break;
    const int after = solve(j, b, m - activation(j)).time;
    const int again = solve(a, j - 1, m - activation(j) + waiting(b)).time;
    if (forwards + after + again < best.time) best = {forwards + after + again, j};
  }
  if (best.time > impossible) best = {};
  return table[{a, b, m}] = best;
}

std::string schedule(int a, int b, int m) {
  const int j = solve(a, b, m).drop_before;
  if (j > 0) {
    return "{" + std::to_string(a) + ".." + std::to_string(j - 1) + " -> [" +
           schedule(a, j - 1, m - activation(j) + waiting(b)) + "]} " + schedule(j, b, m - activation(j));
  }
  return std::to_string(a) + (a == b ? "" : " " + schedule(a + 1, b, m - stage(a).kept - activation(a + 1)));
}

int main() {
  std::printf("units  time  schedule\n");
  std::vector<std::pair<int, int>> staircase;
  for (int m = 1, before = impossible; m <= 60; ++m) {
    const Best best = solve(0, last, m);
    if (best.time >= before) continue;
    before = best.time;
    staircase.push_back({m + input, best.time});
    std::printf("%5d %5d  %s\n", m + input, best.time, schedule(0, last, m).c_str());
  }
  return staircase.back().second == 42 ? 0 : 1;  // with room for everything: each forward and backward once
}
