// Programs may give types common names: `using namespace thimble` makes none of them ambiguous.

#include <cstdint>
#include <vector>

#include <thimble/models/models.h>
#include <thimble/thimble.h>

#include "support/catch.h"

using namespace thimble;

namespace {

template <int>
struct Named {
  int value = 0;
};
using Category = Named<0>;
using Cost = Named<1>;
using Gradients = Named<2>;
using Input = Named<3>;
using Leaf = Named<4>;
using Ledger = Named<5>;
using Limit = Named<6>;
using Needs = Named<7>;
using Origin = Named<8>;
using Output = Named<9>;
using Pin = Named<10>;
using Request = Named<11>;
using Stream = Named<12>;
using Ticket = Named<13>;
using Tier = Named<14>;
using Transaction = Named<15>;

struct Device {
  memory::Device on = cpu;
};
struct Policy {
  double rate = 0.25;
};
struct Record {
  std::vector<float> x, y;  // (D), (D)
};
struct Storage {
  std::vector<Record> records;
};
struct Resource {
  Storage storage;
};
struct Window {
  std::size_t begin = 0, end = 0;  // indices of records
};
struct Trace {
  std::vector<double> losses;
};

/// Record `i` of a fixed list: x[d] = i - d / 2, y[d] = i d / 4.
struct Generator {
  std::size_t width;
  Record operator()(std::size_t i) const {
    Record record;
    for (std::size_t d = 0; d < width; ++d) {
      record.x.push_back(static_cast<float>(i) - 0.5f * static_cast<float>(d));
      record.y.push_back(0.25f * static_cast<float>(i * d));
    }
    return record;
  }
};

struct Context {
  Device device;
  Policy policy;
  Resource resource;
  Trace trace;
};

/// (N, D) -> (N, D): x + W x + b.
class Block : public nn::Module {
 public:
  Block(std::int64_t width, const Device& device)
      : linear(child<nn::Linear>("linear", width, width, nn::TensorOptions{device.on})) {}
  Tensor operator()(const Tensor& x) { return add(x, linear(x)); }
  nn::Linear& linear;
};

/// One step of SGD over a window of the records; the loss is the mean of (y - block(x))^2.
void step(Block& block, Context& here, Window window, std::int64_t width) {
  std::vector<float> x, y;
  for (std::size_t i = window.begin; i < window.end; ++i) {
    const Record& record = here.resource.storage.records[i];
    x.insert(x.end(), record.x.begin(), record.x.end());
    y.insert(y.end(), record.y.begin(), record.y.end());
  }
  const Shape shape{static_cast<std::int64_t>(window.end - window.begin), width};
  const Tensor input = from_host(x, shape, here.device.on), target = from_host(y, shape, here.device.on);
  optim::Sgd sgd(block.trainable(), {.rate = here.policy.rate});
  const Tensor loss = nn::training_step(sgd, [&](std::int64_t) { return mse_loss(block(input), target); });
  if (!here.device.on.is_dry) here.trace.losses.push_back(item(loss));
}

}  // namespace

TEST_CASE("own names: a program's Block takes the step of hand-written loops beside types of all ten names") {
  constexpr std::size_t width = 3, count = 5;
  const Window window{1, 4};
  Context here;
  for (std::size_t i = 0; i < count; ++i) here.resource.storage.records.push_back(Generator{width}(i));
  Block block(width, here.device);
  const std::vector<float> w = to_host<float>(block.linear.weight), b = to_host<float>(block.linear.bias);
  step(block, here, window, width);

  double loss = 0;
  std::vector<double> w_after(w.begin(), w.end()), b_after(b.begin(), b.end());
  const double scale = 1.0 / static_cast<double>((window.end - window.begin) * width);
  for (std::size_t i = window.begin; i < window.end; ++i) {
    const Record& record = here.resource.storage.records[i];
    for (std::size_t o = 0; o < width; ++o) {
      double error = record.x[o] + static_cast<double>(b[o]) - record.y[o];
      for (std::size_t d = 0; d < width; ++d) error += static_cast<double>(w[o * width + d]) * record.x[d];
      loss += scale * error * error;
      b_after[o] -= here.policy.rate * 2 * scale * error;
      for (std::size_t d = 0; d < width; ++d)
        w_after[o * width + d] -= here.policy.rate * 2 * scale * error * record.x[d];
    }
  }
  CHECK(here.trace.losses.at(0) == Approx(loss).epsilon(1e-5));
  const std::vector<float> w_now = to_host<float>(block.linear.weight);
  const std::vector<float> b_now = to_host<float>(block.linear.bias);
  for (std::size_t i = 0; i < w.size(); ++i) CHECK(w_now[i] == Approx(w_after[i]).epsilon(1e-4).margin(1e-5));
  for (std::size_t i = 0; i < b.size(); ++i) CHECK(b_now[i] == Approx(b_after[i]).epsilon(1e-4).margin(1e-5));

  Context dry_run{{dry(cpu)}, here.policy, here.resource, {}};  // the same program on a dry device
  Block nothing(width, dry_run.device);
  step(nothing, dry_run, window, width);
  CHECK(dry_run.trace.losses.empty());
  CHECK(to_string(nothing.linear.weight.device()) == "dry(cpu)");
}

TEST_CASE("own names: sixteen more are free") {
  CHECK(Category{1}.value + Cost{2}.value + Gradients{3}.value + Input{4}.value + Leaf{5}.value + Ledger{6}.value +
            Limit{7}.value + Needs{8}.value + Origin{9}.value + Output{10}.value + Pin{11}.value + Request{12}.value +
            Stream{13}.value + Ticket{14}.value + Tier{15}.value + Transaction{16}.value ==
        136);
}
