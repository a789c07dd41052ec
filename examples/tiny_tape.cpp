// Autograd in a hundred lines: a tape that keeps matrices for backward and frees them as backward goes. Read in chapter
// 2 of the book (docs/book). Needs only C++20: g++ -std=c++20 tiny_tape.cpp

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <numeric>
#include <vector>

std::size_t live_bytes = 0;
int next_id = 0;

struct Matrix {
  Matrix(std::size_t r, std::size_t c) : rows(r), columns(c), x(r * c) { live_bytes += x.size() * sizeof(double); }
  Matrix(const Matrix&) = delete;  // so every matrix is counted
  ~Matrix() { live_bytes -= x.size() * sizeof(double); }
  int id = next_id++;
  std::size_t rows, columns;
  std::vector<double> x;
};
using Ref = std::shared_ptr<Matrix>;  // a matrix lives until its last Ref goes

// (r, n) x (n, c) -> (r, c); either may be read transposed.
Ref multiply(const Ref& a, bool ta, const Ref& b, bool tb) {
  const std::size_t n = ta ? a->rows : a->columns;
  const Ref y = std::make_shared<Matrix>(ta ? a->columns : a->rows, tb ? b->rows : b->columns);
  for (std::size_t i = 0; i < y->rows; ++i)
    for (std::size_t j = 0; j < y->columns; ++j)
      for (std::size_t k = 0; k < n; ++k)
        y->x[i * y->columns + j] +=
            a->x[ta ? k * a->columns + i : i * n + k] * b->x[tb ? j * n + k : k * b->columns + j];
  return y;
}

using Backward = std::vector<Ref> (*)(const std::vector<Ref>& saved, const Ref& dy);  // it can read nothing else
struct Node {
  const char* name;
  std::vector<int> inputs;
  int output;
  std::vector<Ref> saved;
  Backward backward;
};

struct Tape {
  std::vector<Node> nodes;
  std::map<int, Ref> gradients;  // by the id of the matrix

  Ref matmul(const Ref& x, const Ref& w) {  // keeps both operands
    const Ref y = multiply(x, false, w, false);
    nodes.push_back({"matmul", {x->id, w->id}, y->id, {x, w}, [](const std::vector<Ref>& s, const Ref& dy) {
                       return std::vector{multiply(dy, false, s[1], true), multiply(s[0], true, dy, false)};
                     }});
    return y;
  }
  Ref relu(const Ref& x) {  // keeps its output
    const Ref y = std::make_shared<Matrix>(x->rows, x->columns);
    std::transform(x->x.begin(), x->x.end(), y->x.begin(), [](double v) { return std::max(v, 0.0); });
    nodes.push_back({"relu", {x->id}, y->id, {y}, [](const std::vector<Ref>& s, const Ref& dy) {
                       for (std::size_t i = 0; i < dy->x.size(); ++i) dy->x[i] *= s[0]->x[i] > 0;  // in dy's own bytes
                       return std::vector{dy};
                     }});
    return y;
  }
  void step_back() {  // through the last node, which goes, and with it the last hold on what it saved
    const Ref dy = gradients.extract(nodes.back().output).mapped();
    const std::vector<Ref> parts = nodes.back().backward(nodes.back().saved, dy);
    for (std::size_t i = 0; i < parts.size(); ++i) gradients[nodes.back().inputs[i]] = parts[i];  // each is used once
    nodes.pop_back();
  }
};

int main() {
  const auto fill = [](std::size_t r, std::size_t c) {
    const Ref m = std::make_shared<Matrix>(r, c);
    for (std::size_t i = 0; i < m->x.size(); ++i) m->x[i] = std::sin(static_cast<double>(7 * i + r));
    return m;
  };
  const Ref x = fill(8, 16), w1 = fill(16, 32), w2 = fill(32, 4), seed = fill(8, 4);
  std::printf("before                   %6zu bytes live\n", live_bytes);
  const auto forward = [&](Tape& t) { return t.matmul(t.relu(t.matmul(x, w1)), w2); };
  Tape tape;
  tape.gradients[forward(tape)->id] = seed;  // the loss is the sum of result * seed
  std::printf("after forward            %6zu\n", live_bytes);
  while (!tape.nodes.empty()) {
    const char* const name = tape.nodes.back().name;
    tape.step_back();
    std::printf("after backward of %-7s%6zu\n", name, live_bytes);
  }
  const auto loss = [&](double nudge) {
    w1->x[5] += nudge;
    Tape t;
    const Ref y = forward(t);
    return std::inner_product(y->x.begin(), y->x.end(), seed->x.begin(), 0.0);
  };
  const double slope = tape.gradients[w1->id]->x[5], up = loss(1e-6), down = loss(-2e-6);
  std::printf("slope at w1[5]: %.6f by the tape, %.6f by differences\n", slope, (up - down) / 2e-6);
  return std::abs((up - down) / 2e-6 - slope) < 1e-6 ? 0 : 1;
}
