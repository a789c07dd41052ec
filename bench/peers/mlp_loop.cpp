// The perceptron of bench/benchmarks/dispatch_benchmark.cpp in hand-written loops: a training step of 64-256-64 with
// one sample, relu, cross entropy and AdamW. `g++ -O3 -march=native -ffast-math mlp_loop.cpp`. Prints microseconds.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>

namespace {

constexpr int in = 64, hidden = 256, out = 64;

struct Layer {
  int rows, columns;  // weight (rows, columns), then bias (rows)
  float *p, *g, *m, *v;
  int size() const { return rows * columns + rows; }
};

Layer make(int rows, int columns) {
  Layer l{rows, columns, nullptr, nullptr, nullptr, nullptr};
  for (float** at : {&l.p, &l.g, &l.m, &l.v}) *at = new float[static_cast<std::size_t>(l.size())]();
  for (int i = 0; i < rows * columns; ++i) l.p[i] = 0.1F * std::sin(static_cast<float>(i));
  return l;
}

void forward(const Layer& l, const float* x, float* y) {
  for (int r = 0; r < l.rows; ++r) {
    float sum = 0;
    for (int c = 0; c < l.columns; ++c) sum += l.p[r * l.columns + c] * x[c];
    y[r] = sum + l.p[l.rows * l.columns + r];
  }
}

void backward(const Layer& l, const float* x, const float* dy, float* dx) {
  if (dx != nullptr) std::fill(dx, dx + l.columns, 0.F);
  for (int r = 0; r < l.rows; ++r) {
    for (int c = 0; c < l.columns; ++c) l.g[r * l.columns + c] = dy[r] * x[c];
    l.g[l.rows * l.columns + r] = dy[r];
    for (int c = 0; dx != nullptr && c < l.columns; ++c) dx[c] += dy[r] * l.p[r * l.columns + c];
  }
}

void update(const Layer& l, float first, float second) {
  float *p = l.p, *m = l.m, *v = l.v;
  const float* g = l.g;
  for (int i = 0; i < l.size(); ++i) {
    m[i] = 0.9F * m[i] + 0.1F * g[i];
    v[i] = 0.999F * v[i] + 0.001F * g[i] * g[i];
    p[i] -= 1e-7F * (m[i] * first / (std::sqrt(v[i] * second) + 1e-8F) + 0.01F * p[i]);
  }
}

}  // namespace

int main() {
  const Layer one = make(hidden, in), two = make(out, hidden);
  float x[in], h[hidden], y[out], dh[hidden];
  for (int i = 0; i < in; ++i) x[i] = std::cos(static_cast<float>(i));
  double least = 1e9, loss = 0, first = 1, second = 1;
  for (int round = 0; round < 400; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int step = 0; step < 50; ++step) {
      forward(one, x, h);
      for (float& a : h) a = std::max(a, 0.F);
      forward(two, h, y);
      const float top = *std::max_element(y, y + out);
      float sum = 0;
      for (const float a : y) sum += std::exp(a - top);
      loss = std::log(sum) + top - y[3];
      for (float& a : y) a = std::exp(a - top) / sum;
      y[3] -= 1;
      backward(two, h, y, dh);
      for (int i = 0; i < hidden; ++i) dh[i] = h[i] > 0 ? dh[i] : 0;
      backward(one, x, dh, nullptr);
      first *= 0.9, second *= 0.999;
      for (const Layer& l : {one, two})
        update(l, static_cast<float>(1 / (1 - first)), static_cast<float>(1 / (1 - second)));
    }
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
    least = std::min(least, time.count() / 50);
  }
  std::printf("perceptron by hand: %.2f us a step (loss %.3g)\n", least, loss);
}
