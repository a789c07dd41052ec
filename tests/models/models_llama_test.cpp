// The Llama family: counts, names, its forward against loops in f64, the two builds, training, and its memory against
// theory and between dry and real runs, as integers.

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/models/generation/generate.h>
#include <thimble/models/gpt/gpt.h>
#include <thimble/models/llama/llama.h>

#include "support/catch.h"
#include "support/model_runs.h"

using namespace thimble;
using namespace thimble::models;
using namespace thimble::testing;

namespace {

ModelOptions tiny(Build build, double = 0) {
  ModelOptions options;
  options.layers = 2, options.width = 32, options.heads = 4, options.key_heads = 2, options.hidden = 48;
  options.sequence = 16, options.vocabulary = 17;
  options.build = build;
  return options;
}

using Values = std::vector<double>;

// A model's parameters by name, and its forward in loops: one sample at a time, a row of numbers for each token.
class Loops {
 public:
  explicit Loops(const Llama& model) : config_(model.config()) {
    for (const nn::NamedTensor& p : model.parameters()) values_[p.name] = to_host<double>(p.tensor);
  }

  /// (T, V) of one sample.
  Values logits(const std::vector<std::int64_t>& ids) const {
    const ModelOptions& n = config_.sizes;
    const std::size_t h = size(n.width), f = size(n.hidden), count = ids.size();
    std::vector<Values> x;
    for (const std::int64_t id : ids) {
      const Values& table = values_.at("model.embed_tokens.weight");
      x.emplace_back(table.begin() + id * n.width, table.begin() + (id + 1) * n.width);
    }
    for (std::int64_t layer = 0; layer < n.layers; ++layer) {
      const std::string name = "model.layers." + std::to_string(layer) + ".";
      std::vector<Values> q, k, v;
      for (std::size_t t = 0; t < count; ++t) {
        const Values normed = norm(x[t], name + "input_layernorm");
        q.push_back(turned(product(normed, name + "self_attn.q_proj"), t));
        k.push_back(turned(product(normed, name + "self_attn.k_proj"), t));
        v.push_back(product(normed, name + "self_attn.v_proj"));
      }
      for (std::size_t t = 0; t < count; ++t) add(x[t], product(attend(q[t], k, v, t), name + "self_attn.o_proj"));
      for (std::size_t t = 0; t < count; ++t) {
        const Values normed = norm(x[t], name + "post_attention_layernorm");
        Values gate = product(normed, name + "mlp.gate_proj");
        const Values up = product(normed, name + "mlp.up_proj");
        for (std::size_t i = 0; i < f; ++i) gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
        add(x[t], product(gate, name + "mlp.down_proj"));
      }
    }
    Values out;
    for (std::size_t t = 0; t < count; ++t) {
      const Values row = product(norm(x[t], "model.norm"), config_.is_tied ? "model.embed_tokens" : "lm_head");
      out.insert(out.end(), row.begin(), row.end());
    }
    CHECK(x[0].size() == h);
    return out;
  }

 private:
  static std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }
  static void add(Values& x, const Values& y) {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }

  Values product(const Values& x, const std::string& name) const {
    const Values& weight = values_.at(name + ".weight");
    Values y(weight.size() / x.size());
    if (const auto bias = values_.find(name + ".bias"); bias != values_.end()) y = bias->second;
    for (std::size_t o = 0; o < y.size(); ++o) {
      for (std::size_t i = 0; i < x.size(); ++i) y[o] += weight[o * x.size() + i] * x[i];
    }
    return y;
  }

  Values norm(const Values& x, const std::string& name) const {
    double squares = 0;
    for (const double value : x) squares += value * value;
    const double rms = std::sqrt(squares / static_cast<double>(x.size()) + config_.epsilon);
    Values y = values_.at(name + ".weight");
    for (std::size_t i = 0; i < x.size(); ++i) y[i] *= x[i] / rms;
    return y;
  }

  Values turned(const Values& x, std::size_t position) const {
    const std::size_t width = size(config_.sizes.width / config_.sizes.heads), half = width / 2;
    Values y(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::size_t pair = i % half, first = i / width * width;
      double frequency = std::pow(config_.theta, -2.0 * static_cast<double>(pair) / static_cast<double>(width));
      if (config_.scaling) {
        const double turns = static_cast<double>(config_.scaling->original_length) * frequency / (2 * M_PI);
        const double kept = (turns - config_.scaling->low) / (config_.scaling->high - config_.scaling->low);
        if (kept <= 0) frequency /= config_.scaling->factor;
        if (kept > 0 && kept < 1) frequency *= kept + (1 - kept) / config_.scaling->factor;
      }
      const double angle = static_cast<double>(position) * frequency;
      const double other = i % width < half ? -x[first + half + pair] : x[first + pair];
      y[i] = x[i] * std::cos(angle) + other * std::sin(angle);
    }
    return y;
  }

  Values attend(const Values& q, const std::vector<Values>& k, const std::vector<Values>& v, std::size_t t) const {
    const std::size_t heads = size(config_.sizes.heads), group = heads / size(config_.sizes.key_heads);
    const std::size_t width = q.size() / heads;
    Values out(q.size());
    for (std::size_t head = 0; head < heads; ++head) {
      const std::size_t own = head * width, shared = head / group * width;
      Values share;
      double total = 0;
      for (std::size_t s = 0; s <= t; ++s) {
        double score = 0;
        for (std::size_t d = 0; d < width; ++d) score += q[own + d] * k[s][shared + d];
        share.push_back(std::exp(score / std::sqrt(static_cast<double>(width))));
        total += share.back();
      }
      for (std::size_t s = 0; s <= t; ++s) {
        for (std::size_t d = 0; d < width; ++d) out[own + d] += share[s] / total * v[s][shared + d];
      }
    }
    return out;
  }

  LlamaConfig config_;
  std::map<std::string, Values> values_;
};

// Redraws every parameter, wider than initial values, so that norms and biases matter.
void draw_all(const nn::Module& model) {
  for (const nn::NamedTensor& p : model.parameters()) {
    const bool is_gain = p.name.ends_with("norm.weight");
    fill_normal(p.tensor, is_gain ? 1 : 0, is_gain ? 0.2 : 0.3);
  }
}

}  // namespace

TEST_CASE("models llama: parameter counts are the published ones", "[models][llama][quick]") {
  const struct {
    const char* name;
    std::int64_t parameters;
    std::size_t layers, of_layer, others;
  } rows[] = {{"llama-3.2-1b", 1235814400, 16, 9, 2}, {"llama-3.2-3b", 3212749824, 28, 9, 2},
              {"llama-3-8b", 8030261248, 32, 9, 3},   {"llama-2-7b", 6738415616, 32, 9, 3},
              {"llama-3-70b", 70553706496, 80, 9, 3}, {"qwen2.5-0.5b", 494032768, 24, 12, 2},
              {"qwen2.5-7b", 7615616512, 28, 12, 3},  {"tiny-llama", 9467136, 6, 9, 2}};
  for (const auto& row : rows) {
    INFO(row.name);
    const auto model = make_llama(row.name, {}, {dry(cpu), DType::f32});
    REQUIRE(model);
    CHECK(model->parameter_count() == row.parameters);
    CHECK(model->parameters().size() == row.layers * row.of_layer + row.others);
    CHECK(model->buffers().empty());
    CHECK((model->is_text() && !model->is_masked()));
    CHECK(make_theory(row.name).state(2).parameter_elements == row.parameters);
    CHECK(make_theory(row.name).state(2).total() == row.parameters * (4 + 4 + 8));
  }
  CHECK(make_llama("llama", {}, {}) == nullptr);
}

TEST_CASE("models llama: the stretch of 3.2's positions is the published one", "[models][llama][quick]") {
  for (const char* name : {"llama-3.2-1b", "llama-3.2-3b"}) {
    const RotaryScaling scaling = *llama_config(name, {}).scaling;
    CHECK((scaling.factor == 32 && scaling.low == 1 && scaling.high == 4 && scaling.original_length == 8192));
  }
}

TEST_CASE("models llama: names and shapes are those of the public files", "[models][llama][quick]") {
  check_file_shapes(*make_llama("llama-3-8b", {}, {dry(cpu)}),
                    {{"model.embed_tokens.weight", "(128256, 4096)"},
                     {"model.layers.0.input_layernorm.weight", "(4096)"},
                     {"model.layers.0.self_attn.q_proj.weight", "(4096, 4096)"},
                     {"model.layers.31.self_attn.k_proj.weight", "(1024, 4096)"},
                     {"model.layers.31.self_attn.v_proj.weight", "(1024, 4096)"},
                     {"model.layers.0.self_attn.o_proj.weight", "(4096, 4096)"},
                     {"model.layers.0.post_attention_layernorm.weight", "(4096)"},
                     {"model.layers.0.mlp.gate_proj.weight", "(14336, 4096)"},
                     {"model.layers.0.mlp.up_proj.weight", "(14336, 4096)"},
                     {"model.layers.0.mlp.down_proj.weight", "(4096, 14336)"},
                     {"model.norm.weight", "(4096)"},
                     {"lm_head.weight", "(128256, 4096)"}});
  check_file_shapes(*make_llama("qwen2.5-0.5b", {}, {dry(cpu)}), {{"model.layers.0.self_attn.q_proj.bias", "(896)"},
                                                                  {"model.layers.23.self_attn.k_proj.bias", "(128)"},
                                                                  {"model.layers.0.self_attn.v_proj.bias", "(128)"},
                                                                  {"model.layers.0.self_attn.o_proj.bias", ""},
                                                                  {"lm_head.weight", ""}});
}

TEST_CASE("models llama: logits are those of loops over the definition", "[models][llama][quick]") {
  const Threads alone;
  for (const char* name : {"llama-3.2-1b", "llama-2-7b", "qwen2.5-0.5b", "qwen2.5-7b"}) {
    for (const std::int64_t key_heads : {1, 2, 4}) {
      for (const Build build : {Build::fused, Build::textbook}) {
        CAPTURE(name, key_heads, static_cast<int>(build));
        ModelOptions options = tiny(build);
        options.key_heads = key_heads;
        LlamaConfig config = llama_config(name, options);
        config.theta = 30;  // short sequences, all kinds of frequencies
        if (config.scaling) config.scaling = RotaryScaling{8, 1, 4, 20};
        RandomGenerator generator(3);
        const GeneratorScope scope(generator);
        Llama model(config, {cpu, DType::f64});
        draw_all(model);
        const std::vector<std::int64_t> ids{3, 16, 0, 5, 5, 9, 1, 2, 11, 7, 4, 4, 15, 8, 0, 6};
        const Values logits = to_host<double>(model.forward(from_host(ids, {1, 16})));
        CHECK(distance(logits, Loops(model).logits(ids)) < 1e-12);
      }
    }
  }
}

TEST_CASE("models llama: fused and textbook builds agree up to rounding", "[models][llama][quick]") {
  check_builds_agree<Llama>("tiny-llama", tiny);
  // Softmax ignores equal shifts of all keys, but rotated keys shift unequally: a key's bias has a gradient.
  check_builds_agree<Llama>("qwen2.5-7b", tiny);
}

TEST_CASE("models llama: a token sees itself and those before it", "[models][llama][quick]") {
  const Threads alone;
  const auto model = make_seeded("tiny-llama", tiny(Build::fused));
  std::vector<std::int64_t> ids(16, 3);
  const auto logits = [&] { return to_host<double>(model->forward(from_host(ids, {1, 16}))); };  // (1, 16, 17)
  const auto before = logits();
  ids[9] = 8;
  const auto after = logits();
  for (std::int64_t t = 0; t < 16; ++t) {
    const bool is_same = std::equal(before.begin() + t * 17, before.begin() + (t + 1) * 17, after.begin() + t * 17);
    CHECK(is_same == (t < 9));
  }
  CHECK_THROWS_AS(model->forward(zeros({1, 17}, DType::i64)), ShapeError);
  CHECK_THROWS_AS(model->forward(zeros({17}, DType::i64)), ShapeError);
  const auto tokens = generate(*model, {1, 2}, 20, 0.8, 0, 7);  // beyond the sequence of 16
  CHECK(tokens.size() == 22);
  CHECK(generate(*model, {1, 2}, 20, 0.8, 0, 7) == tokens);
}

TEST_CASE("models llama: the loss starts at log V and falls", "[models][llama][quick]") {
  const Threads alone;
  for (const Head head : {Head::full, Head::chunked}) {
    ModelOptions sizes = tiny(Build::fused);
    sizes.head = head;
    const auto model = make_seeded("llama-3-8b", sizes);
    optim::Adam optimizer(model->trainable(), {.rate = 3e-3, .weight_decay = 0.1, .smallest_decayed_rank = 2});
    const auto losses = train_on(*model, optimizer, make_batch(*model, 4), 30);
    CAPTURE(losses);
    CHECK(losses.front() == Approx(std::log(17.0)).margin(0.15));
    CHECK(losses.back() < 0.5 * losses.front());
  }
}

TEST_CASE("models llama: theory is the ledger, to the byte", "[models][llama][theory][quick]") {
  struct Row {
    const char* name;
    std::int64_t b, s, h, a, g, f, layers, vocabulary;
  };
  for (const Row& row : {Row{"tiny-llama", 2, 16, 32, 4, 2, 48, 2, 17}, Row{"llama-3-8b", 1, 9, 12, 3, 3, 20, 3, 5},
                         Row{"qwen2.5-7b", 3, 64, 896, 14, 2, 4864, 2, 1000}}) {
    for (const Build build : {Build::fused, Build::textbook}) {
      for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
        for (const bool is_recomputed : {false, true}) {
          CAPTURE(row.name, static_cast<int>(build), to_string(dtype), is_recomputed);
          ModelOptions options;
          options.sequence = row.s, options.width = row.h, options.heads = row.a, options.key_heads = row.g;
          options.hidden = row.f, options.layers = row.layers, options.vocabulary = row.vocabulary;
          options.build = build;
          const Theory theory = make_theory(row.name, options, dtype);
          CHECK(theory.layers.size() == static_cast<std::size_t>(row.layers));
          check_theory<Llama>(theory, row.name, options, row.b, is_recomputed);
        }
      }
    }
  }
  // The closed form for a layer: e s b (6 h + 2 g D + 3 f) + 4 a s b + 8 s b.
  const std::int64_t s = 2048, b = 2, h = 4096, a = 32, keys = 1024, f = 14336;
  CHECK(bytes_of(make_theory("llama-3-8b", {}, DType::bf16).layers[0].kept, memory::Category::activation, b) ==
        2 * s * b * (6 * h + 2 * keys + 3 * f) + 4 * a * s * b + 8 * s * b);
}

TEST_CASE("models llama: dry and real steps are the same events and the same peak", "[models][llama][quick]") {
  for (const Build build : {Build::fused, Build::textbook}) check_dry_run("tiny-llama", tiny(build), 3);
  check_dry_run("qwen2.5-7b", tiny(Build::fused), 2);
}

TEST_CASE("models llama: llama-3-8b is planned at full size within a second", "[models][llama][quick]") {
  check_planned_within_a_second("llama-3-8b", 1, 2, make_theory("llama-3-8b"));
}

TEST_CASE("models llama: weights are saved and loaded byte for byte", "[models][llama][quick]") {
  const Threads alone;
  check_weights_round_trip("qwen2.5-7b", tiny(Build::fused));
}

TEST_CASE("models llama: sizes follow in proportion, and what does not fit is refused", "[models][llama][quick]") {
  CHECK(llama_config("llama-3.2-1b", options_with(&ModelOptions::heads, 16)).sizes.key_heads == 4);
  CHECK(llama_config("llama-3.2-1b", options_with(&ModelOptions::width, 1024)).sizes.hidden == 4096);
  CHECK(llama_config("tiny-llama", options_with(&ModelOptions::width, 96)).sizes.hidden == 256);
  CHECK(llama_config("tiny-llama", options_with(&ModelOptions::width, 60)).sizes.hidden == 160);
  CHECK_THROWS_AS(llama_config("llama"), ValueError);
  CHECK_THROWS_AS(llama_config("tiny-llama", options_with(&ModelOptions::heads, 5)), ValueError);
  CHECK_THROWS_AS(llama_config("tiny-llama", options_with(&ModelOptions::heads, 384)), ValueError);  // 1 number
  CHECK_THROWS_AS(llama_config("tiny-llama", options_with(&ModelOptions::key_heads, 4)), ValueError);
  CHECK_THROWS_AS(llama_config("tiny-llama", options_with(&ModelOptions::dropout, 0.1)), ValueError);
  LlamaConfig config = llama_config("tiny-llama", tiny(Build::fused));
  config.sizes.dropout = -1;
  CHECK_THROWS_WITH(Llama(config, {dry(cpu)}), "llama: dropout -1.000000 is not in [0, 1)");
  CHECK_THROWS_AS(llama_config("tiny-llama", options_with(&ModelOptions::image, 32)), ValueError);
  CHECK_THROWS_AS(llama_config("llama-2-7b", options_with(&ModelOptions::width, 32768)), ValueError);  // heads of 1024
  for (const char* other : {"char-gpt", "bert-base", "resnet18", "mlp"}) {
    CHECK_THROWS_AS(make_model(other, options_with(&ModelOptions::key_heads, 2), {dry(cpu)}), ValueError);
    CHECK_THROWS_AS(make_model(other, options_with(&ModelOptions::hidden, 64), {dry(cpu)}), ValueError);
  }
  CHECK_THROWS_AS(make_llama("tiny-llama", {}, {dry(cpu)})->empty_batch(0, dry(cpu)), ValueError);
}
