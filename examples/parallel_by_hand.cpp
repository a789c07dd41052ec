// A linear layer on two ranks, wrong and right side by side. The wrong one is an often-copied example: it splits the
// samples, sums where it should put side by side, and divides by the number of ranks. Chapter 14 of the book reads it.
// It needs nothing but C++20: g++ -std=c++20 parallel_by_hand.cpp

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <vector>

const int ranks = 2, samples = 4, in = 4, out = 6;
using Matrix = std::vector<std::vector<double>>;

Matrix make(int rows, int columns, const std::function<double(int, int)>& value) {
  Matrix m(rows, std::vector<double>(columns));
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < columns; ++c) m[r][c] = value(r, c);
  return m;
}
int columns(const Matrix& m) { return static_cast<int>(m[0].size()); }

Matrix multiply(const Matrix& x, const Matrix& w) {
  return make(static_cast<int>(x.size()), columns(w), [&](int r, int c) {
    double sum = 0;
    for (std::size_t k = 0; k < w.size(); ++k) sum += x[r][k] * w[k][c];
    return sum;
  });
}
Matrix part_of_columns(const Matrix& m, int rank) {
  const int width = columns(m) / ranks;
  return make(static_cast<int>(m.size()), width, [&](int r, int c) { return m[r][rank * width + c]; });
}
Matrix part_of_rows(const Matrix& m, int rank) {
  const int height = static_cast<int>(m.size()) / ranks;
  return make(height, columns(m), [&](int r, int c) { return m[rank * height + r][c]; });
}

// The two ways in which ranks put their results together. Each takes what all ranks have; every rank gets the result.
Matrix all_reduce(const std::vector<Matrix>& of) {  // the sum
  return make(static_cast<int>(of[0].size()), columns(of[0]), [&](int r, int c) {
    double sum = 0;
    for (const Matrix& m : of) sum += m[r][c];
    return sum;
  });
}
Matrix all_gather(const std::vector<Matrix>& of) {  // side by side
  const int width = columns(of[0]);
  return make(static_cast<int>(of[0].size()), width * ranks, [&](int r, int c) { return of[c / width][r][c % width]; });
}

std::vector<Matrix> on_each_rank(const std::function<Matrix(int)>& work) {
  std::vector<Matrix> results;
  for (int rank = 0; rank < ranks; ++rank) results.push_back(work(rank));
  return results;
}

// Wrong in three ways; each line by itself looks plausible.
Matrix copied_column_parallel(const Matrix& x, const Matrix& w) {
  Matrix sum = all_reduce(on_each_rank([&](int rank) {  // 2. different outputs are no terms of one sum
    const Matrix some_samples = part_of_rows(x, rank);  // 1. every rank needs the whole input
    return multiply(some_samples, part_of_columns(w, rank));
  }));
  for (auto& row : sum)
    for (double& v : row) v /= ranks;  // 3. averages belong to the gradients of data parallel steps
  return sum;
}

// Column parallel: every rank has all inputs and a part of the outputs. x [A_0 A_1] = [x A_0, x A_1].
std::vector<Matrix> column_parallel(const Matrix& x, const Matrix& w) {
  return on_each_rank([&](int rank) { return multiply(x, part_of_columns(w, rank)); });
}

// Row parallel: every rank has a part of the inputs and of the terms of each output. [x_0 x_1] [A_0; A_1] = x_0 A_0 +
// x_1 A_1. The bias is added once, after the sum.
Matrix row_parallel(const std::vector<Matrix>& x, const Matrix& w, const std::vector<double>& bias) {
  Matrix y = all_reduce(on_each_rank([&](int rank) { return multiply(x[rank], part_of_rows(w, rank)); }));
  for (auto& row : y)
    for (std::size_t c = 0; c < row.size(); ++c) row[c] += bias[c];
  return y;
}

// The largest difference between numbers at the same place.
double difference(const Matrix& a, const Matrix& b) {
  double worst = 0;
  for (std::size_t r = 0; r < a.size(); ++r)
    for (std::size_t c = 0; c < a[0].size(); ++c) worst = std::max(worst, std::abs(a[r][c] - b[r][c]));
  return worst;
}

int main() {
  const auto wave = [](int r, int c) { return std::sin(3.0 * r + 1.7 * c + 1); };
  const Matrix x = make(samples, in, wave), a = make(in, out, wave), b = make(out, in, wave);
  const std::vector<double> bias(in, 0.5);
  const Matrix h = multiply(x, a);
  Matrix y = multiply(h, b);
  for (auto& row : y)
    for (double& v : row) v += 0.5;

  const Matrix copied = copied_column_parallel(x, a), gathered = all_gather(column_parallel(x, a));
  const double copied_error = difference(copied, h), right_error = difference(gathered, h);
  const double pair_error = difference(row_parallel(column_parallel(x, a), b, bias), y);  // one all-reduce for both
  const auto report = [](const char* name, const Matrix& m, double error) {
    std::printf("%-26s (%zu, %zu)  %10.3f\n", name, m.size(), m[0].size(), error);
  };
  std::printf("                           shape   largest error\n");
  report("one rank", h, 0);
  report("the copied example", copied, copied_error);
  report("column parallel", gathered, right_error);
  report("column, then row parallel", y, pair_error);
  return copied_error > 0.1 && right_error < 1e-12 && pair_error < 1e-12 ? 0 : 1;
}
