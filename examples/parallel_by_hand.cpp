// A linear layer on two ranks, wrong and right. The wrong one is an often-copied example: it splits the samples, sums
// where it should concatenate, and divides by the number of ranks. Read in chapter 14 of the book (docs/book). Needs
// only C++20: g++ -std=c++20 parallel_by_hand.cpp

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <vector>

const std::size_t ranks = 2, samples = 4, in = 4, out = 6;
using Matrix = std::vector<std::vector<double>>;

Matrix make(std::size_t rows, std::size_t columns, const std::function<double(std::size_t, std::size_t)>& value) {
  Matrix m(rows, std::vector<double>(columns));
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t c = 0; c < columns; ++c) m[r][c] = value(r, c);
  return m;
}
std::size_t columns(const Matrix& m) { return m[0].size(); }

Matrix multiply(const Matrix& x, const Matrix& w) {
  return make(x.size(), columns(w), [&](std::size_t r, std::size_t c) {
    double sum = 0;
    for (std::size_t k = 0; k < w.size(); ++k) sum += x[r][k] * w[k][c];
    return sum;
  });
}
Matrix part_of_columns(const Matrix& m, std::size_t rank) {
  const std::size_t width = columns(m) / ranks;
  return make(m.size(), width, [&](std::size_t r, std::size_t c) { return m[r][rank * width + c]; });
}
Matrix part_of_rows(const Matrix& m, std::size_t rank) {
  const std::size_t height = m.size() / ranks;
  return make(height, columns(m), [&](std::size_t r, std::size_t c) { return m[rank * height + r][c]; });
}

// Two ways to combine the ranks' results. Each takes one matrix per rank; every rank gets the result.
Matrix all_reduce(const std::vector<Matrix>& of) {  // the sum
  return make(of[0].size(), columns(of[0]), [&](std::size_t r, std::size_t c) {
    double sum = 0;
    for (const Matrix& m : of) sum += m[r][c];
    return sum;
  });
}
Matrix all_gather(const std::vector<Matrix>& of) {  // side by side
  const std::size_t width = columns(of[0]);
  return make(of[0].size(), width * ranks, [&](std::size_t r, std::size_t c) { return of[c / width][r][c % width]; });
}

std::vector<Matrix> on_each_rank(const std::function<Matrix(std::size_t)>& work) {
  std::vector<Matrix> results;
  for (std::size_t rank = 0; rank < ranks; ++rank) results.push_back(work(rank));
  return results;
}

// Wrong in three ways, although each line looks plausible.
Matrix copied_column_parallel(const Matrix& x, const Matrix& w) {
  Matrix sum = all_reduce(on_each_rank([&](std::size_t rank) {  // 2. different outputs are no terms of one sum
    const Matrix some_samples = part_of_rows(x, rank);          // 1. every rank needs the whole input
    return multiply(some_samples, part_of_columns(w, rank));
  }));
  for (auto& row : sum)
    for (double& v : row)
      v /= static_cast<double>(ranks);  // 3. averages belong to the gradients of data parallel steps
  return sum;
}

// Column parallel: every rank has all inputs and a shard of the outputs. x [A_0 A_1] = [x A_0, x A_1].
std::vector<Matrix> column_parallel(const Matrix& x, const Matrix& w) {
  return on_each_rank([&](std::size_t rank) { return multiply(x, part_of_columns(w, rank)); });
}

// Row parallel: every rank has a shard of the inputs and some terms of each output. [x_0 x_1] [A_0; A_1] = x_0 A_0 +
// x_1 A_1. The bias is added once, after the sum.
Matrix row_parallel(const std::vector<Matrix>& x, const Matrix& w, const std::vector<double>& bias) {
  Matrix y = all_reduce(on_each_rank([&](std::size_t rank) { return multiply(x[rank], part_of_rows(w, rank)); }));
  for (auto& row : y)
    for (std::size_t c = 0; c < row.size(); ++c) row[c] += bias[c];
  return y;
}

// The largest difference between elements.
double difference(const Matrix& a, const Matrix& b) {
  double worst = 0;
  for (std::size_t r = 0; r < a.size(); ++r)
    for (std::size_t c = 0; c < a[0].size(); ++c) worst = std::max(worst, std::abs(a[r][c] - b[r][c]));
  return worst;
}

int main() {
  const auto wave = [](std::size_t r, std::size_t c) {
    return std::sin(static_cast<double>(30 * r + 17 * c) / 10 + 1);
  };
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
