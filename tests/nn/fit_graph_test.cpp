// fit on nets that are not chains: a tensor is read far from its producer.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <thimble/autograd/checkpoint.h>
#include <thimble/autograd/functions.h>

#include <thimble/core/ops/random.h>
#include <thimble/nn/layers/layers.h>
#include <thimble/nn/trainer/trainer.h>
#include <thimble/optim/sgd.h>

#include "support/catch.h"
#include "support/sanitizer.h"

using namespace thimble;

namespace {

struct Batch {
  Tensor x, condition;
};

enum class Form { blocks, conditioned, segments, recurrent, recurrent_segments, u_net, gru, gru_segments, deep_u_net };

class Net final : public nn::Module {
 public:
  Net(Form form, memory::Device device) : form_(form), on_{device} {
    if (form == Form::u_net) {
      for (const auto& [in, out] : {std::pair{4, 8}, {8, 8}, {8, 16}, {16, 16}, {24, 8}, {8, 1}}) {
        convs_.push_back(&child<nn::Conv2d>("c" + std::to_string(convs_.size()), in, out, 3,
                                            Conv2dOptions{.padding = 1}, false, on_));
      }
      return;
    }
    if (form == Form::gru || form == Form::gru_segments) {
      for (int i = 0; i < 2; ++i) layers_.push_back(&child<nn::Linear>("l" + std::to_string(i), 64, 192, on_));
      return;
    }
    if (form == Form::deep_u_net) {
      const int channels[] = {16, 32, 64, 128};
      const auto two = [&](int in, int out) {
        for (const auto& [from, to] : {std::pair{in, out}, {out, out}}) {
          const std::string index = std::to_string(convs_.size());
          convs_.push_back(&child<nn::Conv2d>("c" + index, from, to, 3, Conv2dOptions{.padding = 1}, false, on_));
          norms_.push_back(&child<nn::BatchNorm2d>("n" + index, to, on_));
        }
      };
      for (int i = 0; i < 4; ++i) two(i == 0 ? 3 : channels[i - 1], channels[i]);
      for (int i = 3; i-- > 0;) two(channels[i] + channels[i + 1], channels[i]);
      return;
    }
    condition_ = &child<nn::Linear>("condition", 8, 128, on_);
    const bool is_recurrent = form == Form::recurrent || form == Form::recurrent_segments;
    const int layers = is_recurrent ? 2 : 24, inner = is_recurrent ? 128 : 256;
    for (int i = 0; i < layers; ++i) {
      layers_.push_back(
          &child<nn::Linear>("l" + std::to_string(i), i % 2 == 0 ? 128 : inner, i % 2 == 0 ? inner : 128, on_));
    }
  }

  Tensor loss(const Batch& batch) {
    if (form_ == Form::u_net) return u_net(batch.x);
    if (form_ == Form::deep_u_net) return deep_u_net(batch.x);
    if (form_ == Form::gru || form_ == Form::gru_segments) return gru(batch.x);
    if (form_ == Form::recurrent || form_ == Form::recurrent_segments) return recurrent(batch.x);
    const Tensor e = (*condition_)(batch.condition);
    Tensor h = batch.x;
    for (std::size_t i = 0; i < layers_.size(); i += 2) {
      const auto block = [&](const Tensor& x, const Tensor& c) {
        return x + (*layers_[i + 1])(silu((*layers_[i])(form_ == Form::conditioned ? x + c : x)));
      };
      h = form_ == Form::segments ? checkpoint(block, h, e) : block(h, e);
    }
    return mse_loss(h, batch.x);
  }

 private:
  // 32 steps of a gated cell; the loss reads all results.
  Tensor recurrent(const Tensor& x) {
    Tensor h = slice(x, 0, 0, 512);
    std::vector<Tensor> results;
    for (int s = 0; s < 32; s += 4) {
      const auto some = [&](const Tensor& begin) {
        Tensor q = begin;
        std::vector<Tensor> out;
        for (int k = 0; k < 4; ++k) {
          const Tensor z = sigmoid((*layers_[0])(q));
          out.push_back(q = (1 - z) * tanh((*layers_[1])(q)) + z * q);
        }
        return out;
      };
      const std::vector<Tensor> out = form_ == Form::recurrent_segments ? checkpoint(some, h) : some(h);
      results.insert(results.end(), out.begin(), out.end());
      h = results.back();
    }
    return mean(square(stack(results, 1)));
  }

  // 128 steps over (64, 64); the loss reads the last state.
  Tensor gru(const Tensor& x) {
    const auto cell = [&](const Tensor& input, const Tensor& h) {
      const std::vector<Tensor> a = chunk((*layers_[0])(input), 3, 1), b = chunk((*layers_[1])(h), 3, 1);
      const Tensor update = sigmoid(a[1] + b[1]);
      return (1 - update) * tanh(a[2] + sigmoid(a[0] + b[0]) * b[2]) + update * h;
    };
    Tensor h = zeros({64, 64}, DType::f32, on_.device);
    for (int s = 0; s < 128; s += 8) {
      const auto some = [&](const Tensor& begin) {
        Tensor q = begin;
        for (int k = s; k < s + 8; ++k) q = cell(select(x, 0, k), q);
        return q;
      };
      h = form_ == Form::gru_segments ? checkpoint(some, h) : some(h);
    }
    return mean(square(h));
  }

  static Tensor doubled(const Tensor& x) {
    const Shape s = x.shape();
    return reshape(expand(reshape(x, {s[0], s[1], 1, s[2], 1, s[3]}), {s[0], s[1], 2, s[2], 2, s[3]}),
                   {s[0], 2 * s[1], 2 * s[2], s[3]});
  }

  // Ronneberger et al. 2015, with batch norm: three levels, whose tensors are freed after their last use.
  Tensor deep_u_net(Tensor x) {
    std::size_t next = 0;
    const auto two = [&](Tensor t) {
      for (int i = 0; i < 2; ++i, ++next) {
        t = (*convs_[next])(t);
        t = (*norms_[next])(t);
        t = relu(t);
      }
      return t;
    };
    std::vector<Tensor> skips;
    for (int level = 0; level < 3; ++level) {
      skips.push_back(two(std::move(x)));
      x = max_pool2d(skips.back(), {.kernel = {2, 2}, .stride = {2, 2}});
    }
    x = two(std::move(x));
    for (; !skips.empty(); skips.pop_back()) {
      x = doubled(x);
      x = concat({skips.back(), x}, -1);
      x = two(std::move(x));
    }
    return mean(square(x));
  }

  Tensor u_net(const Tensor& x) {
    const auto conv = [&](std::size_t i, const Tensor& t) { return relu((*convs_[i])(t)); };
    const Tensor skip = conv(1, conv(0, x));
    const Tensor low = conv(3, conv(2, max_pool2d(skip, {.kernel = {2, 2}, .stride = {2, 2}})));
    return mean(square((*convs_[5])(conv(4, concat({skip, doubled(low)}, -1)))));
  }

  Form form_;
  nn::TensorOptions on_;
  std::vector<nn::Conv2d*> convs_;
  std::vector<nn::BatchNorm2d*> norms_;
  std::vector<nn::Linear*> layers_;
  nn::Linear* condition_ = nullptr;
};

nn::TrainedProgram<Net, Batch> program(Form form) {
  return {.model = [form](memory::Device device) { return std::make_unique<Net>(form, device); },
          .optimizer = [](Net& net) { return std::make_unique<optim::Sgd>(net.trainable(), optim::SgdOptions{}); },
          .loss = [](Net& net, const Batch& batch) { return net.loss(batch); },
          .batch =
              [form](std::int64_t, memory::Device device) {
                Shape x{4096, 128};
                if (form == Form::u_net) x = {4, 128, 128, 4};
                if (form == Form::deep_u_net) x = {16, 128, 128, 3};
                if (form == Form::gru || form == Form::gru_segments) x = {128, 64, 64};
                return Batch{randn(x, DType::f32, device), randn({1, 8}, DType::f32, device)};
              }};
}

struct Run {
  double loss = 0, overhead = 0;
  std::size_t planned_bytes = 0, bytes = 0;
};

/// Two steps within a budget; a budget of 0 is unlimited.
Run run(Form form, std::size_t budget_bytes) {
  nn::Trainer<Net, Batch> trainer(program(form), {.budget_bytes = budget_bytes, .seed = 3, .steps = 2});
  Run run;
  run.overhead = trainer.plan().shapes[0].parts[0].time_overhead;
  run.planned_bytes = trainer.plan().peak_bytes;
  trainer.run([&](const nn::Progress& progress) { run.loss = progress.loss; });
  run.bytes = trainer.peak_bytes();
  return run;
}

std::size_t smallest(Form form) {
  try {
    nn::Trainer<Net, Batch>(program(form), {.budget_bytes = 1});
  } catch (const nn::BudgetError& error) {
    return error.minimum_bytes();
  }
  return 0;
}

}  // namespace

TEST_CASE("fit graph: plans of nets that are no chains keep bits and say their bytes", "[fit]") {
  struct Row {
    Form form;
    double smallest, overhead;  // limits: share of the free run's bytes; time overhead at 60 % of them
  };
  for (const Row& row : std::vector<Row>{{Form::blocks, 0.30, 0.09},
                                         {Form::conditioned, 0.30, 0.09},
                                         {Form::recurrent, 0.58, 0.25},
                                         {Form::u_net, 0.91, 0.30}}) {
    const Run free = run(row.form, 0);
    const std::size_t least = smallest(row.form);
    INFO("form " << static_cast<int>(row.form) << ": " << least << " of " << free.bytes);
    CHECK(static_cast<double>(least) <= row.smallest * static_cast<double>(free.bytes));
    double before = 0;
    for (const std::size_t budget : {std::max(least, free.bytes * 6 / 10), least}) {
      const Run planned = run(row.form, budget);
      INFO("budget " << budget << ": " << planned.overhead);
      CHECK(planned.planned_bytes <= budget);
      CHECK(planned.bytes == planned.planned_bytes);
      CHECK(planned.loss == free.loss);
      CHECK(planned.overhead >= before);
      if (before == 0) CHECK(planned.overhead <= row.overhead);
      before = planned.overhead;
    }
  }
}

TEST_CASE("fit graph: a tensor that all blocks read costs their plans no point", "[fit]") {
  const std::size_t plain = run(Form::blocks, 0).bytes, conditioned = run(Form::conditioned, 0).bytes;
  for (const std::size_t tenths : {8, 6, 4}) {
    const double without = run(Form::blocks, plain * tenths / 10).overhead;
    const double with = run(Form::conditioned, conditioned * tenths / 10).overhead;
    INFO(tenths << " tenths: " << with << ", without " << without);
    CHECK(with <= without + 0.01);
  }
}

TEST_CASE("fit graph: where there is room a program's own segments run without them, with the same bits", "[fit]") {
  const Run plain = run(Form::blocks, std::size_t{1} << 40), segments = run(Form::segments, std::size_t{1} << 40);
  CHECK(segments.bytes == plain.bytes);
  CHECK(segments.overhead == 0);
  CHECK(segments.loss == plain.loss);
  const Run by_hand = run(Form::segments, 0);
  CHECK(by_hand.bytes < segments.bytes);
  CHECK(by_hand.loss == segments.loss);
  const Run within = run(Form::segments, by_hand.bytes);
  CHECK(within.overhead > 0);
  CHECK(within.bytes <= by_hand.bytes);
  CHECK(within.loss == by_hand.loss);
}

TEST_CASE("fit graph: small and fast plans of a recurrent net and of long skips, with the bits of the free run",
          "[fit]") {
  struct Row {
    Form form;
    double smallest, half;  // limits: share of the free run's bytes; time overhead at half of them
  };
  for (const Row& row : std::vector<Row>{{Form::gru, 0.25, 0.25}, {Form::deep_u_net, 0.42, 0.10}}) {
    const Run free = run(row.form, 0);
    const std::size_t least = smallest(row.form);
    INFO("form " << static_cast<int>(row.form) << ": " << least << " of " << free.bytes);
    CHECK(static_cast<double>(least) <= row.smallest * static_cast<double>(free.bytes));
    const Run half = run(row.form, free.bytes / 2);
    CHECK(half.overhead <= row.half);
    CHECK(half.bytes == half.planned_bytes);
    CHECK(half.loss == free.loss);
  }
}

TEST_CASE("fit graph: more bytes never cost time", "[fit]") {
  for (const Form form : {Form::gru, Form::deep_u_net}) {
    const nn::TrainedProgram<Net, Batch> own = program(form);
    const std::size_t least = smallest(form), free = run(form, 0).planned_bytes;
    double before = 1e9;
    for (std::size_t i = 0; i <= 4; i += testing::has_sanitizer ? 4 : 1) {
      const std::size_t budget = least + (free - least) * i / 4;
      const nn::Trainer<Net, Batch> trainer(own, {.budget_bytes = budget, .seed = 3, .steps = 2});
      const double overhead = trainer.plan().shapes[0].parts[0].time_overhead;
      INFO("form " << static_cast<int>(form) << ", budget " << budget << ": " << overhead << ", before " << before);
      CHECK(trainer.plan().peak_bytes <= budget);
      CHECK(overhead <= before);
      before = overhead;
    }
    CHECK(before == 0);
  }
}

TEST_CASE("fit graph: a plan needs no more than segments by hand", "[fit]") {
  CHECK(smallest(Form::gru) <= run(Form::gru_segments, 0).bytes);
  CHECK(smallest(Form::recurrent) <= run(Form::recurrent_segments, 0).bytes);
  CHECK(smallest(Form::blocks) <= run(Form::segments, 0).bytes);
}
